"""Mean fields on the circle and on S²: mass, weighted tokens beside them, what is reported, and chaos."""

import math

import pytest
import torch

from continua.errors import ConfigError, ShapeError, SolveFailed
from continua.flow import Adaptive, Fixed
from continua.lab.particles.harmonics import Harmonics
from continua.lab.particles.interaction import Hardmax, Interaction, SelfAttention, Sinkhorn, Unnormalised
from continua.lab.particles.particles import Particles
from continua.lab.particles.simulate import simulate
from continua.lab.theory.chaos import Chaos, chaos
from continua.lab.theory.meanfield import circle_field, circle_nodes, mean_field
from continua.lab.theory.meanfield_sphere import sphere_field, sphere_mean_field
from continua.lab.theory.wasserstein import Density, circle_wasserstein
from continua.typing import Tensor
from tests.refusals import refused

MASS = 1e-12  # asked for by the specification
SAME = 1e-8  # tolerances of the two solvers
TIGHT = Adaptive(rtol=1e-9, atol=1e-11)
KINDS = [SelfAttention(9.0), Unnormalised(2.0), Sinkhorn(3.0), SelfAttention(-3.0), SelfAttention(0.0), Sinkhorn(0.0)]
NAMES = [f"{each.name}({each.beta:g})" for each in KINDS]


def bumps(m: int) -> Density:
    theta = circle_nodes(m)
    return Density.of(1 + 0.4 * torch.cos(theta - 1) + 0.2 * torch.sin(3 * theta))


def cloud(degree: int) -> tuple[Tensor, Harmonics]:
    """A smooth density on S² without symmetry, on its grid."""
    y = Harmonics(degree)
    f = (y.points @ torch.tensor([0.3, 0.5, 0.8], dtype=torch.float64)).exp() + 0.5 * y.points[..., 0] * y.points[
        ..., 1
    ]
    return f / (f * y.weights).sum(), y


# --- the circle -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("L6")
@pytest.mark.parametrize("interaction", KINDS, ids=NAMES)
def test_densities_and_weighted_tokens_agree_on_the_circle(interaction: Interaction) -> None:
    m, until = 96, 0.6
    start = bumps(m)
    path = mean_field(interaction, start, until, save=4)
    assert (path.mass - 1).abs().max() < MASS
    assert path.least.min() > 0
    assert path.tail.max() < 1e-6
    tokens = Particles.circle(circle_nodes(m), start.values * (2 * math.pi / m))
    run = simulate(interaction, tokens, until, save=4, control=TIGHT)
    k = torch.arange(9, dtype=torch.float64)[:, None]
    for frame in range(4):
        found = (torch.polar(torch.ones(9, m, dtype=torch.float64), -k * run.at(frame).angles) * tokens.masses).sum(-1)
        assert (found - path.modes(8)[frame]).abs().max() < SAME
    assert circle_wasserstein(run.final.angles, path.final, 1.0, tokens.masses) < 2 * math.pi / m  # half a cell, about


@pytest.mark.spec("L6")
@pytest.mark.parametrize("m", [96, 97])
def test_the_velocity_is_the_integral(m: int) -> None:
    """One evaluation beside sums over all pairs of nodes, and a derivative of the finest order."""
    theta, rho = circle_nodes(m), bumps(m).values
    apart, k = theta - theta[:, None], torch.fft.fftfreq(m, 1 / m, dtype=torch.float64)
    for beta, kappa in ((5.0, math.inf), (1.0, 9.0)):
        kernel = (beta * apart.cos()).exp() * rho
        pull = (kernel * apart.sin()).sum(-1)
        for interaction, v in (
            (SelfAttention(beta, kappa=kappa), pull / kernel.sum(-1)),
            (Unnormalised(beta, kappa=kappa), pull * (2 * math.pi / m)),
        ):
            change = -1j * k * torch.fft.fft(rho * v) - k**2 / kappa * torch.fft.fft(rho)
            told = torch.fft.ifft(change).real
            assert (circle_field(interaction, m)(rho) - told).abs().max() < 1e-11


@pytest.mark.spec("L6")
def test_rows_of_a_batch_do_not_see_each_other() -> None:
    both = torch.stack([bumps(48).values, bumps(48).values.flip(0)])
    for interaction in (SelfAttention(4.0), Sinkhorn(4.0)):
        field = circle_field(interaction, 48)
        assert (field(both)[1] - field(both[1])).abs().max() < 1e-13
        path = mean_field(interaction, both, 0.5, save=3)
        assert path.density.shape == (3, 2, 48)
        assert path.mass.shape == path.least.shape == path.tail.shape == (3, 2)


@pytest.mark.spec("L6")
def test_lost_resolution_is_told() -> None:
    start = Density.of(1 + 0.3 * torch.cos(4 * circle_nodes(64)))  # four clusters
    path = mean_field(SelfAttention(9.0), start, 8.0, save=9)
    assert (path.mass - 1).abs().max() < MASS
    assert path.least[0] > 0 > path.least[-1]
    assert path.tail[0] < 1e-6 < 1e-3 < path.tail[-1]
    wide = mean_field(SelfAttention(9.0, kappa=40.0), start, 8.0, save=9)
    assert wide.least.min() > 0
    assert wide.final.values.max() > 4 * wide.final.values.min()
    assert wide.tail.max() < 1e-3


@pytest.mark.spec("L6")
def test_noise_and_attraction_balance() -> None:
    """Where USA rests, ρ ∝ exp(κ Z/β), Z = e^{β cos} ∗ ρ: the density of Gibbs."""
    beta, kappa, m = 1.0, 3.0, 32
    theta = circle_nodes(m)
    rest = mean_field(
        Unnormalised(beta, kappa=kappa), Density.of(1 + 0.3 * torch.cos(theta)), 40.0, save=2
    ).final.values
    z = ((beta * (theta - theta[:, None]).cos()).exp() * rest).sum(-1) * (2 * math.pi / m)
    gibbs = Density.of((kappa * z / beta).exp()).values
    assert rest.max() > 2 * rest.min()  # not the uniform one
    assert (rest - gibbs).abs().max() < 1e-6


@pytest.mark.spec("L6")
def test_times_and_progress_are_as_asked() -> None:
    seen: list[float] = []
    times = torch.tensor([0.0, 0.1, 0.4], dtype=torch.float64)
    path = mean_field(SelfAttention(2.0), bumps(32), 0.4, save=times, control=Fixed(3), watch=seen.append)
    assert path.times.tolist() == times.tolist()
    assert seen == pytest.approx([0.25, 1.0])
    assert path.evaluations == 2 * 3 * 6
    assert torch.equal(path.at(0).values, bumps(32).values)
    torch.testing.assert_close(path.angles, circle_nodes(32))


# --- the sphere -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("L6")
@pytest.mark.parametrize(
    "interaction", [SelfAttention(4.0), Unnormalised(1.0), SelfAttention(-2.0)], ids=["SA", "USA", "-"]
)
def test_densities_and_weighted_tokens_agree_on_the_sphere(interaction: Interaction) -> None:
    f, y = cloud(20)
    path = sphere_mean_field(interaction, y.analyse(f), 0.4, save=3)
    assert (path.mass - 1).abs().max() < MASS
    assert path.least.min() > 0
    assert path.tail.max() < 1e-4
    assert path.power.shape == (3, 21)
    torch.testing.assert_close((path.density * y.weights).sum((-1, -2)), path.mass)
    tokens = Particles.of(y.points.reshape(-1, 3), (f * y.weights).reshape(-1))
    end = simulate(interaction, tokens, 0.4, save=2, control=Adaptive(rtol=1e-7, atol=1e-9)).final
    low = Harmonics(5)
    assert (low.moments(end.x, tokens.masses) - path.coefficients[-1, :6, :6]).abs().max() < 1e-7


@pytest.mark.spec("L6")
def test_a_density_without_longitude_keeps_none() -> None:
    y = Harmonics(12)
    f = (y.points[..., 2] * 2).exp()
    a = y.analyse(f / (f * y.weights).sum())
    end = sphere_mean_field(Sinkhorn(3.0), a, 0.3, save=2).coefficients[-1]
    assert (end[:, 0] - a[:, 0]).abs().max() > 1e-3
    assert end[:, 1:].abs().max() < 1e-13


@pytest.mark.spec("L6")
def test_turning_the_sphere_turns_the_flow(generator: torch.Generator) -> None:
    """The grid has an axis, the equation has none."""
    f, y = cloud(16)
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=generator)).Q
    points, a = y.points.reshape(-1, 3), y.analyse(f)
    turned = y.analyse(y.evaluate(a, points @ turn).reshape(f.shape))
    for interaction in (SelfAttention(3.0, kappa=9.0), Unnormalised(1.0), Sinkhorn(3.0)):
        field = sphere_field(interaction, 16)
        here, there = (torch.view_as_complex(field(torch.view_as_real(each))) for each in (a, turned))
        assert (y.evaluate(here, points @ turn) - y.evaluate(there, points)).abs().max() < 1e-6  # the tail of degree 16


# --- chaos ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L6")
@pytest.mark.parametrize("interaction", [SelfAttention(4.0), Unnormalised(1.0)], ids=["SA", "USA"])
def test_tokens_approach_the_mean_field_like_one_over_root_n(
    interaction: Interaction, generator: torch.Generator
) -> None:
    seen: list[float] = []
    start = Density.of(1 + 0.4 * torch.cos(circle_nodes(64)))
    found = chaos(interaction, start, 1.0, counts=(32, 128, 512), runs=24, generator=generator, watch=seen.append)
    low, high = found.interval
    assert low < -0.5 < high
    assert abs(found.rate + 0.5) < 0.1
    assert high - low < 0.25
    assert (found.mean.diff() < 0).all()
    assert seen == pytest.approx([32 / 672, 160 / 672, 1.0])


@pytest.mark.spec("L6")
def test_the_rate_is_the_slope_of_the_means() -> None:
    scatter = torch.tensor([0.9, 1.0, 1.1], dtype=torch.float64)
    exact = Chaos((10, 100, 1000), torch.outer(torch.tensor([10.0, 100.0, 1000.0]).double() ** -0.7, scatter), 1.0)
    assert exact.rate == pytest.approx(-0.7)
    low, high = exact.interval
    width = 1.96 * math.sqrt(2 * 0.01 / 3) / (2 * math.log(10))  # two ends at ± log 10, variance 0.01/3 of each
    assert (high - low) / 2 == pytest.approx(width, rel=1e-3)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L6")
def test_bad_questions_are_refused() -> None:
    flat = Density.of(torch.ones(16, dtype=torch.float64))
    with refused(ConfigError, "hardmax", "Known: SA, Sinkhorn, USA."):
        mean_field(Hardmax(), flat, 1.0)
    with refused(ConfigError, "causal=True", "simulate particles"):
        mean_field(SelfAttention(1.0, causal=True), flat, 1.0)
    with refused(ConfigError, "v", "simulate particles"):
        mean_field(SelfAttention(1.0, v=-torch.eye(2, dtype=torch.float64)), flat, 1.0)
    with refused(ConfigError, "beta=800", "smaller β"):
        mean_field(Unnormalised(800.0), flat, 1.0)
    for until in (0.0, -1.0, math.inf, math.nan):
        with refused(ConfigError, str(until), "until=10.0"):
            mean_field(SelfAttention(1.0), flat, until)
    with refused(ConfigError, "got 1", "save ≥ 2"):
        mean_field(SelfAttention(1.0), flat, 1.0, save=1)
    with refused(ConfigError, "[0.5, 1.0]", "Begin with 0"):
        mean_field(SelfAttention(1.0), flat, 1.0, save=torch.tensor([0.5, 1.0]))
    with refused(ShapeError, "[2]", "at least 4"):
        mean_field(SelfAttention(1.0), torch.ones(2), 1.0)
    with refused(ShapeError, "NaN", "Leave such nodes out"):
        mean_field(SelfAttention(1.0), flat.values * math.nan, 1.0)
    with refused(ShapeError, "2", "2π times their mean"):
        mean_field(SelfAttention(1.0), flat.values * 2, 1.0)
    with refused(ShapeError, "of torch.float32", "analyse"):
        sphere_mean_field(SelfAttention(1.0), torch.ones(4, 4), 1.0)
    with refused(ShapeError, "3.54491", "a_00"):
        sphere_mean_field(SelfAttention(1.0), torch.ones(4, 4, dtype=torch.complex128), 1.0)
    with refused(ConfigError, "counts=(64,), runs=16", "counts=(64, 256, 1024)"):
        chaos(SelfAttention(1.0), flat, 1.0, counts=(64,))
    with refused(SolveFailed, "between t=0 and t=1", "more nodes"):
        mean_field(Unnormalised(1.0), bumps(16), 1.0, save=2, control=Adaptive(max_steps=1, rtol=1e-13, atol=1e-13))
