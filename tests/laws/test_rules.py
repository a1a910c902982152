"""Laws of quadrature rules: declared order, mass, order on the circle, nesting, products."""

import math

import numpy as np
import pytest
import torch

from continua.axes import (
    Circle,
    Counting,
    GaussLegendre,
    Grid,
    Interval,
    LeftEnd,
    Midpoint,
    Nested,
    Points,
    Product,
    ProductRule,
    Times,
    default_rule,
    grid_on,
    mass_of,
)
from tests.cases import INTERVALS, RANDOM_RULES, RULES
from tests.measure import EXACT, gap, mean_error, random, slope


def smooth(x: torch.Tensor) -> torch.Tensor:
    """Not periodic, and with different values at the ends of every interval used here (else order 1 looks like 2)."""
    return (0.7 * x).exp() * (1.5 + (3 * x + 0.3).sin())


def integral(grid: Grid, f=smooth) -> float:
    return grid.integrate(f(grid.nodes)).item()


def error(axis, rule) -> float:
    return abs(integral(grid_on(axis, rule)) - integral(grid_on(axis, GaussLegendre(48))))


@pytest.mark.spec("M4", "M8")
@pytest.mark.parametrize("rule", RULES)
def test_the_declared_order_is_measured(rule) -> None:
    axis = Interval(-1.0, 2.0)
    if rule.order == math.inf:
        assert error(axis, rule(5)) > 1e-6, "a rule that is exact here proves nothing"
        assert error(axis, rule(28)) < EXACT
    else:
        sizes = [32, 64, 128, 256]
        assert slope(sizes, [error(axis, rule(n)) for n in sizes]) == pytest.approx(rule.order, abs=0.15)


@pytest.mark.spec("M8")
@pytest.mark.parametrize("rule", RANDOM_RULES)
def test_the_declared_order_of_random_rules_is_measured_in_the_mean(rule) -> None:
    axis, sizes = Interval(-1.0, 2.0), [16, 32, 64, 128, 256]
    errors = [mean_error(lambda seed, n=n: error(axis, rule(n, seed=seed)), draws=64) for n in sizes]
    assert slope(sizes, errors) == pytest.approx(rule.order, abs=0.3)


@pytest.mark.spec("M4")
@pytest.mark.parametrize("rule", [*RULES, *RANDOM_RULES])
@pytest.mark.parametrize("axis", INTERVALS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_a_grid_carries_the_mass_of_its_axis(rule, axis, n) -> None:
    grid = grid_on(axis, rule(n))
    assert len(grid) == n
    assert grid.mass.item() == pytest.approx(mass_of(axis), rel=1e-13)
    assert (grid.weights > 0).all()
    low, high = axis.start, axis.start + axis.length
    assert (grid.nodes >= low).all()
    assert (grid.nodes <= high).all()
    assert grid.is_ordered == bool((grid.nodes[1:] > grid.nodes[:-1]).all())
    assert grid.is_uniform == (len(set(grid.weights.tolist())) == 1)
    assert grid.is_unit == bool((grid.weights == 1).all())
    assert (grid.left >= 0).all()
    assert (grid.left <= grid.weights).all()


def is_even(rule) -> bool:
    nodes, weights = rule(16).reference(periodic=True)
    return np.ptp(np.diff(nodes)) < 1e-12 and np.ptp(weights) == 0


@pytest.mark.spec("M8")
@pytest.mark.parametrize("rule", [rule for rule in [*RULES, *RANDOM_RULES] if is_even(rule)])
def test_evenly_spaced_rules_are_spectral_on_a_circle(rule) -> None:
    axis = Circle(length=3.0)
    exact = 3.0 * float(np.i0(1.0))
    errors = [
        abs(integral(grid_on(axis, rule(n)), lambda x: (2 * math.pi / 3 * x).sin().exp()) - exact) for n in (4, 16)
    ]
    assert errors[0] > 1e-3
    assert errors[1] < EXACT


@pytest.mark.spec("M4")
@pytest.mark.parametrize("axis", [Interval(-1.0, 2.0), Circle(), Points(13)], ids=str)
def test_nested_grids_are_subsets(axis) -> None:
    for n in range(1, 13):
        coarse, fine = grid_on(axis, Nested(n)), grid_on(axis, Nested(n + 1))
        assert set(coarse.nodes[:, 0].tolist()) < set(fine.nodes[:, 0].tolist())
        assert coarse.weights.tolist() == pytest.approx([mass_of(axis) / n] * n)


@pytest.mark.spec("M8")
def test_nested_stays_near_order_one_between_powers_of_two() -> None:
    axis = Interval(-1.0, 2.0)
    assert max(error(axis, Nested(n)) * n / math.log2(2 * n) for n in range(1, 130)) < 6.0
    assert error(axis, Nested(96)) < error(axis, Nested(12)) / 4


@pytest.mark.spec("M4")
def test_counting_is_the_plain_sum() -> None:
    grid = grid_on(Points(5), Counting(5))
    values = random(5, 3)
    assert torch.equal(grid.nodes[:, 0], torch.arange(5.0, dtype=torch.float64))
    assert torch.equal(grid.integrate(values), torch.ones(5, dtype=torch.float64) @ values)
    assert grid.is_counting
    assert grid.is_unit
    full = grid_on(Points(5), Nested(5))
    assert full.is_counting
    assert torch.equal(full.nodes, grid.nodes)
    assert not grid_on(Points(5), Nested(4)).is_counting


@pytest.mark.spec("M4")
def test_layers_sit_at_whole_depths() -> None:
    assert grid_on(Interval(0.0, 4.0), LeftEnd(4)).nodes[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.spec("M4")
def test_times_with_two_ends_take_rules() -> None:
    assert integral(grid_on(Times(-1.0, 2.0), Midpoint(9))) == integral(grid_on(Interval(-1.0, 2.0), Midpoint(9)))


@pytest.mark.spec("M4")
def test_inner_product_and_norm_integrate_against_the_measure() -> None:
    grid = grid_on(Interval(0.0, 2.0), GaussLegendre(8))
    one, x = torch.ones_like(grid.nodes), grid.nodes
    assert grid.inner(one, x * x).item() == pytest.approx(8 / 3, rel=1e-13)
    assert grid.norm(x).item() == pytest.approx(math.sqrt(8 / 3), rel=1e-13)
    assert grid.norm(one).item() == pytest.approx(math.sqrt(mass_of(Interval(0.0, 2.0))), rel=1e-13)


def wave(x: torch.Tensor) -> torch.Tensor:
    """Smooth on every box, and different along each coordinate."""
    k = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    return smooth((x * k).sum(-1, keepdim=True) * 0.5)


BOXES = [
    Product((Interval(-1.0, 1.0), Interval(0.0, 2.0))),
    Product((Interval(), Interval(-1.0, 1.0), Interval(0.0, 0.5))),
]


@pytest.mark.spec("M8", "M11")
@pytest.mark.parametrize("axis", BOXES, ids=["2-D", "3-D"])
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.order != math.inf])
def test_product_rules_keep_the_order_of_their_factors(axis, rule) -> None:
    sizes = [8, 16, 32] if axis.dim == 3 else [16, 32, 64]
    exact = integral(grid_on(axis, ProductRule((GaussLegendre(16),) * axis.dim)), wave)
    product = [ProductRule((rule(n),) * axis.dim) for n in sizes]
    assert all(p.order == rule.order for p in product)
    errors = [abs(integral(grid_on(axis, p), wave) - exact) for p in product]
    assert slope(sizes, errors) == pytest.approx(rule.order, abs=0.15)


@pytest.mark.spec("M8", "M11")
def test_a_product_is_as_good_as_its_worst_factor_and_spectral_if_all_are() -> None:
    axis = Product((Interval(-1.0, 1.0), Circle(2.0)))

    def f(x: torch.Tensor) -> torch.Tensor:
        return smooth(x[:, :1]) * (math.pi * x[:, 1:]).sin().exp()

    exact = integral(grid_on(axis.factors[0], GaussLegendre(30))) * 2.0 * float(np.i0(1.0))
    assert abs(integral(grid_on(axis, ProductRule((GaussLegendre(16), Midpoint(16)))), f) - exact) < EXACT
    assert ProductRule((GaussLegendre(4), Midpoint(4))).order == 2.0
    sizes = [8, 16, 32]
    errors = [abs(integral(grid_on(axis, ProductRule((Midpoint(n), GaussLegendre(20)))), f) - exact) for n in sizes]
    assert slope(sizes, errors) == pytest.approx(2.0, abs=0.15)


@pytest.mark.spec("M11")
def test_product_nodes_run_through_the_last_factor_first() -> None:
    axis = Product((Interval(), Interval(0.0, 2.0)), mass=6.0)
    grid = grid_on(axis, ProductRule((Midpoint(2), Midpoint(3))))
    first, second = grid_on(axis.factors[0], Midpoint(2)).nodes, grid_on(axis.factors[1], Midpoint(3)).nodes
    assert torch.equal(grid.nodes, torch.cartesian_prod(first[:, 0], second[:, 0]))
    assert grid.weights.tolist() == pytest.approx([1.0] * 6)
    assert default_rule(axis, 9) == ProductRule((Midpoint(3), Midpoint(3)))


@pytest.mark.spec("M4")
def test_a_union_adds_masses_and_shares_nothing() -> None:
    tokens = Grid(random(2, 4, 1), random(2, 4, low=0.1))
    slot = grid_on(Points(1), Counting(1))
    for both in (tokens.union(slot), slot.union(tokens)):
        assert len(both) == 5
        assert gap(both.mass, tokens.mass + 1) < EXACT
        assert not any((both.is_counting, both.is_uniform, both.is_unit))
    counted = slot.union(grid_on(Points(3), Counting(3)))
    assert counted.is_counting
    assert counted.is_unit
    assert counted.mass.item() == 4
