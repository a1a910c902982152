"""Training from coarse to fine grids: what is trained when, what new nodes start with, and how runs go on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from continua.axes import at
from continua.config import from_plain, to_plain
from continua.convert import elastic
from continua.errors import ConfigError, RunError
from continua.flow import Adaptive, Fixed
from continua.models import Transformer, zoo
from continua.optim import AdamW, ByRole, Muon
from continua.tasks import Text
from continua.training import AsMade, Copied, Elastic, Growth, Run, Stage, Training, fit
from continua.training.growing import Growing
from continua.training.prolongation import Switch
from tests.refusals import refused
from tests.runs import calibrated, silent, timeless, tiny_model, tiny_task
from tests.slow import slow_but

BOTH = ByRole(AdamW(1e-2), kernel=Muon(0.05))
HALVES = Growth((Stage((at(d=8, h=2, z=2),), 0.3), Stage((at(d=8),), 0.6)))
pytestmark = [pytest.mark.spec("B1"), pytest.mark.spec("T11")]


def gpt(double: bool = True) -> Transformer:
    torch.manual_seed(0)
    made = elastic(zoo.gpt2(vocab=tiny_task().tokens.size, d=16, heads=4, depth=4, context=8))
    return made.double() if double else made


def ids() -> torch.Tensor:
    return torch.randint(10, (3, 7), generator=torch.Generator().manual_seed(2))


def trained(model: Any, growth: Growth | None = HALVES, steps: int = 10, **given: Any) -> Any:
    given = {"optimiser": BOTH, "watch": silent, "evaluate_every": 100, **given}
    return fit(model, tiny_task(), steps=steps, grow=growth, **given)


def numbers(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


# --- what is trained --------------------------------------------------------------------------------------------------


def test_a_stage_trains_the_nodes_it_reads_and_no_others() -> None:
    model = gpt()
    before = numbers(model)
    seen: list[dict[str, torch.Tensor]] = []
    trained(model, watch=lambda progress: seen.append(numbers(model)))
    name = "block.parts.1.inner.w1.coefficients"  # z, m, c
    first, second, native = seen[2], seen[5], seen[9]
    untouched = before[name].clone()
    assert not torch.equal(first[name][::2, ::2, ::2], untouched[::2, ::2, ::2])
    assert torch.equal(first[name][1::2], untouched[1::2]), "layers that two steps do not read"
    assert torch.equal(first[name][:, 1::2], untouched[:, 1::2])
    assert torch.equal(first[name][:, :, 1::2], untouched[:, :, 1::2])
    assert not torch.equal(second[name][1::2, ::2, ::2], untouched[1::2, ::2, ::2]), "all layers"
    assert torch.equal(second[name][:, 1::2], untouched[:, 1::2])
    assert not torch.equal(native[name][:, 1::2], untouched[:, 1::2]), "all nodes"


def test_sizes_of_a_stage_take_turns() -> None:
    growth = Growth((Stage((at(d=8), at(z=2)), 0.5),))
    plan = growth.over(gpt())
    assert [plan.place(0, step) for step in range(4)] == [at(d=8), at(z=2), at(d=8), at(z=2)]
    assert plan.place(1, 7) is None
    assert [plan.stage(step / 10) for step in (0, 4, 5, 9)] == [0, 0, 1, 1]
    assert plan.finest(0) == at(z=2)
    assert plan.finest(1) is None


def test_a_stage_has_a_rate_of_its_own() -> None:
    moved = []
    for rate in (1.0, 0.25):
        model = gpt()
        before = numbers(model)
        seen: list[dict[str, torch.Tensor]] = []
        law = Growth((Stage((at(d=8),), 0.5, rate=rate),))
        trained(model, law, 2, optimiser=ByRole(AdamW(1e-2, decay=0.0)), watch=lambda _: seen.append(numbers(model)))  # noqa: B023
        moved.append({name: seen[0][name] - value for name, value in before.items()})
    for name, whole in moved[0].items():
        assert torch.allclose(moved[1][name], 0.25 * whole, rtol=0, atol=1e-12)


def test_the_loss_is_that_of_the_stage_and_so_are_held_out_data() -> None:
    model = gpt()
    task = tiny_task()
    whole = trained(model, steps=10, evaluate_every=1, elastic=Elastic(start=0.0))
    assert ["elastic" in line for line in whole.history] == [False] * 6 + [True] * 4, "lessons when it has grown"
    part = gpt()
    seen: list[float] = []
    trained(
        part, steps=10, evaluate_every=1,
        watch=lambda progress: seen.append(task.evaluate(part.eval().at(d=8, h=2, z=2)).main),
    )  # fmt: skip
    assert whole.history[0]["validation_loss"] == seen[0]
    assert whole.history[8]["validation_loss"] != seen[8]


def test_a_focused_optimiser_takes_the_step_that_the_whole_one_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, whole = gpt(), gpt()
    optimiser = ByRole(AdamW(1e-2), kernel=Muon(0.05, decay=0.0))  # the whole one lets unread nodes decay
    growth = Growth((Stage((at(d=8, h=2, z=2),), 0.99),))
    trained(looked, growth, steps=6, optimiser=optimiser)
    monkeypatch.setattr(Growing, "_blocks", lambda self, step: {})
    trained(whole, growth, steps=6, optimiser=optimiser)
    for name, value in looked.state_dict().items():
        assert torch.allclose(value, whole.state_dict()[name], rtol=1e-9, atol=1e-11), name


def test_sizes_that_take_turns_are_looked_at_one_by_one() -> None:
    """What a step does not read stays as it was, also where another size of the stage has just moved it."""
    model = gpt()
    optimiser = ByRole(AdamW(0.0, decay=0.0), kernel=Muon(0.05, decay=0.0))
    seen = [numbers(model)]
    turns = Growth((Stage((at(d=8), at(z=2), at(z=3)), 0.99),))
    trained(model, turns, steps=6, optimiser=optimiser, watch=lambda progress: seen.append(numbers(model)))
    name = "block.parts.1.inner.w1.coefficients"  # z, m, c
    half, all_of_them = slice(None, None, 2), slice(None)
    for step, read in enumerate(((all_of_them, half), (half, all_of_them), (slice(3), all_of_them)) * 2):
        changed = (seen[step + 1][name] != seen[step][name]).any(1)  # over z, c
        expected = torch.zeros_like(changed)
        expected[read] = True
        assert torch.equal(changed, expected), step


# --- new nodes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("coarse", [{"d": 8}, {"h": 2}, {"d": 8, "h": 2}, {"d": 4}, {"d": 4, "h": 1}])
def test_copied_nodes_leave_the_answer_as_it_was(coarse: dict[str, int], noise: float) -> None:
    model = calibrated(gpt())
    before = model.at(**coarse)(ids())
    sizes = ((model.settle(at(**coarse)),), (model.settle(None),))
    Copied(noise=noise).prolong(Switch(model, BOTH.make(model), *sizes, seed=0))
    assert (model(ids()) - before).abs().max() < 1e-12
    if noise == 0:
        assert (model.at(**coarse)(ids()) - before).abs().max() < 1e-12, "the coarse size stays too"


def test_copied_layers_are_those_of_the_joined_step() -> None:
    model = calibrated(gpt())
    sizes = ((model.settle(at(z=2)),), (model.settle(None),))
    before = model.at(z=2)(ids())
    Copied("z").prolong(Switch(model, BOTH.make(model), *sizes, seed=0))
    layers = model.block.parts[1].inner.w1.coefficients
    assert torch.equal(layers[0], layers[1])
    assert torch.equal(layers[2], layers[3])
    assert (model.at(z=2)(ids()) - before).abs().max() < 1e-12


def test_what_the_optimiser_remembers_is_copied_too() -> None:
    model = gpt()
    optimisers = BOTH.make(model)
    model(ids()).square().sum().backward()
    optimisers.step(1.0)
    sizes = ((model.settle(at(d=8)),), (model.settle(None),))
    Copied(noise=0.0).prolong(Switch(model, optimisers, *sizes, seed=0))
    table = model.embed.table.coefficients
    for held in optimisers.beside(table):
        assert torch.equal(held[:, 1::2], held[:, ::2])
    assert len(optimisers.beside(table)) == 2, "both moments of Adam"
    assert len(optimisers.beside(model.block.parts[1].inner.w1.coefficients)) == 1, "the momentum of Muon"


def test_weights_that_are_functions_need_no_prolongation() -> None:
    model = tiny_model(steps=4)
    before = numbers(model)
    sizes = ((model.settle(at(d=4, z=2)),), (model.settle(None),))
    Copied().prolong(Switch(model, BOTH.make(model), *sizes, seed=0))
    after = model.state_dict()
    smooth = [name for name in before if "inner" in name]
    assert smooth
    assert all(torch.equal(before[name], after[name]) for name in smooth)
    trained(model, Growth((Stage((at(d=4, h=1, z=2),), 0.5),)))


# --- runs -------------------------------------------------------------------------------------------------------------


PROLONGATIONS = [AsMade(), Copied("z"), Copied()]
QUICK = [AsMade(), Copied()]  # the last one copies over z too
LESSONS = Elastic(start=0.0)


@pytest.fixture(scope="module", params=slow_but(QUICK, PROLONGATIONS, "four fits; Copied() copies over z too"), ids=str)
def calm(request: pytest.FixtureRequest) -> tuple[Growth, Any]:
    """A schedule, and a fit by it that nobody interrupts."""
    growth = replace(HALVES, prolongation=request.param)
    return growth, trained(gpt(), growth, elastic=LESSONS)


@pytest.mark.parametrize("stopped", [2, 3, 6])
def test_a_growing_run_goes_on_with_the_same_bits(tmp_path: Path, stopped: int, calm: tuple[Growth, Any]) -> None:
    growth, whole = calm

    def stop(progress: Any) -> None:
        if progress.step == stopped:
            raise KeyboardInterrupt

    part = trained(gpt(), growth, run=tmp_path / "run", watch=stop, elastic=LESSONS)
    assert part.ended == "interrupted"
    rest = trained(gpt(), growth, run=Run.open(tmp_path / "run"), elastic=LESSONS)
    assert timeless(rest.history) == timeless(whole.history)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, rest.model.state_dict()[name]), name


def test_a_stage_begins_once_even_where_its_first_step_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    spoiled: list[int] = []
    prolong, loss = Copied.prolong, Text.loss

    def counted(self: Any, switch: Switch) -> None:
        begun.append(1)
        prolong(self, switch)

    def once(self: Any, answer: torch.Tensor, example: Any) -> torch.Tensor:
        found = loss(self, answer, example)
        if len(begun) > len(spoiled):
            spoiled.append(1)
            return found * float("nan")
        return found

    monkeypatch.setattr(Copied, "prolong", counted)
    monkeypatch.setattr(Text, "loss", once)
    done = trained(gpt(), replace(HALVES, prolongation=Copied()))
    assert len(begun) == len(spoiled) == 2
    assert [line["step"] for line in done.history if "note" in line] == [4, 7]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that grows."""
    folder = tmp_path_factory.mktemp("growing") / "run"
    trained(gpt(), HALVES, run=folder)
    return folder


@pytest.mark.parametrize(
    ("growth", "steps"),
    [
        (None, 10),
        (Growth((Stage((at(d=8),), 0.6),)), 10),
        (Growth((Stage((at(d=8, h=2, z=2),), 0.3), Stage((at(d=8),), 0.7))), 10),
        (HALVES, 40),
    ],
)
def test_another_schedule_is_refused(begun: Path, growth: Growth | None, steps: int) -> None:
    opened = Run.open(begun)
    with refused(RunError, "grows by the schedule it was started with", "start a new run"):
        trained(gpt(), growth, steps=steps, run=opened)


def test_a_run_that_did_not_grow_does_not_begin_to(tmp_path: Path) -> None:
    trained(gpt(), None, run=tmp_path / "run", steps=1)
    with refused(RunError, "grows by the schedule it was started with", "start a new run"):
        trained(gpt(), HALVES, steps=20, run=Run.open(tmp_path / "run"))


def test_growth_is_part_of_the_settings() -> None:
    settings = Training(grow=replace(HALVES, prolongation=Copied("z", 0.1)))
    assert from_plain(to_plain(settings)) == settings


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "sentence", "remedy"),
    [
        ([({"d": 8}, 0.2), ({"z": 2}, 0.4)], "z shrinks while training grows, got 4, then 2", "from coarse to fine"),
        ([({"d": 32}, 0.2)], "d shrinks while training grows, got 32, then 16", "none finer than the native"),
        ([({"z": 8}, 0.2)], "z shrinks while training grows, got 8, then 4", "none finer than the native"),
        ([({"z": Adaptive()}, 0.2)], "a stage counts its steps", "at(z=2)"),
        ([({"z": Fixed(2, lengths=(1, 3))}, 0.2), ({"z": 2}, 0.4)], "1 of 2 nodes along z lost", "nest"),
    ],
)
def test_what_is_no_growth_is_refused_before_training(stages: Any, sentence: str, remedy: str) -> None:
    growth = Growth(tuple(Stage((at(**sizes),), until) for sizes, until in stages))
    with refused(ConfigError, sentence, remedy):
        trained(gpt(), growth)


def test_a_discrete_model_grows_too() -> None:
    plain = zoo.gpt2(vocab=tiny_task().tokens.size, d=16, heads=4, depth=4, context=8)
    done = trained(plain, Growth((Stage((at(d=8, z=2),), 0.5),), Copied("z")))
    assert done.history[-1]["loss"] < done.history[0]["loss"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Growth(()),
        lambda: Growth((Stage((at(d=8),), 0.5), Stage((at(d=12),), 0.4))),
        lambda: Growth((Stage((at(d=8),), 0.0),)),
        lambda: Stage((), 0.5),
        lambda: Stage((at(d=8),), 1.5),
        lambda: Copied(noise=-1.0),
        lambda: Training(grow=HALVES, at=at(d=8)),
    ],
)
def test_schedules_that_make_no_sense(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()
