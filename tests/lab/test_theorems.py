"""L3–L5: theorems about attention on the sphere, each beside a simulation of it, with its reference."""

import math
from itertools import pairwise

import pytest
import torch

from continua.geometry import sphere
from continua.lab.particles.clusters import causal_limit, collapse_rate
from continua.lab.particles.energy import energies, energy, mean_cosine
from continua.lab.particles.fixed_points import continuation, stability
from continua.lab.particles.interaction import SelfAttention, Unnormalised
from continua.lab.particles.particles import Particles
from continua.lab.particles.simulate import Norm, free, layers, simulate
from tests.lazy import Lazily

integrate = Lazily("scipy.integrate")
FOLLOWED = 1e-5  # simulations have rtol 1e-6 a step
TAIL = 2e-3  # a rate fitted below 1 − ⟨cos⟩ = 1e-3
EXPONENT = 0.02  # an exponent fitted over a decade, c/t away from its limit


def cosines(x: torch.Tensor) -> torch.Tensor:
    """⟨x_i, x_j⟩ for i < j, [..., pairs]."""
    unit = sphere.retract(x)
    n = x.shape[-2]
    return (unit @ unit.mT)[..., *torch.triu_indices(n, n, 1)]


def slope(x: torch.Tensor, y: torch.Tensor) -> float:
    """Of the line through the points, by least squares."""
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


# --- consensus --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L1", "L5")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised])
@pytest.mark.parametrize(("n", "beta"), [(2, 1.0), (8, 0.0), (8, 3.0), (20, -1.0)])
def test_orthogonal_tokens_stay_equiangular(kind, n, beta):
    """γ' = 2 e^{βγ} (1 − γ)(1 + (n−1)γ)/Z, Z = e^β + (n−1) e^{βγ} (SA) or n (USA), from γ(0) = 0.

    Geshkovski, Letrouit, Polyanskiy, Rigollet 2023, A mathematical perspective on Transformers.
    """
    times = torch.linspace(0.0, 2.0, 9, dtype=torch.float64)

    def derivative(_: float, gamma: list[float]) -> list[float]:
        (g,) = gamma
        z = math.exp(beta) + (n - 1) * math.exp(beta * g) if kind is SelfAttention else n
        return [2 * math.exp(beta * g) * (1 - g) * (1 + (n - 1) * g) / z]

    wanted = torch.from_numpy(
        integrate.solve_ivp(derivative, (0, 2), [0.0], t_eval=times.tolist(), rtol=1e-10, atol=1e-12).y[0]
    )
    found = cosines(simulate(kind(beta), Particles.orthogonal(n), 2.0, save=times).x)
    torch.testing.assert_close(found, wanted[:, None].expand_as(found), rtol=0, atol=FOLLOWED)
    if beta == 0:
        closed = (torch.exp(2 * times) - 1) / (torch.exp(2 * times) + n - 1)
        torch.testing.assert_close(wanted, closed, rtol=0, atol=1e-9)
    assert float(wanted[-1]) > 0.1


@pytest.mark.spec("L5")
@pytest.mark.parametrize("beta", [-0.5, 0.0, 2.0])
def test_consensus_has_the_rate_one_for_sa_and_e_beta_for_usa(beta):
    """Near consensus angles fall as e^{−t} (SA, whatever β) or e^{−e^β t} (USA), 1 − γ as their squares.

    Geshkovski, Letrouit, Polyanskiy, Rigollet 2023, A mathematical perspective on Transformers.
    """
    for interaction, rate in ((SelfAttention(beta), 1.0), (Unnormalised(beta), math.exp(beta))):
        run = simulate(interaction, Particles.equiangular(6, 0.9), 10.0 / rate, save=64)
        assert collapse_rate(run).item() == pytest.approx(2 * rate, rel=TAIL)
        angle = cosines(run.x).clamp(-1, 1).arccos().mean(-1)
        seen = (angle < 0.03) & (angle > 1e-4)
        assert -slope(run.times[seen], angle[seen].log()) == pytest.approx(rate, rel=TAIL)


@pytest.mark.spec("L2", "L5")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised])
def test_pre_norm_closes_up_like_one_over_t_squared(kind):
    """x' = A(x/|x|) lengthens tokens like t, so that angles fall like 1/t only, and 1 − γ like 1/t².

    Karagodin, Ge, Polyanskiy, Rigollet 2025, Normalization in attention dynamics: pre-norm divides speeds by lengths.
    """
    times = torch.cat([torch.zeros(1), torch.logspace(2, 3, 12)]).double()
    run = free(kind(1.0), Particles.equiangular(4, 0.5), 1001.0, save=times)
    apart = 1 - cosines(run.x).mean(-1)
    assert slope(times[1:].log(), apart[1:].log()) == pytest.approx(-2.0, abs=EXPONENT)
    lengths = run.x.norm(dim=-1).mean(-1)
    pull = 1.0 if kind is SelfAttention else math.e
    assert (lengths[-1] / times[-1]).item() == pytest.approx(pull, rel=EXPONENT)
    post = simulate(kind(1.0), Particles.equiangular(4, 0.5), 10.0)
    assert float(1 - cosines(post.x[-1]).mean()) < 1e-6  # with post-norm it is exponential


@pytest.mark.spec("L5")
@pytest.mark.parametrize("beta", [0.5, 4.0])
def test_all_tokens_of_a_sphere_become_one(beta, generator):
    """d ≥ 3 and β ≥ 0: almost every start ends in one cluster, slowly for a large β.

    Criscitiello, Rebjock, McRae, Boumal 2024, Synchronization on circles and spheres with nonlinear interactions.
    """
    start = Particles.uniform(16, 3, generator, runs=4)
    end = simulate(SelfAttention(beta), start, 20.0 * math.exp(beta), save=2).final
    assert float(mean_cosine(start).max()) < 0.5
    assert float(mean_cosine(end).min()) > 1 - 1e-6


@pytest.mark.spec("L4")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised])
def test_the_triangle_is_stable_below_minus_two_thirds(kind, generator):
    """Three tokens on the circle, 2π/3 apart, have the rate e^{−β/2}(½ + ¾β)/Z: they stay apart for β < −2/3 only.

    Criscitiello, Rebjock, McRae, Boumal 2024, Synchronization on circles and spheres with nonlinear interactions.
    """
    triangle = Particles.polygon(3)
    for beta in (-2.0, -0.7, -0.6, 1.0):
        z = 1.0 if kind is Unnormalised else (math.exp(beta) + 2 * math.exp(-beta / 2)) / 3
        leading = stability(kind(beta), triangle).leading
        assert leading.real == pytest.approx(math.exp(-beta / 2) * (0.5 + 0.75 * beta) / z, rel=1e-9)
    branch = continuation(kind, triangle, [-2 / 3 - 1e-4, -2 / 3 + 1e-4])
    assert branch.changes == pytest.approx((-2 / 3,), abs=1e-7)
    push = 1e-3 * torch.randn(3, generator=generator, dtype=torch.float64)
    near = Particles.circle(triangle.angles + push)
    for beta, stays in ((-1.2, True), (-0.2, False)):
        end = simulate(kind(beta), near, 60.0, save=2).final
        assert (float(mean_cosine(end)) < 1e-9) == stays
        assert (float(mean_cosine(end)) > 0.99) != stays


# --- layers -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L2", "L5")
@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_without_skip_rank_collapses_with_the_exponent_three(beta, generator):
    """‖X − 1x̄ᵀ‖ of a layer X ← softmax(βXXᵀ)X without skip connection goes with the cube of that of the one before.

    Dong, Cordonnier, Loukas 2021, Attention is not all you need: pure attention loses rank doubly exponentially with
    depth.
    """
    shape = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    first, pairs = [], []
    for size in torch.logspace(-1.2, -4.0, 15, dtype=torch.float64):
        start = Particles.of(torch.eye(4, dtype=torch.float64)[0] + size * shape)
        x = layers(SelfAttention(beta), start, steps=4, epsilon=1.0, norm=Norm.NONE, skip=0.0).x
        rest = (x - x.mean(-2, keepdim=True)).flatten(1).norm(dim=-1)
        first.append(tuple(rest[:2].tolist()))
        pairs += [(a, b) for a, b in pairwise(rest.tolist()) if b > 1e-12]  # above round-off
    assert len(pairs) > len(
        first
    )  # with later layers, whose tokens lie otherwise: the power is the same, its factor not
    assert slope(*torch.tensor(first, dtype=torch.float64).log().T) == pytest.approx(3.0, abs=EXPONENT)
    assert slope(*torch.tensor(pairs, dtype=torch.float64).log().T) == pytest.approx(3.0, abs=0.1)
    kept = layers(SelfAttention(beta), start, steps=1, epsilon=1.0, norm=Norm.NONE, skip=1.0).x
    ratio = (kept[1] - kept[1].mean(-2)).norm() / (kept[0] - kept[0].mean(-2)).norm()
    assert ratio.item() == pytest.approx(1.0, abs=1e-3)  # a skip connection keeps it


# --- causal attention -------------------------------------------------------------------------------------------------


@pytest.mark.spec("L1", "L5")
@pytest.mark.parametrize("scores", [False, True])
def test_causal_attention_converges_to_the_first_token(scores, generator):
    """V = I and any Q, K: almost every start goes to the first token, which stays where it is.

    Karagodin, Polyanskiy, Rigollet 2024, Clustering in causal attention masking.
    """
    q, k = (torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in "qk") if scores else (None, None)
    interaction = SelfAttention(1.0, q=q, k=k, causal=True)
    start = Particles.uniform(24, 3, generator)
    end = simulate(interaction, start, 400.0, save=2).final
    limit = causal_limit(interaction, start)
    torch.testing.assert_close(limit, start.x[0])
    assert float(sphere.distance(end.x, limit).max()) < 1e-4
    assert float(sphere.distance(start.x, limit).max()) > 2.0
    seeing_all = simulate(SelfAttention(1.0), start, 40.0, save=2).final
    assert float(sphere.distance(seeing_all.x, limit).min()) > 0.1  # without the mask they meet elsewhere


# --- repulsion --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L3", "L5")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised])
@pytest.mark.parametrize("d", [2, 3])
def test_values_minus_one_spread_tokens(kind, d, generator):
    """V = −I goes down the energy: tokens from one corner spread until their mean is zero, as uniform ones have it.

    Geshkovski, Letrouit, Polyanskiy, Rigollet 2023, A mathematical perspective on Transformers.
    """
    beta, n = 1.0, 24
    corner = torch.eye(d, dtype=torch.float64)[0]
    start = Particles.of(corner + 0.05 * torch.randn(n, d, generator=generator, dtype=torch.float64))
    run = simulate(kind(beta, v=-torch.eye(d, dtype=torch.float64)), start, 60.0)
    assert float(energies(run).diff().max()) < FOLLOWED
    assert mean_cosine(start).item() > 0.9
    assert mean_cosine(run.final).item() < 1e-3
    drawn = energy(Particles.uniform(n, d, generator, runs=32), beta)
    assert energy(run.final, beta).item() < float(drawn.min())  # more even than any of 32 random sets


@pytest.mark.spec("L4")
def test_two_tokens_spread_to_opposite_points(generator):
    """The least energy of two tokens is that of opposite ones, stable for V = −I and unstable for V = I."""
    repelled = SelfAttention(2.0, v=-torch.eye(3, dtype=torch.float64))
    end = simulate(repelled, Particles.uniform(2, 3, generator), 400.0, save=2).final
    assert float(end.x[0] @ end.x[1]) == pytest.approx(-1.0, abs=1e-4)
    opposite = Particles(torch.stack([end.x[0], -end.x[0]]))
    assert stability(repelled, opposite).is_stable
    assert stability(SelfAttention(2.0), opposite).word == "unstable"
