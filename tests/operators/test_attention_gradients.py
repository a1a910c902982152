"""A12: attention gradients written by hand equal autograd."""

from dataclasses import replace

import pytest
import torch

import continua as ct
from continua.axes import Counting, Depths, Interval, Points, grid_on
from continua.axes.grid import absent
from continua.fields import counted
from continua.models.build import discrete_axes
from continua.operators.attention.fused import attend_fused, attend_gradients, attend_plain, fused_with

EXACT = 1e-12  # float64; the two differ by the order of sums only


def draw(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def largest(one, other):
    return ((one - other).abs().max() / other.abs().max().clamp_min(1e-30)).item()


def biases(generator):
    """Log-weights of a measure, a causal mask, padding, and all of them with a free bias."""
    weights = torch.rand(2, 1, 1, 7, generator=generator, dtype=torch.float64).log()
    nothing = torch.tensor(absent(torch.float64), dtype=torch.float64)
    causal = torch.where(torch.ones(5, 7, dtype=torch.bool).tril(2), 0.0, nothing)[None, None]
    padded = torch.where(torch.arange(7) < torch.tensor([[7], [4]]), 0.0, nothing)[:, None, None]
    free = draw(generator, 2, 3, 5, 7)
    return {
        "plain": torch.zeros(1, 1, 1, 1, dtype=torch.float64),
        "log-weights": weights,
        "causal": causal,
        "padding": padded,
        "all": (weights + free + causal + padded).clamp_min(nothing),
    }


@pytest.mark.spec("A12")
@pytest.mark.parametrize("kind", ["plain", "log-weights", "causal", "padding", "all"])
def test_hand_written_gradients_equal_autograd(kind, generator):
    q, k, v, g = (draw(generator, 2, 3, n, 4).requires_grad_() for n in (5, 7, 7, 5))
    bias = biases(generator)[kind].expand(2, 3, 5, 7).clone().requires_grad_()
    for tau in (0.5, 1.0):
        answer = attend_plain(q, k, v, tau, bias)
        expected = torch.autograd.grad((answer * g).sum(), (q, k, v, bias))
        with torch.no_grad():
            got = attend_gradients(q, k, v, g, tau, bias)
        assert all(largest(one, other) <= EXACT for one, other in zip(got, expected, strict=True))


@pytest.mark.spec("A12")
def test_the_bias_gradient_of_a_measure_is_a_sum(generator):
    """∂/∂log w(s) = Σ dS over heads and queries; the fused kernel, where log w rides as a column, agrees."""
    q, k, v, g = (draw(generator, 2, 3, n, 4).requires_grad_() for n in (5, 7, 7, 5))
    log_w = torch.rand(2, 7, generator=generator, dtype=torch.float64).log().requires_grad_()
    answer = attend_fused(q, k, v, 0.5, causal=False, key_bias=log_w[:, None])
    expected = torch.autograd.grad((answer * g).sum(), (q, k, v, log_w))
    with torch.no_grad():
        dq, dk, dv, ds = attend_gradients(q, k, v, g, 0.5, log_w[:, None, None])
    for got, wanted in zip((dq, dk, dv, ds.sum((1, 2))), expected, strict=True):
        assert largest(got, wanted) <= EXACT


@pytest.mark.spec("A12")
def test_without_the_softmax_jacobian_the_gradient_is_wrong(generator):
    """The seed's formula dS = A ⊙ GVᵀ misses the row sum: far off."""
    q, k, v, g = (draw(generator, 1, 1, 5, 4).requires_grad_() for _ in range(4))
    expected = torch.autograd.grad((attend_plain(q, k, v, 0.5) * g).sum(), q)[0]
    with torch.no_grad():
        naive = 0.5 * ((0.5 * q @ k.mT).softmax(-1) * (g @ v.mT)) @ k
    assert largest(naive, expected) > 0.1


@pytest.mark.spec("A12")
@pytest.mark.parametrize("stamps", [None, "irregular"])
def test_the_operator_has_these_gradients(stamps, generator):
    """Attention with a head density, causal, on counted and on irregular times: dX through q, k and v by hand."""
    axes, native = discrete_axes(8, 2, 8, 1)
    operator = ct.Attention(counted(axes, 1), mask=ct.Causal(), density=True).double()
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.copy_(0.5 * draw(generator, *parameter.shape))
    t = grid_on(Points(6), Counting(6))
    if stamps:
        times = torch.rand(6, generator=generator, dtype=torch.float64).sort().values
        t = ct.Samples().on(Interval(), times[:, None], None)
    grids = replace(native.grids(axes), t=t, z=Depths((0.0,)))
    f, args = operator.bind(grids)
    x, g = draw(generator, 2, 6, 8).requires_grad_(), draw(generator, 2, 6, 8)
    expected = torch.autograd.grad((f(0.0, x, args) * g).sum(), x)[0]
    with torch.no_grad():
        w, rho = args.weights.at(0.0), operator.rho(grids)
        assert rho is not None
        assert (rho - 1).abs().max() > 0.01
        heads = {name: w[name].unflatten(0, (2, 4)) for name in "qkv"}
        q, k, v = (torch.einsum("btc,hec->bhte", x, heads[n]) + w[f"b{n}"].view(1, 2, 1, 4) for n in "qkv")
        up = torch.einsum("btd,dhe->bhte", g, w["o"].unflatten(1, (2, 4)))  # ρ is folded into o: it scales g
        bias = torch.zeros(6, 6, dtype=torch.float64)
        if stamps:
            bias = t.log_weights.expand(6, 6).clone()
            bias.fill_diagonal_(0.0)
            bias += torch.diag(t.left.clamp_min(torch.finfo(torch.float64).tiny).log())
        bias = torch.where(torch.ones(6, 6, dtype=torch.bool).tril(), bias, absent(torch.float64))
        slopes = attend_gradients(q, k, v, up, 0.5, bias[None, None])[:3]
        got = sum(torch.einsum("bhte,hec->btc", slope, heads[n]) for n, slope in zip("qkv", slopes, strict=True))
    assert largest(got, expected) <= EXACT


@pytest.mark.spec("A12")
@pytest.mark.parametrize("weighed", [False, True])
def test_gradients_of_half_precision_are_those_of_float32_rounded(weighed):
    generator = torch.Generator().manual_seed(3)
    half = [draw(generator, 2, 3, 5, 4).bfloat16().requires_grad_() for _ in range(3)]
    full = [x.detach().float().requires_grad_() for x in half]
    g = draw(generator, 2, 3, 5, 4).bfloat16()
    bias = draw(generator, 2, 1, 5, 5).float() if weighed else None
    for q, k, v in (half, full):
        answer = attend_fused(q, k, v, 0.5, True, None) if bias is None else fused_with(bias, q, k, v, 0.5, False)
        assert answer.dtype == q.dtype
        answer.backward(g.to(q.dtype))
    for own, wanted in zip(half, full, strict=True):
        assert torch.equal(own.grad, wanted.grad.bfloat16())
