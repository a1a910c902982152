"""Spherical harmonics: against scipy, exactness of the grid, any points, and what is refused."""

import math

import numpy as np
import pytest
import torch

from continua.errors import ConfigError, ShapeError
from continua.geometry import sphere
from continua.lab.particles.bessel import log_means
from continua.lab.particles.harmonics import Harmonics, harmonics_at
from continua.typing import Tensor
from tests.lazy import Lazily
from tests.refusals import refused

special = Lazily("scipy.special")

ROUND_OFF = 1e-12  # sums over some thousand nodes of numbers of order one to ten


def points(n: int, generator: torch.Generator) -> Tensor:
    return sphere.uniform((n, 3), generator)


def some(y: Harmonics, generator: torch.Generator, *batch: int) -> Tensor:
    """The coefficients of random real functions."""
    a = torch.randn(*batch, y.degree + 1, y.degree + 1, dtype=torch.complex128, generator=generator).tril()
    a[..., 0] = a[..., 0].real.to(a.dtype)
    return a


@pytest.mark.spec("L6")
def test_values_are_those_of_scipy(generator: torch.Generator) -> None:
    x = torch.cat([points(40, generator), torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]], dtype=torch.float64)])
    found = harmonics_at(x, 30).numpy()
    theta, phi = np.arccos(x[:, 2].numpy()), np.arctan2(x[:, 1].numpy(), x[:, 0].numpy())
    for l in range(31):
        for m in range(31):
            told = special.sph_harm_y(l, m, theta, phi) if m <= l else 0.0
            np.testing.assert_allclose(found[:, l, m], told, atol=ROUND_OFF)


@pytest.mark.spec("L6")
@pytest.mark.parametrize("degree", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("more", [0, 5])
def test_there_and_back(degree: int, more: int, generator: torch.Generator) -> None:
    y = Harmonics(degree, degree + 1 + more)
    a = some(y, generator, 3)
    assert (y.analyse(y.synthesise(a)) - a).abs().max() < ROUND_OFF


@pytest.mark.spec("L6")
def test_the_grid_integrates_products_exactly(generator: torch.Generator) -> None:
    y = Harmonics(9)
    assert abs(float(y.weights.sum()) / (4 * math.pi) - 1) < 1e-14
    a, b = some(y, generator), some(y, generator)
    by_grid = float((y.weights * y.synthesise(a) * y.synthesise(b)).sum())
    both = (a * b.conj()).real  # Parseval: m > 0 stands for −m too
    assert abs(by_grid - float(2 * both.sum() - both[:, 0].sum())) < ROUND_OFF * 9**2
    assert (y.points.norm(dim=-1) - 1).abs().max() < 1e-15


@pytest.mark.spec("L6")
def test_scattered_points_agree_with_the_grid(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    y = Harmonics(12)
    a, grid = some(y, generator, 2), y.points.reshape(-1, 3)
    values = y.synthesise(a)
    assert (y.evaluate(a, grid) - values.flatten(-2)).abs().max() < ROUND_OFF
    weighted = (values * y.weights).flatten(-2)
    whole = y.moments(grid, weighted)
    assert (whole - a).abs().max() < ROUND_OFF
    monkeypatch.setattr("continua.lab.particles.harmonics.AT_ONCE", 1000)  # in many blocks
    assert (y.moments(grid, weighted) - whole).abs().max() < ROUND_OFF
    assert (y.evaluate(a, grid) - values.flatten(-2)).abs().max() < ROUND_OFF


@pytest.mark.spec("L6", "L1")
def test_the_attention_kernel_is_a_sum_of_harmonics(generator: torch.Generator) -> None:
    """Funk and Hecke: ∫ e^{β⟨x,y⟩} f(y) dA = Σ 4π c_l a_lm Y_lm(x)."""
    beta, y = 6.0, Harmonics(40)
    sources, queries = points(30, generator), points(20, generator)
    w = torch.rand(30, dtype=torch.float64, generator=generator)
    c = log_means(beta, 3, 40).exp()
    found = y.evaluate(y.moments(sources, w) * (4 * math.pi * c)[:, None], queries)
    told = (beta * queries @ sources.mT).exp() @ w
    assert ((found / told - 1).abs() < 1e-10).all()  # c_40 is 1e-20 of c_0, and e^β / e^−β is 1e5


@pytest.mark.spec("L6")
def test_gradients_are_smooth_at_the_poles(generator: torch.Generator) -> None:
    y = Harmonics(6)
    a = some(y, generator)
    for x in (torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64), points(2, generator)):
        x.requires_grad_()
        assert torch.autograd.gradcheck(lambda at: y.evaluate(a, at), x)


@pytest.mark.spec("L6")
def test_the_laplacian_is_that_of_the_sphere(generator: torch.Generator) -> None:
    """Δf at x is the mean second derivative along geodesics, times two."""
    y, step = Harmonics(5), 1e-3
    a, x = some(y, generator), points(4, generator)
    first = torch.linalg.cross(x, torch.tensor([[0.3, -0.5, 0.8]], dtype=torch.float64).expand_as(x))
    first = first / first.norm(dim=-1, keepdim=True)
    second = torch.linalg.cross(x, first)
    here, total = y.evaluate(a, x), torch.zeros(4, dtype=torch.float64)
    for u in (first, second):
        for sign in (-1, 1):
            total += y.evaluate(a, math.cos(step) * x + sign * math.sin(step) * u) - here
    told = y.evaluate(y.laplacian * a, x)
    assert ((total / step**2 - told).abs() < 1e-4 * told.abs().max()).all()  # O(step² l⁴)


@pytest.mark.spec("L6")
def test_bad_questions_are_refused() -> None:
    for degree in (-1, 1000):
        with refused(ConfigError, str(degree), "Use 0 to 256"):
            Harmonics(degree)
    with refused(ConfigError, "3 for degree 5", "at least 6"):
        Harmonics(5, 3)
    y = Harmonics(3)
    with refused(ShapeError, "[4, 4]", "[4, 8]"):
        y.analyse(torch.zeros(4, 4))
    with refused(ShapeError, "[4, 4] of torch.float32", "complex"):
        y.synthesise(torch.zeros(4, 4))
    with refused(ShapeError, "[7, 2]", "[n, 3]"):
        y.moments(torch.zeros(7, 2), torch.zeros(7))
    with refused(ShapeError, "[6] for 7 points", "[..., n]"):
        y.moments(torch.zeros(7, 3), torch.zeros(6))
