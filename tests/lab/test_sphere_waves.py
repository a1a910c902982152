"""Small waves on the sphere add up."""

import math

import numpy as np
import pytest
import torch

from continua.flow import RK4, Fixed, OnSphere
from continua.geometry import sphere
from continua.lab import Particles, SelfAttention, Unnormalised, simulate
from continua.lab.theory.growth import growth_rates


def zonal(x, axis, degree):
    """The gradient of P_l(⟨x, a⟩) on the sphere."""
    a = sphere.retract(torch.tensor(axis, dtype=torch.float64))
    slope = torch.tensor(np.polynomial.legendre.Legendre.basis(degree).deriv()((x @ a).numpy()))
    return slope[:, None] * sphere.tangent(x, a.expand_as(x))


@pytest.mark.spec("L11", "L7")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised])
def test_small_waves_on_the_sphere_add_up(kind):
    """Two harmonic displacements of the uniform measure on S²: together they move as the sum of each alone, to O(ε²).

    Tokens stand on Gauss latitudes × equal longitudes and weigh as these nodes do, so that the measure is uniform to
    round-off, and displacements are compared at the nodes, through the logarithm of the sphere.
    """
    beta, rings = 2.0, 12
    z, w = (torch.tensor(each) for each in np.polynomial.legendre.leggauss(rings))
    turn = torch.arange(2 * rings, dtype=torch.float64) * (math.pi / rings)
    r = (1 - z * z).sqrt()[:, None]
    nodes = torch.stack([r * turn.cos(), r * turn.sin(), z[:, None].expand(-1, 2 * rings)], -1).reshape(-1, 3)
    weights = (w / w.sum() / (2 * rings)).repeat_interleave(2 * rings)
    one, other = zonal(nodes, (0.0, 0.0, 1.0), 2), zonal(nodes, (2.0, 1.0, -1.0), 3)
    sizes = torch.tensor([0.002, 0.004, 0.008, 0.016], dtype=torch.float64)
    pushes = sizes[:, None, None, None] * torch.stack([one, other, one + other])
    start = Particles.of(sphere.exp(nodes.expand_as(pushes), pushes), weights.expand(4, 3, -1))
    rates = growth_rates(beta, 3, kind.name)
    until = 1.0 / float(rates.max())
    end = simulate(kind(beta), start, until, save=2, solver=OnSphere(RK4()), control=Fixed(8)).x[-1]
    moved = sphere.log(nodes.expand_as(end), end)
    norm = lambda v: (weights[:, None] * v * v).sum((-2, -1)).sqrt()  # noqa: E731
    gaps = norm(moved[:, 2] - moved[:, 0] - moved[:, 1])
    slope = float(np.polyfit(sizes.log(), gaps.log(), 1)[0])
    assert slope == pytest.approx(2.0, abs=0.15)
    assert float(gaps[0] / norm(moved[0, 2])) < 0.02  # small beside the wave itself
    for place, shape, degree in ((0, one, 2), (1, other, 3)):  # and each alone grows by its own rate
        grown = (weights[:, None] * moved[0, place] * shape).sum() / (weights[:, None] * shape**2).sum() / sizes[0]
        assert math.log(float(grown)) / until == pytest.approx(float(rates[degree]), rel=0.02)  # first order in ε
