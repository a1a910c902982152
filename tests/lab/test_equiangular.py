"""Small equations of the theory beside tokens: equal cosines, tails, consensus, polygons."""

import math

import pytest
import torch

from continua.errors import ConfigError
from continua.flow import Adaptive
from continua.lab.particles.interaction import Hardmax, Interaction, SelfAttention, Sinkhorn, Unnormalised
from continua.lab.particles.particles import Particles
from continua.lab.particles.simulate import free, simulate
from continua.lab.theory.theorems import (
    REFERENCES,
    consensus_rate,
    equiangular,
    equiangular_pre_norm,
    equiangular_slope,
    equiangular_without_temperature,
    polygon_rates,
)
from continua.typing import Tensor
from tests.refusals import refused

TIGHT = Adaptive(rtol=1e-9, atol=1e-11)
SAME = 1e-8  # tolerances of the two solvers


def cosines(x: Tensor) -> Tensor:
    """⟨x_0, x_1⟩ at each time, after all pairs were seen to be equal."""
    gram = x @ x.mT
    pairs = gram[:, *torch.triu_indices(x.shape[-2], x.shape[-2], 1)]
    assert (pairs - pairs[:, :1]).abs().max() < SAME
    return pairs[:, 0]


@pytest.mark.spec("L5", "L1")
@pytest.mark.parametrize("start", [0.0, -0.15, 0.6])
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised, Sinkhorn], ids=lambda kind: kind.name)
def test_equal_cosines_follow_one_equation(kind: type[Interaction], start: float) -> None:
    """Geshkovski, Letrouit, Polyanskiy, Rigollet 2023: orthogonal tokens keep equal cosines."""
    n, beta, times = 6, 1.5, torch.linspace(0, 1.5, 4, dtype=torch.float64)
    told = equiangular(n, beta, times, interaction=kind, start=start)
    tokens = Particles.equiangular(n, start)
    run = simulate(kind(beta), tokens, 1.5, save=times, control=TIGHT)
    assert (cosines(run.x) - told.cosine).abs().max() < SAME
    v = kind(beta).velocity(tokens.x)
    slope = (v[0] * tokens.x[1]).sum() + (tokens.x[0] * v[1]).sum()
    torch.testing.assert_close(slope, equiangular_slope(start, n, beta, kind), rtol=1e-9, atol=0)


@pytest.mark.spec("L5")
def test_without_temperature_the_solution_is_closed() -> None:
    times = torch.linspace(0, 6, 25, dtype=torch.float64)
    for n in (2, 8, 100):
        told = equiangular_without_temperature(n, times)
        for name in ("SA", "USA"):
            assert (equiangular(n, 0.0, times, interaction=name).cosine - told).abs().max() < 1e-9


@pytest.mark.spec("L5")
@pytest.mark.parametrize(("name", "beta"), [("SA", 0.5), ("SA", 4.0), ("USA", 0.5), ("USA", 2.0)])
def test_the_gap_closes_at_twice_the_rate_of_consensus(name: str, beta: float) -> None:
    rate = consensus_rate(beta, name)
    assert rate == (1.0 if name == "SA" else math.exp(beta))
    times = torch.tensor([0.0, 20.0, 24.0], dtype=torch.float64) / min(rate, 3.0)
    gap = equiangular(8, beta, times, interaction=name).gap
    assert float((gap[2] / gap[1]).log() / (times[2] - times[1])) == pytest.approx(-2 * rate, rel=1e-6)


@pytest.mark.spec("L5", "L2")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised], ids=lambda kind: kind.name)
def test_pre_norm_tokens_close_like_one_over_time_squared(kind: type[Interaction]) -> None:
    n, beta, times = 5, 1.0, torch.linspace(0, 3, 4, dtype=torch.float64)
    told = equiangular_pre_norm(n, beta, times, interaction=kind)
    run = free(kind(beta), Particles.orthogonal(n), 3.0, save=times)
    assert (cosines(run.directions) - told.cosine).abs().max() < 1e-7
    assert told.lengths is not None
    assert (run.x.norm(dim=-1)[:, 0] / told.lengths - 1).abs().max() < 1e-7
    late = torch.tensor([0.0, 1e5, 2e5], dtype=torch.float64)
    gap = equiangular_pre_norm(n, beta, late, interaction=kind).gap
    assert float((gap[2] / gap[1]).log()) / math.log(2) == pytest.approx(-2.0, abs=1e-3)


@pytest.mark.spec("L4")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised], ids=lambda kind: kind.name)
@pytest.mark.parametrize("beta", [-3.0, 0.0, 2.0])
@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_polygons_have_the_spectrum_of_their_jacobian(kind: type[Interaction], beta: float, k: int) -> None:
    corners = torch.arange(k, dtype=torch.float64) * (2 * math.pi / k)

    def turning(angles: Tensor) -> Tensor:
        x = torch.stack([angles.cos(), angles.sin()], -1)
        return (kind(beta).velocity(x) * torch.stack([-angles.sin(), angles.cos()], -1)).sum(-1)

    told = polygon_rates(k, beta, kind)
    once = torch.linalg.eigvals(torch.autograd.functional.jacobian(turning, corners)).real
    torch.testing.assert_close(once.sort().values, told.inter.sort().values, rtol=1e-9, atol=1e-12)
    twice = torch.linalg.eigvals(torch.autograd.functional.jacobian(turning, corners.repeat(2))).real
    both = torch.cat([told.inter, torch.full((k,), told.intra, dtype=torch.float64)])
    torch.testing.assert_close(twice.sort().values, both.sort().values, rtol=1e-9, atol=1e-11)


@pytest.mark.spec("L4")
def test_the_triangle_changes_its_mind_at_two_thirds() -> None:
    for name in ("SA", "USA"):
        below, at, above = (polygon_rates(3, -2 / 3 + by, name).inter[1:] for by in (-1e-6, 0.0, 1e-6))
        assert (below < 0).all()
        assert at.abs().max() < 1e-15
        assert (above > 0).all()


@pytest.mark.spec("L5")
def test_large_temperatures_stay_numbers() -> None:
    assert consensus_rate(1e4) == 1.0
    assert bool(polygon_rates(3, 1e4).inter.isfinite().all())
    assert equiangular(4, 1e4, torch.tensor([0.0, 1.0], dtype=torch.float64)).gap.isfinite().all()
    assert "Rigollet 2023" in REFERENCES["equiangular"]


@pytest.mark.spec("L5")
def test_bad_questions_are_refused() -> None:
    times = torch.linspace(0, 1, 3, dtype=torch.float64)
    with refused(ConfigError, "n=1", "n ≥ 2"):
        equiangular(1, 1.0, times)
    with refused(ConfigError, "beta=nan", "Use a number"):
        equiangular(4, math.nan, times)
    with refused(ConfigError, "-0.5", "−1/(n−1) = -0.3333"):
        equiangular(4, 1.0, times, start=-0.5)
    with refused(ConfigError, "[0.5, 1.0]", "torch.linspace"):
        equiangular(4, 1.0, times[1:])
    with refused(ConfigError, "hardmax", "Known: SA, Sinkhorn, USA."):
        equiangular(4, 1.0, times, interaction=Hardmax)
    with refused(ConfigError, "got 1", "two or more"):
        polygon_rates(1, 1.0)
    for asked in (consensus_rate, lambda beta, name: polygon_rates(4, beta, name)):
        with refused(ConfigError, "e^1000", "smaller β"):
            asked(1000.0, "USA")
