"""Laws of the operators that act at each time alone: their formulas on uneven grids, and ``torch.nn`` on points."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from continua.flow import Euler, Fixed, Flow, solve
from continua.operators import Apply, Attention, Integral, Parts, Pointwise, PreNorm, RMSNorm, SiLU, Skip, Tanh
from tests.bound import COUNTED, DEPTHS, UNEVEN, apply, counted_grids, double, uneven_grids
from tests.cases import ACTIVATIONS
from tests.measure import EXACT, gap, random

REFERENCES = {
    "Identity()": lambda x: x,
    "ReLU()": F.relu,
    "GELU(tanh=False)": F.gelu,
    "GELU(tanh=True)": lambda x: F.gelu(x, approximate="tanh"),
    "SiLU()": F.silu,
    "Tanh()": torch.tanh,
    "ELU()": F.elu,
    "QuickGELU()": lambda x: x * torch.sigmoid(1.702 * x),
}


@pytest.mark.spec("M3")
@pytest.mark.parametrize("phi", ACTIVATIONS, ids=str)
def test_activations_are_those_of_torch(phi) -> None:
    x = 3 * random(50)
    assert torch.equal(phi(x), REFERENCES[str(phi)](x))
    assert torch.equal(apply(Apply(phi), counted_grids(), x), phi(x))


@pytest.mark.spec("M3")
@pytest.mark.parametrize("z", DEPTHS)
def test_integral_is_its_formula(z) -> None:
    one, grids, x = double(Integral(UNEVEN)), uneven_grids(), random(2, 5, 6)
    at_z = replace(grids, z=grids.z)
    layer = DEPTHS.index(z)
    kernel = one.kernel.on(**{k: at_z[k] for k in "zdc"})[layer]
    bias = one.bias.on(z=grids.z, d=grids.d)[layer]
    wanted = torch.einsum("dc,c,btc->btd", kernel, grids.d.weights, x) + bias
    assert gap(apply(one, grids, x, z), wanted) < EXACT


@pytest.mark.spec("M3")
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("phi1", ACTIVATIONS, ids=str)
def test_pointwise_is_its_formula(gated, phi1) -> None:
    one, grids, x = double(Pointwise(UNEVEN, phi1, Tanh(), gated=gated)), uneven_grids(), random(2, 5, 6)
    read = {
        n: getattr(one, n).on(**{k: grids[k] for k in getattr(one, n).letters})[1] for n in ("w1", "w2", "b1", "b2")
    }
    hidden = phi1(torch.einsum("mc,c,btc->btm", read["w1"], grids.d.weights, x) + read["b1"])
    if gated:
        gate = one.gate.on(**{k: grids[k] for k in "zmc"})[1]
        hidden = hidden * torch.einsum("mc,c,btc->btm", gate, grids.d.weights, x)
    wanted = torch.tanh(torch.einsum("dm,m,btm->btd", read["w2"], grids.m.weights, hidden) + read["b2"])
    assert gap(apply(one, grids, x), wanted) < EXACT


@pytest.mark.spec("M3")
def test_integral_on_points_is_a_linear_layer() -> None:
    one, layer = double(Integral(COUNTED)), nn.Linear(8, 8).double()
    with torch.no_grad():
        one.kernel.coefficients.copy_(layer.weight)
        one.bias.coefficients.copy_(layer.bias)
    x = random(2, 5, 8)
    assert torch.equal(apply(one, counted_grids(), x), layer(x))


@pytest.mark.spec("M3")
@pytest.mark.parametrize("phi", ACTIVATIONS, ids=str)
def test_pointwise_on_points_is_the_feed_forward_layer(phi) -> None:
    one = double(Pointwise(COUNTED, phi))
    first, second = nn.Linear(8, 12).double(), nn.Linear(12, 8).double()
    with torch.no_grad():
        for field, tensor in ((one.w1, first.weight), (one.b1, first.bias), (one.w2, second.weight)):
            field.coefficients.copy_(tensor)
        one.b2.coefficients.copy_(second.bias)
    x = random(2, 5, 8)
    assert torch.equal(apply(one, counted_grids(), x), second(REFERENCES[str(phi)](first(x))))


@pytest.mark.spec("M3")
def test_the_gated_form_is_swiglu() -> None:
    one, x = double(Pointwise(COUNTED, SiLU(), gated=True, bias=False)), random(2, 5, 8)
    w1, gate, w2 = (field.coefficients for field in (one.w1, one.gate, one.w2))
    assert torch.equal(apply(one, counted_grids(), x), (F.silu(x @ w1.T) * (x @ gate.T)) @ w2.T)


@pytest.mark.spec("M3")
@pytest.mark.parametrize("make", [Integral, Pointwise], ids=lambda make: make.__name__)
def test_tokens_do_not_see_each_other(make) -> None:
    one, grids, x = double(make(UNEVEN)), uneven_grids(), random(2, 5, 6)
    other = x.clone()
    other[:, 2] += 1
    first, second = apply(one, grids, x), apply(one, grids, other)
    keep = [0, 1, 3, 4]
    assert torch.equal(first[:, keep], second[:, keep])
    assert gap(first[:, 2], second[:, 2]) > 1e-3


@pytest.mark.spec("M1")
def test_skip_adds_gamma_times_the_state() -> None:
    inner, grids, x = double(Pointwise(UNEVEN)), uneven_grids(), random(2, 5, 6)
    assert gap(apply(Skip(inner, -0.7), grids, x), apply(inner, grids, x) - 0.7 * x) < EXACT


@pytest.mark.spec("M1")
@pytest.mark.parametrize("make", [Attention, Pointwise], ids=lambda make: make.__name__)
def test_gamma_minus_one_with_a_unit_euler_step_drops_the_residual(make) -> None:
    inner, grids, x = double(make(COUNTED)), counted_grids(), random(2, 5, 8)
    f, args = Skip(inner, -1.0).bind(grids)
    stepped = solve(Flow(f), x, (DEPTHS[0], DEPTHS[0] + 1.0), args=args, solver=Euler(), control=Fixed(1)).final
    assert gap(stepped, apply(inner, grids, x, DEPTHS[0])) < EXACT


@pytest.mark.spec("M6")
def test_prenorm_composes() -> None:
    norm, inner, grids, x = double(RMSNorm(UNEVEN)), double(Pointwise(UNEVEN)), uneven_grids(), random(2, 5, 6)
    assert torch.equal(apply(PreNorm(norm, inner), grids, x), apply(inner, grids, apply(norm, grids, x)))


@pytest.mark.spec("M7")
def test_adding_operators_builds_ordered_parts() -> None:
    a, b, c = (Pointwise(COUNTED) for _ in range(3))
    for parts in (a + b + c, a + (b + c), Parts((a, b)) + c):
        assert list(parts) == [a, b, c]
        assert parts.kinds == (True, True, True)
