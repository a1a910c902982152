"""A fit through torch.compile: the losses of an eager one, also when resumed; what has no graph is refused."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo as dynamo
from torch._dynamo.testing import CompileCounterWithBackend

from continua import flow as fl
from continua.axes import MonteCarlo, Times, at
from continua.convert import elastic
from continua.errors import ConfigError
from continua.models import Batch, Transformer, zoo
from continua.operators import Causal, FewSources
from continua.optim import KFAC, AdamW, ByRole, Constant
from continua.tasks import Example, Score
from continua.training import Elastic, KineticEnergy, Progress, Run, compiled, fit
from tests.cases_models import discrete
from tests.refusals import refused
from tests.runs import silent, tiny_model, tiny_task
from tests.slow import slow_but

SINGLE = 1e-5
SMALL = at(d=8, h=2, e=4, m=12, z=1)


@dataclass(frozen=True)
class Squares:
    """Series at irregular times; the answer is the square of what was seen."""

    def example(self, seed: int, step: int) -> Example:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        times = torch.rand(4, 6, generator=generator).cumsum(-1)
        values = torch.randn(4, 6, 2, generator=generator)
        return Example(Batch(values, times=times), values.square())

    def loss(self, answer: torch.Tensor, example: Example) -> torch.Tensor:
        return (answer - example.target).square().sum()

    def evaluate(self, model: Any) -> Score:
        with torch.no_grad():
            return Score({"loss": float(self.loss(model(self.example(9, 9).batch), self.example(9, 9)))})


def gpt2() -> Transformer:
    torch.manual_seed(0)
    return zoo.gpt2(vocab=tiny_task().tokens.size, d=8, heads=2, depth=1, context=8, m=12)


def smooth() -> Transformer:
    return tiny_model(steps=1)  # each step more is traced anew; tests/laws has models of several, compiled


def series() -> Transformer:
    torch.manual_seed(0)
    return Transformer.continuous(channels=2, t=Times(), mask=Causal(), at=SMALL)


CASES = {"gpt2": (gpt2, tiny_task), "continuous words": (smooth, tiny_task), "continuous series": (series, Squares)}


@pytest.fixture(autouse=True)
def _graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs as they are traced; one test below has them compiled to machine code."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    dynamo.reset()


def losses(history: list[dict[str, Any]]) -> list[float]:
    return [line["loss"] for line in history]


def agree(name: str, **settings: Any) -> None:
    make, task = CASES[name]
    eager = fit(make(), task(), steps=4, watch=silent, **settings).history
    found = fit(make(), task(), steps=4, watch=silent, compile=True, **settings).history
    assert losses(found) == pytest.approx(losses(eager), rel=SINGLE)


@pytest.mark.spec("B9")
@pytest.mark.parametrize("name", slow_but(["gpt2"], CASES, "three fits are traced"))
def test_a_compiled_fit_has_the_losses_of_an_eager_one_also_when_resumed(name: str, tmp_path: Path) -> None:
    make, task = CASES[name]
    eager = fit(make(), task(), steps=4, schedule=Constant(), watch=silent)
    given = {"schedule": Constant(), "watch": silent, "compile": True}
    fit(make(), task(), run=tmp_path, steps=2, **given)
    resumed = fit(make(), task(), run=Run.open(tmp_path), steps=4, **given)
    assert losses(resumed.history) == pytest.approx(losses(eager.history), rel=SINGLE)
    assert Run.open(tmp_path).about["training"]["compile"] is True
    straight = fit(make(), task(), steps=4, **given)
    assert losses(straight.history) == losses(resumed.history)


@pytest.mark.slow(reason="a minute of a C++ compiler")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of the compiler's own
@pytest.mark.spec("B9")
def test_a_fit_is_compiled_to_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "inductor")
    agree("continuous words")


FEW = Elastic(d=(8, 16), h=(4,), z=(1,), draws=1, deep=0.0, start=0.0)


@pytest.mark.slow(reason="a graph for each size; test_compiled.py has one for each grid")
@pytest.mark.spec("B9", "T11")
def test_sizes_of_an_elastic_fit_have_their_graphs() -> None:
    sizes_agree(FEW, steps=2, depth=1)


@pytest.mark.slow(reason="sixteen sizes are traced")
@pytest.mark.spec("B9", "T11")
def test_many_sizes_of_an_elastic_fit_have_their_graphs() -> None:
    sizes_agree(Elastic(start=0.0), steps=8, depth=2)


def sizes_agree(law: Elastic, steps: int, depth: int) -> None:
    task = tiny_task()

    def model() -> Transformer:
        torch.manual_seed(0)
        return elastic(zoo.gpt2(vocab=task.tokens.size, d=16, heads=4, depth=depth, context=task.context))

    eager = fit(model(), task, steps=steps, elastic=law, watch=silent).history
    found = fit(model(), task, steps=steps, elastic=law, watch=silent, compile=True).history
    assert losses(found) == pytest.approx(losses(eager), rel=SINGLE)
    assert [line["elastic"] for line in found] == pytest.approx([line["elastic"] for line in eager], rel=1e-3)


@pytest.mark.slow(reason="four fits, two of them traced twice")
@pytest.mark.spec("B9")
def test_micro_batches_other_sizes_and_costs_of_the_path_are_what_they_are() -> None:
    agree("continuous words", accumulate=3, at=at(d=6, z=2))
    agree("continuous words", penalties=0.1 * KineticEnergy())


@pytest.mark.spec("B9")
@pytest.mark.parametrize("name", slow_but(["continuous words"], CASES, "each is traced in parts"))
def test_where_steps_are_searched_for_the_field_is_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, task = CASES[name]
    backend = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(compiled, "BACKEND", backend)
    counts: list[int] = []

    def watch(progress: Progress) -> None:
        counts.append(backend.frame_count)

    given = {"steps": 5, "at": at(z=fl.Adaptive(fl.Bosh3(), rtol=1e-2, atol=1e-2))}
    found = fit(make(), task(), watch=watch, compile=True, **given).history
    eager = fit(make(), task(), watch=silent, **given).history
    assert losses(found) == pytest.approx(losses(eager), rel=SINGLE)
    assert [line["evaluations"] for line in found] == [line["evaluations"] for line in eager]
    assert 2 <= counts[0] <= 8, "two parts, with and without gradients"
    assert counts[:4] == counts[:1] * 4, "whatever depths the search looks at; held-out data come last"


@pytest.mark.spec("B9")
def test_dropout_in_a_graph_is_a_function_of_seed_and_step(tmp_path: Path) -> None:
    given = {"schedule": Constant(), "watch": silent, "compile": True}
    whole = fit(tiny_model(0.3, steps=1), tiny_task(), steps=4, **given)
    fit(tiny_model(0.3, steps=1), tiny_task(), run=tmp_path, steps=2, **given)
    cut = fit(tiny_model(0.3, steps=1), tiny_task(), run=Run.open(tmp_path), steps=4, **given)
    assert losses(cut.history) == losses(whole.history)
    other = fit(tiny_model(0.3, steps=1), tiny_task(), steps=4, seed=1, **given)
    assert losses(other.history) != losses(whole.history)


@pytest.mark.spec("B9")
@pytest.mark.parametrize(
    ("settings", "said", "remedy"),
    [
        ({"adjoint": fl.Checkpoint(2)}, "gradients from the graph, got Checkpoint", "Use adjoint=Direct()"),
        ({"adjoint": fl.Recompute()}, "got Recompute", "leave compile out"),
        ({"optimiser": ByRole(AdamW(), kernel=KFAC())}, "K-FAC looks at products", "Muon()"),
    ],
)
def test_what_has_no_graph_is_refused(settings: dict[str, Any], said: str, remedy: str) -> None:
    with refused(ConfigError, said, remedy):
        fit(tiny_model(), tiny_task(), steps=1, watch=silent, compile=True, **settings)


# --- kernels that draw ------------------------------------------------------------------------------------------------


def drawing() -> Transformer:
    torch.manual_seed(0)
    return discrete(kernel=FewSources(MonteCarlo(3, seed=1)))


@dataclass(frozen=True)
class Ones:
    """The same words at every step, so that only the draw changes."""

    def example(self, seed: int, step: int) -> Example:
        ids = torch.arange(32).view(4, 8) % 11
        return Example(Batch(ids), ids)

    def loss(self, answer: torch.Tensor, example: Example) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(answer.flatten(0, 1), example.target.flatten(), reduction="sum")

    def evaluate(self, model: Any) -> Score:
        with torch.no_grad():
            return Score({"loss": float(self.loss(model(self.example(0, 0).batch), self.example(0, 0)))})


@pytest.mark.spec("T6")
def test_kernels_draw_anew_at_each_step_and_a_resumed_run_draws_the_same(tmp_path: Path) -> None:
    still = ByRole(AdamW(0.0))
    moving = losses(fit(drawing(), Ones(), steps=4, optimiser=still, watch=silent).history)
    assert len(set(moving)) == 4, "weights stay, draws change"
    given = {"schedule": Constant(), "evaluate_every": 3, "watch": silent}
    whole = fit(drawing(), Ones(), run=tmp_path / "whole", steps=4, **given)
    fit(drawing(), Ones(), run=tmp_path / "cut", steps=2, **given)
    cut = fit(drawing(), Ones(), run=Run.open(tmp_path / "cut"), steps=4, **given)
    assert losses(cut.history) == losses(whole.history)
    for mine, other in zip(cut.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    loaded = Run.open(tmp_path / "whole").model("last")
    measured = Ones().evaluate(loaded.eval()).main
    assert measured == pytest.approx(whole.history[-1]["validation_loss"], rel=1e-6)


@pytest.mark.spec("B9")
def test_a_kernel_that_draws_anew_has_no_graph() -> None:
    with refused(ConfigError, "drawn anew at each step", "leave compile out"):
        fit(drawing(), Ones(), steps=1, watch=silent, compile=True)
