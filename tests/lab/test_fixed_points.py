"""L4: states at rest, found by Newton's method, judged by spectra known in closed form; the tools of the sphere."""

import math

import pytest
import torch

from continua.errors import ConfigError, ShapeError, SolveFailed
from continua.geometry import sphere
from continua.lab.particles.fixed_points import (
    antipodal,
    clustered,
    continuation,
    fixed_point,
    jacobian,
    spectrum,
    stability,
    synchronised,
    tangent_basis,
)
from continua.lab.particles.interaction import Hardmax, SelfAttention, Sinkhorn, Unnormalised
from continua.lab.particles.particles import Particles
from continua.lab.particles.simulate import simulate
from tests.refusals import refused

pytestmark = pytest.mark.spec("L4")

ROUND_OFF = 1e-11  # eigenvalues of matrices with a few dozen rows, relative to the largest
DIFFERENCES = 1e-7  # central differences with a step of 1e-6
AT_REST = 1e-11
BOTH = pytest.mark.parametrize("kind", [SelfAttention, Unnormalised])
EVERY = pytest.mark.parametrize("kind", [SelfAttention, Unnormalised, Sinkhorn])


def same_spectrum(got: torch.Tensor, wanted: list[float]) -> None:
    real = got.real.sort().values
    scale = max(1.0, float(real.abs().max()))
    assert float(got.imag.abs().max()) < 1e-7 * scale  # equal eigenvalues split by the root of round-off
    torch.testing.assert_close(real, torch.tensor(sorted(wanted), dtype=real.dtype), rtol=0, atol=1e-9 * scale)


# --- the Jacobian ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [2, 3, 6])
def test_tangent_bases_are_orthonormal_and_right_handed(d, generator):
    x = torch.cat([sphere.uniform((20, d), generator), torch.eye(d, dtype=torch.float64), -torch.eye(d).double()])
    basis = tangent_basis(x)
    whole = torch.cat([x[..., None], basis], -1)
    eye = torch.eye(d, dtype=torch.float64).expand(len(x), d, d)
    torch.testing.assert_close(whole.mT @ whole, eye, rtol=0, atol=1e-13)
    torch.testing.assert_close(torch.linalg.det(whole), torch.ones(len(x), dtype=torch.float64), rtol=0, atol=1e-12)
    if d == 2:
        torch.testing.assert_close(basis[..., 0], torch.stack([-x[:, 1], x[:, 0]], -1), rtol=0, atol=1e-13)


@EVERY
def test_jacobian_by_differences(kind, generator):
    p = Particles.uniform(5, 3, generator)
    w = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=torch.float64)
    m = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    interaction = kind(1.5, q=m, v=m.T)
    basis, step = tangent_basis(p.x), 1e-6
    matrix = jacobian(interaction, Particles(p.x, w))
    s = torch.randn(5, 2, 1, generator=generator, dtype=torch.float64)
    ends = [interaction.velocity(sphere.exp(p.x, sign * step * (basis @ s)[..., 0]), w) for sign in (1, -1)]
    wanted = (basis.mT @ ((ends[0] - ends[1]) / (2 * step))[..., None]).flatten()
    torch.testing.assert_close(matrix @ s.flatten(), wanted, rtol=DIFFERENCES, atol=DIFFERENCES)


def test_on_the_circle_it_is_in_angles():
    """θ_i' = −Σ_j w_j h(θ_i − θ_j), h(φ) = e^{β cos φ} sin φ, so ∂θ_i'/∂θ_j = w_j h'(θ_i − θ_j)."""
    theta, beta = torch.tensor([0.3, 1.4, 4.0], dtype=torch.float64), 2.0
    phi = theta[:, None] - theta
    slope = (beta * phi.cos()).exp() * (phi.cos() - beta * phi.sin() ** 2) / 3
    wanted = slope - torch.diag(slope.sum(1))
    torch.testing.assert_close(jacobian(Unnormalised(beta), Particles.circle(theta)), wanted)


# --- known states, known spectra --------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [-1.0, 0.0, 4.0])
@pytest.mark.parametrize("d", [2, 4])
def test_synchronised(beta, d):
    n = 5
    for interaction, rate in (
        (SelfAttention(beta), -1.0),
        (Unnormalised(beta), -math.exp(beta)),
        (Sinkhorn(beta), -1.0),
    ):
        verdict = stability(interaction, synchronised(n, d))
        assert (verdict.stable, verdict.unstable, verdict.neutral) == ((n - 1) * (d - 1), 0, 0)
        assert verdict.rotations == d - 1
        assert verdict.is_stable
        same_spectrum(verdict.eigenvalues, [rate] * ((n - 1) * (d - 1)))
        assert verdict.leading.real == pytest.approx(rate, rel=1e-9)
        same_spectrum(spectrum(interaction, synchronised(n, d)), [0.0] * (d - 1) + [rate] * ((n - 1) * (d - 1)))


@pytest.mark.parametrize("d", [2, 3])
def test_antipodal(d):
    """ξ_i' = Σ_j w_j e^{βc}(ξ_j − c ξ_i), c = ±1: inside a group q e^{−β} − p e^β, between the groups e^{−β} (USA)."""
    beta, n, others = 1.2, 3, 2
    p, q = n / (n + others), others / (n + others)
    up, down = math.exp(beta), math.exp(-beta)
    inside = [(n - 1) * (d - 1), (others - 1) * (d - 1)]
    rates = [q * down - p * up, p * down - q * up]
    z = [p * up + q * down, p * down + q * up]
    usa = [rates[0]] * inside[0] + [rates[1]] * inside[1] + [down] * (d - 1)
    sa = [rates[0] / z[0]] * inside[0] + [rates[1] / z[1]] * inside[1] + [(q / z[0] + p / z[1]) * down] * (d - 1)
    for interaction, wanted in ((Unnormalised(beta), usa), (SelfAttention(beta), sa)):
        verdict = stability(interaction, antipodal(n, others, d))
        same_spectrum(verdict.eigenvalues, wanted)
        assert verdict.word == "unstable"
        assert (verdict.unstable, verdict.rotations) == (d - 1, d - 1)


@BOTH
@pytest.mark.parametrize(("k", "each"), [(3, 2), (4, 3), (7, 1)])
@pytest.mark.parametrize("d", [2, 3])
def test_polygon(kind, k, each, d):
    """In its plane (1/k) Σ_j h'(φ_j)(cos mφ_j − 1), out of it (1/k) Σ_j e^{β cos φ_j}(cos mφ_j − cos φ_j)."""
    beta = 2.5
    phi = torch.arange(k, dtype=torch.float64) * (2 * math.pi / k)
    pull = (beta * phi.cos()).exp()
    slope, z = pull * (phi.cos() - beta * phi.sin() ** 2), 1.0 if kind is Unnormalised else pull.mean().item()
    wanted = [(slope * ((m * phi).cos() - 1)).mean().item() / z for m in range(1, k)]
    wanted += [-slope.mean().item() / z] * (k * (each - 1))
    if d == 3:
        wanted += [(pull * ((m * phi).cos() - phi.cos())).mean().item() / z for m in range(k) if m not in (1, k - 1)]
        wanted += [-(pull * phi.cos()).mean().item() / z] * (k * (each - 1))
    verdict = stability(kind(beta), clustered(k, each, d))
    assert verdict.rotations == d * (d - 1) // 2
    same_spectrum(verdict.eigenvalues, wanted)


@BOTH
def test_the_triangle_turns_stable_at_minus_two_thirds(kind):
    for off, word in ((-1e-6, "stable"), (1e-6, "unstable")):
        assert stability(kind(-2 / 3 + off), Particles.polygon(3)).word == word
    verdict = stability(kind(-2 / 3), Particles.polygon(3), neutral=1.0)
    assert abs(verdict.leading) < ROUND_OFF
    assert verdict.word == "neutral"


def test_the_uniform_polygon_has_the_growth_rates_of_the_circle():
    """Its modes m < n/2 are those of the uniform measure, λ_m = m² I_m/(β I_0), up to aliases that are below 1e-12."""
    from scipy.special import iv

    beta, n = 4.0, 48
    values = stability(SelfAttention(beta), Particles.polygon(n)).eigenvalues.real
    wanted = sorted((m * m * iv(m, beta) / (beta * iv(0, beta)) for m in range(1, 8)), reverse=True)
    torch.testing.assert_close(values[:14:2], torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-10)


# --- rotations that an interaction notices ----------------------------------------------------------------------------


@pytest.mark.parametrize(("diagonal", "rotations"), [((1.0, 1.0, 1.0), 2), ((2.0, 2.0, 1.0), 1), ((3.0, 2.0, 1.0), 0)])
def test_only_rotations_that_the_values_allow_are_left_out(diagonal, rotations):
    v = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    verdict = stability(SelfAttention(1.0, v=v), synchronised(4, 3))
    assert verdict.rotations == rotations
    assert verdict.stable == 8 - rotations
    assert verdict.neutral == 0


def test_rotations_that_scores_or_a_feed_forward_map_notice():
    score = torch.diag(torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64))
    assert stability(SelfAttention(1.0, k=score), clustered(1, 3, 3)).rotations == 0  # the axis it lies on is fixed
    assert stability(SelfAttention(1.0, q=score, k=score), antipodal(2, 2, 3)).rotations == 0
    assert stability(SelfAttention(1.0, feed=lambda x: 0.1 * x), synchronised(3, 3)).rotations == 0


# --- Newton's method --------------------------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("d", [2, 3])
def test_newton_finds_rest_from_anywhere(kind, d, generator):
    start = Particles.uniform(6, d, generator)
    found = fixed_point(kind(2.0), start)
    assert float(kind(2.0).velocity(found.x).norm(dim=-1).max()) < AT_REST * math.exp(2.0)
    assert float(kind(2.0).velocity(start.x).norm(dim=-1).max()) > 0.05  # which it was not


def test_newton_keeps_weights_and_does_not_turn():
    """A polygon of unequal weights: the fixed point is near, and no rotation is added on the way."""
    w = torch.tensor([0.3, 0.35, 0.35], dtype=torch.float64)
    start = Particles.circle([0.0, 2.0, -2.0], w)
    found = fixed_point(SelfAttention(1.0), start)
    assert found.weights is w
    assert found.angles[0].item() == pytest.approx(0.0, abs=1e-10)  # the mirror symmetry is kept
    assert found.angles[1].item() == pytest.approx(-found.angles[2].item(), abs=1e-10)
    assert 2.0 < abs(found.angles[1].item()) < 2.3
    assert abs(found.angles[1].item() - 2 * math.pi / 3) > 1e-3


def test_newton_with_values_finds_what_a_simulation_tends_to(generator):
    v = torch.diag(torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64))
    interaction = SelfAttention(3.0, v=v)
    found = fixed_point(interaction, simulate(interaction, Particles.uniform(6, 3, generator), 8.0).final)
    torch.testing.assert_close(found.x[:, 0].abs(), torch.ones(6, dtype=torch.float64))
    assert stability(interaction, found).is_stable


def test_continuation_finds_where_the_triangle_changes():
    betas = [-1.0 + 0.05 * i for i in range(14)]
    branch = continuation(Unnormalised, Particles.polygon(3), betas)
    assert [v.is_stable for v in branch.verdicts] == [beta < -2 / 3 for beta in betas]
    assert branch.changes == pytest.approx((-2 / 3,), abs=1e-3)  # interpolated over 0.05
    torch.testing.assert_close(branch.points[-1].x, Particles.polygon(3).x, rtol=0, atol=1e-10)


def test_continuation_follows_a_state_that_moves():
    w = torch.tensor([0.3, 0.35, 0.35], dtype=torch.float64)
    branch = continuation(SelfAttention, Particles.circle([0.0, 2.1, -2.1], w), [1.0, 1.5, 2.0, 3.0])
    angles = [abs(p.angles[1].item()) for p in branch.points]
    assert max(angles) - min(angles) > 1e-3
    for beta, p in zip(branch.betas, branch.points, strict=True):
        assert float(SelfAttention(beta).velocity(p.x, w).norm(dim=-1).max()) < AT_REST


# --- the tools of the sphere ---------------------------------------------------------------------------------------


@pytest.mark.spec("L4", "M6")
@pytest.mark.parametrize("d", [2, 3, 7])
def test_geodesics(d, generator):
    x, y = sphere.uniform((30, d), generator), sphere.uniform((30, d), generator)
    v = sphere.log(x, y)
    torch.testing.assert_close(sphere.exp(x, v), y, rtol=0, atol=1e-12)
    torch.testing.assert_close(v.norm(dim=-1), sphere.distance(x, y), rtol=0, atol=1e-12)
    torch.testing.assert_close(sphere.distance(x, y).cos(), (x * y).sum(-1), rtol=0, atol=1e-12)
    half = sphere.geodesic(x, y, 0.5)
    torch.testing.assert_close(sphere.distance(x, half), sphere.distance(half, y), rtol=0, atol=1e-12)
    u = sphere.tangent(x, sphere.uniform((30, d), generator))
    carried = sphere.transport(x, y, u)
    assert float((carried * y).sum(-1).abs().max()) < 1e-11  # divided by 1 + ⟨x, y⟩
    torch.testing.assert_close(carried.norm(dim=-1), u.norm(dim=-1), rtol=0, atol=1e-11)
    torch.testing.assert_close(
        sphere.transport(x, y, v), -sphere.log(y, x), rtol=0, atol=1e-11
    )  # geodesics go straight


@pytest.mark.spec("L4", "M6")
def test_the_angle_of_close_points_is_exact():
    x, y = Particles.circle([0.0, 1e-12]).x
    assert sphere.distance(x, y).item() == pytest.approx(1e-12, rel=1e-9)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_refusals(generator):
    p = Particles.uniform(4, 2, generator)
    with refused(ConfigError, "a token with speed", "fixed_point"):
        stability(SelfAttention(1.0), p)
    with refused(ShapeError, "a batch of shape (2, 4, 2)", "Particles(x[0])"):
        fixed_point(SelfAttention(1.0), Particles.uniform(4, 2, generator, runs=2))
    with refused(ConfigError, "none", "Give betas"):
        continuation(SelfAttention, p, [])
    turning = SelfAttention(1.0, v=torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64))  # never at rest
    with refused(SolveFailed, "a speed of", "Start nearer"):
        fixed_point(turning, synchronised(3, 2))
    with refused(SolveFailed, "β=2", "Take smaller steps"):
        continuation(lambda beta: SelfAttention(beta) if beta < 2 else turning, synchronised(3, 2), [1.0, 2.0])


def test_single_precision_is_brought_to_double(generator):
    start = Particles.of(torch.randn(5, 3, generator=generator))
    assert start.x.dtype == torch.float32
    found = fixed_point(SelfAttention(2.0), start)
    assert found.x.dtype == torch.float64
    assert stability(SelfAttention(2.0), Particles(synchronised(5, 3).x.float())).is_stable


def test_one_token_and_hardmax_have_verdicts():
    alone = stability(SelfAttention(1.0), synchronised(1, 3))
    assert (alone.rotations, len(alone.eigenvalues), alone.word) == (2, 0, "stable")
    assert stability(Hardmax(), Particles.polygon(3)).word == "neutral"  # each sees itself only
