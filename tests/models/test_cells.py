"""Function patches: any grid, any points, gaps, two and three dimensions, at linear cost (M11, B6)."""

import math
from dataclasses import replace

import pytest
import torch

from continua.axes import (
    Circle,
    Grid,
    Interval,
    Midpoint,
    Product,
    ProductRule,
    Samples,
    Times,
    at,
    grid_on,
)
from continua.errors import ConfigError, GridError, ShapeError
from continua.fields import ByBasis, counted
from continua.lab.cost.memory import peak_bytes
from continua.models import Batch, Patches, Pixels, Readout, Transformer, load
from continua.models.build import continuous_axes, discrete_axes, pre_norm, smooth_bases
from continua.models.cells import Cells, FromCells
from continua.models.tiling import Tiling, legendre
from continua.operators import Attention, LayerNorm, Pointwise
from continua.operators.position import WaveBias
from continua.typing import Tensor
from tests.exact import gap, numbers
from tests.refusals import refused

EXACT = 1e-12  # float64, a few hundred operations on numbers of size one
FITTED = 1e-9  # a ridge of 1e-12 against a Gram matrix whose smallest eigenvalue is about 1e-2
SQUARE = Product((Interval(), Interval()))
DOMAINS = {
    "interval": (Interval(-1.0, 2.0), (5,)),
    "circle": (Circle(3.0), (5,)),
    "square": (SQUARE, (3, 4)),
    "tube": (Product((Interval(0.0, 2.0), Circle(3.0))), (3, 4)),
    "torus": (Product((Circle(), Circle(2.0)), mass=7.0), (4, 3)),
    "cube": (Product((Interval(), Interval(), Interval(1.0, 2.0))), (2, 3, 2)),
    "periodic cube": (Product((Circle(), Circle(), Circle())), (3, 2, 3)),
}
OVER = pytest.mark.parametrize("name", DOMAINS)


def scattered(axis: object, n: int, seed: int = 0) -> Tensor:
    """Uniform points of a domain."""
    tiling = Tiling(axis, (1,) * axis.dim)  # type: ignore[arg-type, attr-defined]
    u = torch.rand(n, axis.dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)  # type: ignore[attr-defined]
    length = torch.tensor([line.length for line in tiling.lines])
    return torch.tensor([line.start for line in tiling.lines]) + u * length


def cloud(axis: object, n: int, seed: int = 0) -> Grid:
    """The same with equal weights of total mass one."""
    nodes = scattered(axis, n, seed)
    return Grid(nodes, torch.full_like(nodes[:, 0], 1.0 / n))


def field(nodes: Tensor) -> Tensor:
    """A polynomial of degree two in each direction, [n, 1]."""
    return ((1.0 + 0.5 * nodes - 0.3 * nodes.square()).prod(-1) + 0.2 * nodes.sum(-1))[..., None]


def model_of(tiling: Tiling, out: int | None = None, channels: int = 1, blend: bool = True) -> Transformer:
    """Cells, two steps of attention with a bias of displacement, and answers anywhere (or classes)."""
    axes, native = continuous_axes(at(d=8, h=2, z=2), t=tiling.axis)
    weights = ByBasis(axes, smooth_bases(axes, native, 2))
    fixed = weights.autonomous()
    look = Attention(weights, position=WaveBias(fixed, 2))
    block = pre_norm((look, Pointwise(weights)), lambda: LayerNorm(weights))
    before = (LayerNorm(fixed),)
    readout = FromCells(fixed, tiling, 1, before, blend) if out is None else Readout(fixed, out, before, pool=True)
    return Transformer(axes, native, Cells(fixed, tiling, channels), block, readout).double()


# --- geometry --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("M11")
def test_legendre_polynomials_are_orthonormal() -> None:
    grid = grid_on(Interval(-1.0, 1.0, mass=1.0), Midpoint(20_000))
    made = legendre(grid.nodes[:, 0], 4)
    # the midpoint rule errs by h²/24 of the second derivative, here ~1e-7
    assert gap(made.mT @ (grid.weights[:, None] * made), torch.eye(5, dtype=torch.float64)) < 1e-6


@OVER
@pytest.mark.spec("M11", "M4")
def test_the_token_grid_has_the_mass_of_the_domain(name: str) -> None:
    axis, counts = DOMAINS[name]
    tiling = Tiling(axis, counts)
    assert len(tiling.grid) == tiling.count == math.prod(counts)
    whole = 7.0 if name == "torus" else math.prod(line.length for line in tiling.lines)
    assert abs(float(tiling.grid.mass) - whole) < EXACT
    pixels = tiling.pixels(tuple(3 * n for n in counts))
    share = tiling.moments(pixels, numbers(1, len(pixels), 1))[..., -1]
    assert gap(share, torch.ones_like(share)) < EXACT


# --- moments ---------------------------------------------------------------------------------------------------------


@OVER
@pytest.mark.parametrize("reach", [0.0, 0.5])
@pytest.mark.spec("M11")
def test_a_polynomial_is_found_from_any_points(name: str, reach: float) -> None:
    """On circles a polynomial is none across the seam, so there the function is constant along them."""
    axis, counts = DOMAINS[name]
    tiling = Tiling(axis, counts, degree=2, reach=reach, ridge=1e-12)
    closed = torch.tensor([not line.periodic for line in tiling.lines])
    grid, asked = cloud(axis, 150 * tiling.count), scattered(axis, 200, seed=1)
    moments = tiling.moments(grid, field(grid.nodes * closed)[None])[..., :-1]
    for blend in (False, True):
        assert gap(tiling.evaluate(asked, moments[:, :, None], blend)[0], field(asked * closed)) < FITTED


@OVER
@pytest.mark.spec("M11")
def test_the_fit_is_the_minimum_it_claims(name: str) -> None:
    """Beside the normal equations of each cell, built one by one from the definition."""
    axis, counts = DOMAINS[name]
    tiling = Tiling(axis, counts, degree=1, reach=0.4, ridge=0.05)
    grid = cloud(axis, 6 * tiling.count, seed=2)
    values = numbers(2, len(grid), 2, seed=3)
    got = tiling.moments(grid, values)
    assert got.shape == (2, tiling.count, 2 * tiling.size + 1)
    degrees = torch.cartesian_prod(*[torch.arange(2.0)] * axis.dim).reshape(tiling.size, -1).sum(-1).double()
    lengths, double = [line.length / n for line, n in zip(tiling.lines, counts, strict=True)], torch.float64
    lengths = torch.tensor(lengths, dtype=double)
    periods = torch.tensor([line.length if line.periodic else math.inf for line in tiling.lines], dtype=double)
    for j, centre in enumerate(tiling.grid.nodes):
        gram, right = torch.diag(0.05 * (1 + degrees) ** 2), torch.zeros(2, tiling.size, 2, dtype=torch.float64)
        for i, node in enumerate(grid.nodes):
            away = node - centre
            away = torch.where(periods < math.inf, (away + periods / 2) % periods - periods / 2, away)
            local = 2 * away / lengths
            beyond = ((local.abs() - 1) / 0.8).clamp(0, 1)
            v = (beyond * math.pi / 2).cos().square().prod() * (beyond < 1).all()
            phi = tiling.polynomials(local[None])[0]
            w = grid.weights[i] * v / tiling.grid.weights[j]
            gram, right = gram + w * torch.outer(phi, phi), right + w * phi[None, :, None] * values[:, i, None]
        wanted = torch.linalg.solve(gram, right).mT.flatten(1)
        assert gap(got[:, j, :-1], wanted) < 1e-10  # a Gram matrix of condition ~1e2, solved in another order


@pytest.mark.spec("M11", "B6")
@pytest.mark.parametrize("reach", [0.0, 0.5])
def test_samples_with_their_own_points_equal_samples_alone(reach: float) -> None:
    tiling = Tiling(SQUARE, (3, 2), degree=2, reach=reach)
    nodes = torch.stack([scattered(SQUARE, 40, seed) for seed in range(3)])
    weights = torch.rand(3, 40, dtype=torch.float64)
    weights[1, 5:20] = 0.0  # absent
    values = numbers(3, 40, 2)
    together = tiling.moments(Grid(nodes, weights), values)
    for b in range(3):
        alone = tiling.moments(Grid(nodes[b], weights[b]), values[b : b + 1])
        assert gap(together[b : b + 1], alone) < EXACT
    shared = tiling.moments(Grid(nodes[0], weights), values)
    for b in range(3):
        assert gap(shared[b : b + 1], tiling.moments(Grid(nodes[0], weights[b]), values[b : b + 1])) < EXACT


@pytest.mark.spec("M11")
def test_moments_do_not_jump_where_a_point_leaves_its_cell() -> None:
    """With a window that falls to zero; without one they do."""
    nodes = scattered(SQUARE, 30)
    values = numbers(1, 30, 1)
    for reach, jump in ((0.5, False), (0.0, True)):
        tiling, found = Tiling(SQUARE, (4, 4), degree=1, reach=reach), []
        for x in (0.5 - 1e-9, 0.5 + 1e-9):
            nodes[0, 0] = x
            found.append(tiling.moments(Grid(nodes, torch.full((30,), 1 / 30)), values)[..., :-1])
        assert (gap(*found) > 1e-3) == jump


@pytest.mark.spec("M11", "B6")
def test_a_cell_without_points_has_zeros_and_no_share() -> None:
    grid = grid_on(SQUARE, ProductRule((Midpoint(8), Midpoint(8))))
    seen = ~((grid.nodes[:, 0] < 0.25) & (grid.nodes[:, 1] < 0.5))  # the first two of 4 × 4 cells
    values = torch.full((1, 64, 1), 2.0, dtype=torch.float64)
    values[:, ~seen] = torch.nan
    plain, wide = (Tiling(SQUARE, (4, 4), degree=1, reach=r).moments(grid.only(seen), values) for r in (0.0, 0.5))
    assert torch.equal(plain[0, :2], torch.zeros(2, 5, dtype=torch.float64))
    assert gap(plain[0, 2:, -1], torch.ones(14, dtype=torch.float64)) < EXACT
    assert float(wide[0, 1, 0].abs()) > 0.5  # seen by a window
    assert float(wide[0, 1, -1]) == 0.0
    half = Tiling(SQUARE, (1, 2), degree=0).moments(grid.only(seen), values)
    assert gap(half[0, :, -1], torch.tensor([0.75, 1.0], dtype=torch.float64)) < EXACT


# --- discrete case ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.spec("M11", "M9", "B6")
def test_patches_are_a_special_case(p: int) -> None:
    """The moments are an invertible map of the pixels of a patch, so with a table to match both embeddings agree."""
    tiling = Tiling(SQUARE, (3, 4), degree=p - 1)
    images = numbers(2, 2, 3 * p, 4 * p)
    theirs_axes, native = discrete_axes(6, 2, 8, 1)
    theirs = Patches(counted(theirs_axes), Pixels(3 * p, 4 * p, 2, (p, p)), first=False).double()
    axes = replace(theirs_axes, t=SQUARE)
    ours = Cells(counted(axes), tiling, channels=2, placed=False).double()
    # the map of one patch: the moments of the unit images
    units = torch.zeros(p * p, 1, 3 * p, 4 * p, dtype=torch.float64)
    units[:, 0, :p, :p] = torch.eye(p * p, dtype=torch.float64).view(-1, p, p)
    tall = Cells(counted(axes), tiling, channels=1, placed=False)
    matrix = tall.lay(Batch(units)).values[:, 0, :-1]  # type: ignore[index]
    assert float(torch.linalg.cond(matrix)) < 1e3
    with torch.no_grad():
        own = theirs.table.coefficients.view(2, p * p, 6)
        ours.table.coefficients[:-1] = torch.linalg.solve(matrix, own).flatten(0, 1)
        ours.table.coefficients[-1] = 0.0
        ours.bias.coefficients.copy_(theirs.bias.coefficients)
    grids = replace(native.grids(theirs_axes), t=tiling.grid)
    laid = theirs.lay(Batch(images))
    assert gap(ours(ours.lay(Batch(images)), grids), theirs(laid, grids)) < EXACT


@pytest.mark.spec("M11", "B6")
def test_degree_zero_answers_what_a_readout_answers_at_the_token() -> None:
    tiling = Tiling(SQUARE, (3, 3), degree=0)
    model = model_of(tiling, blend=False)
    bases = smooth_bases(model.axes, model.native, 2)
    plain = Readout(ByBasis(model.axes, bases).autonomous(), 1).double()
    with torch.no_grad():
        plain.head.coefficients.copy_(model.readout.head.coefficients)  # type: ignore[union-attr]
    x = numbers(2, 9, 8)
    grids = replace(model.native.grids(model.axes), t=tiling.grid)
    asked = replace(grids, asked=Grid(tiling.grid.nodes, tiling.grid.weights))
    model.readout.before = torch.nn.ModuleList()
    assert gap(model.readout(x, asked, None), plain(x, grids, None)) < EXACT


# --- models ----------------------------------------------------------------------------------------------------------


@OVER
@pytest.mark.spec("M11", "M10")
def test_one_model_reads_and_answers_on_any_points(name: str) -> None:
    axis, counts = DOMAINS[name]
    model = model_of(Tiling(axis, counts, degree=1, reach=0.5))
    fine = Tiling(axis, tuple(4 * n for n in counts)).grid
    points = cloud(axis, 10 * model.embed.tiling.count)
    asked = scattered(axis, 17, seed=5)
    wanted = model(Batch(field(fine.nodes)[None], grid=fine))
    assert wanted.shape == (1, len(fine), 1)
    answer = model(Batch(field(fine.nodes)[None], grid=fine, asked=asked))
    assert answer.shape == (1, 17, 1)
    # the same points in another order, and the answers at the nodes when these are asked for
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))
    turned = Grid(points.nodes[order], points.weights[order])
    a = model(Batch(field(points.nodes)[None], grid=points, asked=asked))
    assert gap(a, model(Batch(field(turned.nodes)[None], grid=turned, asked=asked))) < EXACT
    assert gap(wanted, model(Batch(field(fine.nodes)[None], grid=fine, asked=fine.nodes.expand(1, -1, -1)))) < EXACT


@pytest.mark.spec("M11", "M8")
def test_finer_grids_converge_and_scattered_points_come_near() -> None:
    tiling = Tiling(SQUARE, (4, 4), degree=2, reach=0.5)
    model = model_of(tiling)
    asked = scattered(SQUARE, 50, seed=7)

    def smooth(nodes: Tensor) -> Tensor:
        return (3.0 * nodes[..., :1]).sin() * (2.0 * nodes[..., 1:]).cos()

    def answer(grid: Grid) -> Tensor:
        return model(Batch(smooth(grid.nodes)[None], grid=grid, asked=asked))

    wanted = answer(grid_on(SQUARE, ProductRule((Midpoint(288), Midpoint(288)))))
    errors = [gap(answer(grid_on(SQUARE, ProductRule((Midpoint(n), Midpoint(n))))), wanted) for n in (24, 48, 96)]
    slope = math.log2(errors[0] / errors[-1]) / 2
    assert slope > 1.7, errors  # the midpoint rule has order 2
    spread = answer(Samples().on(SQUARE, scattered(SQUARE, 3000)))
    assert gap(spread, wanted) < 0.05


@pytest.mark.spec("M11", "B6")
def test_answers_are_continuous_with_a_blend_and_jump_without() -> None:
    tiling = Tiling(Product((Interval(), Circle())), (4, 3), degree=1)
    coefficients = numbers(1, 12, 1, 4)
    for blend in (True, False):
        for x, y in ((0.25, 0.4), (0.5, 0.9), (0.1, 0.0), (0.3, 1 / 3)):
            near = torch.tensor([[x - 1e-9, y - 1e-9], [x + 1e-9, y + 1e-9]], dtype=torch.float64)
            a, b = tiling.evaluate(near, coefficients, blend)[0]
            assert (gap(a, b) < 1e-6) == blend or (x, y) == (0.1, 0.0)
    hats = tiling.evaluate(scattered(tiling.axis, 99), torch.eye(4, dtype=torch.float64)[:1].expand(1, 12, 1, 4))
    assert gap(hats, torch.ones_like(hats)) < EXACT  # the hats add to one


@pytest.mark.spec("M11", "B6")
def test_missing_points_say_nothing_and_are_answered(tmp_path) -> None:
    model = model_of(Tiling(SQUARE, (4, 4), degree=1, reach=0.5))
    images = numbers(2, 1, 8, 8)
    there = torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(0)) < 0.5
    damaged = torch.where(there[:, None], images, torch.nan)
    wanted = model(Batch(images, observed=there))
    assert wanted.shape == (2, 64, 1)
    assert torch.isfinite(wanted).all()
    assert torch.equal(model(Batch(damaged, observed=there)), wanted)
    assert torch.equal(model(Batch(damaged, observed=there.flatten(1))), wanted)
    assert gap(model(images), wanted) > 1e-6
    points = model.embed.tiling.pixels((8, 8)).nodes.expand(2, 64, 2).clone()
    points[~there.flatten(1)] = 1e9  # an absent point may carry any stamp
    equal = Batch(damaged.flatten(2).mT, times=points, observed=there.flatten(1), asked=torch.tensor([[0.3, 0.7]]))
    assert gap(model(equal), model(Batch(images, observed=there, asked=torch.tensor([[0.3, 0.7]])))) < EXACT
    assert torch.equal(load(model.save(tmp_path))(images), model(images))


@pytest.mark.spec("M11")
def test_gradients_reach_every_weight_and_the_values() -> None:
    model = model_of(Tiling(SQUARE, (3, 3), degree=1, reach=0.3))
    images = numbers(2, 1, 6, 6).requires_grad_()
    model(images).square().sum().backward()
    bare = [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)]
    assert bare == []
    assert images.grad is not None
    assert bool((images.grad.abs().sum((0, 1)) > 0).all())


# --- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [SQUARE, Product((Circle(), Circle(), Circle()))], ids=["square", "periodic cube"])
@pytest.mark.parametrize("own", [False, True], ids=["shared points", "points of each sample"])
@pytest.mark.spec("M11")
def test_cost_is_linear_in_the_points(axis: Product, own: bool) -> None:
    """Peak bytes over points, from the allocator's log: four times the points need four times the room, no more.

    Also with all points in one cell, and the tokens of the flow stay as many as there are cells.
    """
    model = model_of(Tiling(axis, (4,) * axis.dim, degree=1, reach=0.5)).float()

    def used(n: int, share: float) -> int:
        nodes = torch.stack([scattered(axis, n, seed) * share for seed in range(2)]).float()
        values = torch.rand(2, n, 1)
        batch = Batch(values, times=nodes if own else nodes[0])
        with torch.no_grad():
            return peak_bytes(lambda: model(batch))

    for share in (1.0, 0.2):
        few, many = used(1_000, share), used(4_000, share)
        assert many < 4.4 * few, (few, many)
        assert many < 4_000 * (2 if own else 1) * 16 * 8 * 3**axis.dim


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("M11", "B6")
def test_points_outside_and_wrong_shapes_are_refused() -> None:
    model = model_of(Tiling(SQUARE, (2, 2)))
    values, inside = numbers(1, 3, 1), torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.0, 1.0]])
    outside = torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.0, 1.2]])
    model(Batch(values, times=inside))
    with refused(GridError, "points must lie in the domain, got [0.0, 1.2]", "Rescale the points to [0, 1] × [0, 1]"):
        model(Batch(values, times=outside))
    with refused(GridError, "points must lie in the domain, got [0.0, 1.2]", "enlarge the axis"):
        model(Batch(values, times=inside, asked=outside))
    with refused(GridError, "points must lie in the domain, got [nan", "Rescale"):
        model(Batch(values, times=torch.full((3, 2), torch.nan)))
    with refused(GridError, "the domain has dimension 2, got nodes [3, 3]", "[b, n, 2]"):
        model(Batch(values, times=torch.zeros(3, 3)))
    with refused(ShapeError, "values and points do not fit the cells, got [1, 3, 1]", "Give values [b, 4, 1]"):
        model(Batch(values, times=torch.zeros(4, 2)))
    with refused(ShapeError, "got [1, 16, 3]", "pixels [b, 1, …]"):
        model(numbers(1, 3, 4, 4))
    with refused(GridError, "cells need to know where values were observed, got no points", "times=…"):
        model(values)
    with refused(ShapeError, "cells read real numbers, got torch.int64", "floating"):
        model(torch.zeros(1, 1, 4, 4, dtype=torch.long))
    with refused(GridError, "a function needs at least one observed point", "Drop the sample"):
        model(Batch(values, times=inside, observed=torch.zeros(1, 3)))


@pytest.mark.spec("M11")
def test_tilings_that_cannot_be_are_refused() -> None:
    with refused(ConfigError, "cells tile intervals, circles and their products", "Product"):
        Tiling(Times(), (3,))
    with refused(ConfigError, "each direction needs its number of cells, got (3,)", "Give 2 whole numbers"):
        Tiling(SQUARE, (3,))
    with refused(ConfigError, "got 1, 1.5, 0.001", "reach ≤ 1"):
        Tiling(SQUARE, (3, 3), reach=1.5)
    plain, native = discrete_axes(8, 2, 8, 1)
    axes = replace(plain, t=Interval())
    with refused(ConfigError, "cells tile the domain of the tokens", "Tile the t axis"):
        Cells(counted(axes), Tiling(SQUARE, (2, 2)))
    readout = FromCells(counted(axes), Tiling(Interval(), (4,)))
    with refused(GridError, "FromCells reads 4 cells at given points, got 5 tokens", "same tiling"):
        readout(numbers(1, 5, 8), replace(native.grids(plain), t=Tiling(Interval(), (5,)).grid), None)
