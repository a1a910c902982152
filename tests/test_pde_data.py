"""Pairs of functions, and the sets that are generated: what they solve, and what they refuse."""

import pytest
import torch

from continua.axes import Circle, Interval, Points, Product
from continua.errors import ConfigError, GridError, ShapeError
from continua.tasks.pairs import Pairs, lattice
from tests.measure import gap, random
from tests.refusals import refused

SQUARE = Product((Interval(), Interval()))
TORUS = Product((Circle(), Circle()))


def on_circle(n: int = 12, count: int = 3) -> Pairs:
    x = torch.arange(n).double() / n
    return Pairs("waves", Circle(), random(count, n, 1), random(count, n, 2, seed=1), lattice(Circle(), x))


def on_square(*lines: torch.Tensor, axis: Product = SQUARE) -> Pairs:
    points = lattice(axis, *lines)
    return Pairs(
        "plates", axis, random(2, *points.shape[:-1], 1), points.prod(-1, keepdim=True).expand(2, -1, -1, 1), points
    )


@pytest.mark.spec("B3")
def test_pairs_are_cut_thinned_and_named() -> None:
    pairs = on_circle()
    assert len(pairs) == 3
    assert pairs.shape == (12,)
    assert len(pairs.part(slice(1, None))) == 2
    thin = pairs.every(3)
    assert thin.shape == (4,)
    assert gap(thin.inputs, pairs.inputs[:, ::3]) == 0
    assert gap(thin.grid.nodes, thin.points) == 0
    assert pairs.sha256 == on_circle().sha256 != thin.sha256
    changed = pairs.outputs.clone()
    changed[2, 5, 1] += 1e-12
    assert Pairs("waves", pairs.axis, pairs.inputs, changed, pairs.points).sha256 != pairs.sha256
    inputs, outputs = pairs.flat()
    assert inputs.shape == (3, 12, 1)
    assert outputs.shape == (3, 12, 2)


@pytest.mark.spec("M11")
@pytest.mark.parametrize("n", [2, 3, 9])
def test_the_points_of_a_square_are_a_quadrature(n: int) -> None:
    count = torch.arange(n).double()
    ends, centres, circle = count / (n - 1), (count + 0.5) / n, count / n
    for lines in ([ends, ends], [centres, centres], [ends, centres]):  # each rule is exact for xy
        pairs = on_square(*lines)
        assert gap(pairs.grid.integrate(pairs.flat()[1]), torch.full((2, 1), 0.25).double()) < 1e-14
        assert gap(pairs.grid.nodes, pairs.points.reshape(-1, 2)) < 1e-6
        order = pairs.flat()[1].reshape(2, n, n, 1)
        assert gap(order, pairs.outputs) == 0
    torus = on_square(circle, circle, axis=TORUS)
    assert torus.grid.is_uniform
    assert gap(torus.grid.weights, torch.full((n * n,), n**-2.0, dtype=torch.float64)) < 1e-15
    assert on_square(ends, ends).grid.weights[0] * 4 == pytest.approx((n - 1) ** -2.0, rel=1e-12)


@pytest.mark.spec("M11")
def test_lines_that_no_rule_has_weigh_their_half_gaps() -> None:
    pairs = on_square(torch.linspace(0, 1, 11), torch.linspace(0, 1, 11)).every(3)  # 0, .3, .6, .9: the end is missing
    wanted = torch.tensor([0.15, 0.3, 0.3, 0.25]).double()
    assert gap(pairs.grid.weights, torch.outer(wanted, wanted).reshape(-1)) < 1e-6
    assert float(pairs.grid.mass) == pytest.approx(1.0, abs=1e-12)
    ring = on_circle(8).every(3)  # 0, 3, 6 of 8
    assert gap(ring.grid.weights, torch.tensor([2.5, 3.0, 2.5]).double() / 8) < 1e-12


@pytest.mark.spec("B3")
def test_pairs_that_do_not_fit_are_refused() -> None:
    good = on_circle()
    parts = {"name": "waves", "axis": good.axis, "inputs": good.inputs, "outputs": good.outputs, "points": good.points}
    hurt = good.outputs.clone()
    hurt[0, 3, 1] = torch.nan
    x = good.points
    for kind, got, remedy, changed in [
        (ShapeError, "outputs [3, 11, 2]", "one grid", {"outputs": good.outputs[:, 1:]}),
        (ShapeError, "inputs [0, 12, 1]", "count ≥ 1", {"inputs": good.inputs[:0], "outputs": good.outputs[:0]}),
        (ShapeError, "points [12, 2]", "points [12, 1]", {"points": torch.cat([x, x], -1)}),
        (ShapeError, "torch.int64", ".float()", {"inputs": good.inputs.long()}),
        (ShapeError, "1 NaN or infinite", "repair", {"outputs": hurt}),
        (GridError, "coordinate 0", "increasing", {"points": x.flip(0)}),
        (GridError, "coordinate 0", "in the domain", {"points": x + 0.5}),
        (GridError, "Points(n=12)", "Choose", {"axis": Points(12)}),
    ]:
        with refused(kind, got, remedy):
            Pairs(**{**parts, **changed})  # type: ignore[arg-type]
    with refused(ConfigError, "12", "between 1 and 11"):
        good.every(12)
    with refused(ConfigError, "5:9:None", "There are 3"):
        good.part(slice(5, 9))
    with refused(GridError, "1", "Give 2 lines"):
        lattice(SQUARE, x[:, 0])
    with refused(GridError, "coordinate 1", "(x_i, y_j)"):
        twisted = lattice(SQUARE, x[:, 0], x[:, 0]).clone()
        twisted[3, 3, 1] += 0.01
        Pairs("twisted", SQUARE, random(1, 12, 12, 1), random(1, 12, 12, 1), twisted)
