"""Random solids, their meshes of tetrahedra, diffusion in them, plane strain, and solids that are refused."""

import numpy as np
import pytest
import torch

from continua.data.diffusion import SolidProblem, diffused, diffusion_points, solid_problem
from continua.data.elasticity import LAME, SHEAR, displaced, elasticity_meshes
from continua.data.mesh import HELD, INSULATED, Mesh
from continua.data.mesh_features import DIFFUSION, ELASTICITY, features
from continua.data.mesh_store import generated_meshes
from continua.data.polygons import Polygon, meshed
from continua.data.simplices import FAR, distances_to_faces
from continua.data.solids import Piece, Shape, Solid, random_solid, solid_mesh
from continua.data.sources import Source, wave_numbers
from continua.errors import ConfigError
from tests.measure import slope
from tests.refusals import refused_with

pytestmark = pytest.mark.spec("B16")
BOX = Solid((Piece(Shape.BOX, np.full(3, 0.5), np.full(3, 0.4), np.eye(3)),), (), (True,))
HOLLOW = Piece(Shape.BALL, np.full(3, 0.5), np.full(3, 0.15), np.eye(3))
BALL = Piece(Shape.BALL, np.full(3, 0.5), np.full(3, 0.4), np.eye(3))
SQUARE = Polygon((np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]),), (True,))


def constant(level: float) -> Source:
    numbers = wave_numbers(3, 1)
    return Source(numbers, level, np.zeros(len(numbers)), np.zeros(len(numbers)))


def ball(n: int) -> Mesh:
    return solid_mesh(Solid((BALL,), (), (True,)), n, np.random.default_rng(0))


@pytest.fixture(scope="module")
def coarse() -> Mesh:
    return ball(1000)


@pytest.fixture(scope="module")
def problem() -> SolidProblem:
    return solid_problem(1500, 0, 2)


def test_a_solid_has_its_nodes_its_volume_and_a_tag_for_each_surface() -> None:
    hollow = Solid((BALL,), (HOLLOW,), (True, False))
    mesh = solid_mesh(hollow, 4000, np.random.default_rng(0))
    assert 4000 <= len(mesh) < 5000
    assert mesh.weights.sum() == pytest.approx(4 / 3 * np.pi * (0.4**3 - 0.15**3), rel=0.02)
    edge = np.unique(mesh.facets)
    far = np.abs(hollow.distance(mesh.points[edge]))
    assert far.max() < 1e-5  # on the surface
    radius = np.sqrt(((mesh.points - 0.5) ** 2).sum(1))
    assert (radius[mesh.tags == INSULATED] < 0.25).all()
    assert (radius[mesh.tags == HELD] > 0.25).all()
    assert mesh.volumes.min() > 0


def test_random_solids_are_functions_of_their_seed_and_none_is_like_another(problem: SolidProblem) -> None:
    again = solid_problem(1500, 0, 2)
    assert np.array_equal(again.mesh.points, problem.mesh.points)
    assert np.array_equal(again.answer, problem.answer)
    first = random_solid(np.random.default_rng(0))
    other = random_solid(np.random.default_rng(1))
    assert first.pieces[0].half[0] != other.pieces[0].half[0]
    assert (problem.mesh.points > 0).all()
    assert (problem.mesh.points < 1).all()
    assert np.abs(problem.answer[problem.mesh.tags == HELD]).max() == 0


def test_diffusion_in_a_ball_is_known(coarse: Mesh) -> None:
    """−Δu = 6 in a ball of radius R with u = 0 outside: u = R² − r²."""

    def error(mesh: Mesh) -> float:
        exact = 0.16 - ((mesh.points - 0.5) ** 2).sum(1)
        gap = np.average((diffused(mesh, constant(6.0)) - exact) ** 2, weights=mesh.weights)
        return float(np.sqrt(gap / np.average(exact**2, weights=mesh.weights)))

    finer = ball(5000)
    assert error(finer) < 0.005
    assert slope([1000 ** (1 / 3), 5000 ** (1 / 3)], [error(coarse), error(finer)]) > 1.4


def test_distances_to_the_faces_of_a_box() -> None:
    mesh = solid_mesh(BOX, 3000, np.random.default_rng(0))
    low, high = mesh.points.min(0), mesh.points.max(0)
    assert np.abs(low - 0.1).max() < 0.02
    assert np.abs(high - 0.9).max() < 0.02
    face = np.array([[[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    points = np.array([[0.2, 0.2, 0.3], [-0.3, 0.0, 0.0], [0.6, 0.6, 0.0], [0.0, 0.0, 2.0]])
    wanted = [0.3, 0.3, 0.1 * np.sqrt(2), FAR]
    assert np.abs(distances_to_faces(points, face) - wanted).max() < 1e-12
    assert (distances_to_faces(points, face[:0]) == FAR).all()
    assert (mesh.distances(INSULATED) == FAR).all()
    assert features(mesh, np.ones(len(mesh))).shape == (len(mesh), DIFFUSION.channels)


def test_clouds_of_a_solid_have_its_volume(tmp_path, monkeypatch, problem: SolidProblem) -> None:
    monkeypatch.setattr("continua.data.diffusion.FINEST", 1500)
    pairs = generated_meshes(1, 1200, 0, root=tmp_path, equation=DIFFUSION)
    assert pairs.inputs.shape == (1, 1200, DIFFUSION.channels)
    assert pairs.points.shape == (1, 1200, 3)
    assert len(pairs.cells_of(0)) == 0
    whole = solid_problem(1500, 0, 0).mesh.weights.sum()
    assert float(pairs.weights.sum()) == pytest.approx(float(whole), rel=1e-5)
    assert generated_meshes(1, 1200, 0, root=tmp_path, equation=DIFFUSION).sha256 == pairs.sha256
    assert torch.equal(diffusion_points(1, 1200, 0).outputs, pairs.outputs)


# --- plane strain ----------------------------------------------------------------------------------------------------


def test_plane_strain_finds_a_displacement_that_is_known() -> None:
    """u = (sin πx sin πy, 0) asks for the force −(λ + μ)∇div u − μΔu."""
    numbers = wave_numbers(2, 2)

    def waves(plus: float, minus: float) -> Source:
        """plus · cos π(x + y) + minus · cos π(x − y)."""
        sizes = np.zeros(len(numbers))
        sizes[(numbers == (1, 1)).all(1)] = plus
        sizes[(numbers == (1, -1)).all(1)] = minus
        return Source(numbers, 0.0, sizes, np.zeros(len(numbers)))

    both = np.pi**2 * (LAME + 3 * SHEAR) / 2  # of sin sin = ½ cos π(x − y) − ½ cos π(x + y)
    cross = -(np.pi**2) * (LAME + SHEAR) / 2  # of cos cos = ½ cos π(x − y) + ½ cos π(x + y)
    forces = (waves(-both, both), waves(cross, cross))

    def error(n: int, order: int) -> float:
        mesh = meshed(SQUARE, n, np.random.default_rng(0))
        exact = np.sin(np.pi * mesh.points[:, 0]) * np.sin(np.pi * mesh.points[:, 1])
        found = displaced(mesh, forces, order)
        return float(np.abs(found - np.stack([exact, 0 * exact], -1)).max())

    assert slope([18, 36], [error(324, 1), error(1296, 1)]) > 1.6
    assert error(324, 2) < 2e-3


def test_a_set_of_plane_strain_has_two_components() -> None:
    pairs = elasticity_meshes(1, 300, seed=5)
    assert pairs.inputs.shape == (1, 300, ELASTICITY.channels)
    assert pairs.outputs.shape == (1, 300, 2)
    clamped = pairs.inputs[..., 2] > 1 - 1e-6
    assert float(pairs.outputs[clamped].abs().max()) < 1e-12
    assert float(pairs.outputs.abs().max()) > 1e-3


# --- what is no solid ------------------------------------------------------------------------------------------------

POINTS = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])
CELLS = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
APART = np.array([[2.0, 0, 0], [3, 0, 0], [2, 1, 0], [2, 0, 1]])
TAGS = np.ones(5, dtype=int)
WRONG = {
    "inverted": (POINTS, CELLS[:, [1, 0, 2, 3]], TAGS, "2 of 2 inverted"),
    "flat": (POINTS, np.array([[0, 1, 2, 2]]), TAGS, "flat"),
    "isolated element": (
        np.concatenate([POINTS, APART]),
        np.concatenate([CELLS, [[5, 6, 7, 8]]]),
        np.ones(9, dtype=int),
        "1 of them a single isolated tetrahedron",
    ),
    "isolated node": (np.concatenate([POINTS, APART[:1]]), CELLS, np.ones(6, dtype=int), "isolated nodes"),
    "doubled": (POINTS, np.concatenate([CELLS, CELLS[:1], CELLS[:1]]), TAGS, "doubled tetrahedra"),
    "no tags": (POINTS, CELLS, np.zeros(5, dtype=int), "5 of 5 without"),
    "insulated all round": (POINTS, CELLS, np.full(5, 2), "held"),
    "numbers of other nodes": (POINTS, CELLS + 1, TAGS, "0 to 4"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_solid_is_refused_in_a_sentence_with_a_remedy(name: str) -> None:
    points, cells, tags, word = WRONG[name]
    with refused_with(word):
        Mesh(points, np.asarray(cells), np.asarray(tags))


def test_a_solid_of_two_tetrahedra_is_accepted() -> None:
    mesh = Mesh(POINTS, CELLS, TAGS)
    assert mesh.weights.sum() == pytest.approx(0.5)
    assert len(mesh.facets) == 6


def test_too_few_nodes_of_a_solid_are_refused() -> None:
    with pytest.raises(ConfigError, match="resolves its holes"):
        solid_mesh(BOX, 100, np.random.default_rng(0))
