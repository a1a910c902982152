"""Wasserstein distances: against linear programmes and scipy, their laws, and what is refused."""

import math
import sys

import numpy as np
import pytest
import torch

from continua.errors import ConfigError, ShapeError
from continua.geometry import sphere
from continua.lab.theory.meanfield import circle_nodes
from continua.lab.theory.wasserstein import (
    Density,
    circle_wasserstein,
    line_wasserstein,
    sliced_wasserstein,
    sphere_wasserstein,
)
from continua.typing import Tensor
from tests.lazy import Lazily
from tests.refusals import refused

optimize = Lazily("scipy.optimize")
stats = Lazily("scipy.stats")

EXACT = 1e-12  # the best cut is known to 1e-15, and costs are sums of a few dozen numbers of order one


def weighted(n: int, generator: torch.Generator, spread: float = 2 * math.pi) -> tuple[Tensor, Tensor]:
    points = torch.rand(n, dtype=torch.float64, generator=generator) * spread
    weights = torch.rand(n, dtype=torch.float64, generator=generator)
    return points, weights / weights.sum()


def programme(costs: Tensor, a: Tensor, b: Tensor) -> float:
    """The transport problem as a linear programme."""
    n, m = costs.shape
    rows = np.kron(np.eye(n), np.ones(m))
    columns = np.kron(np.ones(n), np.eye(m))
    limits = np.concatenate([a.numpy(), b.numpy()])
    found = optimize.linprog(costs.flatten().numpy(), A_eq=np.concatenate([rows, columns]), b_eq=limits, method="highs")
    return float(found.fun)


@pytest.mark.spec("L6")
@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("spread", [2 * math.pi, 2.0, 0.0])
def test_the_circle_is_exact(p: float, spread: float, generator: torch.Generator) -> None:
    for _ in range(4):
        a, wa = weighted(9, generator)
        b, wb = weighted(13, generator, spread)
        arcs = (a[:, None] - b).abs()
        told = programme(torch.minimum(arcs, 2 * math.pi - arcs) ** p, wa, wb) ** (1 / p)
        assert abs(float(circle_wasserstein(a, b, p, wa, wb)) - told) < 1e-9  # the programme's own tolerance
        turned = circle_wasserstein(a + 1.234, b + 1.234 - 4 * math.pi, p, wa, wb)
        torch.testing.assert_close(turned, circle_wasserstein(b, a, p, wb, wa), rtol=EXACT, atol=EXACT)


@pytest.mark.spec("L6")
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_the_line_is_exact(p: float, generator: torch.Generator) -> None:
    a, wa = weighted(11, generator)
    b, wb = weighted(7, generator)
    told = programme((a[:, None] - b).abs() ** p, wa, wb) ** (1 / p)
    assert abs(float(line_wasserstein(a, b, p, wa, wb)) - told) < 1e-9
    assert abs(float(line_wasserstein(a, b, 1.0, wa, wb)) - stats.wasserstein_distance(a, b, wa, wb)) < EXACT
    c = a.flip(0) + 3
    assert abs(float(line_wasserstein(a, c, p)) - 3) < EXACT  # a shift is its own distance


@pytest.mark.spec("L6")
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_densities_are_the_limit_of_points(p: float, generator: torch.Generator) -> None:
    theta = circle_nodes(64)
    density = Density.of(1 + 0.5 * torch.cos(theta) + 0.3 * torch.sin(3 * theta))
    levels = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    fine = density.quantiles(levels)
    a, wa = weighted(10, generator)
    by_density = circle_wasserstein(density, a, p, b_weights=wa)
    torch.testing.assert_close(by_density, circle_wasserstein(fine, a, p, b_weights=wa), rtol=1e-6, atol=0)
    here, there = (Density.of((40 * torch.cos(theta - turn)).exp()) for turn in (0.1, 0.6))
    assert abs(float(circle_wasserstein(here, there, p)) - 0.5) < 1e-6  # a peak that is carried on by 0.5
    assert float(circle_wasserstein(density, density, p)) < EXACT


@pytest.mark.spec("L6")
def test_quantiles_undo_the_cumulative_density(generator: torch.Generator) -> None:
    for m in (32, 33):
        theta = circle_nodes(m)
        density = Density.of(1 + 0.8 * torch.cos(theta - 2))
        at, levels = density.cumulative
        told = (at + 0.8 * (torch.sin(at - 2) + math.sin(2.0))) / (2 * math.pi)
        assert (levels - told).abs().max() < 1e-14
        back = density.quantiles(levels[1:-1])
        assert (back - at[1:-1]).abs().max() < 1e-9
    drawn = density.sample((20_000,), generator)
    mean = torch.polar(torch.ones_like(drawn), drawn).mean()
    assert (mean - 0.4 * torch.polar(drawn.new_tensor(1.0), drawn.new_tensor(2.0))).abs() < 4 / math.sqrt(20_000)


@pytest.mark.spec("L6")
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_gradients_are_those_at_the_best_plan(p: float, generator: torch.Generator) -> None:
    a, wa = weighted(6, generator)
    b, wb = weighted(5, generator)
    a.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: circle_wasserstein(x, b, p, wa, wb), a, atol=1e-5)
    assert torch.autograd.gradcheck(lambda x: line_wasserstein(x, b, p, wa, wb), a, atol=1e-5)


@pytest.mark.spec("L6")
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_spheres_by_assignment_and_by_slices(p: float, generator: torch.Generator) -> None:
    x, y = (sphere.uniform((12, 3), generator) for _ in range(2))
    angles = torch.acos((x @ y.mT).clamp(-1, 1))
    equal = torch.full((12,), 1 / 12, dtype=torch.float64)
    assert abs(float(sphere_wasserstein(x, y, p)) - programme(angles**p, equal, equal) ** (1 / p)) < 1e-7
    on_circle = [torch.stack([a.cos(), a.sin()], -1) for a in (weighted(12, generator)[0], weighted(12, generator)[0])]
    flat = circle_wasserstein(*(torch.atan2(c[:, 1], c[:, 0]) for c in on_circle), p=p)
    torch.testing.assert_close(sphere_wasserstein(*on_circle, p=p), flat, rtol=1e-9, atol=0)
    chords = torch.cdist(x, y)
    by_slices = float(sliced_wasserstein(x, y, p, directions=64, generator=generator))
    assert 0 < by_slices <= programme(chords**p, equal, equal) ** (1 / p)
    shift = torch.tensor([0.0, 0.0, 2.0], dtype=torch.float64)  # mean |⟨u, shift⟩| = 1, mean square 4/3
    moved = float(sliced_wasserstein(x, x + shift, p, directions=2000, generator=generator))
    assert abs(moved - (1.0 if p == 1.0 else math.sqrt(4 / 3))) < 0.05  # 4 deviations


@pytest.mark.spec("L6")
def test_bad_questions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    a, x = torch.tensor([0.0, 1.0]), torch.eye(3)
    with refused(ConfigError, "3.0", "p=1.0 or p=2.0"):
        circle_wasserstein(a, a, 3.0)
    with refused(ShapeError, "[0]", "at least one point"):
        circle_wasserstein(a[:0], a)
    with refused(ShapeError, "NaN", "at least one point"):
        line_wasserstein(a * math.nan, a)
    with refused(ShapeError, "sum 2", "Divide them"):
        circle_wasserstein(a, a, 1.0, torch.ones(2))
    with refused(ShapeError, "[3, 3] and [2, 3]", "sliced_wasserstein"):
        sphere_wasserstein(x, x[:2])
    with refused(ShapeError, "[3, 3] and [3, 2]", "[n, d]"):
        sliced_wasserstein(x, x[:, :2])
    with refused(ConfigError, "got 0", "directions=128"):
        sliced_wasserstein(x, x, directions=0)
    with refused(ShapeError, "[2, 8]", "equally spaced"):
        Density(torch.ones(2, 8))
    with refused(ShapeError, "6.28319", "2π times their mean"):
        Density(torch.ones(8, dtype=torch.float64))
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with refused(ConfigError, "none", "pip install 'continua-ml[space]'"):
        sphere_wasserstein(x, x)
