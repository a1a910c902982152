"""Laws of ``Samples``: weights for the nodes that data bring along, in one, two and three dimensions."""

import pytest
import torch

from continua.axes import Circle, GaussLegendre, Grid, Interval, Points, Product, ProductRule, Samples, Times, grid_on
from tests.measure import EXACT, gap, mean_error, random, slope

LINE, RING = Interval(-1.0, 2.0), Circle(3.0)
ON = Samples().on


def smooth(x: torch.Tensor) -> torch.Tensor:
    k = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    return (0.5 * x.sum(-1, keepdim=True)).exp() * (1.5 + ((x * k).sum(-1, keepdim=True) + 0.3).sin())


def wrapped(x: torch.Tensor) -> torch.Tensor:
    return (2 * torch.pi / 3 * x).sin().exp()


def integral(grid: Grid, f=smooth) -> float:
    return grid.integrate(f(grid.nodes)).item()


def stamps(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def uneven(u: torch.Tensor) -> torch.Tensor:
    """[0, 1] to itself, denser around ½ than at the ends: with an even density the h² terms can cancel."""
    return u + 0.12 * (2 * torch.pi * u).sin()


@pytest.mark.spec("M4", "M8")
@pytest.mark.parametrize(("axis", "f"), [(LINE, smooth), (RING, wrapped)], ids=["interval", "circle"])
def test_random_stamps_are_of_order_two_in_the_mean(axis, f) -> None:
    sizes, exact = [32, 64, 128, 256], integral(grid_on(Interval(axis.start, axis.start + 3.0), GaussLegendre(60)), f)

    def measure(n: int, seed: int) -> float:
        return integral(ON(axis, axis.start + 3.0 * uneven(random(n, seed=seed, low=0.0))), f) - exact

    errors = [mean_error(lambda seed, n=n: measure(n, seed)) for n in sizes]
    assert slope(sizes, errors) == pytest.approx(Samples.order, abs=0.3)


WARPS = {"even": lambda u: u, "power": lambda u: u**1.5, "wave": uneven}


@pytest.mark.spec("M8")
@pytest.mark.parametrize("warp", WARPS)
def test_smoothly_placed_stamps_are_of_order_two(warp) -> None:
    sizes, exact = [32, 64, 128, 256], integral(grid_on(LINE, GaussLegendre(40)))
    grids = [ON(LINE, -1.0 + 3.0 * WARPS[warp]((torch.arange(n, dtype=torch.float64) + 0.5) / n)) for n in sizes]
    assert slope(sizes, [abs(integral(grid) - exact) for grid in grids]) == pytest.approx(Samples.order, abs=0.15)


@pytest.mark.spec("M4")
def test_a_cell_reaches_half_way_to_its_neighbours_and_to_the_ends_of_the_domain() -> None:
    grid = ON(Interval(0.0, 10.0), stamps(1.0, 2.0, 6.0))
    assert grid.weights.tolist() == [1.5, 2.5, 6.0]
    assert grid.left.tolist() == [1.0, 0.5, 2.0]
    open_ended = ON(Times(), stamps(1.0, 2.0, 6.0))
    assert open_ended.weights.tolist() == [0.5, 2.5, 2.0]
    assert ON(Times(0.0, 10.0), stamps(1.0, 2.0, 6.0)).weights.tolist() == [1.5, 2.5, 6.0]
    assert ON(Times(end=10.0), stamps(1.0, 2.0, 6.0)).weights.tolist() == [0.5, 2.5, 6.0]
    assert ON(Interval(0.0, 10.0, mass=1.0), stamps(1.0, 2.0, 6.0)).weights.tolist() == pytest.approx([0.15, 0.25, 0.6])
    assert ON(Circle(10.0), stamps(1.0, 2.0, 6.0)).weights.tolist() == [3.0, 2.5, 4.5]


@pytest.mark.spec("M4")
@pytest.mark.parametrize("axis", [Times(), Times(-2.0, 9.0), Interval(-2.0, 9.0), Circle(11.0)], ids=str)
class TestEveryTimeAxis:
    t = stamps(0.0, 0.7, 1.0, 2.5, 2.6, 6.0)

    def test_equal_stamps_share_one_cell(self, axis) -> None:
        tied = torch.cat([self.t[:3], self.t[2:3], self.t[2:]])
        alone, shared = ON(axis, self.t), ON(axis, tied)
        for part in ("weights", "left"):
            one, three = getattr(alone, part), getattr(shared, part)
            assert gap(three[2:5], one[2].expand(3) / 3) < EXACT
            assert gap(torch.cat([three[:2], three[5:]]), torch.cat([one[:2], one[3:]])) < EXACT

    @pytest.mark.parametrize("missing", [[0], [2, 3], [5], [0, 1, 4, 5]], ids=str)
    def test_missing_points_leave_their_cell_to_the_neighbours(self, axis, missing) -> None:
        observed = torch.ones(6, dtype=torch.bool)
        observed[missing] = False
        grid, rest = ON(axis, self.t, observed), ON(axis, self.t[observed])
        assert torch.equal(grid.weights[observed], rest.weights)
        assert torch.equal(grid.left[observed], rest.left)
        assert (grid.weights[~observed] == 0).all()
        assert torch.equal(grid.observed, observed)
        assert grid.has_gaps

    def test_each_sample_may_miss_other_points_of_one_clock(self, axis) -> None:
        observed = random(3, 6) > -0.5
        shared = ON(axis, self.t, observed)
        for i in range(3):
            assert torch.equal(shared.weights[i], ON(axis, self.t, observed[i]).weights)

    def test_unsorted_stamps_permute_the_weights(self, axis) -> None:
        order = torch.tensor([3, 0, 5, 1, 4, 2])
        assert torch.equal(ON(axis, self.t[order]).weights, ON(axis, self.t).weights[order])

    def test_samples_do_not_see_each_other(self, axis) -> None:
        both = ON(axis, torch.stack([self.t, self.t / 2]))
        assert torch.equal(both.weights[0], ON(axis, self.t).weights)
        assert torch.equal(both.weights[1], ON(axis, self.t / 2).weights)

    def test_one_stamp_has_a_positive_weight(self, axis) -> None:
        whole = 1.0 if axis == Times() else 11.0
        assert ON(axis, stamps(0.7)).weights.tolist() == [whole]
        assert ON(axis, stamps(0.7, 0.7)).weights.tolist() == [whole / 2] * 2

    def test_gradients_flow_through_stamps(self, axis) -> None:
        t = self.t.clone().requires_grad_()
        observed = torch.tensor([True, True, False, True, True, True])
        assert torch.autograd.gradcheck(lambda t: ON(axis, t).weights, t)
        assert torch.autograd.gradcheck(lambda t: ON(axis, t, observed).left, t)
        assert torch.autograd.grad(ON(axis, t).weights[3], t)[0].abs().max() > 0.4


@pytest.mark.spec("M4")
def test_a_circle_has_no_seam() -> None:
    t = random(7, low=0.0) * 3
    turned = (t + 1.234) % 3.0
    assert gap(ON(RING, turned).weights, ON(RING, t).weights) < EXACT


@pytest.mark.spec("M4")
def test_stamps_on_points_weigh_one_each() -> None:
    grid = ON(Points(), stamps(0.0, 1.0, 5.0))
    assert grid.weights.tolist() == [1.0, 1.0, 1.0]
    assert grid.is_counting
    missing = ON(Points(), stamps(0.0, 1.0, 5.0), torch.tensor([True, False, True]))
    assert missing.weights.tolist() == [1.0, 0.0, 1.0]


BOXES = {
    "2-D": Product((Interval(-1.0, 1.0), Interval(0.0, 2.0))),
    "2-D, periodic": Product((Interval(-1.0, 1.0), Circle(3.0))),
    "3-D": Product((Interval(), Interval(-1.0, 1.0), Interval(0.0, 0.5))),
}


def inside(axis: Product, unit: torch.Tensor) -> torch.Tensor:
    low, length = (torch.tensor([getattr(f, k) for f in axis.factors]).double() for k in ("start", "length"))
    return low + length * unit


def scattered_slope(axis: Product, f, density) -> float:
    sides = [5, 7, 9, 11] if axis.dim == 3 else [14, 20, 28, 40]  # n^(1/k), the inverse of the spacing
    exact = integral(grid_on(axis, ProductRule((GaussLegendre(24),) * axis.dim)), f)

    def measure(side: int, seed: int) -> float:
        unit = random(side**axis.dim, axis.dim, seed=seed, low=0.0)
        return integral(ON(axis, inside(axis, density(unit))), f) - exact

    return slope(sides, [mean_error(lambda seed, side=side: measure(side, seed)) for side in sides])


@pytest.mark.spec("M8", "M11")
@pytest.mark.parametrize("name", ["2-D", "3-D"])
def test_scattered_points_are_of_order_two_in_their_spacing(name) -> None:
    assert scattered_slope(BOXES[name], smooth, uneven) == pytest.approx(Samples.order, abs=0.3)


@pytest.mark.spec("M8", "M11")
def test_evenly_scattered_points_are_better_than_order_two() -> None:
    # where nothing bends the density the h² terms of interior and boundary cancel, and only fluctuations are left
    f = lambda x: smooth(x[..., :1]) * (2 + (2 * torch.pi / 3 * x[..., 1:]).sin())  # noqa: E731
    assert scattered_slope(BOXES["2-D, periodic"], f, lambda u: u) > Samples.order


@pytest.mark.spec("M11")
def test_nodes_that_reach_the_boundary_integrate_straight_functions_exactly() -> None:
    side = 6
    lattice = torch.cartesian_prod(*[torch.linspace(0, 1, side + 1, dtype=torch.float64)] * 2)
    boundary = lattice[((lattice == 0) | (lattice == 1)).any(-1)]
    axis = BOXES["2-D"]
    grid = ON(axis, inside(axis, torch.cat([boundary, random(side**2 - len(boundary), 2, low=0.0)])))
    straight = lambda x: 1 + x @ torch.tensor([[2.0], [-3.0]], dtype=torch.float64)  # noqa: E731
    assert integral(grid, straight) == pytest.approx(4.0 * (1 + 2 * 0.0 - 3 * 1.0), rel=1e-12)


@pytest.mark.spec("M4", "M11")
@pytest.mark.parametrize("name", BOXES)
def test_scattered_points_carry_the_mass_and_leave_gaps_to_the_rest(name) -> None:
    axis = BOXES[name]
    points = inside(axis, random(2, 20, axis.dim, seed=3, low=0.0))
    observed = random(2, 20) > -1
    grid = ON(axis, points, observed)
    volume = torch.tensor([f.length for f in axis.factors]).prod().item()
    assert gap(grid.mass, torch.full((2,), volume, dtype=torch.float64)) < EXACT
    assert torch.equal(grid.observed, observed)
    for i in range(2):
        assert gap(grid.weights[i][observed[i]], ON(axis, points[i][observed[i]]).weights) < EXACT
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    assert gap(ON(axis, points[0][order]).weights, ON(axis, points[0]).weights[order]) < 1e-9  # qhull joggles
    assert ON(axis, points[:1, :1]).weights.item() == pytest.approx(volume)
