"""Growth rates of the uniform measure: against scipy, at the extremes, and against nonlinear simulations."""

import itertools
import math

import numpy as np
import pytest
import torch

from continua.errors import ConfigError
from continua.flow import RK4, Fixed, OnSphere
from continua.lab.particles.bessel import log_mean, log_means, log_ratios, quotients
from continua.lab.particles.harmonics import Harmonics
from continua.lab.particles.interaction import Interaction, SelfAttention, Sinkhorn, Unnormalised
from continua.lab.particles.particles import Particles
from continua.lab.particles.simulate import layers, simulate
from continua.lab.theory.growth import crossovers, growth_rates, k_max, layer_factor, log_growth_rates, rotated_rates
from continua.lab.theory.meanfield import circle_nodes, mean_field
from continua.lab.theory.meanfield_sphere import sphere_mean_field
from continua.typing import Tensor
from tests.lazy import Lazily
from tests.refusals import refused

special = Lazily("scipy.special")

ON_CIRCLE = 1e-6  # asked for by the specification; 20 steps of RK4 over one e-folding lose about 1e-7
ON_SPHERE = 1e-5
DIGITS = 1e-11  # products of up to a hundred ratios, and lgamma in scipy's scaling
TINY = 1e-6  # a perturbation: its square is below what is asked for, round-off is 1e-10 of it
PLAIN = [SelfAttention, Unnormalised, Sinkhorn]


def reference(name: str, beta: float, d: int, modes: int) -> np.ndarray:
    """The formulas of the theory page, with scipy's scaled Bessel functions."""
    nu, l = d / 2 - 1, np.arange(modes + 1)
    r = special.ive(l + nu, beta) / special.ive(nu, beta)
    c = np.exp(special.gammaln(d / 2) + nu * math.log(2 / beta) + beta) * special.ive(l + nu, beta)
    return l * (l + d - 2) / beta * {"SA": r, "USA": c, "Sinkhorn": r / (1 + r)}[name]


# --- the numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("L7")
@pytest.mark.parametrize("name", ["SA", "USA", "Sinkhorn"])
@pytest.mark.parametrize("d", [2, 3, 5, 17, 64])
@pytest.mark.parametrize("beta", [0.1, 1.0, 9.0, 64.0, 500.0])
def test_rates_are_those_of_scipy(name: str, d: int, beta: float) -> None:
    found = growth_rates(beta, d, name, modes=30)
    np.testing.assert_allclose(found.numpy(), reference(name, beta, d, 30), rtol=DIGITS)


@pytest.mark.spec("L7")
@pytest.mark.parametrize(("beta", "d"), [(1e4, 2), (1e4, 1024), (1.0, 1024), (1e-3, 1024), (1e4, 64), (1e8, 2)])
def test_extremes_keep_the_recurrence_and_its_bounds(beta: float, d: int) -> None:
    nu, modes = d / 2 - 1, 40
    r = log_ratios(beta, d, modes).exp()
    l = torch.arange(1, modes, dtype=torch.float64)
    scale = 2 * (l + nu) / beta * r[1:-1]  # I_{μ−1} − I_{μ+1} = (2μ/β) I_μ
    close = 1e-12 * r[:-2] + 1e-300
    assert ((r[:-2] - r[2:] - scale).abs() <= close).all()
    steps = beta * torch.tensor(quotients(beta, nu, modes), dtype=torch.float64)
    order = nu + torch.arange(modes, dtype=torch.float64)
    slack = 1 + 1e-14
    assert (steps <= slack * beta / (order + 0.5 + ((order + 0.5) ** 2 + beta**2).sqrt())).all()  # Amos 1974
    assert (steps * slack >= beta / (order + 0.5 + ((order + 1.5) ** 2 + beta**2).sqrt())).all()
    assert (steps[1:] < steps[:-1]).all()  # Turán: I_μ² > I_{μ−1} I_{μ+1}


@pytest.mark.spec("L7")
@pytest.mark.parametrize("d", [2, 3, 64, 1024])
@pytest.mark.parametrize("beta", [1e-3, 1.0, 50.0, 1000.0, 1e4])
def test_the_mean_of_the_kernel_is_its_power_series(d: int, beta: float) -> None:
    k = torch.arange(int(beta) + 400, dtype=torch.float64)  # 0F1(; d/2; β²/4), whose terms peak before β/2
    terms = 2 * k * math.log(beta / 2) - torch.lgamma(k + 1) - torch.lgamma(k + d / 2) + math.lgamma(d / 2)
    lost = 1e-14 * (1 + beta)  # lgamma of the size of β log β, rounded
    assert abs(log_mean(beta, d) - float(terms.logsumexp(0))) < lost
    nodes, weights = np.polynomial.legendre.leggauss(12)  # d log c_0/dβ = r_1, over a tenth of β
    inside = [float(log_ratios(beta * (0.95 + 0.05 * x), d, 1)[1].exp()) for x in nodes]
    risen = 0.05 * beta * float(np.dot(weights, inside))
    assert abs(log_mean(beta, d) - log_mean(0.9 * beta, d) - risen) < lost


@pytest.mark.spec("L7")
def test_large_unnormalised_rates_have_logarithms() -> None:
    for beta, d in ((5.0, 2), (300.0, 3), (600.0, 64)):
        logs, rates = log_growth_rates(beta, d, modes=9), growth_rates(beta, d, "USA", 9)
        torch.testing.assert_close(logs[1:].exp(), rates[1:], rtol=1e-12, atol=0)
    far = log_growth_rates(1e4, 2, modes=5)
    expected = [math.log(k * k / 1e4) + 1e4 + math.log(special.ive(k, 1e4)) for k in range(1, 6)]
    torch.testing.assert_close(far[1:], torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)
    torch.testing.assert_close(
        log_means(1e4, 2, 3), far.new_tensor([special.ive(k, 1e4) for k in range(4)]).log() + 1e4
    )


@pytest.mark.spec("L7")
def test_signs_zero_and_small_temperatures() -> None:
    for d in (2, 3, 9):
        for name in ("SA", "USA"):
            up, down = growth_rates(7.0, d, name, 12), growth_rates(-7.0, d, name, 12)
            parity = torch.tensor([(-1.0) ** (l + 1) for l in range(13)], dtype=torch.float64)
            torch.testing.assert_close(down, parity * up, rtol=1e-14, atol=0)  # c_l(−β) = (−1)^l c_l(β)
        for name in ("SA", "USA", "Sinkhorn"):
            for beta in (0.0, 1e-300, -1e-9):
                limit = torch.tensor([0.0, (d - 1) / d, 0.0, 0.0], dtype=torch.float64)
                torch.testing.assert_close(growth_rates(beta, d, name, 3), limit, rtol=0, atol=1e-8)


@pytest.mark.spec("L7")
def test_by_default_all_modes_that_matter_are_there() -> None:
    for beta, d in ((0.0, 2), (0.3, 3), (9.0, 2), (1e4, 2), (700.0, 1024)):
        some = growth_rates(beta, d)
        more = growth_rates(beta, d, modes=len(some) + 20)
        assert (more[len(some) :] <= 1e-16 * more.max()).all()
        assert some.max() == more.max() < 1.0  # SA never grows faster than e^t


@pytest.mark.spec("L7")
def test_rates_add_over_heads() -> None:
    both = growth_rates([2.0, 9.0], 3, modes=8)
    torch.testing.assert_close(both, growth_rates(2.0, 3, modes=8) + growth_rates(9.0, 3, modes=8))


# --- the winner -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("L7")
def test_the_fastest_mode_on_the_circle() -> None:
    assert [k_max(float(beta)) for beta in range(1, 101)] == [round(math.sqrt(2 * beta)) for beta in range(1, 101)]
    for beta in [*np.linspace(0.125, 40, 400), *np.geomspace(40, 1e6, 40)]:
        assert abs(k_max(float(beta)) - round(math.sqrt(2 * beta))) <= 1
    assert {k_max(beta) for beta in (1e-9, 0.01, 0.124)} == {1}


@pytest.mark.spec("L7")
@pytest.mark.parametrize("d", [2, 3, 10, 100, 1024])
def test_the_fastest_mode_in_any_dimension(d: int) -> None:
    nu = d / 2 - 1
    for beta in np.geomspace(0.125, 1e4, 25):
        assert abs(k_max(float(beta), d) - (math.sqrt(2 * beta + nu**2) - nu)) < 1
        assert k_max(float(beta), d, "USA") == k_max(float(beta), d)


@pytest.mark.spec("L7")
@pytest.mark.parametrize("d", [2, 3, 50])
def test_crossovers_are_where_two_modes_tie(d: int) -> None:
    for l, beta in enumerate(crossovers(d, 7).tolist(), start=1):
        rates = growth_rates(beta, d, modes=l + 1)
        assert abs(rates[l] / rates[l + 1] - 1) < 1e-12
        assert (k_max(beta * (1 - 1e-9), d), k_max(beta * (1 + 1e-9), d)) == (l, l + 1)


# --- nonlinear simulations ------------------------------------------------------------------------------------------


def modes_of(x: Tensor, ks: list[int]) -> Tensor:
    """Σ_j e^{−ikθ_j} / n of row k of the batch."""
    angles = torch.atan2(x[..., 1], x[..., 0])
    return torch.stack(
        [torch.polar(torch.ones_like(a), -k * a).mean(-1) for k, a in zip(ks, angles.unbind(-2), strict=True)]
    )


def rippled(ks: list[int], n: int) -> Particles:
    """A regular n-gon for each k, with its tokens moved by a small wave."""
    theta = circle_nodes(n)
    return Particles.circle(torch.stack([theta + TINY / k * torch.sin(k * theta + 0.3) for k in ks]))


def simulated(interaction: Interaction, ks: list[int], n: int, time: float) -> Tensor:
    """log(a_k(T)/a_k(0))/T of a short nonlinear run, one run for each k."""
    start = rippled(ks, n)
    run = simulate(interaction, start, time, save=2, solver=OnSphere(RK4()), control=Fixed(20))
    return (modes_of(run.x[-1], ks) / modes_of(start.x, ks)).log() / time


def agree(found: Tensor, told: Tensor, largest: Tensor, within: float) -> None:
    """Beside the largest rate all of them, and each beside itself unless it is a hundred times smaller."""
    assert ((found - told).abs() / largest).max() < within
    strong = told.abs() > 0.01 * largest
    assert ((found / told - 1).abs()[strong]).max() < within


@pytest.mark.spec("L7", "L1")
@pytest.mark.parametrize("beta", [0.5, 2.0, 9.0, 64.0])
@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.name)
def test_tokens_on_the_circle_grow_as_told(kind: type[Interaction], beta: float) -> None:
    best = k_max(beta, 2, kind)
    ks = sorted({1, 2, best, best + 2})
    n = 24 + 14 * math.ceil(math.sqrt(beta))  # I_{n−k}(β)/I_0(β) is below round-off: no token knows that it is one of n
    told = growth_rates(beta, 2, kind, max(ks))
    found = simulated(kind(beta), ks, n, 0.7 / float(told.max()))
    agree(found.real, told[ks], told.max(), ON_CIRCLE)
    assert found.imag.abs().max() < ON_CIRCLE * told.max()


@pytest.mark.spec("L7", "L6")
@pytest.mark.parametrize("beta", [0.5, 2.0, 9.0, 64.0])
@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.name)
def test_densities_on_the_circle_grow_as_told(kind: type[Interaction], beta: float) -> None:
    best = k_max(beta, 2, kind)
    ks = sorted({1, 2, best, best + 2})
    told = growth_rates(beta, 2, kind, max(ks))
    time, m = 0.7 / float(told.max()), 2 * max(ks) + 24
    waves = torch.stack([1 + TINY * torch.cos(k * circle_nodes(m) - 1) for k in ks]) / (2 * math.pi)
    path = mean_field(kind(beta), waves, time, save=2, control=Fixed(12)).modes()
    found = torch.stack([(path[-1, i, k] / path[0, i, k]).log() / time for i, k in enumerate(ks)])
    agree(found.real, told[ks], told.max(), ON_CIRCLE)


@pytest.mark.spec("L7", "L1")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised], ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("beta", "alpha", "phi"), [(2.0, 0.4, 0.0), (4.0, 0.0, 0.7), (4.0, -0.5, 1.1), (9.0, 0.2, -0.2)]
)
def test_rotated_queries_and_values(kind: type[Interaction], beta: float, alpha: float, phi: float) -> None:
    def turn(angle: float) -> Tensor:
        c, s = math.cos(angle), math.sin(angle)
        return torch.tensor([[c, -s], [s, c]], dtype=torch.float64)

    ks = [1, 2, 3, 5]
    told = rotated_rates(beta, alpha, phi, 5, kind)
    largest = told.abs().max()
    found = simulated(kind(beta, q=turn(alpha), v=turn(phi)), ks, 72, 0.3 / float(largest))
    assert ((found - told[ks]).abs() / largest).max() < ON_CIRCLE


@pytest.mark.spec("L7")
@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.name)
def test_noise_damps_every_mode(kind: type[Interaction]) -> None:
    beta, kappa, m = 4.0, 30.0, 48
    interaction = kind(beta, kappa=kappa)
    told = growth_rates(beta, 2, interaction, 6)
    torch.testing.assert_close(told, growth_rates(beta, 2, kind.name, 6) - torch.arange(7.0).double() ** 2 / kappa)
    torch.testing.assert_close(told, growth_rates(beta, 2, kind.name, 6, kappa))
    time, steps = 0.5 / float(told.max()), Fixed(24)  # small enough for the highest mode's diffusion
    waves = torch.stack([1 + TINY * torch.cos(k * circle_nodes(m)) for k in range(1, 7)]) / (2 * math.pi)
    path = mean_field(interaction, waves, time, save=2, control=steps).modes()
    grown = torch.stack([(path[-1, k - 1, k] / path[0, k - 1, k]).real.log() / time for k in range(1, 7)])
    agree(grown, told[1:], told.max(), ON_CIRCLE)
    a = torch.zeros(9, 9, dtype=torch.complex128)
    a[0, 0], a[3, 2] = 1 / math.sqrt(4 * math.pi), TINY
    on_sphere = float(growth_rates(beta, 3, interaction, 3)[3])
    end = sphere_mean_field(interaction, a, time, save=2, control=Fixed(10)).coefficients[-1]
    assert abs(float((end[3, 2] / a[3, 2]).real.log()) / time / on_sphere - 1) < ON_SPHERE


@pytest.mark.spec("L7", "L2")
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.name)
def test_one_layer_multiplies_as_told(kind: type[Interaction], epsilon: float) -> None:
    beta, ks = 3.0, [1, 2, 3, 4]
    told = layer_factor(epsilon, beta, 2, kind, 4)
    start = rippled(ks, 64)
    steps = layers(kind(beta), start, 3, epsilon).x
    for before, after in itertools.pairwise(steps):
        factor = modes_of(after, ks) / modes_of(before, ks)
        assert ((factor - told[ks]).abs() / told[ks]).max() < 1e-8
    flow = layer_factor(1e-4, beta, 2, kind, 4) ** 1e4  # ε → 0 is the flow at time one
    torch.testing.assert_close(flow, growth_rates(beta, 2, kind, 4).exp(), rtol=1e-2, atol=0)


def heavier(degree: int, l: int, m: int) -> tuple[Particles, Harmonics]:
    """Tokens on the product grid of S², heavier where Re Y_lm is positive."""
    y = Harmonics(degree)
    a = torch.zeros(degree + 1, degree + 1, dtype=torch.complex128)
    a[0, 0], a[l, m] = 1 / math.sqrt(4 * math.pi), TINY
    return Particles.of(y.points.reshape(-1, 3), (y.synthesise(a) * y.weights).reshape(-1)), Harmonics(l)


@pytest.mark.spec("L7", "L1")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("beta", "l", "m"), [(0.5, 1, 0), (0.5, 2, 1), (4.0, 1, 1), (4.0, 3, 2), (9.0, 4, 3)])
def test_tokens_on_the_sphere_grow_as_told(kind: type[Interaction], beta: float, l: int, m: int) -> None:
    told = float(growth_rates(beta, 3, kind, l)[l])
    start, y = heavier(10 + math.ceil(3 * math.sqrt(beta)), l, m)
    time = 0.3 / told
    run = simulate(kind(beta), start, time, save=2, solver=OnSphere(RK4()), control=Fixed(4))
    end = y.moments(run.x[-1], start.weights)[l, m]
    assert abs(float((end / TINY).real.log()) / time / told - 1) < ON_SPHERE
    factor = y.moments(layers(kind(beta), start, 1, 0.5).x[-1], start.weights)[l, m].real / TINY
    assert abs(float(factor / layer_factor(0.5, beta, 3, kind, l)[l]) - 1) < ON_SPHERE


@pytest.mark.spec("L7", "L6")
@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.name)
@pytest.mark.parametrize("beta", [0.5, 9.0])
def test_densities_on_the_sphere_grow_as_told(kind: type[Interaction], beta: float) -> None:
    told = growth_rates(beta, 3, kind, 6)
    a = torch.zeros(6, 15, 15, dtype=torch.complex128)
    a[:, 0, 0] = 1 / math.sqrt(4 * math.pi)
    for l in range(1, 7):
        a[l - 1, l, l // 2] = TINY
    time = 0.3 / float(told.max())
    end = sphere_mean_field(kind(beta), a, time, save=2, control=Fixed(8)).coefficients[-1]
    grown = torch.stack([(end[l - 1, l, l // 2] / TINY).real.log() / time for l in range(1, 7)])
    assert ((grown - told[1:]).abs() / told.max()).max() < ON_SPHERE


@pytest.mark.spec("L7", "L1")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised], ids=lambda kind: kind.name)
def test_tokens_in_four_dimensions_grow_as_told(kind: type[Interaction]) -> None:
    """S³ has a product grid too: x = (√u e^{iφ}, √(1−u) e^{iχ}) with du dφ dχ uniform."""
    beta, l = 2.0, 2
    u, w = np.polynomial.legendre.leggauss(6)
    u, w = torch.from_numpy(u) / 2 + 0.5, torch.from_numpy(w) / 2
    phi = circle_nodes(14)
    u, first, second = (each.reshape(-1) for each in torch.meshgrid(u, phi, phi, indexing="ij"))
    x = torch.stack(
        [u.sqrt() * first.cos(), u.sqrt() * first.sin(), (1 - u).sqrt() * second.cos(), (1 - u).sqrt() * second.sin()],
        -1,
    )
    uniform = w.repeat_interleave(14 * 14) / 14**2
    harmonic = 2 * u - 1  # |z₁|² − |z₂|², of degree two
    weights = uniform * (1 + TINY * harmonic)
    v = kind(beta).velocity(x, weights)
    slope = 4 * x * torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)  # ∇(2|z₁|² − 1)
    rate = (weights * (slope * v).sum(-1)).sum() / (weights * harmonic).sum()
    assert abs(float(rate / growth_rates(beta, 4, kind, l)[l]) - 1) < ON_SPHERE


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L7")
def test_bad_questions_are_refused() -> None:
    for beta in (math.nan, math.inf):
        with refused(ConfigError, f"beta={beta}", "Use a number"):
            growth_rates(beta)
    with refused(ConfigError, "beta=1e+09", "k_max ≈"):
        k_max(1e9)
    for d in (1, 0, -3):
        with refused(ConfigError, f"d={d}", "d=2 for the circle"):
            growth_rates(1.0, d)
        with refused(ConfigError, f"d={d}", "d=2 for the circle"):
            crossovers(d)
    with refused(ConfigError, "USSA", "Did you mean 'USA'?"):
        growth_rates(1.0, 2, "USSA")
    with refused(ConfigError, "hardmax", "Known: SA, Sinkhorn, USA."):
        growth_rates(1.0, 2, "hardmax")
    with refused(ConfigError, "beta=900", "log_growth_rates"):
        growth_rates(900.0, 2, "USA")
    with refused(ConfigError, "beta=900", "interaction='SA'"):
        rotated_rates(900.0, 0.1, 0.1, 3)
    with refused(ConfigError, "Sinkhorn", "Use one of USA, SA, or simulate."):
        rotated_rates(1.0, 0.1, 0.1, 3, "Sinkhorn")
    with refused(ConfigError, "nan", "in radians"):
        rotated_rates(1.0, math.nan, 0.0, 3)
    with refused(ConfigError, "got 0", "Use 1 or more"):
        growth_rates(1.0, modes=0)
    with refused(ConfigError, "-1.0", "no noise"):
        growth_rates(1.0, kappa=-1.0)
    with refused(ConfigError, "no β", "one for each head"):
        growth_rates([])
    with refused(ConfigError, "epsilon=-9", "at least zero"):
        layer_factor(-9.0, 3.0)
    with refused(ConfigError, "q, v", "rotated_rates"):
        eye = torch.eye(2, dtype=torch.float64)
        growth_rates(1.0, 2, SelfAttention(1.0, q=eye, v=eye))
    with refused(ConfigError, "causal=True", "Give the name alone"):
        growth_rates(1.0, 2, SelfAttention(1.0, causal=True))
