"""M8: refine one axis at a time; the measured slope is the declared order of the rule or solver."""

import math

import pytest
import torch

from continua.axes import (
    ClenshawCurtis,
    Discretisation,
    GaussLegendre,
    Grid,
    Interval,
    LeftEnd,
    Midpoint,
    MonteCarlo,
    Nested,
    Samples,
    Sobol,
    Trapezoid,
)
from continua.flow import RK4, Euler, ExplicitMidpoint, Heun, LieTrotter, Strang
from continua.models.batch import Batch
from continua.models.refine import refine_depth, refine_samples, refine_time, refine_width, smooth_input, smooth_model
from continua.operators import Causal
from tests.measure import settles
from tests.slow import slow_but

FINE = GaussLegendre(16)
BATCH = Batch(smooth_input)
SOLVERS = [Euler(), LieTrotter(), ExplicitMidpoint(), Heun(), Strang(), RK4()]
MASKS = {"full": None, "causal": Causal()}


@pytest.fixture(scope="module", params=MASKS, autouse=True)
def mask_name(request):
    with torch.no_grad():
        yield request.param


@pytest.fixture(scope="module")
def model(mask_name):
    return smooth_model(Interval(), MASKS[mask_name])


@pytest.fixture(scope="module")
def exact(model):
    # under a causal mask no rule is spectral; Gauss nodes still have by far the smallest constant
    return model(BATCH, at=Discretisation(t=GaussLegendre(384)))


@pytest.mark.spec("M8", "M10")
@pytest.mark.parametrize("letter", "dhem")
@pytest.mark.parametrize("rule", [Midpoint, Trapezoid, LeftEnd])
def test_widths_converge_at_the_order_of_the_rule(model, letter, rule):
    found = refine_width(model, letter, [rule(n) for n in (16, 32, 64, 128)], BATCH, FINE)
    assert found.slope == pytest.approx(found.declared, abs=0.15), found


@pytest.mark.spec("M8", "M10")
@pytest.mark.parametrize("letter", "dhem")
@pytest.mark.parametrize("rule", [GaussLegendre, ClenshawCurtis])
def test_widths_converge_spectrally(model, letter, rule):
    assert settles(found := refine_width(model, letter, [rule(n) for n in (3, 5, 8, 12, 22)], BATCH, FINE)), found


@pytest.mark.spec("M8")
@pytest.mark.parametrize("letter", slow_but("d", "dhem", "96 draws for each letter"))
def test_random_widths_converge_in_the_mean(model, letter):
    errors = []
    sizes = (8, 32, 128)
    for n in sizes:
        draws = refine_width(model, letter, [MonteCarlo(n, seed) for seed in range(32)], BATCH, FINE)
        errors.append(sum(draws.errors) / 32)
    slope = math.log(errors[0] / errors[-1]) / math.log(sizes[-1] / sizes[0])
    assert slope == pytest.approx(MonteCarlo.order, abs=0.3), errors


@pytest.mark.spec("M8")
@pytest.mark.parametrize("rule", [Midpoint, Trapezoid, GaussLegendre, ClenshawCurtis])
def test_time_converges_at_the_order_of_the_rule(model, exact, mask_name, rule):
    declared = min(rule.order, 2.0) if mask_name == "causal" else rule.order
    found = refine_time(model, [rule(n) for n in (16, 32, 64, 128)], exact, BATCH)
    if math.isinf(declared):
        assert settles(refine_time(model, [rule(n) for n in (4, 8, 12, 16, 24)], exact, BATCH))
    else:
        assert found.slope == pytest.approx(declared, abs=0.15), found


@pytest.mark.spec("M8")
def test_low_discrepancy_time_converges_with_order_one(model, exact):
    found = refine_time(model, [Nested(n) for n in (16, 32, 64, 128)], exact, BATCH)
    assert found.slope == pytest.approx(1.0, abs=0.15), found


@pytest.mark.spec("M8")
@pytest.mark.parametrize("rule", [MonteCarlo, Sobol])
def test_random_time_rules_converge_in_the_mean(model, exact, mask_name, rule):
    errors, sizes = [], (16, 64, 256)
    for n in sizes:
        draws = refine_time(model, [rule(n, seed) for seed in range(16)], exact, BATCH)
        errors.append(sum(draws.errors) / 16)
    slope = math.log(errors[0] / errors[-1]) / math.log(sizes[-1] / sizes[0])
    assert slope == pytest.approx(rule.order, abs=0.3), errors


def warped(n):
    return ((torch.arange(n, dtype=torch.float64) + 0.5) / n) ** 1.7


def random_stamps(n):
    draws = torch.rand(24, n, 1, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    return draws.sort(1).values


@pytest.mark.spec("M8", "M4")
def test_warped_stamps_converge_with_order_two(model, exact):
    found = refine_samples(model, warped, (16, 32, 64, 128), exact)
    assert found.slope == pytest.approx(2.0, abs=0.15), found


@pytest.mark.spec("M8", "M4")
def test_random_stamps_converge_with_order_two_in_the_mean(model, exact):
    found = refine_samples(model, random_stamps, (32, 64, 128, 256), exact)
    assert found.slope == pytest.approx(2.0, abs=0.3), found


@pytest.mark.spec("M8", "M7", "D2")
@pytest.mark.parametrize("solver", slow_but([LieTrotter(), Strang(), RK4()], SOLVERS, "a second each"), ids=str)
def test_depth_converges_at_the_order_of_the_solver(model, solver):
    found = refine_depth(model, solver, (8, 16, 32), BATCH, GaussLegendre(8))
    assert found.slope == pytest.approx(found.declared, abs=0.15), found


@pytest.mark.spec("M8", "M2")
def test_plain_softmax_stalls_on_uneven_nodes(model, exact):
    """Without log-weights the same refinement does not converge: the weights are not optional."""
    errors = []
    for n in (64, 256):
        honest = Samples().on(Interval(), warped(n))
        equal = torch.full_like(honest.weights, 1 / n)
        plain = Grid(honest.nodes, equal, left=equal / 2, is_uniform=True)
        errors.append((model(Batch(smooth_input, grid=plain)) - exact).abs().max().item())
    assert errors[1] > 0.9 * errors[0] > 1e-3, errors
