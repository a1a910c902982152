"""Weights over depth: one product for each field and block of depths, few bytes, gradients by the chain rule."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import continua as ct
from continua.axes import Depths, coordinates
from continua.fields import ByNetwork, Generated
from continua.flow import (
    RK4,
    Adaptive,
    Checkpoint,
    Direct,
    Fixed,
    Heun,
    Lean,
    Mixed,
    Recompute,
    Reversible,
    ReversibleHeun,
    Tsit5,
    stepping,
)
from continua.flow.stepping import NODES
from continua.lab.cost.memory import uncollected
from continua.models import Batch, States
from continua.models.build import continuous_axes, pre_norm
from continua.operators import Attention, LayerNorm, Pointwise
from tests.cases import MODELS
from tests.cases_models import of_fields, series, with_bases
from tests.exact import gradients, worst
from tests.measure import gap, random, slope, stirred
from tests.operators.test_memory import peak

CLOSE = 1e-10
LATE = [Lean(), Recompute(), Checkpoint(3), Mixed(3), Reversible()]
WIDTH = 48


def flow(z: Any, width: int = WIDTH, **choices: Any) -> ct.Transformer:
    """A state in and a state out: four kernels and their biases, all of them functions of depth."""
    axes, native = continuous_axes(ct.at(d=width, h=2, z=8), z=ct.Interval(0.0, 1.0))
    weights = with_bases(z=z)(axes, native)
    block = pre_norm((Attention(weights), Pointwise(weights, gain=0.1)), lambda: LayerNorm(weights, affine=False))
    return ct.Transformer(axes, native, States(), block)


def fields_of(model: ct.Transformer) -> int:
    """How many fields vary over depth."""
    parts = [part for part in model.block.modules() if hasattr(part, "letters")]
    return sum("z" in part.letters for part in parts)


# --- products --------------------------------------------------------------------------------------------------------


class Readings(TorchDispatchMode):
    """Counts products with a matrix of basis values over depth: those with as many columns as the basis has."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.rows = size, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "bmm") and args[0].shape[-1] == self.size:
            self.rows.append(args[0].shape[-2])
        return func(*args, **(kwargs or {}))


SIZE = 7  # of the basis in depth: no other dimension of the model is seven


@pytest.mark.spec("T7", "D4")
@pytest.mark.parametrize("basis", [ct.Legendre(SIZE), Generated(SIZE, hidden=8)], ids=["Legendre", "Generated"])
def test_one_product_for_each_field_reads_all_depths(basis) -> None:
    model = flow(basis)
    with Readings(SIZE) as seen:
        model(random(1, 3, WIDTH).float(), at=ct.at(z=Fixed(20, Heun())))
    assert len(seen.rows) == fields_of(model)
    assert set(seen.rows) == {21}, "both ends of twenty steps, each once"


@pytest.mark.spec("T7", "D4")
@pytest.mark.parametrize("adjoint", [Recompute(), Lean(), Reversible()], ids=str)
@pytest.mark.parametrize("basis", [ct.Legendre(SIZE), Generated(SIZE, hidden=8)], ids=["Legendre", "Generated"])
def test_or_one_for_each_field_and_block_where_memory_counts(basis, adjoint, monkeypatch) -> None:
    monkeypatch.setattr(stepping, "BYTES", 0)  # weights this small would all fit into one block
    model, steps = flow(basis), 32
    model.adjoint = adjoint
    x = random(1, 3, WIDTH).float()
    with Readings(SIZE) as seen:
        answer = model(x, at=ct.at(z=Fixed(steps, ReversibleHeun())))
    fields = fields_of(model)
    assert max(seen.rows) <= NODES
    assert sum(seen.rows) == fields * (steps + 1), "every depth once"
    assert len(seen.rows) <= fields * (steps // (NODES - 1) + 1), "and many of them at a time"
    out = len(seen.rows)
    with Readings(SIZE) as seen:
        answer.sum().backward()
    network = isinstance(basis, Generated)  # whose own gradient is two more products
    assert len(seen.rows) <= (4 if network else 2) * out, "again on the way back, no more"


# --- bytes -----------------------------------------------------------------------------------------------------------


def taken(adjoint: Any, steps: int, backward: bool = True, tokens: int = 2) -> int:
    """Peak bytes of a pass with few tokens: what counts are weights."""
    model = flow(Generated(4, hidden=8), width=64)
    model.adjoint, model.check = adjoint, False
    x = random(1, tokens, 64).float()

    def run() -> None:
        answer = model(x, at=ct.at(z=Fixed(steps, ReversibleHeun())))
        if backward:
            torch.autograd.grad(answer.sum(), list(model.parameters()))

    return peak(run)


@pytest.mark.spec("T7", "D4")
def test_a_block_is_as_long_as_its_bytes_allow(monkeypatch) -> None:
    model = flow(ct.Legendre(SIZE))
    model.adjoint = Recompute()

    def longest() -> int:
        with Readings(SIZE) as seen:
            model(random(1, 3, WIDTH).float(), at=ct.at(z=Fixed(32, ReversibleHeun())))
        return max(seen.rows)

    assert longest() == 33, "all depths at once"
    each = 4 * sum(p[0].numel() for name, p in model.named_parameters() if name.startswith("block"))
    monkeypatch.setattr(stepping, "BYTES", 20 * each)
    assert NODES < longest() <= 20


@pytest.mark.spec("T7", "D3", "D4")
@pytest.mark.parametrize("adjoint", [Reversible(drift=1.0), Recompute()], ids=["Reversible", "Recompute"])
def test_the_bytes_of_weights_are_those_of_a_block(adjoint, monkeypatch) -> None:
    monkeypatch.setattr(stepping, "BYTES", 0)
    taken(adjoint, 2)  # what is remembered for good is not counted
    few, many = taken(adjoint, 8), taken(adjoint, 128)
    assert many < 1.1 * few
    assert taken(Direct(), 32) > 2 * many


@pytest.mark.spec("T7")
@pytest.mark.parametrize("basis", [ct.Legendre(4), Generated(4, hidden=8)], ids=["Legendre", "Generated"])
def test_no_gradient_fills_a_tensor_of_all_depths_for_each(basis) -> None:
    """Indexing a tensor of all depths would allocate a whole one for each on the way back: bytes like n²."""
    sizes, found = (16, 32, 64, 128), []
    for steps in sizes:
        model = flow(basis, width=16)
        answer = model(random(1, 2, 16).float(), at=ct.at(z=Fixed(steps, ReversibleHeun())))
        found.append(allocated(lambda answer=answer: answer.sum().backward()))
    assert -slope(sizes, found) < 1.15


def allocated(run: Any) -> int:
    """All bytes that were ever asked for."""
    from torch.profiler import ProfilerActivity, profile

    with uncollected(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    return sum(max(event.nbytes(), 0) for event in events)


# --- gradients -------------------------------------------------------------------------------------------------------

KINDS = {
    "generated": lambda: of_fields(with_bases(z=Generated(3, hidden=8))),
    "splines": lambda: of_fields(with_bases(z=ct.BSpline(5))),
    "separable networks": lambda: of_fields(lambda axes, native: ByNetwork(axes, 8, separable=3)),
    "joint networks": lambda: of_fields(lambda axes, native: ByNetwork(axes, 8, separable=None)),
}


def answered(model: Any, batch: Batch, where: Any, adjoint: Any) -> dict[str, Tensor]:
    model.adjoint = adjoint
    answer = model(batch, at=where)
    found = gradients((answer * random(*answer.shape, seed=9)).sum(), dict(model.named_parameters()))
    return {"answer": answer.detach(), **found}


@pytest.mark.spec("T7", "D4", "M5")
@pytest.mark.parametrize("kind", KINDS)
def test_networks_over_depth_get_their_gradients_by_the_chain_rule(kind) -> None:
    """Blocks of depths: eleven steps are two of them. ``Direct`` reads everything at once, under autograd."""
    model, batch = stirred(KINDS[kind]()), series()
    where = ct.at(z=Fixed(11, ReversibleHeun()))
    wanted = answered(model, batch, where, Direct())
    networks = [name for name in wanted if "networks" in name or "inner" in name]
    assert networks or kind == "splines"
    assert all(wanted[name].abs().max() > 0 for name in networks if "networks" in name)
    for adjoint in LATE:
        assert worst(answered(model, batch, where, adjoint), wanted) < CLOSE, adjoint


@pytest.mark.spec("T7")
def test_the_chain_rule_by_hand() -> None:
    """dL/dφ = Σ_z (∂θ(z)/∂φ)ᵀ dL/dθ(z) for a hypernetwork, against the gradient of the solve."""
    model, batch = stirred(KINDS["generated"]()), series()
    field = model.block.parts[1].inner.w1
    where = ct.at(z=Fixed(4, ct.Euler()))
    nodes = Depths((0.0, 0.5, 1.0, 1.5))
    seen: list[Tensor] = []
    read = type(field).on

    def watched(self: Any, **grids: Any) -> Tensor:
        values = read(self, **grids)
        if self is field:
            values.retain_grad()
            seen.append(values)
        return values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(field), "on", watched)
        (model(batch, at=where) * random(2, 6, 3)).sum().backward()
    (theta,) = seen
    network = field.networks["z"]
    basis = network.matrix(field.axes["z"], coordinates(nodes, theta))
    by_basis = torch.einsum("zmc,kmc->zk", theta.grad, field_coefficients(field, model))
    found = torch.autograd.grad(basis, list(network.parameters()), by_basis)
    for got, parameter in zip(found, network.parameters(), strict=True):
        assert gap(got, parameter.grad) < CLOSE


def field_coefficients(field: Any, model: Any) -> Tensor:
    """θ_k(m, c): the coefficients in depth on the native grids."""
    grids = model.native.grids(model.axes)
    return read_without_depth(field, grids)


def read_without_depth(field: Any, grids: Any) -> Tensor:
    return field.on(**{letter: grids[letter] for letter in field.letters if letter != "z"})


# --- adaptive steps --------------------------------------------------------------------------------------------------


@pytest.mark.spec("D1", "T7", "M10")
@pytest.mark.parametrize("name", ["generated"])
def test_adaptive_steps_read_the_same_functions(name) -> None:
    model, batch = MODELS[name].model(), MODELS[name].batch()
    with torch.no_grad():
        fine = model.at(z=Fixed(64, RK4()))(batch)
        errors = [gap(model.at(z=Adaptive(Tsit5(), rtol=r, atol=r))(batch), fine) for r in (1e-4, 1e-6)]
    assert errors[0] < 1e-3
    assert errors[1] < 1e-5
    assert errors[1] < 0.1 * errors[0]


@pytest.mark.slow(reason="tight tolerances: thousands of evaluations")
@pytest.mark.spec("D1", "T7", "M10")
@pytest.mark.parametrize("name", ["continuous words", "continuous series", "separable networks", "joint networks"])
def test_adaptive_steps_read_the_same_functions_to_eight_digits(name) -> None:
    model, batch = MODELS[name].model(), MODELS[name].batch()
    with torch.no_grad():
        fine = model.at(z=Fixed(256, Tsit5()))(batch)
        assert gap(model.at(z=Adaptive(Tsit5(), rtol=1e-8, atol=1e-8))(batch), fine) < 1e-7
