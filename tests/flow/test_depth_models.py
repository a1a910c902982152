"""Whole models as flows: adaptive views, failures with a place, small steps, compilation into one graph."""

from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.errors import SolveError, SolveFailed
from continua.flow import RK4, Adaptive, Dopri5, Euler, Fixed, LieTrotter, Strang, Tsit5, solve
from continua.models import Batch
from continua.operators import Context
from tests.cases import MODELS
from tests.cases_models import discrete, words
from tests.measure import gap, random, slope, stirred
from tests.refusals import refused

# --- adaptive views --------------------------------------------------------------------------------------------------


def view(rtol: float, **choices: Any) -> ct.Discretisation:
    return ct.at(z=Adaptive(Dopri5(), rtol=rtol, atol=rtol, **choices))


@pytest.mark.spec("D1", "M10")
@pytest.mark.parametrize("name", ["spectral", "generated"])
def test_an_adaptive_view_answers_within_its_tolerance(name) -> None:
    model, batch = MODELS[name].model(), MODELS[name].batch()
    with torch.no_grad():
        fine = model.at(z=Fixed(96, Tsit5()))(batch)
        for rtol in (1e-3, 1e-5):
            assert gap(model(batch, at=view(rtol)), fine) < 10 * rtol  # local errors of a dozen steps add up


@pytest.mark.spec("D1")
def test_the_path_says_what_it_took() -> None:
    model, batch = MODELS["spectral"].model(), MODELS["spectral"].batch()
    loose, tight = (model.states(batch, at=view(rtol)) for rtol in (1e-2, 1e-6))
    for path in (loose, tight):
        assert path.stats["steps"] == path.stats["accepted"] == len(path.x) - 1
        assert path.stats["evaluations"] >= 6 * path.stats["steps"]
        assert path.stats["rejected"] >= 0
    assert tight.stats["steps"] > loose.stats["steps"]
    fixed = model.states(batch, at=ct.at(z=Fixed(3, RK4())))
    assert (fixed.stats["steps"], fixed.stats["evaluations"]) == (3, 12)


@pytest.mark.spec("D1", "A2")
def test_padding_does_not_change_the_steps() -> None:
    """Absent tokens follow the flow of the others, and no error of theirs counts."""
    model = MODELS["bert"].model()
    short = words(4).values
    padded = torch.cat([short, torch.full((2, 5), 3)], 1)
    there = torch.arange(9) < torch.full((2, 1), 4)
    with torch.no_grad():
        alone = model.states(Batch(short), at=view(1e-3))
        among = model.states(Batch(padded, observed=there), at=view(1e-3))
    assert alone.stats == among.stats
    assert gap(torch.tensor(among.z), torch.tensor(alone.z)) < 1e-9
    assert gap(among.final[:, :4], alone.final) < 1e-9


@pytest.mark.spec("A8", "D1")
def test_generation_needs_fixed_depths() -> None:
    model = MODELS["gpt2"].model()
    with refused(SolveError, "got Adaptive", "Use a view with fixed steps"):
        model.at(z=Adaptive()).generate(torch.zeros(1, 2, dtype=torch.long), tokens=1)
    assert model.at(z=Fixed(2, RK4())).generate(torch.zeros(1, 2, dtype=torch.long), tokens=1).shape == (1, 3)


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("D1")
@pytest.mark.parametrize("z", [Fixed(2, LieTrotter()), Fixed(3, RK4()), Adaptive()], ids=str)
def test_weights_that_are_no_numbers_are_named(z) -> None:
    """A weight of the second layer; the sentence says at which depth the path broke, and in which sample."""
    model, batch = discrete().double(), words()
    with torch.no_grad():
        model.block.parts[0].inner.bo.coefficients[1, 0] = float("nan")
    with pytest.raises(SolveFailed, match="no longer a number") as caught:
        model(batch, at=ct.at(z=z))
    assert caught.value.sample == 0
    assert 0.0 < caught.value.z <= 2.0
    if isinstance(z, Fixed):
        model.check = False
        assert model(batch, at=ct.at(z=z)).isnan().any()


@pytest.mark.spec("D1")
def test_the_sample_that_broke_is_named() -> None:
    model, x = MODELS["layer"].model(), random(3, 4, 8)
    x[2, 1, 0] = float("inf")
    with pytest.raises(SolveFailed, match="sample 2") as caught:
        model(Batch(x))
    assert (caught.value.z, caught.value.sample) == (0.0, 2)


# --- small steps -----------------------------------------------------------------------------------------------------


def gentle() -> ct.Transformer:
    """Weights that are smooth functions of depth, on [0, 1]."""
    depth, bases = ct.Interval(0.0, 1.0), {"z": ct.Legendre(3)}
    sizes = ct.at(d=8, h=2, m=12, z=4)
    model = ct.Transformer.continuous(channels=2, t=ct.Interval(), z=depth, at=sizes, bases=bases)
    return stirred(model, amount=0.05)


def between(states: tuple[Tensor, ...], place: float) -> Tensor:
    """Linear between the states of layers."""
    i = min(int(place), len(states) - 2)
    return states[i].lerp(states[i + 1], place - i)


@pytest.mark.spec("D6")
@pytest.mark.parametrize("solver", [Euler(), LieTrotter()], ids=str)
def test_layers_converge_to_the_flow_with_their_step(solver) -> None:
    """sup_z |x_ε(z) − x(z)| = O(ε): the largest distance along the whole path, linear between layers."""
    values = 10 * random(2, 5, 2)  # far from zero, where a norm bends sharply
    model, batch = gentle(), Batch(values, times=random(2, 5, seed=1, low=0.0))
    counts, errors = (8, 16, 32, 64), []
    with torch.no_grad():
        exact = model.states(batch, at=ct.at(z=Fixed(128, RK4()))).x
        for count in counts:
            coarse = model.states(batch, at=ct.at(z=Fixed(count, solver))).x
            errors.append(max((between(coarse, i * count / 128) - exact[i]).abs().max().item() for i in range(129)))
    assert abs(slope(counts, errors) - 1.0) < 0.15
    assert errors[-1] < 0.2


@pytest.mark.spec("D6")
def test_a_residual_net_scaled_by_its_depth_has_a_limit() -> None:
    """x_{l+1} = x_l + ε f(θ(l/L), x_l): with ε = 1/L nets of any depth are near each other, with ε = 1 they are not."""
    weights = random(3, 6, 6) / 6**0.5

    def net(depth: int, scale: float, x: Tensor) -> Tensor:
        for l in range(depth):
            u = l / depth
            theta = weights[0] + u * weights[1] + u * u * weights[2]
            x = x + scale * torch.tanh(x @ theta.T)
        return x

    x0 = random(4, 6, seed=2)

    def f(z: float, x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ (w[0] + z * w[1] + z * z * w[2]).T)

    limit = solve(f, x0, (0.0, 1.0), args=weights, solver=Tsit5(), control=Fixed(64)).final
    sizes = (16, 32, 64, 128)
    errors = [(net(depth, 1 / depth, x0) - limit).abs().max().item() for depth in sizes]
    assert abs(slope(sizes, errors) - 1.0) < 0.1
    assert (net(128, 1.0, x0) - limit).abs().max() > 10
    euler = solve(f, x0, (0.0, 1.0), args=weights, solver=Euler(), control=Fixed(32)).final
    assert gap(euler, net(32, 1 / 32, x0)) < 1e-13, "the same numbers as Euler steps"


# --- compilation -----------------------------------------------------------------------------------------------------

COMPILED = {"continuous words": Fixed(3, LieTrotter()), "spectral": Fixed(2, RK4()), "gpt2": Fixed(2, Strang())}


def compiled_gap(name: str, whole: bool) -> float:
    """How far a compiled model, forward and backward, is from the plain one.

    The depth of a model, from X(0) to X(Z) with all its weights, is one graph. What comes before looks at the data
    (are all stamps numbers, does every query see a key), so a whole model is a few graphs.
    """
    model, batch, z = MODELS[name].model(), MODELS[name].batch(), COMPILED[name]
    span = (model.axes.z.start, model.axes.z.end)
    structure = model.structure(ct.at(z=z))
    prepared, grids = model.prepare(batch, structure)
    x0 = model.embed(prepared, grids).detach()

    def depth(x: Tensor, args: Any) -> Tensor:
        return solve(field, x, span, args=args, solver=z.solver, control=z).final

    def outcome(call: Any) -> list[Tensor]:
        model.zero_grad()
        answer = call(batch, at=ct.at(z=z)) if whole else call(x0, args)
        answer.square().sum().backward()
        return [answer.detach(), *(p.grad.clone() for p in model.block.parameters())]

    torch.compiler.reset()
    found = []
    for way in (lambda f: f, lambda f: torch.compile(f, fullgraph=not whole, backend="aot_eager")):
        field, args = model.bind(grids, structure, Context())
        found.append(outcome(way(model if whole else depth)))
    return max(gap(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.slow(reason="half a minute of tracing")
@pytest.mark.unshaped
@pytest.mark.filterwarnings("ignore")  # what dynamo says of tensors it looks at
@pytest.mark.spec("D7")
@pytest.mark.parametrize(("name", "whole"), [*((name, False) for name in COMPILED), ("continuous words", True)])
def test_the_depth_of_a_model_compiles_into_one_graph_and_the_model_into_some(name, whole) -> None:
    assert compiled_gap(name, whole) <= 1e-10
