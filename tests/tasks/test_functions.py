"""Maps between functions: the task, the latent grid, the recipe and prediction on any grid."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from continua.axes import Axis, Circle, Interval, Points, Product, ProductRule, Times, Trapezoid, at, grid_on
from continua.cli import app
from continua.cli.predict import read, write
from continua.data.pairs import Pairs, lattice
from continua.errors import ConfigError, GridError, ShapeError
from continua.models import Batch, Transformer, load
from continua.models.functions import function_parts
from continua.models.latent import between, inside
from continua.models.zoo import function_map
from continua.recipes import BurgersSettings, build
from continua.recipes.functions import model_of, optimiser_of, stride_of, task_of
from continua.tasks.functions import Functions, differences, predict, relative, roll_out, scattered
from continua.training import fit
from continua.typing import Tensor
from tests.refusals import refused

SQUARE = Product((Interval(), Interval()))


def waves(count: int, n: int, seed: int = 0) -> Pairs:
    """Random sums of three waves, and the same one quarter turn further."""
    draw = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(count, 3, 1, generator=draw, dtype=torch.float64) for _ in range(2))
    x = torch.arange(n, dtype=torch.float64) / n
    angle = 2 * math.pi * torch.arange(1, 4, dtype=torch.float64)[:, None] * x
    u = (a * angle.cos() + b * angle.sin()).sum(1)
    y = (a * angle.sin() - b * angle.cos()).sum(1)
    return Pairs("waves", Circle(), u[..., None], y[..., None], lattice(Circle(), x))


def model(nodes: int = 16, axis: Circle | Product = Circle(), attention: bool = False) -> Transformer:  # noqa: B008
    torch.manual_seed(0)
    native = at(d=8, h=2, e=4, m=8, z=2)
    return function_map(axis, nodes, at=native, modes=4, attention=attention).double()


# --- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B3")
def test_slopes_are_exact_for_waves_and_parabolas() -> None:
    x = torch.arange(12, dtype=torch.float64) / 12
    wave = torch.sin(2 * math.pi * 3 * x)
    assert (differences(x, 1.0) @ wave - 6 * math.pi * torch.cos(6 * math.pi * x)).abs().max() < 1e-10
    line = torch.tensor([0.0, 0.1, 0.35, 0.6, 1.0], dtype=torch.float64)
    assert (differences(line, None) @ line.square() - 2 * line).abs().max() < 1e-12
    with refused(ConfigError, "got 2", "finer grid"):
        differences(line[:2], None)


@pytest.mark.spec("B3")
def test_the_relative_loss_is_that_of_the_integrals() -> None:
    pairs = waves(5, 32)
    task = Functions(pairs, pairs, batch=5)
    example = task.at(pairs)
    answer = example.target + 0.1 * torch.cos(2 * math.pi * pairs.points[:, 0])[:, None]
    e2, slope2 = 0.01 / 2, 0.01 / 2 * (2 * math.pi) ** 2
    y = example.target[..., 0]
    dy = y @ differences(pairs.points[:, 0], 1.0).T
    wanted = ((e2 + slope2) / (y.square().mean(1) + dy.square().mean(1))).sqrt().sum()
    assert abs(task.loss(answer, example) - wanted) < 1e-12
    plain = replace(task, order=0).loss(answer, example)
    assert abs(plain - (e2 / y.square().mean(1)).sqrt().sum()) < 1e-12
    assert example.count == 5


@pytest.mark.spec("M11")
def test_in_two_dimensions_slopes_are_taken_along_both() -> None:
    line = torch.linspace(0, 1, 6, dtype=torch.float64)
    points = lattice(SQUARE, line, line)
    u = points.square().sum(-1)[None, ..., None]  # x² + y², slopes 2x and 2y, exact for parabolas
    pairs = Pairs("bowl", SQUARE, u, u, points)
    task = Functions(pairs, pairs, batch=1)
    weights = pairs.grid.weights
    got = relative(torch.zeros_like(u.flatten(1, 2)), u.flatten(1, 2), weights, task.slopes, pairs.shape)
    assert abs(float(got) - 1.0) < 1e-12
    bent = u.flatten(1, 2) * 0.0 + points.reshape(1, -1, 2).sum(-1, keepdim=True)  # x + y: slopes one
    found = relative(u.flatten(1, 2) + bent, u.flatten(1, 2), weights, task.slopes, pairs.shape)
    flat = points.reshape(-1, 2)
    top = (weights * (flat.sum(-1).square() + 2)).sum()
    bottom = (weights * (flat.square().sum(-1).square() + 4 * flat.square().sum(-1))).sum()
    assert abs(float(found) - float((top / bottom).sqrt())) < 1e-12


@pytest.mark.spec("B3")
def test_every_function_is_met_once_before_any_is_met_again() -> None:
    pairs = waves(12, 8)
    task = Functions(pairs, pairs, batch=4)
    seen = torch.cat([task.example(0, step).target[:, 0, 0] for step in range(3)])
    assert sorted(seen.tolist()) == sorted(pairs.outputs[:, 0, 0].tolist())
    again = task.example(0, 1).target
    assert torch.equal(again, task.example(0, 1).target)


@pytest.mark.spec("B3")
def test_refusals_of_the_task() -> None:
    pairs = waves(4, 8)
    with refused(ConfigError, "got 9", "smaller batch"):
        Functions(pairs, pairs, batch=9)
    with refused(ConfigError, "got 2", "order=0 or 1"):
        Functions(pairs, pairs, batch=2, order=2)
    line = torch.linspace(0, 1, 8, dtype=torch.float64)
    other = Pairs("lines", Interval(), pairs.inputs, pairs.outputs, lattice(Interval(), line))
    with refused(ConfigError, "Interval", "one domain"):
        Functions(pairs, other, batch=2)


# --- the latent grid -------------------------------------------------------------------------------------------------


@pytest.mark.spec("B3")
def test_waves_are_reconstructed_from_scattered_points() -> None:
    made, pairs = model(), waves(6, 16)
    made.embed.prior(pairs.flat()[0])
    points = torch.rand(24, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    inputs, _, grid = scattered(pairs, points)
    laid = made.embed.lay(Batch(inputs, grid=grid))
    error = (laid.values - pairs.inputs).norm() / pairs.inputs.norm()
    assert error < 1e-4  # three waves are told by 24 points; the noise of the filter is 1e-4
    assert laid.asked is grid


def sharp(axis: Axis, nodes: int = 4) -> Any:
    small = at(d=8, h=2, e=4, m=8, z=2)
    return function_map(axis, nodes, at=small, modes=2, sharp=True, attention=False).double().embed


@pytest.mark.spec("M11")
def test_sharp_functions_are_read_by_kriging() -> None:
    """Against the textbook's system of equations, with distances around the circle."""
    embed, draw = sharp(Product((Circle(), Interval()))), torch.Generator().manual_seed(0)
    points = torch.rand(9, 2, generator=draw, dtype=torch.float64)
    values = torch.rand(3, 9, 2, generator=draw, dtype=torch.float64)
    laid = embed.lay(Batch(values, times=points)).values

    def length(a: Tensor, b: Tensor) -> float:
        around = abs(float(a[0] - b[0]))
        return math.hypot(min(around, 1 - around), float(a[1] - b[1]))

    system = torch.ones(10, 10, dtype=torch.float64)
    system[:9, :9] = -torch.tensor([[length(a, b) for b in points] for a in points], dtype=torch.float64)
    system[9, 9] = 0.0
    for i, node in enumerate(embed.grid.nodes):
        right = torch.tensor([*(-length(node, p) for p in points), 1.0], dtype=torch.float64)
        weights = torch.linalg.solve(system, right)[:9]
        assert torch.allclose(laid[:, i], weights @ values, atol=1e-7)  # ours has a nugget of 1e-9 for equal points


@pytest.mark.spec("M11")
def test_kriging_is_exact_at_its_points_and_linear_along_a_line() -> None:
    embed = sharp(Interval(), 8)
    points = torch.tensor([0.0, 0.1, 0.33, 0.33, 0.7, 1.0], dtype=torch.float64)  # two of them equal
    values = torch.tensor([2.0, 5.0, 1.0, 1.0, -3.0, 4.0], dtype=torch.float64)
    laid = embed.lay(Batch(values[None, :, None], times=points[:, None])).values[0, :, 0]
    wanted = np.interp(embed.grid.nodes[:, 0], points, values)
    assert np.allclose(laid, wanted, atol=1e-7)
    own = embed.grid.nodes[torch.randperm(8)]
    again = embed.lay(Batch(own.square()[None], times=own)).values[0]
    assert torch.allclose(again, embed.grid.nodes.square(), atol=1e-7)


@pytest.mark.spec("M11")
def test_kriging_skips_what_was_not_observed() -> None:
    embed, draw = sharp(Product((Interval(), Interval()))), torch.Generator().manual_seed(3)
    points = torch.rand(30, 2, generator=draw, dtype=torch.float64)
    values = torch.rand(2, 30, 1, generator=draw, dtype=torch.float64)
    there = torch.arange(30) < 20
    part = embed.lay(Batch(values[:, :20], times=points[:20])).values
    torn = values.masked_fill(~there[:, None], float("nan"))
    assert torch.allclose(embed.lay(Batch(torn, times=points, observed=there)).values, part, atol=1e-12)


@pytest.mark.spec("B3")
def test_on_its_own_grid_nothing_is_done() -> None:
    made, pairs = model(), waves(3, 16)
    laid = made.embed.lay(Batch(pairs.inputs, grid=pairs.grid))
    assert laid.values is pairs.inputs
    assert laid.asked is None
    bare, whole = made(Batch(pairs.inputs)), made(Batch(pairs.inputs, grid=pairs.grid))
    assert torch.equal(bare, whole)


@pytest.mark.spec("B3")
@pytest.mark.parametrize("attention", [False, True], ids=["convolution", "attention"])
def test_the_answer_does_not_depend_on_the_grid_of_the_observations(attention: bool) -> None:
    made, fine = model(attention=attention), waves(3, 64)
    made.embed.prior(waves(50, 16, seed=1).flat()[0])
    coarse = fine.every(4)
    wanted = made(Batch(coarse.inputs, grid=coarse.grid))
    asked = coarse.points
    found = made(Batch(fine.inputs, grid=fine.grid, asked=asked))
    assert (found - wanted).norm() / wanted.norm() < 1e-3  # the filter's noise, through an untrained model


@pytest.mark.spec("B3")
def test_missing_points_are_not_looked_at() -> None:
    made, pairs = model(), waves(2, 32)
    seen = torch.ones(2, 32, dtype=torch.bool)
    seen[:, 5:9] = False
    broken = pairs.inputs.clone()
    broken[:, 5:9] = 1e6
    answers = [made(Batch(values, grid=pairs.grid, observed=seen)) for values in (pairs.inputs, broken)]
    assert torch.equal(*answers)


@pytest.mark.spec("M11")
def test_between_reads_products_of_lines() -> None:
    rule = ProductRule((Trapezoid(8), Trapezoid(6)))
    torus = Product((Circle(), Circle()))
    grid = grid_on(torus, rule)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(2 * math.pi * x[:, 0]) * torch.sin(4 * math.pi * x[:, 1])

    points = torch.rand(9, 2, dtype=torch.float64)
    assert (between(torus, rule, points) @ f(grid.nodes) - f(points)).abs().max() < 1e-12


@pytest.mark.spec("B3")
def test_points_outside_are_refused() -> None:
    inside(Circle(), torch.tensor([[7.5]]))
    with refused(GridError, "got 1.5", "from 0 to 1"):
        inside(SQUARE, torch.tensor([[0.5, 1.5]]))
    with refused(GridError, "[3, 1]", "[n, 2]"):
        inside(SQUARE, torch.zeros(3, 1))
    made = model(8, SQUARE)
    with refused(GridError, "got -0.1", "rescale the points"):
        made(Batch(torch.zeros(1, 3, 1).double(), times=torch.tensor([[0.5, 0.5], [0.1, -0.1], [0.2, 0.3]])))
    with refused(ShapeError, "got 3", "one value for each point"):
        made(Batch(torch.zeros(1, 3, 1).double()))
    with refused(ShapeError, "[1, 3]", "values at points"):
        made(Batch(torch.zeros(1, 3).double()))
    with refused(ConfigError, "Points", "Circle()"):
        function_map(Points(4), 8)
    with refused(ConfigError, "Times", "Circle()"):
        function_map(Times(0.0, 1.0), 8)


# --- training, prediction --------------------------------------------------------------------------------------------


@pytest.mark.spec("B3")
def test_a_quarter_turn_is_learned_on_one_grid_and_known_on_others(tmp_path) -> None:
    fine = waves(160, 32)
    settings = BurgersSettings(train=128, nodes=16, d=16, m=16, heads=2, depth=2, modes=5, batch=32, matrix_lr=0.02)
    task = task_of(fine, settings)
    made = model_of(task, settings)
    fit(made, task, optimiser=optimiser_of(settings), steps=150, evaluate_every=150, watch=lambda at: None)
    errors = {n: float(task.errors(made, fine.part(slice(128, None)).every(32 // n)).mean()) for n in (16, 32)}
    assert errors[16] < 0.05
    assert errors[32] < 1.02 * errors[16]
    again = load(made.save(tmp_path / "m"))
    batch = Batch(task.held_out.inputs.float(), grid=task.held_out.grid)
    assert torch.equal(again(batch), made(batch))


@pytest.mark.spec("B3")
def test_rolling_out_applies_the_map_again() -> None:
    made, pairs = model(), waves(2, 16)
    start = Batch(pairs.inputs, grid=pairs.grid)
    path = roll_out(made, start, 3)
    again = predict(made, replace(start, values=predict(made, start)))
    assert torch.equal(path[1], again)


@pytest.mark.spec("B3")
def test_a_grid_that_cannot_be_thinned_names_those_that_can() -> None:
    with refused(ConfigError, "got 5", "16"):
        stride_of(waves(2, 16), 5)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTINUA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    small = ["train=8", "held_out=2", "nodes=16", "fine=64", "viscosity=0.1", "d=8", "m=8", "heads=2", "depth=2"]
    small += ["modes=4", "batch=4", "steps=3"]
    made = CliRunner().invoke(app, ["fit", "burgers", *(word for each in small for word in ("--set", each))])
    assert made.exit_code == 0, made.output
    return tmp_path / "runs" / "burgers", made.output


@pytest.mark.spec("B3")
def test_fit_and_predict_from_the_command_line(run) -> None:
    folder, said = run
    assert "(the grid it was trained on)" in said
    assert "random points" in said
    assert (folder / "functions.png").stat().st_size > 10_000
    assert (folder / "resolution.png").is_file()
    x = np.sort(np.random.default_rng(0).random(20))
    np.savez("seen.npz", points=x, inputs=np.stack([np.sin(2 * np.pi * x), np.cos(2 * np.pi * x)]))
    np.savez("asked.npz", points=np.linspace(0, 0.9, 7))
    found = CliRunner().invoke(app, ["predict", str(folder), "--grid", "seen.npz", "--asked", "asked.npz"])
    assert found.exit_code == 0, found.output
    assert "estimated relative error" in found.output
    with np.load(folder / "seen-answer.npz") as answer:
        assert answer["outputs"].shape == (2, 7, 1)
        assert (answer["errors"] > 0).all()
        assert answer["unseen"].shape == (2,)
        assert np.isfinite(answer["outputs"]).all()
    bundle = build("burgers", {"train": 8, "held_out": 2, "nodes": 16, "fine": 64, "viscosity": 0.1, "batch": 4})
    assert bundle.report is not None


@pytest.mark.spec("B3")
def test_grid_files_of_the_wrong_shape(tmp_path) -> None:
    def file(name: str, **arrays: np.ndarray):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    with refused(GridError, "nowhere.npz", "points [n, k]"):
        read(tmp_path / "nowhere.npz", 1, 1)
    with refused(GridError, "[4, 2]", "1 dimension"):
        read(file("a.npz", points=np.zeros((4, 2)), inputs=np.zeros(4)), 1, 1)
    with refused(GridError, "[3, 5, 1]", "points [n, k]"):
        read(file("b.npz", points=np.zeros(4), inputs=np.zeros((3, 5, 1))), 1, 1)
    with refused(GridError, "NaN", "any points will do"):
        read(file("c.npz", points=np.zeros(2), inputs=np.array([1.0, np.nan])), 1, 1)
    with refused(GridError, "values", "points [n, k]"):
        read(file("d.npz", values=np.zeros(4)), 1, 1)
    (tmp_path / "e.npz").write_bytes(b"no archive")
    with refused(GridError, "e.npz", "points [n, k]"):
        read(tmp_path / "e.npz", 1, 1)
    (tmp_path / "f.csv").write_text("x,u\n0.1,2\n0.3\n")
    with refused(GridError, "1, 2 entries", "a column for each"):
        read(tmp_path / "f.csv", 1, 1)
    (tmp_path / "g.csv").write_text("x,u\n0.1,two\n")
    with refused(GridError, "two", "a column for each"):
        read(tmp_path / "g.csv", 1, 1)


@pytest.mark.spec("B3")
def test_tables_are_read_and_written(tmp_path) -> None:
    (tmp_path / "t.csv").write_text("x,y,u\n0.1,0.2,5\n0.3,0.4,6\n")
    seen = read(tmp_path / "t.csv", 2, 1)
    assert seen.points.tolist() == [[0.1, 0.2], [0.3, 0.4]]
    assert seen.inputs.tolist() == [[[5.0], [6.0]]]
    write(tmp_path / "out.csv", seen.points.numpy(), seen.inputs.numpy())
    again = read(tmp_path / "out.csv", 2, 1)
    assert torch.equal(again.inputs, seen.inputs)
    with refused(GridError, "got 2", ".npz"):
        write(tmp_path / "out.csv", seen.points.numpy(), np.zeros((2, 2, 1)))


@pytest.mark.spec("B3")
def test_scattered_values_of_a_circle_are_those_of_the_fourier_series() -> None:
    pairs = waves(2, 16)
    fine = waves(2, 128)
    inputs, outputs, grid = scattered(pairs, fine.points)
    assert (inputs - fine.inputs).abs().max() < 1e-12
    assert (outputs - fine.outputs).abs().max() < 1e-12
    assert abs(float(grid.weights.sum()) - 1) < 1e-12


@pytest.mark.spec("B3")
def test_the_old_name_returns_the_same_parts() -> None:
    native = at(d=8, h=2, m=8, z=2)
    torch.manual_seed(0)
    model = function_map(Circle(), 8, channels=2, out=3, at=native, modes=3, input_mean=0.5, output_spread=2.0)
    torch.manual_seed(0)
    with pytest.warns(DeprecationWarning, match="function_map"):
        parts = function_parts(Circle(), 8, (2, 3), at=native, modes=3, scales=((0.5, 1.0), (9.0, 2.0)))
    x = torch.randn(2, 8, 2)
    assert torch.equal(Transformer(**parts)(x), model(x))
