"""Laws of fields: interpolation order, the native grid is the parameter itself, projection, gradients, the cache."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from continua.axes import Circle, Counting, GaussLegendre, Grid, Interval, LeftEnd, Midpoint, Points, Trapezoid, grid_on
from continua.fields import (
    BSpline,
    ByBasis,
    ByNetwork,
    Cosine,
    Expansion,
    Fourier,
    Generated,
    Hold,
    Legendre,
    Linear,
    NestedSpline,
    Nodal,
    Truncatable,
    counted,
)
from tests.cases import BASES, FIELDS, INTERPOLATIONS, expansion, field
from tests.cases_models import COUNTED, LINE, RING, STEPS
from tests.measure import EXACT, gap, random, slope

NODAL = [name for name, (_, basis) in BASES.items() if isinstance(basis(), Nodal)]


def grids_of(one: nn.Module, count: int = 25) -> dict[str, Grid]:
    """Enough nodes of each axis to see the whole function."""
    return {
        letter: grid_on(axis, Counting(axis.n) if isinstance(axis, Points) else Midpoint(count))
        for letter, axis in one.axes.items()
    }


@pytest.mark.spec("M5")
@pytest.mark.parametrize(
    ("how", "axis"),
    [(how, axis) for how in INTERPOLATIONS for axis in (LINE, RING) if how.order < math.inf or axis is RING],
    ids=str,
)
def test_interpolation_has_its_declared_order(how, axis) -> None:
    periodic = isinstance(axis, Circle)
    truth = (lambda x: (2 * torch.pi / 3 * x).sin().exp()) if periodic else (lambda x: (2 * x).sin() + x.exp())
    reading = grid_on(axis, Midpoint(997))

    def error(n: int) -> float:
        rule = Trapezoid(n) if periodic else GaussLegendre(n) if how.order > 1 else LeftEnd(n)
        one = Expansion({"d": axis}, {"d": Nodal(rule, how)}).double()
        one.project(truth(grid_on(axis, rule).nodes)[:, 0], {"d": grid_on(axis, rule)})
        return (one.on(d=reading) - truth(reading.nodes)[:, 0]).square().mean().sqrt().item()

    if how.order == math.inf:
        assert error(6) > 1e-4
        assert error(31) < EXACT
    else:
        sizes = [64, 128, 256]
        assert slope(sizes, [error(n) for n in sizes]) == pytest.approx(how.order, abs=0.15)


@pytest.mark.spec("M5", "M10")
@pytest.mark.parametrize("name", NODAL)
@pytest.mark.parametrize("gradients", [True, False])
def test_the_native_grid_returns_the_stored_parameter_itself(name, gradients) -> None:
    axis, basis = BASES[name]
    one = Expansion({"d": axis, "c": axis}, {"d": basis(), "c": basis()}, std=1.0)
    native = grid_on(axis, basis().rule)
    with torch.set_grad_enabled(gradients):
        assert one.on(d=native, c=native) is one.coefficients


@pytest.mark.spec("M5")
@pytest.mark.parametrize("name", NODAL)
def test_nodal_bases_are_cardinal(name) -> None:
    axis, make = BASES[name]
    basis = make()
    nodes = grid_on(axis, basis.rule).nodes
    assert gap(basis.matrix(axis, nodes), torch.eye(basis.size, dtype=torch.float64)) < EXACT


@pytest.mark.spec("M5")
@pytest.mark.parametrize("name", [name for name in BASES if name != "generated"])
def test_every_basis_contains_the_constants_and_starts_at_its_mean(name) -> None:
    axis, basis = BASES[name]
    one = Expansion({"d": axis}, {"d": basis()}, std=0.0, mean=1.5).double()
    assert gap(one.on(**grids_of(one)), torch.full((len(grids_of(one)["d"]),), 1.5, dtype=torch.float64)) < EXACT


@pytest.mark.spec("M5")
@pytest.mark.parametrize("name", ["Fourier", "cosine", "Legendre", "nested spline"])
def test_spectral_bases_are_orthonormal_in_the_mean(name) -> None:
    axis, basis = BASES[name]
    grid = grid_on(axis, GaussLegendre(40))
    if name == "nested spline":  # a polynomial of each cell of its knots
        cells = 0.25 * (torch.arange(4)[:, None] + grid_on(Interval(), GaussLegendre(4)).nodes[:, 0])
        grid = Grid(3 * cells.reshape(-1, 1) - 1, grid_on(Interval(), GaussLegendre(4)).weights.repeat(4) * 0.75)
    table = basis().matrix(axis, grid.nodes)
    gram = table.T @ (table * (grid.weights / grid.mass)[:, None])
    assert gap(gram, torch.eye(basis().size, dtype=torch.float64)) < EXACT


@pytest.mark.spec("M5")
@pytest.mark.parametrize("name", [name for name, (_, basis) in BASES.items() if isinstance(basis(), Truncatable)])
def test_the_first_functions_of_a_basis_in_order_are_a_basis(name) -> None:
    axis, basis = BASES[name]
    nodes = grid_on(axis, Midpoint(33)).nodes
    for count in range(1, basis().size + 1):
        few = basis().first(count)
        assert few.size == count
        assert gap(few.matrix(axis, nodes), basis().matrix(axis, nodes)[:, :count]) < EXACT


@pytest.mark.spec("M5")
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_nested_splines_are_the_splines_of_halved_cells(degree) -> None:
    nodes = grid_on(LINE, Midpoint(64)).nodes
    for cells in (1, 2, 4, 8):
        ours, local = (kind(cells + degree, degree).matrix(LINE, nodes) for kind in (NestedSpline, BSpline))
        assert gap(ours @ torch.linalg.pinv(ours) @ local, local) < EXACT


@pytest.mark.spec("M5")
def test_spectral_bases_are_the_functions_they_are_named_after() -> None:
    nodes = torch.linspace(-1, 2, 40, dtype=torch.float64)[:, None]
    u = (nodes[:, 0] + 1) / 3
    degrees = [np.sqrt(2 * k + 1) * np.polynomial.Legendre.basis(k)(2 * u.numpy() - 1) for k in range(7)]
    assert gap(Legendre(7).matrix(LINE, nodes), torch.tensor(np.stack(degrees, -1))) < EXACT
    cosines = [torch.ones_like(u)] + [2**0.5 * (torch.pi * k * u).cos() for k in range(1, 7)]
    assert gap(Cosine(7).matrix(LINE, nodes), torch.stack(cosines, -1)) < EXACT
    turns = 2 * torch.pi / 3 * (nodes[:, 0] + 1)
    waves = [f(k * turns) * 2**0.5 for k in (1, 2, 3) for f in (torch.cos, torch.sin)]
    assert gap(Fourier(7).matrix(RING, nodes + 1), torch.stack([torch.ones_like(u), *waves], -1)) < EXACT
    scipy = pytest.importorskip("scipy.interpolate")
    knots = np.r_[[0.0] * 3, np.linspace(0, 1, 5), [1.0] * 3]
    splines = scipy.BSpline.design_matrix(u.numpy(), knots, 3).toarray()
    assert gap(BSpline(7).matrix(LINE, nodes), torch.tensor(splines)) < EXACT


@pytest.mark.spec("M5")
@pytest.mark.parametrize("name", BASES)
def test_projection_of_what_the_basis_carries_is_exact(name) -> None:
    one, other = field(name), field(name)
    with torch.no_grad():
        other.coefficients.copy_(random(*other.coefficients.shape, seed=7))
    grids = grids_of(one)
    wanted = other.on(**grids)
    assert gap(one.on(**grids), wanted) > 0.1
    assert one.project(wanted, grids) is one
    assert gap(one.on(**grids), wanted) < 1e-10  # the pseudo-inverse of 25 rows costs two digits
    if name != "hold":  # a value held over a cell is decided by any node of it
        assert gap(one.coefficients, other.coefficients) < 1e-9


@pytest.mark.spec("M5")
@pytest.mark.parametrize("name", [name for name in FIELDS if name not in BASES])
def test_networks_project_onto_their_last_layers(name) -> None:
    one, other = field(name), field(name)
    with torch.no_grad():
        for parameter_name, parameter in other.named_parameters():
            if parameter_name.endswith("outer"):
                parameter.add_(0.3 * random(*parameter.shape, seed=7))
    grids = grids_of(one)
    wanted = other.on(**grids)
    start = gap(one.on(**grids), wanted)
    assert start > 0.1
    one.project(wanted, grids)
    assert gap(one.on(**grids), wanted) < (1e-8 if name in ("neural", "separable, one axis") else 0.05 * start)


@pytest.mark.spec("M5")
@pytest.mark.parametrize("name", FIELDS)
def test_gradients_reach_every_parameter(name) -> None:
    one = field(name)
    one.on(**grids_of(one)).square().sum().backward()
    for parameter_name, parameter in one.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


@pytest.mark.spec("M5")
def test_a_hypernetwork_emits_coefficients_not_weights() -> None:
    one = Expansion({"z": LINE, "d": Points(50)}, {"z": Generated(3, hidden=8), "d": Nodal(Counting(50))}, std=1.0)
    one.double()
    depths, d = grid_on(LINE, Midpoint(4)), grid_on(Points(50), Counting(50))
    emitted = one.networks["z"].matrix(LINE, depths.nodes)
    assert emitted.shape == (4, 3)
    assert gap(one.on(z=depths, d=d), emitted @ one.coefficients) < EXACT
    assert gap(emitted[:1], emitted[1:2]) > 1e-3, "the weights must change with depth"
    sizes = {name: p.numel() for name, p in one.networks.named_parameters()}
    assert sum(sizes.values()) < one.coefficients.numel() / 1.5, sizes


@pytest.mark.spec("M5")
@pytest.mark.parametrize("name", FIELDS)
def test_the_value_at_a_node_does_not_depend_on_the_grid_around_it(name) -> None:
    one = field(name)
    whole = grids_of(one)
    part = {k: Grid(g.nodes[1::2], g.weights[1::2]) for k, g in whole.items()}
    index = torch.meshgrid(*[torch.arange(len(g))[1::2] for g in whole.values()], indexing="ij")
    assert gap(one.on(**part), one.on(**whole)[index]) < EXACT


def changed_by(change, one: nn.Module) -> None:
    """Read without gradients, change the parameters, read again: the second answer must be the new one."""
    grids = grids_of(one)
    with torch.no_grad():
        before = one.on(**grids).clone()
        assert torch.equal(one.on(**grids), before)
        change(one)
        after = one.on(**grids)
    with torch.enable_grad():
        fresh = one.on(**grids).detach()
    assert gap(after, before) > 1e-3, "the change must be seen"
    assert gap(after, fresh) < EXACT


def one_step(one: nn.Module, **how: bool) -> None:
    optimiser = torch.optim.AdamW(one.parameters(), lr=0.1, **how)
    with torch.enable_grad():
        one.on(**grids_of(one)).square().sum().backward()
    optimiser.step()


CHANGES = {
    "optimiser": one_step,
    "optimiser, foreach": lambda one: one_step(one, foreach=True),
    "optimiser, fused": lambda one: one_step(one, fused=True),
    "load": lambda one: one.load_state_dict({k: v + 1 for k, v in one.state_dict().items()}),
    "assign": lambda one: one.load_state_dict({k: v + 1 for k, v in one.state_dict().items()}, assign=True),
    "data": lambda one: [setattr(p, "data", p.data + 1) for p in one.parameters()],
    "data in place": lambda one: [p.data.mul_(1.5) for p in one.parameters()],
    "in place": lambda one: [p.mul_(1.5) for p in one.parameters()],
}


@pytest.mark.spec("M5")
@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("change", CHANGES)
def test_values_kept_without_gradients_never_outlive_a_change(name, change) -> None:
    changed_by(CHANGES[change], field(name))


@pytest.mark.spec("M5")
def test_values_read_without_gradients_are_those_read_with_them_and_of_a_copy_its_own() -> None:
    one = field("cubic")
    grids = grids_of(one)
    with torch.no_grad():
        read_before = one.on(**grids)
        twin = copy.deepcopy(one)
        twin.coefficients.add_(1.0)
        assert gap(twin.on(**grids), read_before) > 0.1
    with torch.inference_mode():
        read = one.on(**grids)
    with torch.no_grad():
        assert torch.equal(one.on(**grids) * 1.0, read)
    assert one.on(**grids).requires_grad
    assert one.float().on(**grids).dtype == torch.float32


@pytest.mark.spec("M5")
def test_parametrisations_make_the_fields_they_name() -> None:
    axes, _ = COUNTED
    w = counted(axes, STEPS)
    assert w.field("zhec").coefficients.shape == (STEPS, 2, 4, 8)
    assert w.autonomous().field("zhec").coefficients.shape == (2, 4, 8)
    assert w.field("zhec").letters == tuple("zhec")
    assert w.autonomous().field("zhec").letters == tuple("hec")
    assert w.table(5, "d", 1.0).coefficients.shape == (5, 8)
    generated = ByBasis(axes, {**w.bases, "z": Generated(2)})
    first, second = generated.field("zd"), generated.field("zd")
    assert first.networks["z"].inner is not second.networks["z"].inner, "fields must not share a network by accident"
    network = ByNetwork(axes)
    assert network.autonomous().field("zd").letters == ("d",)


@pytest.mark.spec("M5")
def test_initial_values_have_the_wanted_spread() -> None:
    torch.manual_seed(0)
    for name in BASES:
        draws = torch.stack([expansion(name).double().on(**grids_of(expansion(name))) for _ in range(60)])
        assert draws.square().mean().sqrt().item() == pytest.approx(1.0, rel=0.35), name


@pytest.mark.spec("M5")
def test_hold_reads_the_layer_that_a_depth_lies_in() -> None:
    one = Expansion({"z": Interval(0.0, 3.0)}, {"z": Nodal(LeftEnd(3), Hold())}).double()
    one.project(torch.tensor([10.0, 20.0, 30.0]), {"z": grid_on(Interval(0.0, 3.0), LeftEnd(3))})
    depths = torch.tensor([0.0, 0.5, 1.0, 1.99, 2.0, 3.0, 3 * (1 / 3)], dtype=torch.float64)[:, None]
    read = one.on(z=Grid(depths, torch.ones(7, dtype=torch.float64)))
    assert read.tolist() == [10.0, 10.0, 20.0, 20.0, 30.0, 30.0, 20.0]
    around = Expansion({"d": Circle(4.0)}, {"d": Nodal(Midpoint(2), Hold())}).double()
    around.project(torch.tensor([10.0, 20.0]), {"d": grid_on(Circle(4.0), Midpoint(2))})
    places = torch.tensor([0.5, 1.0, 2.9, 3.0, 3.9], dtype=torch.float64)[:, None]
    read = around.on(d=Grid(places, torch.ones(5, dtype=torch.float64)))
    assert read.tolist() == [20.0, 10.0, 10.0, 20.0, 20.0], "before the first node a circle holds the last"


@pytest.mark.spec("M5")
def test_splines_reproduce_their_polynomials_between_and_beyond_the_nodes() -> None:
    grid = grid_on(LINE, GaussLegendre(9))
    reading = Grid(torch.linspace(-1, 2, 31, dtype=torch.float64)[:, None], torch.ones(31, dtype=torch.float64))
    for how, degree in ((Linear(), 1), (INTERPOLATIONS[2], 3)):
        one = Expansion({"d": LINE}, {"d": Nodal(GaussLegendre(9), how)}).double()
        one.project(grid.nodes[:, 0] ** degree, {"d": grid})
        assert gap(one.on(d=reading), reading.nodes[:, 0] ** degree) < EXACT


@pytest.mark.spec("M5")
def test_projection_finds_the_nearest_function_where_none_is_exact() -> None:
    one = Expansion({"d": LINE}, {"d": Legendre(3)}).double()
    grid = grid_on(LINE, Midpoint(40))
    values = grid.nodes[:, 0].exp()
    one.project(values, {"d": grid})
    residual = values - one.on(d=grid).detach()
    assert residual.abs().max() > 1e-3
    assert gap(Legendre(3).matrix(LINE, grid.nodes).T @ residual, torch.zeros(3, dtype=torch.float64)) < 1e-10
