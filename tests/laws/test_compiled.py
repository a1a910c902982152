"""One law of all models: compiled whole, forward and backward, they are what they are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo as dynamo
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import continua as ct
from continua import flow as fl
from continua.errors import ContinuaError
from continua.models import Batch
from continua.operators import Context
from tests.cases import MODELS, OTHER_MODELS, made
from tests.cases_models import scattered, series, words
from tests.measure import EXACT, gap
from tests.shallow import DEEP, one_layer, shallow
from tests.slow import slow_but

pytestmark = pytest.mark.unshaped  # checked functions do not compile
SCATTERED = (
    "points of a plane",
    "functions on a square",
    "cells",
)  # the weights of scattered points come with the data
SIX = ("gpt2", "bert", "llama", "vit", "continuous words", "continuous series")
SINGLE = 1e-6
# one step of the methods with many stages: the cases and the solves of test_compiled_flow.py have several
VIEWS: dict[str, tuple[str, ct.Discretisation]] = {
    "half width": ("continuous words", ct.at(d=4)),
    "one head": ("continuous words", ct.at(h=1)),
    "three steps": ("continuous words", ct.at(z=3)),
    "half of all": ("continuous words", ct.at(d=4, h=1, z=1)),
    "nested heads of gpt2": ("gpt2", ct.at(h=1)),
    "RK4": ("continuous words", ct.at(z=ct.Fixed(1, ct.RK4()))),
    "Strang": ("continuous series", ct.at(z=ct.Fixed(1, ct.Strang(fl.Heun())))),
    "irregular stamps at another width": ("continuous series", ct.at(d=6, h=1, z=3)),
    "reversible": ("continuous words", ct.at(z=ct.Fixed(1, ct.ReversibleSolver(ct.RK4())))),
}
ALL = [*MODELS, *OTHER_MODELS]
# of two layers among the slow tests: their graphs are those of marian, of falcon with two norms, of the equation that
# conserves, of vit and of llama, but for an option
ALIKE = ("mbart", "falcon", "evolution on a circle", "deit", "phi3")
# half of all has fewer of everything; stamps are an input of a test below, models of the case table are stepped by RK4
# and Strang, and reversible steps are traced in test_compiled_flow.py
QUICK_VIEWS = ["half of all"]


@pytest.fixture(autouse=True)
def _anew() -> None:
    dynamo.reset()


def case(name: str) -> tuple[Any, Any]:
    """A model of its own, and its batch with all that depends on scattered points done."""
    if name in OTHER_MODELS:
        model = OTHER_MODELS[name].build().double()
        batch = OTHER_MODELS[name].batch()
    else:
        model, batch, _ = made(name)
    return model, model.laid(batch) if name in SCATTERED else batch


def gradients(model: Any, answer: Tensor) -> list[Tensor | None]:
    """By a loss that every number of the answer enters."""
    return list(torch.autograd.grad(answer.square().sum(), list(model.parameters()), allow_unused=True))


def agree(model: Any, run: Callable[[], Tensor], compiled: Callable[[], Tensor], tolerance: float) -> None:
    wanted = run()
    got = compiled()
    scale = float(wanted.detach().abs().max()) + 1.0
    assert gap(got, wanted) < tolerance * scale
    mine = gradients(model, got)
    other = gradients(model, wanted)
    # against the largest of all: some gradients vanish by cancellation (of keys' biases), and only round-off is left
    largest = max(float(g.abs().max()) for g in other if g is not None) + 1.0
    for a, b in zip(mine, other, strict=True):
        assert (a is None) == (b is None)
        assert a is None or b is None or gap(a, b) < tolerance * largest


def compiled_agrees(model: Any, batch: Any) -> None:
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
    agree(model, lambda: model(batch), lambda: compiled(batch), EXACT)


@pytest.mark.spec("B9", "D7")
@pytest.mark.parametrize("name", [name for name in ALL if name not in ALIKE])
def test_a_compiled_model_is_the_model(name: str) -> None:
    model = shallow(name).model()
    batch = shallow(name).batch()
    compiled_agrees(model, model.laid(batch) if name in SCATTERED else batch)


@pytest.mark.slow(reason="two seconds of tracing each, and a second layer is traced like the first")
@pytest.mark.spec("B9", "D7")
@pytest.mark.parametrize("name", [name for name in ALL if name not in DEEP])
def test_a_compiled_model_of_two_layers_is_the_model(name: str) -> None:
    compiled_agrees(*case(name))


@pytest.mark.spec("B9", "M10")
@pytest.mark.parametrize("name", slow_but(QUICK_VIEWS, VIEWS, "three seconds of tracing each"))
def test_a_compiled_model_serves_other_grids(name: str) -> None:
    which, at = VIEWS[name]
    model, batch = case(which)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
    agree(model, lambda: model(batch, at), lambda: compiled(batch, at), EXACT)


@pytest.mark.spec("B9")
@pytest.mark.parametrize("name", SIX)
def test_inductor_compiles_the_whole_model(name: str) -> None:
    with one_layer():
        inductor_agrees(name)


@pytest.mark.slow(reason="inductor takes some ten seconds for each model")
@pytest.mark.spec("B9")
@pytest.mark.parametrize("name", MODELS)
def test_inductor_compiles_every_model(name: str) -> None:
    inductor_agrees(name)


def inductor_agrees(name: str) -> None:
    model = MODELS[name].model().float()
    batch = MODELS[name].batch()
    batch = model.laid(batch) if name in SCATTERED else batch
    if name == "layer":
        batch = Batch(batch.values.float())
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    agree(model, lambda: model(batch), lambda: compiled(batch), SINGLE * 10)


@pytest.mark.spec("B9")
def test_a_new_grid_compiles_once_and_a_new_batch_not_at_all() -> None:
    model, _ = case("continuous words")
    counter = CompileCounterWithBackend("eager")  # what is counted are graphs, whoever runs them
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    other = ct.at(d=4, h=1, z=1)
    for at in (None, other):
        before = counter.frame_count
        for samples, tokens in ((2, 6), (3, 5), (5, 9)):
            ids = torch.randint(11, (samples, tokens), generator=torch.Generator().manual_seed(tokens))
            dynamo.mark_dynamic(ids, 0)
            dynamo.mark_dynamic(ids, 1)
            assert gap(compiled(ids, at), model(ids, at)) < EXACT
        assert counter.frame_count == before + 1
        compiled(ids, ct.at(d=4, h=1, z=1) if at is other else at)  # an equal grid, named anew
        assert counter.frame_count == before + 1


@pytest.mark.spec("B9")
def test_a_held_view_is_compiled_with_the_weights_it_has() -> None:
    model, _ = case("continuous words")
    batch = Batch(words().values)
    held = model.at(d=4, h=1, z=1).held()
    compiled = torch.compile(held, fullgraph=True, backend="aot_eager")
    assert gap(compiled(batch), held(batch)) < EXACT


@pytest.mark.spec("B9")
def test_irregular_stamps_are_an_input() -> None:
    model, _ = case("continuous series")
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter, dynamic=False)
    for seed in (0, 1, 2):
        batch = series(seed=seed)
        assert gap(compiled(batch), model(batch)) < EXACT
    assert counter.frame_count == 1


@pytest.mark.spec("B9")
def test_what_depends_on_values_is_refused_in_one_sentence() -> None:
    model, batch = case("continuous words")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"searched for.*Use at\(z=Fixed"):
        compiled(batch, ct.at(z=ct.Adaptive(ct.Dopri5())))
    dynamo.reset()
    with pytest.raises(Exception, match=r"no attention weights.*Switch record off"):
        torch.compile(lambda ids: model.run(ids, context=Context(record=[])), fullgraph=True)(batch.values)
    plane, _ = MODELS["points of a plane"].model(), None
    with pytest.raises((ContinuaError, RuntimeError), match=r"laid"):
        torch.compile(plane, fullgraph=True, backend="aot_eager")(scattered())
