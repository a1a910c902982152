"""Ways to sum over all tokens: each against all pairs, with gradients, and where it is allowed."""

import math
from typing import Any

import numpy
import pytest
import torch

from continua.errors import ConfigError
from continua.geometry import sphere
from continua.lab import ByFourier, ByHarmonics, Dense, Fused, Norm, Particles, SelfAttention, Unnormalised, layers
from continua.lab.particles.sums import Query, chosen, has_finufft, modes, real_harmonics
from tests.lab.test_particles import DOUBLE, drawn, masses
from tests.measure import gap, random
from tests.refusals import refused

CLOSE = 1e-11  # sums over some hundred tokens by another order of additions, relative to the greatest
WAYS = {"fused": Fused(), "Fourier": ByFourier(), "harmonics": ByHarmonics()}


def turned(d: int, angle: float) -> torch.Tensor:
    """A rotation of the first two coordinates."""
    m = torch.eye(d, dtype=DOUBLE)
    c, s = math.cos(angle), math.sin(angle)
    m[:2, :2] = torch.tensor([[c, -s], [s, c]], dtype=DOUBLE)
    return m


def asked(d: int, beta: float, weighted: bool, causal: bool, angle: float, n: int = 300) -> Query:
    x = drawn(n, d)
    y = x @ (1.1 * turned(d, angle)).mT
    return Query(y, x, masses(n) if weighted else None, beta, causal, 1.1, math.copysign(1.0, beta) * math.cos(angle))


@pytest.mark.spec("L1")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("d", [2, 3, 6])
@pytest.mark.parametrize("beta", [0.0, 0.7, 9.0, -2.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("angle", [0.0, 0.8])
def test_every_way_to_sum_gives_what_all_pairs_give(
    way: str, d: int, beta: float, weighted: bool, causal: bool, angle: float
) -> None:
    sums, one = WAYS[way], asked(d, beta, weighted, causal, angle)
    shape = {"Fourier": d == 2 and not causal, "harmonics": d == 3 and not causal}.get(way, True)
    if not shape:
        assert not sums.fits(one)
        return
    assert sums.fits(one)
    for name in ("mean", "total"):
        got, wanted = getattr(sums, name)(one), getattr(Dense(), name)(one)
        assert got.shape == wanted.shape
        assert gap(got, wanted) < CLOSE * wanted.abs().max(), name


@pytest.mark.spec("L1")
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_all_pairs(way: str) -> None:
    d = 3 if way == "harmonics" else 2
    x = drawn(60, d)
    leaves = [x.clone().requires_grad_(), masses(60).requires_grad_(), random(d, d, seed=3).requires_grad_()]

    def gradients(sums: Any) -> tuple[torch.Tensor, ...]:
        for kind in (SelfAttention, Unnormalised):
            kind(2.0, q=turned(d, 0.3), v=leaves[2], sums=sums).velocity(leaves[0], leaves[1]).pow(3).sum().backward()
        found = (sphere.tangent(x, leaves[0].grad), *(leaf.grad.clone() for leaf in leaves[1:]))
        for leaf in leaves:
            leaf.grad = None
        return found

    for got, wanted in zip(gradients(WAYS[way]), gradients(Dense()), strict=True):
        assert gap(got, wanted) < CLOSE * max(1.0, float(wanted.abs().max()))


@pytest.mark.spec("L1", "L2")
def test_tokens_off_the_sphere_are_summed_by_pairs() -> None:
    """Without a norm the lengths matter, which a series for the sphere does not see."""
    start = Particles.uniform(600, 2, torch.Generator().manual_seed(0))
    found = layers(SelfAttention(2.0), start, 3, 0.5, Norm.NONE).x[-1]
    assert gap(found, layers(SelfAttention(2.0, sums=Dense()), start, 3, 0.5, Norm.NONE).x[-1]) < CLOSE
    turn = turned(2, 0.3).requires_grad_()  # nor does it see the length of queries that a matrix may learn
    for sums in (None, Dense()):
        turn.grad = None
        SelfAttention(2.0, q=turn, sums=sums).velocity(start.x).pow(3).sum().backward()
        if sums is None:
            first = turn.grad.clone()
    assert gap(first, turn.grad) < 1e-10


@pytest.mark.spec("L1")
def test_runs_side_by_side_do_not_meet() -> None:
    many = Particles.uniform(40, 2, torch.Generator().manual_seed(1), runs=3)
    for sums in (Dense(), Fused(), ByFourier()):
        together = SelfAttention(4.0, sums=sums).velocity(many.x)
        for i in range(3):
            assert gap(together[i], SelfAttention(4.0).velocity(many.x[i])) < CLOSE


@pytest.mark.spec("L1")
def test_the_way_is_chosen_by_size_and_shape() -> None:
    def way(n: int, d: int, **more: Any) -> type:
        x = drawn(n, d)
        choice = {"weights": None, "beta": 2.0, "causal": False, "norm": 1.0, "least": 1.0, **more}
        return type(chosen(Query(x, x, **choice)))

    assert way(2000, 2) is ByFourier
    assert way(100, 2) is Dense
    assert way(2000, 2, causal=True) is Fused
    assert way(2000, 2, norm=None) is Fused  # queries of unequal lengths
    assert way(2000, 2, beta=-20.0, least=-1.0) is Fused  # a token sees itself too faintly for a series
    assert way(6000, 3) is ByHarmonics
    assert way(2000, 8) is Fused
    with refused(ConfigError, "ByFourier", "Dense()"):
        SelfAttention(2.0, sums=ByFourier()).velocity(drawn(10, 3))


@pytest.mark.spec("L1")
def test_a_large_circle_goes_through_the_library_alike() -> None:
    if not has_finufft():
        pytest.skip("finufft is not installed")
    one = asked(2, 900.0, True, False, 0.0, n=2000)
    small = ByFourier().mean(one)
    large = type("Large", (ByFourier,), {"_library": staticmethod(lambda points, count: True)})()
    assert gap(large.mean(one), small) < 1e-9  # its own tolerance is 1e-14 of the greatest, times e^{…} of the least
    assert gap(small, Dense().mean(one)) < 1e-9


@pytest.mark.spec("L1")
@pytest.mark.parametrize("beta", [0.0, 1e-3, 2.0, -5.0, 80.0, 1e4])
def test_modes_of_the_kernel_are_bessel_functions(beta: float) -> None:
    special = pytest.importorskip("scipy.special")
    like = torch.zeros(1)
    plain, ball = modes(beta, 2, like).numpy(), modes(beta, 3, like).numpy()
    assert numpy.abs(plain - special.ive(numpy.arange(len(plain)), beta)).max() < 1e-14
    size = abs(beta)
    wanted = (
        special.ive(numpy.arange(len(ball)) + 0.5, size) * math.sqrt(math.pi / (2 * size))
        if size
        else numpy.eye(len(ball))[0]
    )
    signs = numpy.where(numpy.arange(len(ball)) % 2 == 1, math.copysign(1.0, beta), 1.0)
    assert numpy.abs(ball - signs * wanted).max() < 1e-13


@pytest.mark.spec("L1")
def test_harmonics_are_orthonormal() -> None:
    """On a product of Gauss latitudes and equal longitudes, which integrates their products exactly."""
    degree = 12
    z, w = numpy.polynomial.legendre.leggauss(degree + 1)
    turn = torch.arange(2 * degree + 2, dtype=DOUBLE) * (math.pi / (degree + 1))
    z, w = torch.tensor(z), torch.tensor(w) * (math.pi / (degree + 1))
    r = (1 - z * z).sqrt()
    x = torch.stack([torch.outer(r, turn.cos()), torch.outer(r, turn.sin()), z[:, None].expand(-1, len(turn))], -1)
    y = real_harmonics(x.reshape(-1, 3), degree)
    weights = w[:, None].expand(-1, len(turn)).reshape(-1)
    assert gap(y * weights @ y.mT, torch.eye((degree + 1) ** 2, dtype=DOUBLE)) < 1e-12
