"""Solids and forces on the command line: meshes of tetrahedra in, VTK and a picture out, and what is refused."""

from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from continua.axes import at
from continua.cli import app
from continua.cli.predict_mesh import answered, equation_of, fitting
from continua.data.mesh import HELD, INSULATED, Mesh
from continua.data.mesh_features import DIFFUSION, ELASTICITY, POISSON, Equation
from continua.data.mesh_files import Boundary, read_mesh, write_answer
from continua.data.polygons import Polygon, meshed
from continua.data.solids import Piece, Shape, Solid, solid_mesh
from continua.errors import ContinuaError
from continua.lab.canvas.meshes import draw_answer
from continua.lab.canvas.solids import draw_solid
from continua.models.zoo import LatentAttention, mesh_map

pytestmark = pytest.mark.spec("B16", "B3")
BALL = Piece(Shape.BALL, np.full(3, 0.5), np.full(3, 0.4), np.eye(3))
HOLLOW = Piece(Shape.BALL, np.full(3, 0.5), np.full(3, 0.15), np.eye(3))
SQUARE = np.array([[0.1, 0.1], [0.9, 0.1], [0.9, 0.9], [0.1, 0.9]])
RUN = CliRunner()


def model_for(equation: Equation) -> Any:
    torch.default_generator.manual_seed(0)
    small = at(d=8, h=2, m=8, z=1)
    none = LatentAttention.NONE
    return mesh_map(
        equation.axis, channels=equation.channels, out=equation.components, at=small, modes=2, attention=none
    )


@pytest.fixture(scope="module")
def solid() -> Mesh:
    return solid_mesh(Solid((BALL,), (HOLLOW,), (True, False)), 1000, np.random.default_rng(0))


@pytest.fixture(scope="module")
def plate() -> Mesh:
    return meshed(Polygon((SQUARE,), (True,)), 330, np.random.default_rng(0))


def written(path: Path, mesh: Mesh, source: Any, tags: bool = True, scale: float = 1.0) -> Path:
    points = scale * np.concatenate([mesh.points, np.zeros((len(mesh), 3 - mesh.dimension))], 1)
    data = {"f": source, **({"boundary": mesh.tags} if tags else {})}
    kind = "tetra" if mesh.dimension == 3 else "triangle"
    meshio.Mesh(points, [(kind, mesh.cells)], point_data=data).write(path)
    return path


def test_a_solid_is_answered_as_vtk_with_a_picture(solid: Mesh, tmp_path: Path) -> None:
    file = written(tmp_path / "in.vtu", solid, 1.0 + solid.points[:, 0])
    model = model_for(DIFFUSION)
    assert equation_of(model, tmp_path) == DIFFUSION
    placed = fitting(read_mesh(file), DIFFUSION)
    answer = answered(model, placed)
    for name in ("out.vtu", "out.vtk"):
        found = meshio.read(write_answer(tmp_path / name, placed, answer))
        assert (found.cells_dict["tetra"] == solid.cells).all()
        assert np.abs(found.points - solid.points).max() < 1e-12
        assert np.abs(found.point_data["u"] - answer[:, 0]).max() < 1e-12
        assert (found.point_data["boundary"] == solid.tags).all()
    assert draw_solid(placed.mesh, answer[:, 0], tmp_path / "u.png").read_bytes()[:4] == b"\x89PNG"


def test_the_unit_of_length_of_a_solid_does_not_matter_with_fit(solid: Mesh, tmp_path: Path) -> None:
    model = model_for(DIFFUSION)
    answers = []
    for scale in (1.0, 1e9):
        file = written(tmp_path / "in.vtu", solid, np.ones(len(solid)), scale=scale)
        placed = read_mesh(file, fit=True)
        answers.append(answered(model, placed) / scale**2)
    assert np.abs(answers[1] - answers[0]).max() < 1e-4 * np.abs(answers[0]).max()


def test_tagged_faces_say_what_holds_where(solid: Mesh, tmp_path: Path) -> None:
    kinds = np.where((solid.tags[solid.facets] == HELD).all(1), HELD, INSULATED)
    cells = [("tetra", solid.cells), ("triangle", solid.facets)]
    marks = {"gmsh:physical": [np.full(len(solid.cells), 9), kinds]}
    made = meshio.Mesh(solid.points, cells, point_data={"f": np.ones(len(solid))}, cell_data=marks)
    made.write(tmp_path / "in.vtu")
    assert (read_mesh(tmp_path / "in.vtu").mesh.tags == solid.tags).all()


def test_a_force_is_a_vector_and_moves_the_mesh(plate: Mesh, tmp_path: Path) -> None:
    force = np.stack([np.ones(len(plate)), plate.points[:, 0], np.zeros(len(plate))], -1)
    placed = fitting(read_mesh(written(tmp_path / "in.vtu", plate, force)), ELASTICITY)
    model = model_for(ELASTICITY)
    assert equation_of(model, tmp_path) == ELASTICITY
    answer = answered(model, placed)
    assert answer.shape == (len(plate), 2)
    found = meshio.read(write_answer(tmp_path / "out.vtu", placed, answer))
    assert np.abs(found.point_data["u"][:, :2] - answer).max() < 1e-12
    assert draw_answer(placed.mesh, answer, tmp_path / "u.png").read_bytes()[:4] == b"\x89PNG"


def said_over(work: Any) -> str:
    with pytest.raises(ContinuaError) as refused:
        work()
    said = str(refused.value)
    assert "\n" not in said
    assert ", got " in said
    return said


def test_what_does_not_fit_the_run_is_a_sentence(solid: Mesh, plate: Mesh, tmp_path: Path) -> None:
    space = read_mesh(written(tmp_path / "solid.vtu", solid, np.ones(len(solid))))
    plane = read_mesh(written(tmp_path / "plate.vtu", plate, np.ones(len(plate))))
    lifted = read_mesh(written(tmp_path / "lifted.vtu", plate, np.ones((len(plate), 3))))
    assert "learned on triangles" in said_over(lambda: fitting(space, POISSON))
    assert "learned on tetrahedra" in said_over(lambda: fitting(plane, DIFFUSION))
    assert "vector of the plane" in said_over(lambda: fitting(plane, ELASTICITY))
    assert "vector of the plane" in said_over(lambda: fitting(lifted, ELASTICITY))
    assert "f as a scalar" in said_over(lambda: fitting(lifted, POISSON))
    other = mesh_map(POISSON.axis, channels=3, at=at(d=8, h=2, m=8, z=1), modes=2, tokens=3)
    assert "poisson, elasticity or diffusion3d" in said_over(lambda: equation_of(other, tmp_path))


def test_a_solid_that_cannot_be_answered_is_a_sentence(solid: Mesh, tmp_path: Path) -> None:
    path = tmp_path / "in.vtu"
    ones = np.ones(len(solid))
    far = written(path, solid, ones, scale=1e9)
    assert "unit cube" in said_over(lambda: read_mesh(far))
    outside = written(path, solid, ones, scale=1.3)
    assert "nodes lie in the unit cube" in said_over(lambda: read_mesh(outside))
    bare = written(path, solid, ones, tags=False)
    assert "tagged faces" in said_over(lambda: read_mesh(bare))
    assert set(read_mesh(bare, Boundary.HELD).mesh.tags) == {0, HELD}
    turned = solid.cells.copy()
    turned[3] = turned[3][[1, 0, 2, 3]]
    meshio.Mesh(solid.points, [("tetra", turned)], point_data={"f": ones, "boundary": solid.tags}).write(path)
    assert "first tetrahedron 3 (inverted)" in said_over(lambda: read_mesh(path))
    middle = np.abs(solid.points[solid.cells].mean(1)[:, 0] - 0.5) > 0.1
    used, cells = np.unique(solid.cells[middle], return_inverse=True)
    data = {"f": ones[used], "boundary": np.ones(len(used), dtype=int)}
    meshio.Mesh(solid.points[used], [("tetra", cells.reshape(-1, 4))], point_data=data).write(path)
    assert "holes that cut the domain" in said_over(lambda: read_mesh(path))


def said(*words: object) -> Result:
    return RUN.invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.mark.slow(reason="trainings with their finite elements and pictures")
@pytest.mark.parametrize(
    ("recipe", "own", "picture"),
    [
        ("elasticity", {"coarse": 300, "fine": 320, "nodes": 310}, "polygons.png"),
        ("diffusion3d", {"points": 1000, "finer": 1200}, "solids.png"),
    ],
)
def test_a_recipe_is_trained_reported_and_asked(
    recipe: str, own: dict[str, int], picture: str, solid: Mesh, plate: Mesh, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("CONTINUA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("continua.data.diffusion.FINEST", 1000)
    settings = {"train": 2, "held_out": 1, "d": 8, "m": 8, "heads": 2, "depth": 1, "modes": 2, "batch": 2, "steps": 2}
    words = [word for key, value in {**settings, **own}.items() for word in ("--set", f"{key}={value}")]
    done = said("fit", recipe, "--folder", tmp_path / "run", *words)
    assert done.exit_code == 0, done.exception
    assert "never seen" in done.output
    assert (tmp_path / "run" / picture).is_file()
    mesh = solid if recipe == "diffusion3d" else plate
    source = np.ones(len(mesh)) if recipe == "diffusion3d" else np.ones((len(mesh), 3)) * (1, 1, 0)
    file = written(tmp_path / "in.vtu", mesh, source)
    done = said(
        "predict", tmp_path / "run", "--mesh", file, "--out", tmp_path / "o.vtu", "--picture", tmp_path / "o.png"
    )
    assert done.exit_code == 0, done.exception
    assert np.isfinite(meshio.read(tmp_path / "o.vtu").point_data["u"]).all()
    assert (tmp_path / "o.png").is_file()
