"""The loop: accumulation, schedules, clipping, precision, early stop, curves."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from continua.axes import Grid, at
from continua.config import from_plain, register, to_plain
from continua.errors import ConfigError
from continua.flow import Adaptive, Checkpoint, Dopri5
from continua.models import Batch
from continua.optim import AdamW, ByRole, Constant, Cosine, InverseSqrt, clip
from continua.tasks import Example
from continua.training import Bar, HeadEntropy, KineticEnergy, Progress, Run, SquaredWeights, Training, fit
from tests.measure import EXACT, gap
from tests.refusals import refused
from tests.runs import FAST, silent, timeless, tiny_model, tiny_task


@dataclass(frozen=True)
class Some:
    """Text of which only some answers count, and not the same number in every sample."""

    task: Any

    def example(self, seed: int, step: int) -> Example:
        made = self.task.example(seed, step)
        shown = torch.arange(made.target.shape[1]) <= torch.arange(made.samples)[:, None] + step
        return replace(made, counted=shown)

    def loss(self, answer: torch.Tensor, example: Example) -> torch.Tensor:
        each = torch.nn.functional.cross_entropy(answer.flatten(0, 1), example.target.flatten(), reduction="none")
        return each[example.counted.flatten()].sum()

    def evaluate(self, model: Any) -> Any:
        return self.task.evaluate(model)


@register
@dataclass(frozen=True)
class Plain:
    """Steepest descent: the step is the gradient. (Adam makes a step of a gradient that is only round-off.)"""

    lr: float

    def make(self, parameters: Any, *known: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(parameters), lr=self.lr)


# --- one objective, however it is cut ---------------------------------------------------------------------------------

PENALTIES = 1e-2 * KineticEnergy() + 1e-3 * SquaredWeights()


@pytest.mark.spec("T9")
@pytest.mark.parametrize("task", [tiny_task(), Some(tiny_task())], ids=["all", "some answers"])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_micro_batches_add_up_to_the_batch(task, parts) -> None:
    given = {"steps": 4, "optimiser": ByRole(Plain(0.5)), "penalties": PENALTIES, "watch": silent}
    one = fit(tiny_model(double=True), task, **given)
    cut = fit(tiny_model(double=True), task, accumulate=parts, **given)
    for a, b in zip(one.history, cut.history, strict=True):
        for name in ("loss", "running", "SquaredWeights", "norm", "factor"):
            assert abs(a[name] - b[name]) < EXACT, name
    for p, q in zip(one.model.parameters(), cut.model.parameters(), strict=True):
        assert gap(q, p) < EXACT


def test_the_loss_is_averaged_over_all_answers_that_count() -> None:
    task, model = Some(tiny_task()), tiny_model(double=True)
    example = task.example(0, 0)
    assert example.count == 1 + 2 + 3 + 4
    wanted = task.loss(model(example.batch), example) / example.count
    line = fit(model, task, steps=1, accumulate=2, watch=silent).history[0]
    assert abs(line["loss"] - float(wanted.detach())) < EXACT


def test_rows_cut_what_belongs_to_samples_and_nothing_else() -> None:
    """As many tokens as samples: sizes alone do not tell stamps from samples."""
    n = 3
    square, line = torch.arange(9.0).view(n, n), torch.arange(float(n))
    grid = Grid(line[:, None], square + 1)
    batch = Batch(square, times=line, observed=line > 0, pairs=square > 0, types=square.long())
    part = Example(replace(batch, source=Batch(square)), square, square > 1).rows(slice(1, None, 2))
    assert [len(t) for t in (part.target, part.counted, part.batch.values, part.batch.types)] == [1, 1, 1, 1]
    assert len(part.batch.source.values) == 1
    assert [len(t) for t in (part.batch.times, part.batch.observed, part.batch.pairs)] == [n, n, n]
    own = replace(batch, times=square, observed=square > 0, pairs=(square > 0).expand(n, n, n), grid=grid)
    part = Example(own, square).rows(slice(0, 2))
    assert [len(t) for t in (part.batch.times, part.batch.observed, part.batch.pairs)] == [2, 2, 2]
    assert (part.batch.grid.weights.shape, part.batch.grid.nodes.shape) == ((2, n), (n, 1))
    stamps = Batch(torch.zeros(n, 5), times=torch.zeros(5, 2))
    assert Example(stamps, square).rows(slice(0, 1)).batch.times.shape == (5, 2)


# --- schedules --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("T8", "A9")
@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Constant(), {1: 1.0, 50: 1.0, 100: 1.0}),
        (Cosine(0.1, 0.2), {1: 0.1, 5: 0.5, 10: 1.0, 55: 0.6, 100: 0.2, 120: 0.2}),
        (Cosine(0.0, 0.0), {0: 1.0, 50: 0.5, 100: 0.0}),
        (InverseSqrt(0.04), {1: 0.25, 4: 1.0, 16: 0.5, 100: 0.2}),
        (InverseSqrt(0.0), {1: 1.0, 100: 0.1}),
    ],
    ids=str,
)
def test_schedules_have_these_values_after_so_many_of_a_hundred_examples(schedule, values) -> None:
    for seen, wanted in values.items():
        assert schedule.factor(seen, 100) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.spec("T8")
@pytest.mark.parametrize("schedule", [Cosine(0.3), InverseSqrt(0.3)], ids=str)
def test_a_batch_twice_as_large_walks_the_same_curve_in_half_the_steps(schedule) -> None:
    small = fit(tiny_model(), tiny_task(batch=2), steps=8, schedule=schedule, watch=silent)
    large = fit(tiny_model(), tiny_task(batch=4), steps=4, schedule=schedule, watch=silent)
    assert [line["factor"] for line in small.history][1::2] == [line["factor"] for line in large.history]
    assert max(line["factor"] for line in small.history) < 1.0 + 1e-12


@pytest.mark.spec("A9")
@pytest.mark.parametrize("kind", [Cosine, InverseSqrt])
def test_a_warm_up_is_a_share(kind) -> None:
    with refused(ConfigError, "got 1.5", "0.05 is usual"):
        kind(warmup=1.5)


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("T9")
def test_training_lowers_the_held_out_loss() -> None:
    fitted = fit(tiny_model(), tiny_task(), steps=24, optimiser=FAST, evaluate_every=12, watch=silent)
    first, last = (line["validation_loss"] for line in fitted.history if "validation_loss" in line)
    assert last < first < math.log(15)
    assert fitted.ended == "done"
    assert [line["step"] for line in fitted.history] == list(range(1, 25))


def test_the_gradient_is_clipped_to_its_bound() -> None:
    def moved(limit: float | None) -> tuple[float, float]:
        model = tiny_model(double=True)
        before = [p.detach().clone() for p in model.parameters()]
        line = fit(model, tiny_task(), steps=1, clip=limit, optimiser=ByRole(Plain(1.0)), schedule=Constant(),
                   watch=silent).history[0]  # fmt: skip
        after = [(p.detach() - q).square().sum() for p, q in zip(model.parameters(), before, strict=True)]
        return line["norm"], math.sqrt(sum(map(float, after)))

    norm, step = moved(None)
    assert step == pytest.approx(norm, rel=1e-9)
    assert moved(norm / 4) == pytest.approx((norm, norm / 4), rel=1e-5)  # torch adds 1e-6 to the norm
    assert moved(2 * norm) == pytest.approx((norm, norm), rel=1e-9)


def test_clip_returns_the_norm_it_met() -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([3.0, 4.0])
    assert clip([p], None) == 5.0
    assert p.grad.tolist() == [3.0, 4.0]


@pytest.mark.spec("T9", "A10")
def test_half_precision_stays_finite_with_full_weights() -> None:
    fitted = fit(tiny_model(), tiny_task(), steps=6, precision="bfloat16", penalties=PENALTIES, optimiser=FAST,
                 evaluate_every=3, watch=silent)  # fmt: skip
    full = fit(tiny_model(), tiny_task(), steps=6, penalties=PENALTIES, optimiser=FAST, watch=silent)
    assert all(math.isfinite(value) for line in fitted.history for value in line.values())
    assert {p.dtype for p in fitted.model.parameters()} == {torch.float32}
    losses = [(a["loss"], b["loss"]) for a, b in zip(fitted.history, full.history, strict=True)]
    assert all(abs(a - b) < 0.05 for a, b in losses)
    assert any(a != b for a, b in losses), "it is another precision"


def test_double_precision_makes_the_weights_double() -> None:
    fitted = fit(tiny_model(), tiny_task(), steps=1, precision="float64", watch=silent)
    assert {p.dtype for p in fitted.model.parameters()} == {torch.float64}


@pytest.mark.parametrize("adjoint", [Checkpoint(1), None], ids=str)
def test_the_adjoint_is_a_setting(adjoint) -> None:
    model = tiny_model(double=True)
    fitted = fit(model, tiny_task(), steps=2, adjoint=adjoint, watch=silent)
    plain = fit(tiny_model(double=True), tiny_task(), steps=2, watch=silent)
    assert adjoint is None or model.adjoint == adjoint
    assert fitted.history[1]["loss"] == pytest.approx(plain.history[1]["loss"], abs=EXACT)


def test_a_solve_that_fails_is_a_bad_step() -> None:
    model = tiny_model()
    model.native = model.settle(at(z=Adaptive(rtol=1e-3, solver=Dopri5(), max_steps=1)))
    fitted = fit(model, tiny_task(limit=1), steps=2, evaluate_every=9, watch=silent)
    assert [line["note"] for line in fitted.history] == [f"step {i} gave loss nan: passed over" for i in (1, 2)]


@pytest.mark.spec("T9")
def test_patience_ends_a_run_and_a_finished_run_stays_finished(tmp_path) -> None:
    given = {"steps": 50, "evaluate_every": 2, "patience": 2, "optimiser": ByRole(AdamW(0.0)), "watch": silent}
    fitted = fit(tiny_model(), tiny_task(), run=tmp_path, **given)
    assert fitted.ended == "stopped early"
    assert len(fitted.history) == 6, "the first evaluation is the best, and two more are waited for"
    again = fit(tiny_model(), tiny_task(), run=Run.open(tmp_path), **given)
    assert again.ended == "stopped early"
    assert again.history == fitted.history


def test_the_best_and_the_last_model_can_be_had(tmp_path) -> None:
    fitted = fit(tiny_model(), tiny_task(), run=tmp_path, steps=3, optimiser=FAST, watch=silent)
    last = Run.open(tmp_path).model("last")
    for a, b in zip(last.parameters(), fitted.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_settings_are_checked_and_kept() -> None:
    made = Training(steps=3, adjoint=Checkpoint(2), patience=4)
    assert from_plain(to_plain(made)) == made
    with refused(ConfigError, "got 0", "Use steps ≥ 1"):
        Training(steps=0)
    with refused(ConfigError, "got bloat16", "Did you mean 'bfloat16'?"):
        Training(precision="bloat16")
    with pytest.raises(TypeError, match="evaluate_evry"):
        fit(tiny_model(), tiny_task(), evaluate_evry=3)
    with refused(ConfigError, "got 'evaluate_evry'", "Did you mean 'evaluate_every'?"):
        from_plain({"kind": "Training", "evaluate_evry": 3})
    assert from_plain({"kind": "Training", "steps": 3}).compile is False  # as earlier versions wrote it


def test_a_fit_without_a_folder_writes_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    fit(tiny_model(), tiny_task(), steps=1, penalties=[HeadEntropy()], watch=silent)
    assert list(tmp_path.iterdir()) == []


# --- what people look at ----------------------------------------------------------------------------------------------


def test_lines_tell_loss_speed_and_time_left(capsys) -> None:
    bar = Bar(every=0.0)
    bar(Progress(1, 4, 2.0, {}))
    bar(Progress(2, 4, 1.5, {"held-out loss": 1.75}))
    bar(Progress(3, 4, math.nan, {}, "step 3 gave loss nan: passed over"))
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("step 1/4  loss 2.0000")
    assert "held-out loss 1.7500" in said[1]
    assert "s left" in said[1]
    assert said[2].endswith("passed over")


def test_on_a_terminal_there_is_a_bar(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    bar = Bar()
    for step in (1, 2):
        bar(Progress(step, 2, 1.0, {}, "a note" if step == 2 else ""))
    bar.close()
    said = capsys.readouterr().err
    assert "2/2" in said
    assert "a note" in said


@pytest.mark.spec("T9")
def test_curves_for_tensorboard_hold_every_number_once(tmp_path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    given = {"save_every": 2, "evaluate_every": 2, "tensorboard": True, "watch": silent, "schedule": Constant()}
    fit(tiny_model(), tiny_task(), run=tmp_path, steps=2, **given)
    fitted = fit(tiny_model(), tiny_task(), run=Run.open(tmp_path), steps=4, **given)
    read = EventAccumulator(str(tmp_path / "curves"))
    read.Reload()
    assert {"loss", "norm", "factor", "validation/loss", "validation/perplexity"} <= set(read.Tags()["scalars"])
    for name, wanted in (("loss", "loss"), ("validation/loss", "validation_loss")):
        points = [(point.step, point.value) for point in read.Scalars(name)]
        assert points == [(h["step"], pytest.approx(h[wanted])) for h in fitted.history if wanted in h]


def test_curves_without_their_library_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with refused(ConfigError, "got", "pip install 'continua-ml[logs]'"):
        fit(tiny_model(), tiny_task(), run=tmp_path, steps=1, tensorboard=True, watch=silent)


def test_without_dropout_two_fits_are_the_same() -> None:
    first, second = (fit(tiny_model(), tiny_task(), steps=2, watch=silent).history for _ in range(2))
    assert timeless(first) == timeless(second)
