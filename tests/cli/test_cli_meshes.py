"""``continua fit poisson`` and ``continua predict RUN --mesh FILE``: answers on meshes, and meshes that are refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import meshio
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from continua.cli import app
from continua.data.mesh import HELD, INSULATED, Mesh
from continua.data.mesh_files import read_mesh
from continua.data.polygons import Polygon, meshed
from continua.errors import ContinuaError

pytestmark = pytest.mark.spec("B16", "B3")
RUN = CliRunner()
HOLE = np.array([[0.4, 0.4], [0.6, 0.4], [0.6, 0.6], [0.4, 0.6]])
OUTER = np.array([[0.1, 0.1], [0.9, 0.1], [0.9, 0.9], [0.1, 0.9]])
SMALL = {"train": 2, "held_out": 1, "coarse": 300, "fine": 320, "nodes": 310, "d": 8, "m": 8, "heads": 2, "depth": 1}


def said(*words: object) -> Result:
    return RUN.invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("poisson")
    settings = {**SMALL, "modes": 2, "tokens": 3, "batch": 2, "steps": 2, "save_every": 2, "evaluate_every": 2}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTINUA_CACHE", str(place / "cache"))
        done = said("fit", "poisson", "--folder", place / "run", *words)
    assert done.exit_code == 0, done.exception
    assert "polygons never seen" in done.output
    assert (place / "run" / "polygons.png").is_file()
    return place / "run"


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return meshed(Polygon((OUTER, HOLE), (True, False)), 330, np.random.default_rng(0))


def written(
    path: Path, mesh: Mesh, scale: float = 1.0, tags: Any = True, points: Any = None, triangles: Any = None
) -> Path:
    """A mesh file; ``tags`` False leaves them out."""
    flat = scale * mesh.points if points is None else points
    data = {"f": 1.0 + mesh.points[:, 0]}
    if tags is not False:
        data["boundary"] = mesh.tags if tags is True else tags
    cells = mesh.cells if triangles is None else triangles
    meshio.Mesh(np.c_[flat, np.zeros(len(flat))], [("triangle", cells)], point_data=data).write(path)
    return path


def test_a_mesh_is_answered_as_vtk_with_a_picture(run: Path, mesh: Mesh, tmp_path: Path) -> None:
    file = written(tmp_path / "in.vtu", mesh)
    for name in ("out.vtu", "deep/out.vtk"):
        done = said("predict", run, "--mesh", file, "--out", tmp_path / name, "--picture", tmp_path / "u.png")
        assert done.exit_code == 0, done.exception
        found = meshio.read(tmp_path / name)
        assert np.abs(found.points[:, :2] - mesh.points).max() < 1e-12
        assert (found.cells_dict["triangle"] == mesh.cells).all()
        assert np.isfinite(found.point_data["u"]).all()
        assert np.ptp(found.point_data["u"]) > 0
    assert (tmp_path / "u.png").read_bytes()[:4] == b"\x89PNG"


def test_the_unit_of_length_does_not_matter_with_fit(run: Path, mesh: Mesh, tmp_path: Path) -> None:
    answers = []
    for scale in (1.0, 1e9, 1e-9):
        file = written(tmp_path / "in.vtu", mesh, scale)
        done = said("predict", run, "--mesh", file, "--fit", "--out", tmp_path / "out.vtu")
        assert done.exit_code == 0, done.exception
        answers.append(meshio.read(tmp_path / "out.vtu").point_data["u"] / scale**2)
    for other in answers[1:]:
        assert np.abs(other - answers[0]).max() < 1e-4 * np.abs(answers[0]).max()


def test_tagged_lines_say_what_holds_where(mesh: Mesh, tmp_path: Path) -> None:
    kinds = np.where((mesh.tags[mesh.facets] == HELD).all(1), HELD, INSULATED)
    cells = [("triangle", mesh.cells), ("line", mesh.facets)]
    marks = {"gmsh:physical": [np.full(len(mesh.cells), 9), kinds]}
    data = {"f": np.ones(len(mesh))}
    points = np.c_[mesh.points, np.zeros(len(mesh))]
    meshio.Mesh(points, cells, point_data=data, cell_data=marks).write(tmp_path / "in.vtu")
    assert (read_mesh(tmp_path / "in.vtu").mesh.tags == mesh.tags).all()


def test_a_boundary_without_tags_may_be_said_to_be_held(run: Path, mesh: Mesh, tmp_path: Path) -> None:
    file = written(tmp_path / "in.vtu", mesh, tags=False)
    done = said("predict", run, "--mesh", file, "--boundary", "held", "--out", tmp_path / "out.vtu")
    assert done.exit_code == 0, done.exception
    assert set(meshio.read(tmp_path / "out.vtu").point_data["boundary"]) == {0, HELD}


def only(mesh: Mesh, chosen: Any) -> Any:
    """Some triangles of a mesh with the nodes they have."""
    used, triangles = np.unique(mesh.cells[chosen], return_inverse=True)
    return SimpleNamespace(
        points=mesh.points[used], tags=np.maximum(mesh.tags[used], HELD), cells=triangles.reshape(-1, 3)
    )


def cut(mesh: Mesh) -> Any:
    """A hole from one side to the other."""
    return only(mesh, abs(mesh.points[mesh.cells].mean(1)[:, 0] - 0.25) > 0.06)


def lonely(mesh: Mesh) -> Any:
    """A triangle that lost its neighbours."""
    left = mesh.points[mesh.cells].mean(1)[:, 0]
    return only(mesh, (left > 0.4) | (np.arange(len(left)) == left.argmin()))


def wrong(name: str, place: Path, mesh: Mesh) -> Path:
    """A mesh file that cannot be answered."""
    turned = mesh.cells.copy()
    turned[7] = turned[7][::-1]
    moved = mesh.points.copy()
    moved[moved[:, 0] > 0.8] += 0.3
    made = {
        "inverted": lambda path: written(path, mesh, triangles=turned),
        "isolated": lambda path: written(path, lonely(mesh)),
        "cut": lambda path: written(path, cut(mesh)),
        "outside": lambda path: written(path, mesh, points=moved),
        "nanometres": lambda path: written(path, mesh, 1e9),
        "kilometres": lambda path: written(path, mesh, 1e-9),
        "no tags": lambda path: written(path, mesh, tags=False),
        "tags of nobody": lambda path: written(path, mesh, tags=np.zeros(len(mesh), dtype=int)),
    }
    return made[name](place / "in.vtu")


@pytest.mark.parametrize(
    ("name", "word", "remedy"),
    [
        ("inverted", "1 of", "counter-clockwise"),
        ("isolated", "1 of them a single isolated triangle", "Remove isolated triangles"),
        ("cut", "got 2 parts, 0", "move holes that cut the domain"),
        ("outside", "outside", "--fit"),
        ("nanometres", "e+08", "--fit"),
        ("kilometres", "e-1", "--fit"),
        ("no tags", "no tags", "--boundary held"),
        ("tags of nobody", "without", "Use 1"),
    ],
)
def test_a_mesh_that_cannot_be_answered_is_a_sentence(
    run: Path, mesh: Mesh, tmp_path: Path, name: str, word: str, remedy: str
) -> None:
    done = said("predict", run, "--mesh", wrong(name, tmp_path, mesh), "--out", tmp_path / "out.vtu")
    assert isinstance(done.exception, ContinuaError), done.exception
    message = str(done.exception)
    assert word in message
    assert remedy in message
    assert "\n" not in message
    assert not (tmp_path / "out.vtu").exists()


def test_words_that_do_not_fit_are_sentences(run: Path, mesh: Mesh, tmp_path: Path) -> None:
    file = written(tmp_path / "in.vtu", mesh)
    (tmp_path / "noise.vtu").write_text("<VTKFile>")
    (tmp_path / "noise.xyz").write_text("1 2 3")
    for words, expected in {
        (): "--grid FILE or --mesh FILE",
        ("--mesh", tmp_path / "none.vtu"): "no such file",
        ("--mesh", tmp_path / "noise.vtu"): "cannot be read",
        ("--mesh", tmp_path / "noise.xyz"): "cannot be read",
        ("--mesh", file, "--out", tmp_path / "o.npz"): ".vtk or .vtu",
        ("--mesh", file, "--picture", tmp_path / "o.jpg"): ".png",
        ("--mesh", file, "--boundary", "open"): "tagged or held",
        ("--mesh", file, "--which", "newest"): "best or last",
    }.items():
        done = said("predict", run, *words)
        assert isinstance(done.exception, ContinuaError), (words, done.exception)
        assert expected in str(done.exception)
