"""Every adjoint on every model: answers and gradients are those of ``Direct``, wherever gradients may go.

The quick tests let every model meet every adjoint on one discretisation; the slow ones take the whole product.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from continua import operators as op
from continua.axes import Discretisation, Grid, Grids, Samples, Times, at
from continua.errors import SolveError
from continua.fields import Parametrisation
from continua.flow import (
    RK4,
    Adaptive,
    Checkpoint,
    Direct,
    Dopri5,
    Fixed,
    Lean,
    Mixed,
    Recompute,
    Reversible,
    ReversibleHeun,
    ReversibleSolver,
)
from continua.models import Batch, Transformer
from continua.operators import Attention, Causal, Context, Pointwise
from continua.operators.manual_backward import by_hand
from tests.bound import COUNTED, UNEVEN, counted_grids, double, uneven_grids
from tests.cases import ACTIVATIONS, MASKS, MODELS, NORMS, POSITIONS, Case
from tests.cases_models import discrete, states, words
from tests.exact import gradients, worst
from tests.measure import gap, random
from tests.refusals import refused

CLOSE = 1e-10  # round-off of a few thousand operations in another order
STEPPED: dict[str, Discretisation | None] = {
    "native": None,
    "RK4": at(z=Fixed(5, RK4())),
    "undoable": at(z=Fixed(2, ReversibleSolver(RK4()))),
    "adaptive": at(z=Adaptive(Dopri5(), rtol=1e-3)),
    "undoable, cheap": at(z=Fixed(2, ReversibleHeun())),
}
ADJOINTS = [Lean(), Recompute(), Checkpoint(2), Mixed(2), Reversible()]
UNDOING = at(z=Fixed(2, ReversibleSolver()))


def outcome(model: Any, batch: Batch, where: Discretisation | None, adjoint: Any, **more: Tensor) -> dict[str, Tensor]:
    """The answer and the gradients of every parameter and of ``more``; dropout draws the same masks every time."""
    model.adjoint = adjoint
    for stack in stacks(model):
        stack.generator = torch.Generator().manual_seed(4)
    answer = model(batch, at=where)
    found = gradients((answer * random(*answer.shape, seed=9)).sum(), {**dict(model.named_parameters()), **more})
    return {"answer": answer.detach(), **found}


def stacks(model: Any) -> list[Transformer]:
    return [part for part in model.modules() if isinstance(part, Transformer)]


def obstacle(model: Any, where: Discretisation | None, adjoint: Any) -> str | None:
    """Why these steps cannot be walked or undone, if they cannot."""
    undoes = [hasattr(stack.settle(where).z.solver, "undo") for stack in stacks(model)]
    plain = [all(stack.block.kinds) for stack in stacks(model)]
    if any(undo and not flows for undo, flows in zip(undoes, plain, strict=True)):
        return "a projection cannot be undone"
    if isinstance(adjoint, Reversible) and not all(undoes):
        return "reversible gradients need a reversible solver"
    return None


def check(name: str, place: str, adjoints: list[Any]) -> None:
    """Equal to ``Direct``, or refused for a reason."""
    model, batch, where = MODELS[name].model().train(), MODELS[name].batch(), STEPPED[place]
    wanted = None
    for adjoint in adjoints:
        why = obstacle(model, where, adjoint)
        if why is not None:
            with pytest.raises(SolveError, match=why):
                outcome(model, batch, where, adjoint)
            continue
        wanted = outcome(model, batch, where, Direct()) if wanted is None else wanted
        got = outcome(model, batch, where, adjoint)
        assert gap(got["answer"], wanted["answer"]) < 1e-12, adjoint
        assert worst(got, wanted) < CLOSE, adjoint


@pytest.mark.spec("D4", "D7", "T7")
@pytest.mark.parametrize("name", MODELS)
def test_every_adjoint_gives_every_model_the_gradients_of_direct(name) -> None:
    check(name, "native", ADJOINTS)
    check(name, "undoable, cheap", [Reversible()])


FEW = {
    "gpt2": ["RK4", "adaptive"],
    "bert": ["RK4", "undoable"],
    "encoder-decoder": ["RK4"],
    "continuous series": ["undoable"],
    "generated": ["adaptive", "undoable"],
    "separable networks": ["RK4", "undoable"],
}


@pytest.mark.spec("D4", "D7", "T7")
@pytest.mark.parametrize("name", FEW)
def test_other_steps_too(name) -> None:
    turn = list(FEW).index(name)
    for place in FEW[name]:
        check(name, place, [Reversible() if place == "undoable" else ADJOINTS[turn % 4]])


@pytest.mark.slow(reason="every model, adjoint and way to step: six minutes; the quick one above takes one way")
@pytest.mark.spec("D4", "D7", "T7")
@pytest.mark.parametrize("place", STEPPED)
@pytest.mark.parametrize("name", MODELS)
def test_every_adjoint_gives_every_model_the_gradients_of_direct_however_it_steps(name, place) -> None:
    check(name, place, ADJOINTS)


# --- wherever gradients may go ---------------------------------------------------------------------------------------


def reached(case: Case, where: Discretisation | None, adjoints: list[Any], **more: Tensor) -> None:
    """Given tensors get the gradients of ``Direct``, and some at all."""
    model, batch = case.model(), case.batch()
    wanted = outcome(model, batch, where, Direct(), **more)
    assert all(wanted[name].abs().max() > 1e-6 for name in more), "the test sees nothing"
    for adjoint in adjoints:
        if obstacle(model, where, adjoint) is None:
            assert worst(outcome(model, batch, where, adjoint, **more), wanted) < CLOSE, adjoint


PLACES = {"native": None, "undoable": UNDOING}


@pytest.mark.spec("D4", "M10")
@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", ["continuous series", "series on an interval", "spectral"])
def test_stamps_and_the_log_weights_they_make_get_gradients(name, where) -> None:
    given = MODELS[name].batch()
    stamps, values = given.times.clone().requires_grad_(), given.values.clone().requires_grad_()
    batch = replace(given, times=stamps, values=values)
    reached(replace(MODELS[name], batch=lambda: batch), where, ADJOINTS, stamps=stamps, values=values)


@pytest.mark.spec("D4")
@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
def test_weights_of_a_grid_get_gradients(where) -> None:
    weights = random(6, low=0.2).requires_grad_()
    grid = Grid(random(6, 1, seed=1, low=0.0).sort(0).values, weights)
    batch = Batch(random(2, 6, 2), grid=grid)
    reached(replace(MODELS["series on an interval"], batch=lambda: batch), where, ADJOINTS, weights=weights)


@pytest.mark.spec("D4", "A2")
@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", ["gpt2", "grouped heads", "additive scores", "position rotary"])
def test_a_bias_of_pairs_gets_gradients(name, where) -> None:
    pairs = random(2, 2, 6, 6, seed=3).requires_grad_()
    reached(replace(MODELS[name], batch=lambda: replace(words(), pairs=pairs)), where, ADJOINTS, pairs=pairs)


@pytest.mark.spec("D4", "A3")
@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", ["position rotary", "position ALiBi", "position relative"])
def test_stamps_of_positions_get_gradients(name, where) -> None:
    """Learned stamps turn queries and keys: there the hand-written way steps aside."""
    stamps = (torch.arange(6.0, dtype=torch.float64) + 0.1 * random(6)).requires_grad_()
    grid = Grid(stamps[:, None], torch.ones(6, dtype=torch.float64))
    pairs = random(2, 1, 6, 6, seed=3).requires_grad_()
    batch = Batch(words().values, grid=grid, pairs=pairs)
    seen = {} if name == "position relative" else {"stamps": stamps}  # distances fall into buckets
    reached(replace(MODELS[name], batch=lambda: batch), where, ADJOINTS, pairs=pairs, **seen)


@pytest.mark.spec("D4")
def test_a_state_that_is_given_gets_gradients() -> None:
    x = states().values.clone().requires_grad_()
    reached(replace(MODELS["layer"], batch=lambda: Batch(x)), None, ADJOINTS, x=x)


@pytest.mark.spec("D4", "A1")
@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
def test_what_cross_attention_looks_at_gets_gradients(where) -> None:
    model, batch = MODELS["encoder-decoder"].model(), MODELS["encoder-decoder"].batch()
    with torch.no_grad():
        beside = model.beside(batch)
    found = []
    for adjoint in [Direct(), *ADJOINTS]:
        model.adjoint, memory = adjoint, beside.state.clone().requires_grad_()
        context = replace(beside, state=memory)
        if obstacle(model.decoder, where, adjoint) is None:
            answer = model.decoder.run(batch, where, context)[0]
            found.append(gradients((answer * random(*answer.shape)).sum(), {"memory": memory})["memory"])
    assert found[0].abs().max() > 1e-3
    assert all(gap(one, found[0]) < CLOSE for one in found[1:])
    assert len(found) == 5 + (where is UNDOING)


# --- the hand-written way, operator by operator ----------------------------------------------------------------------


def attention(weights: Parametrisation, **choices: Any) -> op.Operator:
    position = choices.pop("position", None)
    return Attention(weights, position=None if position is None else position(weights), **choices)


BY_HAND: dict[str, Any] = {
    **{f"activation {phi}": lambda w, phi=phi: Pointwise(w, phi) for phi in ACTIVATIONS},
    "gated": lambda w: Pointwise(w, op.SiLU(), gated=True),
    "gated, no bias": lambda w: Pointwise(w, op.GELU(), gated=True, bias=False),
    **{f"norm {n}": lambda w, n=n: op.PreNorm(NORMS[n](w), Pointwise(w)) for n in NORMS},
    **{f"norm {n} before attention": lambda w, n=n: op.PreNorm(NORMS[n](w), Attention(w)) for n in list(NORMS)[:4]},
    **{f"mask {mask}": lambda w, mask=mask: attention(w, mask=mask) for mask in MASKS},
    **{f"position {name}": lambda w, p=p: attention(w, position=p) for name, p in POSITIONS.items()},
    **{f"causal, {name}": lambda w, p=p: attention(w, position=p, mask=Causal()) for name, p in POSITIONS.items()},
    **{f"bias {bias or 'none'}": lambda w, bias=bias: attention(w, bias=tuple(bias)) for bias in ("", "qk", "vo", "q")},
    "density": lambda w: attention(w, density=True),
    "additive": lambda w: attention(w, kernel=op.Additive()),
    "temperature": lambda w: attention(w, kernel=op.Softmax(temperature=0.7)),
    "skip": lambda w: op.Skip(op.PreNorm(op.LayerNorm(w), Attention(w)), -0.5),
    "dropout": lambda w: op.Drop(op.PreNorm(op.RMSNorm(w), Pointwise(w)), 0.4),
    "dropout inside": lambda w: op.PreNorm(op.LayerNorm(w), op.Drop(Attention(w), 0.4, constant=True)),
    "skip of dropout": lambda w: op.Skip(op.Drop(Attention(w), 0.4), 0.5),
    "norm of skip": lambda w: op.PreNorm(op.LayerNorm(w), op.Skip(Pointwise(w), 0.5)),
}
GROUPED = {f"{g} groups": lambda w, g=g: attention(w, groups=g, position=POSITIONS["rotary"]) for g in (1, 2)}


def both_ways(operator: op.Operator, grids: Grids, x: Tensor) -> tuple[dict[str, Tensor], ...]:
    """Value and gradients by the hand-written way, and by autograd."""
    context = Context(generator=torch.Generator().manual_seed(1))
    f, args = operator.bind(grids, context)
    z = 1.5
    lean = by_hand(f, args)
    assert lean is not None
    with torch.no_grad():
        kept = lean.prepare(z, x, args)
        value = lean.finish(z, x, kept, args)
    g = random(*value.shape, seed=8)
    gx, pairs = lean.pull(z, x, kept, args, g)
    got = {"value": value, "x": gx}
    leaves = [(leaf, gl) for leaf, gl in pairs if leaf.requires_grad]
    parameters = dict(operator.named_parameters())
    found = torch.autograd.grad(
        [leaf for leaf, _ in leaves], list(parameters.values()), [gl for _, gl in leaves],
        allow_unused=True, materialize_grads=True,
    )  # fmt: skip
    got |= dict(zip(parameters, found, strict=True))
    start = x.clone().requires_grad_()
    f, args = operator.bind(grids, replace(context, generator=torch.Generator().manual_seed(1)))
    plain = f(z, start, args)
    return got, {"value": plain.detach(), **gradients((g * plain).sum(), {"x": start, **parameters})}


@pytest.mark.spec("D4", "A12")
@pytest.mark.parametrize("name", [*BY_HAND, *GROUPED])
@pytest.mark.parametrize("grids", ["uneven", "counted"])
def test_by_hand_is_by_autograd(name, grids) -> None:
    if name in GROUPED and grids == "uneven":
        return  # groups are of counted heads
    weights, made = (UNEVEN, uneven_grids()) if grids == "uneven" else (COUNTED, counted_grids())
    if grids == "uneven":  # with cells, which a causal mask cuts
        made = replace(made, t=Samples().on(Times(), made.t.nodes[..., 0]))
    operator = double({**BY_HAND, **GROUPED}[name](weights))
    got, wanted = both_ways(operator, made, random(2, 5, len(made.d), seed=6))
    assert worst(got, wanted) < CLOSE


# --- precision, and what is refused ----------------------------------------------------------------------------------


@pytest.mark.spec("D7", "A10")
@pytest.mark.parametrize("adjoint", [Lean(), Recompute(), Checkpoint(1), Reversible(drift=1.0)], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "continuous series", "generated", "gated"])
def test_under_autocast_gradients_agree_and_the_state_stays_single(name, adjoint) -> None:
    """Both round to eight bits, in another order; what is far from ``Direct`` in bfloat16 would be wrong."""
    model, batch = MODELS[name].model().float(), MODELS[name].batch()
    if batch.values.is_floating_point():
        batch = replace(batch, values=batch.values.float(), times=batch.times.float())
    found = []
    for one in (Direct(), adjoint):
        model.adjoint = one
        with torch.autocast("cpu", dtype=torch.bfloat16):
            path = model.states(batch, at=UNDOING)
            assert {x.dtype for x in path.x} == {torch.float32}
            loss = (path.final * random(*path.final.shape, seed=9).float()).sum()
        grads = gradients(loss, dict(model.block.named_parameters()))
        assert all(g.dtype == torch.float32 for g in grads.values())
        found.append(torch.cat([g.flatten() for g in grads.values()]))
    off = (found[1] - found[0]).norm() / found[0].norm()
    assert off < 0.02, "a few roundings of 2⁻⁸"


def twice(model: Transformer, batch: Batch) -> Tensor:
    """The gradient of a gradient's size."""
    answer = model(batch)
    weight = next(model.block.parameters())
    (first,) = torch.autograd.grad(answer.square().sum(), weight, create_graph=True)
    return torch.autograd.grad(first.square().sum(), weight)[0]


@pytest.mark.spec("D4")
def test_gradients_of_gradients_need_direct() -> None:
    model, batch = MODELS["additive scores"].model(), MODELS["additive scores"].batch()
    assert twice(model, batch).abs().max() > 1e-6
    for adjoint in ADJOINTS[:4]:
        model.adjoint = adjoint
        with refused(SolveError, f"a second derivative through {type(adjoint).__name__}", "Use Direct()"):
            twice(model, batch)


class Steepness:
    """R = ‖∂⟨v, v⟩/∂x‖²: a cost that takes a derivative itself."""

    twice = True

    def __call__(self, z: float, x: Tensor, v: Tensor, args: Any) -> Tensor:
        (slope,) = torch.autograd.grad(v.square().sum(), x, create_graph=True)
        return slope.square().mean()


@pytest.mark.spec("D4")
def test_a_cost_that_differentiates_goes_the_plain_way_and_says_so() -> None:
    model = discrete(kernel=op.Additive(), solver=RK4()).double()
    found = []
    for adjoint in (Direct(), Lean()):
        model.adjoint = adjoint
        path = model.run(words(), cost=lambda t, d: Steepness())[1]
        found.append(gradients(path.cost, dict(model.block.named_parameters())))
        assert path.stats.get("path", "") == (
            "" if adjoint == Direct() else "plain, since the cost takes derivatives itself"
        )
    assert worst(found[1], found[0]) < 1e-12
