"""Random polygons, their meshes, Poisson's equation on them, and meshes that are refused."""

import numpy as np
import pytest
import torch

from continua.data import mesh_store
from continua.data.mesh import HELD, INSULATED, Mesh
from continua.data.mesh_features import POISSON, features
from continua.data.mesh_store import generated_meshes
from continua.data.poisson import WAVES, poisson_meshes, solved
from continua.data.polygons import Polygon, meshed, random_polygon
from continua.data.simplices import FAR
from continua.data.sources import Source, wave_numbers
from continua.errors import ConfigError, ContinuaError
from tests.measure import slope
from tests.refusals import refused_with

pytestmark = pytest.mark.spec("B16")
SQUARE = Polygon((np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]),), (True,))


def polygon(i: int) -> Polygon:
    return random_polygon(np.random.default_rng(i))


def test_a_mesh_has_the_nodes_that_were_asked_for_and_the_area_of_its_polygon() -> None:
    holes = 0
    for i in range(6):
        chosen = polygon(i)
        mesh = meshed(chosen, 300 + 37 * i, np.random.default_rng(i))
        assert len(mesh) == 300 + 37 * i
        assert mesh.weights.sum() == pytest.approx(chosen.area, rel=1e-9)
        assert mesh.weights.min() > 0
        on_boundary = np.unique(mesh.facets)
        assert chosen.distance(mesh.points[on_boundary]).max() < 1e-12
        assert set(mesh.tags[on_boundary]) <= {HELD, INSULATED}
        holes += len(chosen.rings) - 1
    assert holes > 3


def test_the_lumped_mass_integrates_at_second_order() -> None:
    def error(n: int) -> float:
        mesh = meshed(SQUARE, n, np.random.default_rng(0))
        return abs(float((mesh.weights * np.exp(mesh.points.sum(1))).sum()) - (np.e - 1) ** 2)

    sizes = [400, 1600]
    assert slope([n**0.5 for n in sizes], [error(n) for n in sizes]) > 1.8


def test_finite_elements_find_a_solution_that_is_known() -> None:
    """−Δu = 2π²u for u = sin πx sin πy = ½ cos π(x − y) − ½ cos π(x + y)."""
    numbers = wave_numbers(2, WAVES)
    sizes = np.zeros(len(numbers))
    sizes[(numbers == (1, -1)).all(1)] = np.pi**2
    sizes[(numbers == (1, 1)).all(1)] = -(np.pi**2)
    source = Source(numbers, 0.0, sizes, np.zeros(len(numbers)))

    def error(n: int, order: int) -> float:
        mesh = meshed(SQUARE, n, np.random.default_rng(0))
        exact = np.sin(np.pi * mesh.points[:, 0]) * np.sin(np.pi * mesh.points[:, 1])
        return float(np.abs(solved(mesh, source, order) - exact).max())

    assert slope([18, 36], [error(324, 1), error(1296, 1)]) > 1.7
    assert slope([18, 36], [error(324, 2), error(1296, 2)]) > 2.7


def test_a_set_is_a_function_of_its_seed_and_no_two_meshes_are_alike() -> None:
    few = poisson_meshes(3, 300, seed=5)
    again = poisson_meshes(2, 300, seed=5)
    assert torch.equal(few.inputs[:2], again.inputs)
    assert torch.equal(few.outputs[:2], again.outputs)
    assert few.part(slice(0, 2)).sha256 == again.sha256
    assert few.inputs.shape == (3, 300, POISSON.channels)
    assert not torch.equal(few.points[0], few.points[1])
    held = few.inputs[..., 1] > 1 - 1e-6  # on the boundary itself its mark is one
    assert float(few.outputs[..., 0][held].abs().max()) < 1e-12
    assert int(few.cells_of(1).max()) == 299


def test_the_same_problem_in_a_finer_mesh_has_the_same_answer() -> None:
    coarse = poisson_meshes(1, 400, seed=3)
    fine = poisson_meshes(1, 1600, seed=3)
    nearest = torch.cdist(coarse.points[0], fine.points[0]).min(1)
    close = nearest.values < 0.004
    gap = (coarse.outputs[0] - fine.outputs[0][nearest.indices])[close].abs().max()
    assert int(close.sum()) > 30
    assert float(gap) < 0.03 * float(fine.outputs.abs().max())


def test_distances_to_each_kind_of_boundary() -> None:
    hole = np.array([[0.4, 0.4], [0.6, 0.4], [0.6, 0.6], [0.4, 0.6]])
    mesh = meshed(Polygon((SQUARE.rings[0], hole), (True, False)), 600, np.random.default_rng(0))
    x, y = mesh.points.T
    outer = np.minimum.reduce([x, 1 - x, y, 1 - y])
    assert np.abs(mesh.distances(HELD) - outer).max() < 1e-12
    inner = np.hypot(np.maximum(abs(x - 0.5) - 0.1, 0), np.maximum(abs(y - 0.5) - 0.1, 0))
    assert np.abs(mesh.distances(INSULATED) - np.minimum(inner, FAR)).max() < 1e-12
    alone = meshed(SQUARE, 300, np.random.default_rng(0))
    assert (alone.distances(INSULATED) == FAR).all()


def test_a_set_is_kept_on_disk_and_a_spoilt_file_is_made_anew(tmp_path, monkeypatch) -> None:
    first = generated_meshes(1, 300, 7, root=tmp_path)
    monkeypatch.setattr(mesh_store, "poisson_meshes", lambda *given: pytest.fail("it was made before"))
    assert generated_meshes(1, 300, 7, root=tmp_path).sha256 == first.sha256
    monkeypatch.undo()
    (path,) = tmp_path.iterdir()
    spoilt = bytearray(path.read_bytes())
    spoilt[-1000] ^= 1
    path.write_bytes(spoilt)
    with pytest.warns(UserWarning, match="made anew"):
        assert generated_meshes(1, 300, 7, root=tmp_path).sha256 == first.sha256


# --- what is no mesh -------------------------------------------------------------------------------------------------

POINTS = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.5, 0.5]])
TRIANGLES = np.array([[0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4]])
TAGS = np.array([1, 1, 1, 1, 0])
APART = np.array([[2.0, 0.0], [3.0, 0.0], [2.0, 1.0]])
WRONG = {
    "inverted": (POINTS, TRIANGLES[:, ::-1], TAGS, "positive area"),
    "one inverted": (POINTS, np.concatenate([TRIANGLES[:3], [[0, 3, 4]]]), TAGS, "1 of 4 inverted"),
    "flat": (POINTS, np.concatenate([TRIANGLES, [[0, 4, 2]]]), TAGS, "flat"),
    "isolated element": (
        np.concatenate([POINTS, APART]),
        np.concatenate([TRIANGLES, [[5, 6, 7]]]),
        np.concatenate([TAGS, [1, 1, 1]]),
        "isolated triangle",
    ),
    "isolated node": (np.concatenate([POINTS, APART[:1]]), TRIANGLES, np.concatenate([TAGS, [1]]), "isolated nodes"),
    "cut": (POINTS, TRIANGLES[[0, 2]], np.ones(5, dtype=int), "2 parts"),
    "doubled": (POINTS, np.concatenate([TRIANGLES, TRIANGLES[:1], TRIANGLES[:1]]), TAGS, "doubled"),
    "no tags": (POINTS, TRIANGLES, np.zeros(5, dtype=int), "4 of 4 without"),
    "unknown tag": (POINTS, TRIANGLES, np.array([1, 1, 7, 1, 0]), "7"),
    "insulated all round": (POINTS, TRIANGLES, np.array([2, 2, 2, 2, 0]), "held"),
    "NaN": (np.where(POINTS == 0.5, np.nan, POINTS), TRIANGLES, TAGS, "NaN"),
    "numbers of other nodes": (POINTS, TRIANGLES + 1, TAGS, "0 to 4"),
    "quadrilaterals": (POINTS, np.array([[0, 1, 2, 3]]), TAGS, "triangles"),
    "triangles in space": (np.zeros((5, 3)), TRIANGLES, TAGS, "tetrahedra"),
    "on a line": (np.zeros((5, 1)), TRIANGLES, TAGS, "in the plane or in space"),
    "too few tags": (POINTS, TRIANGLES, TAGS[:3], "tags"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_mesh_is_refused_in_a_sentence_with_a_remedy(name: str) -> None:
    points, triangles, tags, word = WRONG[name]
    with refused_with(word):
        Mesh(points, np.asarray(triangles), np.asarray(tags))


def test_a_mesh_of_the_plane_is_accepted() -> None:
    mesh = Mesh(POINTS, TRIANGLES, TAGS)
    assert mesh.weights.sum() == pytest.approx(1.0)
    assert features(mesh, np.ones(5)).shape == (5, POISSON.channels)
    with pytest.raises(ContinuaError, match="as many sources"):
        features(mesh, np.ones(4))


def test_too_few_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match="resolves its holes"):
        meshed(SQUARE, 20, np.random.default_rng(0))
