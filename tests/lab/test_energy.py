"""L3: the energy with its factors, its gradient, and that attention climbs it."""

import math

import pytest
import torch

from continua.errors import ConfigError
from continua.geometry import sphere
from continua.lab.particles.energy import (
    energies,
    energy,
    energy_gradient,
    energy_rate,
    log_energy,
    log_normalisers,
    mean_cosine,
    sinkhorn_energy,
)
from continua.lab.particles.interaction import SelfAttention, Sinkhorn, Unnormalised
from continua.lab.particles.particles import Particles
from continua.lab.particles.simulate import simulate
from tests.refusals import refused

pytestmark = pytest.mark.spec("L3")

ROUND_OFF = 1e-12  # relative; sums of a few hundred float64 terms
DIFFERENCES = 1e-7  # central differences with a step of 1e-5
STEEP = 1e-6  # the tolerance of the simulations: the energy may not fall by more


def cloud(n: int, d: int, weighted: bool, generator: torch.Generator) -> Particles:
    x = sphere.uniform((n, d), generator)
    drawn = torch.rand(n, generator=generator, dtype=torch.float64) + 0.2
    return Particles(x, drawn / drawn.sum() if weighted else None)


def by_pairs(p: Particles, beta: float) -> float:
    """The formula, pair by pair."""
    total = 0.0
    for x, w in zip(p.x.tolist(), p.masses.tolist(), strict=True):
        for y, v in zip(p.x.tolist(), p.masses.tolist(), strict=True):
            total += w * v * math.exp(beta * sum(a * b for a, b in zip(x, y, strict=True)))
    return total / (2 * beta)


@pytest.mark.parametrize("beta", [-3.0, 0.5, 9.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("d", [2, 3, 5])
def test_energy_is_the_sum_over_pairs(beta, weighted, d, generator):
    p = cloud(17, d, weighted, generator)
    assert energy(p, beta).item() == pytest.approx(by_pairs(p, beta), rel=ROUND_OFF)
    assert log_energy(p, beta).item() == pytest.approx(math.log(abs(by_pairs(p, beta))), rel=ROUND_OFF)


@pytest.mark.parametrize(("d", "beta", "n"), [(2, 9.0, 1000), (3, 1.0, 2000)])
@pytest.mark.parametrize("weighted", [False, True])
def test_many_tokens_meet_through_moments(d, beta, n, weighted, generator):
    p = cloud(n, d, weighted, generator)
    scores = beta * (p.x @ p.x.T) + p.masses.log() + p.masses.log()[:, None]
    wanted = torch.logsumexp(scores.flatten(), 0) - math.log(2 * beta)
    assert log_energy(p, beta).item() == pytest.approx(wanted.item(), rel=ROUND_OFF)


def test_a_batch_has_an_energy_each(generator):
    p = Particles.uniform(9, 3, generator, runs=4)
    each = torch.stack([energy(Particles(x), 2.0) for x in p.x])
    assert energy(p, 2.0).shape == (4,)
    torch.testing.assert_close(energy(p, 2.0), each, rtol=ROUND_OFF, atol=0.0)


def test_at_zero_it_is_the_limit_without_its_constant(generator):
    p = cloud(12, 3, True, generator)
    small = 1e-5  # the next term of the series is of this size
    assert energy(p, 0.0).item() == pytest.approx(energy(p, small).item() - 1 / (2 * small), rel=1e-4)
    assert energy(p, 0.0).item() == pytest.approx(mean_cosine(p).item() / 2, rel=ROUND_OFF)
    assert log_energy(p, 0.0).exp().item() == pytest.approx(energy(p, 0.0).item(), rel=ROUND_OFF)


def test_its_logarithm_stays_finite_where_it_does_not():
    same = Particles(torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(5, 2))
    assert log_energy(same, 1e4).item() == pytest.approx(1e4 - math.log(2e4), rel=ROUND_OFF)
    with refused(ConfigError, "beta=10000", "log_energy"):
        energy(same, 1e4)
    with refused(ConfigError, "nan", "finite number"):
        energy(same, math.nan)


def test_tokens_without_weight_do_not_count(generator):
    p = cloud(8, 3, False, generator)
    w = torch.tensor([0.25] * 4 + [0.0] * 4, dtype=torch.float64)
    few = Particles(p.x[:4])
    for beta in (-2.0, 0.0, 3.0):
        assert energy(Particles(p.x, w), beta).item() == pytest.approx(energy(few, beta).item(), rel=ROUND_OFF)


@pytest.mark.parametrize("beta", [-1.0, 0.0, 4.0])
def test_gradient_by_differences(beta, generator):
    p = cloud(6, 3, True, generator)
    v = sphere.tangent(p.x, sphere.uniform((6, 3), generator))
    step = 1e-5
    up, down = (energy(Particles(sphere.exp(p.x, s * step * v), p.weights), beta) for s in (1, -1))
    along = (energy_gradient(p, beta) * v).sum()
    assert along.item() == pytest.approx(((up - down) / (2 * step)).item(), rel=DIFFERENCES)
    assert float((energy_gradient(p, beta) * p.x).sum(-1).abs().max()) < ROUND_OFF


@pytest.mark.parametrize(("n", "d"), [(7, 4), (400, 2)])  # by pairs, and through moments
def test_autograd_goes_through_it(n, d, generator):
    x = sphere.uniform((n, d), generator).requires_grad_()
    (got,) = torch.autograd.grad(energy(Particles(x), 2.0), x)
    wanted = energy_gradient(Particles(x.detach()), 2.0)
    torch.testing.assert_close(sphere.tangent(x.detach(), got), wanted, rtol=0, atol=ROUND_OFF)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_usa_is_n_times_the_gradient(weighted, beta, generator):
    p = cloud(11, 4, weighted, generator)
    wanted = energy_gradient(p, beta) / p.masses[:, None]
    torch.testing.assert_close(Unnormalised(beta).velocity(p.x, p.weights), wanted, rtol=ROUND_OFF, atol=ROUND_OFF)


@pytest.mark.parametrize("weighted", [False, True])
def test_sa_climbs_in_the_metric_of_its_normalisers(weighted, generator):
    p, beta = cloud(13, 3, weighted, generator), 5.0
    z = log_normalisers(p, beta).exp()
    assert z[0].item() == pytest.approx((p.masses * (beta * (p.x @ p.x[0])).exp()).sum().item(), rel=ROUND_OFF)
    velocity = SelfAttention(beta).velocity(p.x, p.weights)
    speed = velocity.square().sum(-1)
    rate = energy_rate(SelfAttention(beta), p).item()
    assert rate == pytest.approx((p.masses * z * speed).sum().item(), rel=ROUND_OFF)
    assert energy_rate(Unnormalised(beta), p).item() == pytest.approx(
        (p.masses * Unnormalised(beta).velocity(p.x, p.weights).square().sum(-1)).sum().item(), rel=ROUND_OFF
    )
    step = 1e-5
    up, down = (energy(Particles(sphere.exp(p.x, s * step * velocity), p.weights), beta) for s in (1, -1))
    assert rate == pytest.approx(((up - down) / (2 * step)).item(), rel=DIFFERENCES)


@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised])
@pytest.mark.parametrize("d", [2, 3, 8])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_energy_is_monotone_along_the_flow(kind, d, weighted, sign, generator):
    p = cloud(10, d, weighted, generator)
    v = None if sign > 0 else -torch.eye(d, dtype=torch.float64)
    steps = sign * energies(simulate(kind(1.5, v=v), p, 2.0, save=17)).diff()
    assert float(steps.min()) > -STEEP
    assert float(steps.sum()) > 0.01  # and it does move


def test_energies_of_another_temperature(generator):
    run = simulate(SelfAttention(2.0), Particles.uniform(8, 2, generator, runs=3), 1.0, save=4)
    assert energies(run).shape == (4, 3)
    torch.testing.assert_close(energies(run, 5.0)[2], energy(run.at(2), 5.0))


@pytest.mark.parametrize("weighted", [False, True])
def test_sinkhorn_climbs_an_energy_of_its_own(weighted, generator):
    p, beta = cloud(9, 3, weighted, generator), 3.0
    velocity = Sinkhorn(beta).velocity(p.x, p.weights)
    v = sphere.tangent(p.x, sphere.uniform((9, 3), generator))
    step = 1e-5
    up, down = (sinkhorn_energy(Particles(sphere.exp(p.x, s * step * v), p.weights), beta) for s in (1, -1))
    along = (p.masses[:, None] * velocity * v).sum()
    assert ((up - down) / (2 * step)).item() == pytest.approx(along.item(), rel=DIFFERENCES)
    assert sinkhorn_energy(p, 1e-4).item() == pytest.approx(sinkhorn_energy(p, 0.0).item(), rel=1e-3)
