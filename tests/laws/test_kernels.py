"""One law of all kernels: each is the exact attention that it stands for, up to the error that it states.

Every kernel that avoids pairs names the plain kernel and mask it stands for. Exact ones agree with those to round-off;
for the others the error falls with the number of features, landmarks or sources at the order they declare.
"""

import copy
import functools
import inspect
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from continua import operators
from continua.axes import GaussLegendre, Grid, Lattice, Midpoint, MonteCarlo, Samples, Sobol, Times
from continua.errors import ContinuaError
from continua.operators import (
    Attention,
    Causal,
    Comb,
    FewSources,
    Gaussian,
    Kernel,
    Local,
    Mask,
    Nystrom,
    PositiveFeatures,
    Softmax,
    Stationary,
    Subquadratic,
    Uniform,
)
from continua.operators.kernels import features
from tests.bound import COUNTED, COUNTED_AXES, apply, counted_grids, double
from tests.cases import KERNELS
from tests.measure import EXACT, gap, random, slope

TOKENS = 512
GAIN = 4.0  # scores spread over ±5 or so
KINDS = ("uniform", "irregular", "gaps")
MASKS: tuple[Mask | None, ...] = (None, Causal())

# --- the two sides ---------------------------------------------------------------------------------------------------


def tokens(kind: str, count: int = TOKENS) -> Grid:
    """Counted tokens; irregular stamps of two samples; even stamps of which a third is missing and carries nonsense."""
    if kind == "uniform":
        return counted_grids(count).t
    if kind == "irregular":
        steps = random(2, count, low=0.1)
        return Samples().on(Times(), (steps.cumsum(-1) / steps.sum(-1, keepdim=True)) * count)
    observed = random(2, count, seed=5, low=0.0) > 1 / 3
    even = torch.arange(count, dtype=torch.float64).expand(2, -1)
    return Samples().on(Times(), torch.where(observed, even, 7.0), observed)


def smooth(grid: Grid, count: int = TOKENS) -> Tensor:
    """Eight smooth functions of time, of two samples."""
    u = grid.nodes[..., 0].expand(2, -1)[..., None] / count
    waves = 2 * math.pi * torch.tensor([0.3, 0.7, 1.1, 1.3, 0.5, 0.9, 1.7, 0.2], dtype=torch.float64)
    return torch.cos(waves * u + torch.arange(8)) * torch.tensor([[[1.0]], [[0.7]]])


@functools.cache
def fresh_operator(gain: float, alone: bool) -> Attention:
    """The same weights for every kernel, scores of some size, no output bias."""
    one = double(Attention(COUNTED, position=Gaussian(COUNTED_AXES, near=10.0, far=80.0) if alone else None))
    with torch.no_grad():
        one.q.coefficients.mul_(gain)
        one.k.coefficients.mul_(gain)
        one.bo.coefficients.zero_()
    return one


def operator(kernel: Kernel, mask: Mask | None, gain: float = GAIN) -> Attention:
    """Attention with this kernel; a stationary kernel is its position."""
    one = copy.copy(fresh_operator(gain, isinstance(kernel, Stationary | Uniform)))
    one.kernel, one.mask = kernel, mask
    return one


def both(kernel: Any, mask: Mask | None, grid: Grid, x: Tensor, gain: float = GAIN) -> tuple[Tensor, Tensor]:
    """The answers of the kernel and of the plain one it stands for."""
    grids = replace(counted_grids(len(grid)), t=grid)
    exact = operator(*kernel.plain(mask), gain)
    return apply(operator(kernel, mask, gain), grids, x), apply(exact, grids, x)


@functools.cache
@torch.no_grad()
def exact_answer(mask: Mask | None, kind: str, gain: float) -> Tensor:
    """Softmax attention, once for all draws."""
    grid = tokens(kind)
    return apply(operator(Softmax(), mask, gain), replace(counted_grids(TOKENS), t=grid), smooth(grid))


@torch.no_grad()
def error(kernel: Any, mask: Mask | None, kind: str, gain: float = GAIN) -> float:
    """Relative to the answer, in the mean square."""
    assert kernel.plain(mask) == (Softmax(), mask)
    grid, wanted = tokens(kind), exact_answer(mask, kind, gain)
    got = apply(operator(kernel, mask, gain), replace(counted_grids(TOKENS), t=grid), smooth(grid))
    return float((got - wanted).norm() / wanted.norm())


# --- the law ---------------------------------------------------------------------------------------------------------

EXACT_KERNELS = [Local(20.0), Comb(16.0), Comb(16.0, width=5.0), Stationary()]
FALLING: dict[str, tuple[Any, tuple[int, ...]]] = {  # kernel of m and a seed, sizes
    "positive features": (lambda m, seed: PositiveFeatures(m, seed), (32, 256)),
    "Monte Carlo": (lambda m, seed: FewSources(MonteCarlo(m, seed)), (8, 128)),
    "Sobol": (lambda m, seed: FewSources(Sobol(m, seed)), (4, 16)),
    "lattice": (lambda m, seed: FewSources(Lattice(m, seed)), (4, 32)),
    "Monte Carlo with controls": (lambda m, seed: FewSources(MonteCarlo(m, seed), control=16), (8, 128)),
}
DRAWS = 6
STEP = 1e-4
SETTLING: dict[str, tuple[Any, tuple[int, ...], float]] = {  # kernel of m, sizes, error at the last
    "Nyström": (lambda m: Nystrom(GaussLegendre(m)), (4, 8, 24), 1e-5),
    "quadrature": (lambda m: FewSources(GaussLegendre(m)), (4, 8, 24), 5e-3),  # nodes are tokens: 1/512 of the way
    "midpoint": (lambda m: FewSources(Midpoint(m)), (4, 8, 24), 1e-2),
}


@pytest.mark.spec("A5")
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", EXACT_KERNELS, ids=str)
def test_exact_kernels_are_what_they_stand_for(kernel, kind, mask) -> None:
    assert kernel.is_exact
    assert kernel.order == math.inf
    if isinstance(kernel, Stationary) and kind == "irregular":
        with pytest.raises(ContinuaError, match="evenly spaced"):
            both(kernel, mask, tokens(kind), random(2, TOKENS, 8))
        return
    grid = tokens(kind)
    got, wanted = both(kernel, mask, grid, smooth(grid) + random(2, TOKENS, 8))
    assert wanted.abs().max() > 0.1
    assert gap(got, wanted) < EXACT


def allowed(name: str, mask: Mask | None) -> bool:
    """Some approximations know no past."""
    return mask is None or name not in ("Nyström", "Monte Carlo with controls")


@pytest.mark.spec("A5", "T4")
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FALLING)
def test_random_kernels_err_as_they_state(name, kind, mask) -> None:
    make, sizes = FALLING[name]
    if not allowed(name, mask):
        with pytest.raises(ContinuaError, match="control variates"):
            error(make(8, 0), mask, kind)
        return
    order = make(8, 0).order
    gain = 2.0 if name == "positive features" else GAIN  # beyond that their error has tails that six draws miss
    squares = [[error(make(m, seed), mask, kind, gain) ** 2 for seed in range(DRAWS)] for m in sizes]
    errors = [(sum(found) / DRAWS) ** 0.5 for found in squares]
    # six draws know each error to a fifth or so, and the sizes are a factor of four to sixteen apart: ±0.3
    assert slope(sizes, errors) > order - 0.3, errors
    assert errors[-1] < 0.2, errors


@pytest.mark.spec("A5", "T4")
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SETTLING)
def test_deterministic_kernels_settle_on_smooth_fields(name, kind, mask) -> None:
    make, sizes, last = SETTLING[name]
    if not allowed(name, mask):
        with pytest.raises(ContinuaError, match="takes no mask"):
            error(make(8), mask, kind)
        return
    errors = [error(make(m), mask, kind) for m in sizes]
    assert errors[-1] < last, errors
    assert errors[-1] < errors[0] / 8, errors
    assert errors[0] > 1e-3, "the task must not be too easy"


@pytest.mark.spec("A5", "A2")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", [PositiveFeatures(16), FewSources(MonteCarlo(4))], ids=str)
def test_no_approximation_looks_ahead(kernel, kind) -> None:
    """The first row sees itself alone, however little of its cell lies behind it; later tokens change no row."""
    grid = tokens(kind)
    x = smooth(grid)
    with torch.no_grad():
        got, wanted = both(kernel, Causal(), grid, x)
        first = grid.observed.expand(2, -1).long().argmax(-1)
        rows = torch.arange(2), first
        assert gap(got[rows], wanted[rows]) < EXACT
        later = torch.where(torch.arange(TOKENS)[:, None] > 300, x + 1.0, x)
        changed, _ = both(kernel, Causal(), grid, later)
    assert gap(changed[:, :301], got[:, :301]) < EXACT
    assert gap(changed[:, 301:], got[:, 301:]) > 1e-3


PROTOCOLS = (Kernel, Subquadratic, operators.InParts)


@pytest.mark.spec("A5")
def test_every_quick_kernel_is_under_the_law() -> None:
    public = [one for name in operators.__all__ if inspect.isclass(one := getattr(operators, name))]
    quick = {one for one in public if hasattr(one, "prepare") and one not in PROTOCOLS}
    falling = {type(make(4, 0)) for make, _ in FALLING.values()}
    settling = {type(make(4)) for make, *_ in SETTLING.values()}
    assert quick == {type(one) for one in EXACT_KERNELS} | falling | settling
    assert quick == {type(one) for one in KERNELS.values() if isinstance(one, Subquadratic)}
    kernels = {one for one in public if hasattr(one, "over_keys") and one not in PROTOCOLS}
    assert kernels == {type(one) for one in KERNELS.values()}
    for kernel in KERNELS.values():
        assert isinstance(kernel, Kernel)


# --- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("A5")
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", EXACT_KERNELS, ids=str)
def test_gradients_of_exact_kernels_are_those_of_the_plain_formula(kernel, kind, mask) -> None:
    if isinstance(kernel, Stationary) and kind == "irregular":
        pytest.skip("refused above")
    grid = tokens(kind, 160)
    x = (smooth(grid, 160) + random(2, 160, 8)).requires_grad_()
    found = [torch.autograd.grad((out * random(*out.shape, seed=9)).sum(), x)[0] for out in both(kernel, mask, grid, x)]
    assert gap(*found) < EXACT


@pytest.mark.spec("A5")
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(
    "kernel",
    [
        PositiveFeatures(8),
        Nystrom(GaussLegendre(4)),
        FewSources(MonteCarlo(3)),
        FewSources(MonteCarlo(3), control=2),
    ],
    ids=str,
)
def test_gradients_of_approximations_are_those_of_their_own_formula(kernel, mask, monkeypatch) -> None:
    """By differences; blocks of two, so that a causal row has a past. The map of least size is a constant."""
    if mask is not None and (isinstance(kernel, Nystrom) or getattr(kernel, "control", 0)):
        pytest.skip("refused above")
    for room in ("sampled", "features"):
        monkeypatch.setattr(f"continua.operators.kernels.{room}.ROWS", 2)
    one = double(Attention(COUNTED, kernel=kernel, mask=mask))
    grids = replace(counted_grids(6), t=tokens("gaps", 6))
    x, way, out = random(2, 6, 8), random(2, 6, 8, seed=1), random(2, 6, 8, seed=2)
    if isinstance(kernel, PositiveFeatures):
        fixed = features._balanced(*(torch.eye(2).double().expand(2, 4, 2, 2) * c for c in (2.0, 0.5)))
        monkeypatch.setattr(features, "_balanced", lambda c, d: fixed)
        monkeypatch.setattr(features.Bank, "of", classmethod(constant_bank(features.Bank.of.__func__)))

    def f(x: Tensor) -> Tensor:
        return (apply(one, grids, x) * out).sum()

    x.requires_grad_()
    slant = float((torch.autograd.grad(f(x), x)[0] * way).sum())
    with torch.no_grad():
        wanted = float(f(x + STEP * way) - f(x - STEP * way)) / (2 * STEP)
    assert abs(wanted) > 0.01
    assert abs(slant - wanted) < 1e-3 * abs(wanted)  # STEP², times a third derivative (Nyström: of 1/λ)


def constant_bank(make: Any) -> Any:
    """The same features whatever the size of the queries, which is a constant for the gradient."""
    return lambda cls, omega, size: make(cls, omega, torch.ones_like(size))


@pytest.mark.spec("A5")
@pytest.mark.parametrize(
    ("kernel", "close"),
    [(PositiveFeatures(1024), 0.1), (Nystrom(), 1e-4), (FewSources(GaussLegendre(32)), 0.01)],
    ids=str,
)
def test_gradients_of_approximations_are_close_to_the_exact_ones(kernel, close) -> None:
    """In smooth directions: single tokens that are no source have no gradient of their values at all."""
    grid = tokens("irregular")
    x, way = smooth(grid).requires_grad_(), smooth(grid).roll(3, -1)
    slants = [
        (torch.autograd.grad((out * smooth(grid).flip(-1)).sum(), x)[0] * way).sum((0, 1))
        for out in both(kernel, None, grid, x, gain=2.0)
    ]
    assert float((slants[0] - slants[1]).norm() / slants[1].norm()) < close
