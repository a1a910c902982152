"""Pairs of functions, and the sets that are generated: what they solve, and what they refuse."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from continua.axes import Circle, Interval, Points, Product, ProductRule, Trapezoid, grid_on
from continua.data.burgers import _steps, burgers, burgers_pairs, cole_hopf
from continua.data.darcy import darcy, darcy_pairs, flux_balance, neumann_field
from continua.data.navier_stokes import (
    advection,
    navier_stokes,
    torus_field,
    usual_forcing,
    velocity,
    vorticity_pairs,
    vorticity_paths,
    waves,
)
from continua.data.pairs import Pairs, lattice
from continua.errors import ConfigError, ContinuaError, GridError, ShapeError, SolveError
from tests.measure import gap, random, slope
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[2]
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
    known = grid_on(TORUS, ProductRule((Trapezoid(n), Trapezoid(n))))
    assert torus.grid.key == known.key, "the grid is the one that a rule would lay"
    assert gap(torus.grid.weights, known.weights) < 1e-15
    assert torus.grid.is_uniform
    assert gap(torus.grid.weights, torch.full((n * n,), n**-2.0, dtype=torch.float64)) < 1e-15
    assert on_square(ends, ends).grid.weights[0] * 4 == pytest.approx((n - 1) ** -2.0, rel=1e-12)


@pytest.mark.spec("M11")
def test_lines_that_no_rule_has_weigh_their_half_gaps() -> None:
    pairs = on_square(torch.linspace(0, 1, 11), torch.linspace(0, 1, 11)).every(3)  # 0, .3, .6, .9: the end is missing
    wanted = torch.tensor([0.15, 0.3, 0.3, 0.25]).double()
    assert gap(pairs.grid.weights, torch.outer(wanted, wanted).reshape(-1)) < 1e-6
    assert float(pairs.grid.mass) == pytest.approx(1.0, abs=1e-12)
    assert pairs.grid.lines is not None
    assert gap(pairs.grid.lines[1].weights, wanted) < 1e-6
    ring = on_circle(8).every(3)  # 0, 3, 6 of 8
    assert gap(ring.grid.weights, torch.tensor([2.5, 3.0, 2.5]).double() / 8) < 1e-12


@pytest.mark.spec("B3")
def test_pairs_that_do_not_fit_are_refused() -> None:
    good = on_circle()
    parts: dict[str, Any] = {
        "name": "waves",
        "axis": good.axis,
        "inputs": good.inputs,
        "outputs": good.outputs,
        "points": good.points,
    }
    hurt = good.outputs.clone()
    hurt[0, 3, 1] = torch.nan
    x = good.points
    cases: list[tuple[type[ContinuaError], str, str, dict[str, Any]]] = [
        (ShapeError, "outputs [3, 11, 2]", "one grid", {"outputs": good.outputs[:, 1:]}),
        (ShapeError, "inputs [0, 12, 1]", "count ≥ 1", {"inputs": good.inputs[:0], "outputs": good.outputs[:0]}),
        (ShapeError, "points [12, 2]", "points [12, 1]", {"points": torch.cat([x, x], -1)}),
        (ShapeError, "torch.int64", ".float()", {"inputs": good.inputs.long()}),
        (ShapeError, "1 NaN or infinite", "repair", {"outputs": hurt}),
        (GridError, "coordinate 0", "increasing", {"points": x.flip(0)}),
        (GridError, "coordinate 0", "in the domain", {"points": x + 0.5}),
        (GridError, "Points(n=12)", "Choose", {"axis": Points(12)}),
    ]
    for kind, got, remedy, changed in cases:
        with refused(kind, got, remedy):
            Pairs(**(parts | changed))
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


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The greatest relative L2 error of a sample."""
    return float(((found - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)).max())


GENERATORS = [
    (lambda count, **more: burgers_pairs(count, n=64, viscosity=0.05, **more), (64, 1), 2),
    (lambda count, **more: darcy_pairs(count, n=17, **more), (17, 17, 1), 4),
    (lambda count, **more: vorticity_pairs(count, n=32, times=3, **more), (32, 32, 1), 2),
]


@pytest.mark.spec("B3")
@pytest.mark.parametrize(("make", "shape", "stride"), GENERATORS, ids=["burgers", "darcy", "vorticity"])
def test_a_longer_set_begins_with_the_shorter_and_says_how_far_it_is(make: Any, shape: Any, stride: int) -> None:
    told: list[float] = []
    short, long = make(3, watch=told.append), make(5)
    assert short.inputs.shape == short.outputs.shape == (3, *shape)
    assert short.inputs.dtype == torch.float32
    for a, b in zip(short.flat(), long.part(slice(0, 3)).flat(), strict=True):
        assert gap(a, b) < 1e-6  # float32; the rows of a matrix product may be summed in another order
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert gap(short.inputs, make(3, seed=1).inputs) > 0.1
    assert relative(short.outputs, short.inputs) > 0.01, "the map is not the identity"
    assert short.every(stride).outputs.shape[1] == -(-shape[0] // stride)
    with refused(ConfigError, "0", "above zero"):
        make(0)


@pytest.mark.spec("B3")
def test_burgers_pairs_are_what_cole_and_hopf_found_on_every_grid() -> None:
    pairs = burgers_pairs(4)
    exact = cole_hopf(pairs.inputs[..., 0], 0.01, 1.0)
    assert relative(pairs.outputs[..., 0].double(), exact) < 1e-6  # 3e-7: mostly that inputs are kept in float32
    coarse = burgers_pairs(2, n=128)
    thin = pairs.part(slice(0, 2)).every(8)
    assert gap(coarse.inputs, thin.inputs) == 0
    assert gap(coarse.outputs, thin.outputs) < 1e-7
    start = pairs.inputs[..., 0]
    speeds = start.abs().amax(-1)
    for row in (int(speeds.argmax()), int(speeds.argmin())):  # twice the steps change nothing that is kept
        chosen = _steps(float(speeds[row]), 1024, 0.01, 1.0)
        once, twice = (burgers(start[row : row + 1], 0.01, 1.0, steps) for steps in (chosen, 2 * chosen))
        assert relative(once, twice) < 1e-6


@pytest.mark.spec("B3", "M11")
def test_darcy_is_of_second_order_for_a_smooth_coefficient() -> None:
    errors = []
    sizes = [16, 32, 64]
    for cells in sizes:
        x = torch.linspace(0, 1, cells + 1, dtype=torch.float64)
        x, y = torch.meshgrid(x, x, indexing="ij")
        a = 1 + x + 0.5 * (2 * x).sin() * (3 * y).cos()
        u = (math.pi * x).sin() * (2 * math.pi * y).sin()
        u_x = math.pi * (math.pi * x).cos() * (2 * math.pi * y).sin()
        u_y = 2 * math.pi * (math.pi * x).sin() * (2 * math.pi * y).cos()
        a_x, a_y = 1 + (2 * x).cos() * (3 * y).cos(), -1.5 * (2 * x).sin() * (3 * y).sin()
        source = -(a_x * u_x + a_y * u_y - 5 * math.pi**2 * a * u)
        errors.append(gap(darcy(a, source), u))
    assert abs(slope(sizes, errors) - 2) < 0.05, errors


@pytest.mark.spec("B3", "M11")
def test_darcy_balances_what_flows_and_agrees_with_a_direct_solve() -> None:
    pairs = darcy_pairs(3, n=33)
    a = pairs.inputs[..., 0].double()
    assert set(a.unique().tolist()) == {3.0, 12.0}
    u = darcy(a)
    residual = flux_balance(a, u[:, 1:-1, 1:-1]) - 1
    assert residual.flatten(1).norm(dim=1).max() / 31 < 2e-10  # ‖f‖ = 31; asked for 1e-10, drift of the recursion
    assert relative(pairs.outputs[..., 0].double(), u) < 1e-7
    assert u.min() == 0  # the maximum principle
    assert u[:, 1:-1, 1:-1].min() > 0
    small = a[:1, :9, :9]
    basis = torch.eye(49, dtype=torch.float64).reshape(49, 7, 7)
    matrix = flux_balance(small.expand(49, 9, 9), basis).reshape(49, 49)
    assert gap(matrix, matrix.T) < 1e-12
    wanted = torch.linalg.solve(matrix.T, torch.ones(49, dtype=torch.float64)).reshape(7, 7)
    assert relative(darcy(small)[:, 1:-1, 1:-1], wanted[None]) < 1e-9
    layers = torch.full((21, 21), 3.0, dtype=torch.float64)
    layers[:, 10:] = 12.0
    flux = flux_balance(layers[None], darcy(layers)[None, 1:-1, 1:-1])
    assert gap(flux, torch.ones_like(flux)) < 1e-8


@pytest.mark.spec("B3", "M11")
def test_random_media_are_the_same_on_finer_grids_and_have_their_covariance() -> None:
    coarse, fine = (neumann_field(n, torch.Generator().manual_seed(3)) for n in (17, 65))
    waves = torch.cos(math.pi * torch.outer(torch.arange(9).double(), torch.linspace(0, 1, 65, dtype=torch.float64)))
    weights = torch.full((65,), 1 / 64, dtype=torch.float64)
    weights[[0, -1]] /= 2
    low = (waves * weights) @ fine @ (waves * weights).T
    few = waves[:, ::4] * (weights[::4] * 4)
    assert gap(low, few @ coarse @ few.T) < 2e-3  # waves of the fine grid look like slower ones on the coarse grid
    drawn = torch.stack([neumann_field(17, torch.Generator().manual_seed(i)) for i in range(1500)])
    first = torch.einsum("bij,i,j->b", drawn, waves[1, ::4] * (weights[::4] * 4), weights[::4] * 4) * math.sqrt(2)
    assert float(first.var()) == pytest.approx((math.pi**2 + 9) ** -2.0, rel=0.2)  # five standard errors
    assert float(drawn.mean()) == pytest.approx(0.0, abs=0.01)


@pytest.mark.spec("B3", "M11")
def test_vorticity_of_one_wavelength_only_decays() -> None:
    n, viscosity, until = 32, 0.01, 1.5
    x = torch.arange(n).double() / n
    x, y = torch.meshgrid(x, x, indexing="ij")
    taylor_green = (2 * math.pi * x).cos() * (2 * math.pi * y).cos()
    phases = [(5, 0, 0.3), (3, 4, 1.1), (4, -3, 2.0), (0, 5, 0.7)]  # |k| = 5: u·∇ω vanishes though each is in motion
    ring = torch.stack([(2 * math.pi * (i * x + j * y) + p).sin() for i, j, p in phases]).sum(0)
    for start, square in ((taylor_green, 2), (ring, 25)):
        found = navier_stokes(start[None], viscosity, until)
        wanted = start[None] * math.exp(-viscosity * (2 * math.pi) ** 2 * square * until)
        assert gap(found, wanted) < 1e-13
    together, apart = (
        taylor_green + ring,
        [navier_stokes(each[None], viscosity, until) for each in (taylor_green, ring)],
    )
    assert gap(navier_stokes(together[None], viscosity, until), apart[0] + apart[1]) > 1e-4, "two wavelengths interact"


@pytest.mark.spec("B3", "M11")
def test_advection_is_the_transport_by_the_velocity_and_moves_no_energy() -> None:
    n = 48
    w = torch.fft.rfft2(torus_field(n, torch.Generator().manual_seed(0)))
    k = waves(n)
    w = torch.where(k.kept, w, 0.0)
    u, v = velocity(torch.fft.irfft2(w, s=(n, n)))
    direct = torch.fft.rfft2(
        -u * torch.fft.irfft2(1j * k.x * w, s=(n, n)) - v * torch.fft.irfft2(1j * k.y * w, s=(n, n))
    )
    turned = advection(n)(w)
    assert gap(turned, torch.where(k.kept, direct, 0.0)) < 1e-13
    back = torch.fft.irfft2(turned, s=(n, n))
    scale = float(back.abs().mean())
    assert abs(float((back * torch.fft.irfft2(w, s=(n, n))).mean())) < 1e-14 * scale  # enstrophy
    assert abs(float((back * torch.fft.irfft2(w * k.inverse, s=(n, n))).mean())) < 1e-14 * scale  # energy


@pytest.mark.spec("B3", "M11")
def test_vorticity_balances_enstrophy_and_is_of_fourth_order_in_time() -> None:
    n, viscosity, short = 32, 0.005, 1e-3
    start = 5 * torus_field(n, torch.Generator().manual_seed(1))[None]
    push = usual_forcing(n)
    k = waves(n)

    def enstrophy(w: torch.Tensor) -> float:
        return float(w.square().mean()) / 2

    middle = navier_stokes(start, viscosity, short, push, steps=1)
    after = navier_stokes(start, viscosity, 2 * short, push, steps=2)
    before = navier_stokes(start, viscosity, 1e-9, push, steps=1)  # dealiased
    spectrum = torch.fft.rfft2(middle)
    slopes = [torch.fft.irfft2(1j * each * spectrum, s=(n, n)).square().mean() for each in (k.x, k.y)]
    wanted = -viscosity * float(sum(slopes)) + float((middle * push).mean())
    found = (enstrophy(after) - enstrophy(before)) / (2 * short)
    assert found == pytest.approx(
        wanted, rel=1e-4
    )  # a central difference: its error is (10⁻³)² of the third derivative
    exact = navier_stokes(3 * start, viscosity, 1.0, push, steps=512)
    counts = [32, 64, 128]
    errors = [gap(navier_stokes(3 * start, viscosity, 1.0, push, steps=count), exact) for count in counts]
    assert abs(slope(counts, errors) - 4) < 0.3, errors


@pytest.mark.spec("B3", "M11")
def test_random_vorticity_has_its_covariance_and_is_the_same_on_finer_grids() -> None:
    coarse, fine = (torch.fft.rfft2(torus_field(n, torch.Generator().manual_seed(2))) / n**2 for n in (16, 32))
    assert gap(coarse[:7, :7], fine[:7, :7]) < 1e-15
    assert gap(coarse[-7:, :7], fine[-7:, :7]) < 1e-15
    assert float(fine[9:-9].abs().max()) > 0
    drawn = torch.stack([torus_field(16, torch.Generator().manual_seed(i)) for i in range(1500)])
    found = (torch.fft.rfft2(drawn) / 256).abs().square().mean(0)
    k = waves(16).square
    wanted = 7.0**3 * (k + 49) ** -2.5
    for i, j in [(0, 1), (1, 0), (2, 1), (-1, 3)]:
        assert float(found[i, j]) == pytest.approx(float(wanted[i, j]), rel=0.15)  # over four standard errors
    assert float(found[0, 0]) < 1e-30


@pytest.mark.spec("B3", "M11")
def test_pairs_follow_their_paths_one_unit_apart() -> None:
    paths = vorticity_paths(2, n=32, times=4)
    assert paths.shape == (2, 4, 32, 32, 1)
    pairs = vorticity_pairs(5, n=32, times=4)
    assert gap(pairs.inputs[:3], paths[0, :3]) == 0
    assert gap(pairs.outputs[:2], pairs.inputs[1:3]) == 0
    assert gap(pairs.outputs[3:], paths[1, 1:3]) == 0
    again = navier_stokes(pairs.inputs[1:2, ..., 0], 1e-3, 1.0, usual_forcing(32))
    assert relative(again, pairs.outputs[1:2, ..., 0].double()) < 1e-6
    assert pairs.grid.is_uniform
    finer = vorticity_pairs(2, n=32, times=3, refine=2)
    assert relative(finer.outputs.double(), vorticity_pairs(2, n=32, times=3).outputs.double()) < 1e-3


@pytest.mark.spec("B3")
def test_what_is_no_flow_is_refused() -> None:
    field = random(1, 16, 16)
    hurt = field.clone()
    hurt[0, 2, 3] = torch.nan
    for kind, got, remedy, call in [
        (ConfigError, "4 nodes", "n ≥ 8", lambda: burgers_pairs(1, n=4)),
        (ConfigError, "viscosity -1", "ν > 0", lambda: burgers_pairs(1, viscosity=-1.0)),
        (ConfigError, "got nan", "viscosity=0.01", lambda: burgers_pairs(1, viscosity=math.nan)),
        (ShapeError, "1 NaN", "Leave", lambda: burgers(hurt[0])),
        (ConfigError, "3 nodes, refine 1", "n ≥ 5", lambda: darcy_pairs(1, n=3)),
        (ConfigError, "materials 0 and 12", "> 0", lambda: darcy_pairs(1, low=0.0)),
        (ConfigError, "2 along a side", "n ≥ 3", lambda: darcy(torch.ones(1, 2, 2))),
        (ShapeError, "1 NaN", "Leave", lambda: darcy(hurt)),
        (ShapeError, "a smallest value of", "a > 0", lambda: darcy(field)),
        (ShapeError, "256 NaN", "Leave", lambda: darcy(torch.ones(1, 16, 16), math.inf)),
        (SolveError, "between 1e-09 and 1e+09", "contrast", lambda: darcy(10 ** (9 * field.sign()))),
        (ConfigError, "7", "Use 64", lambda: vorticity_pairs(1, n=7)),
        (ConfigError, "viscosity 0", "ν > 0", lambda: vorticity_pairs(1, n=16, viscosity=0.0)),
        (ConfigError, "1 times", "times ≥ 2", lambda: vorticity_paths(1, n=16, times=1)),
        (ShapeError, "1 NaN", "Leave", lambda: navier_stokes(hurt)),
        (SolveError, "in the shortest waves", "refine=2", lambda: vorticity_paths(1, n=16, viscosity=1e-5, times=9)),
    ]:
        with refused(kind, got, remedy):
            call()


@pytest.mark.slow(reason="a whole example, twice")
@pytest.mark.spec("B3", "M11")
def test_the_example_draws_what_it_checked(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "examples" / "pde_data.py"), "--out", str(tmp_path)]
    surroundings = {**os.environ, "CONTINUA_CACHE": str(tmp_path / "cache")}
    for _ in range(2):  # the second time from the cache
        done = subprocess.run(script, capture_output=True, text=True, timeout=600, check=False, env=surroundings)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert (tmp_path / "pde-data.png").stat().st_size > 50_000
    assert len(list((tmp_path / "cache").iterdir())) == 3
