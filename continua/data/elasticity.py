"""Plane strain on random polygons with holes, solved by finite elements on meshes that are never alike."""

from typing import Any

import numpy as np

from continua.data.generation import ShareDone
from continua.data.mesh import Mesh
from continua.data.mesh_features import ELASTICITY, features
from continua.data.mesh_pairs import MeshPairs, Sample, gathered, sample_of
from continua.data.poisson import LARGE, WAVES, finite_elements, held_facets
from continua.data.polygons import meshed, random_polygon
from continua.data.simplices import Numbers
from continua.data.sources import Source
from continua.settings import Seed, Size, checked

POISSON_RATIO = 0.3
# Lamé's numbers for Young's modulus 1: of another modulus E the displacements are 1/E times these
LAME = POISSON_RATIO / ((1 + POISSON_RATIO) * (1 - 2 * POISSON_RATIO))
SHEAR = 1 / (2 * (1 + POISSON_RATIO))


@checked
def elasticity_meshes(count: Size, n: Size = 700, seed: Seed = 0, watch: ShareDone | None = None) -> MeshPairs:
    """−div σ = f, σ = λ tr ε + 2μ ε, ε = (∇u + ∇uᵀ)/2 in plane strain: (f, boundary) ↦ u ∈ ℝ² at ``n`` mesh nodes.

    Young's modulus is 1 and Poisson's ratio 0.3. The outer boundary is clamped (u = 0); a hole is clamped or free of
    forces. Polygons are those of ``poisson_meshes``; a force is two sources.
    """
    numbers = n * (ELASTICITY.channels + 5)
    return gathered(ELASTICITY.name, count, numbers, lambda i: _sample(n, seed, i), watch)


def _sample(n: int, seed: int, i: int) -> Sample:
    polygon = random_polygon(np.random.default_rng([1, seed, i]))
    forces = tuple(Source.drawn(np.random.default_rng([4, seed, i, along]), 2, WAVES) for along in range(2))
    mesh = meshed(polygon, n, np.random.default_rng([3, seed, i, n]))
    u = displaced(mesh, forces)
    force = np.stack([each(mesh.points) for each in forces], -1)
    return sample_of(mesh, features(mesh, force), u)


def displaced(mesh: Mesh, forces: tuple[Source, ...], order: int | None = None) -> Numbers:
    """u [n, 2] at the nodes, by finite elements of the given order: second below ``LARGE`` nodes, first above."""
    skfem = finite_elements()
    order = order if order is not None else 2 if len(mesh) < LARGE else 1
    net = skfem.MeshTri(mesh.points.T.copy(), mesh.cells.T.copy(), sort_t=False)
    element = skfem.ElementTriP2() if order == 2 else skfem.ElementTriP1()
    basis = skfem.Basis(net, skfem.ElementVector(element), intorder=2 * order + 1)

    def stiffness(u: Any, v: Any, w: Any) -> Any:
        a = u.grad
        b = v.grad
        strain = a[0][0] * b[0][0] + a[1][1] * b[1][1] + 0.5 * (a[0][1] + a[1][0]) * (b[0][1] + b[1][0])
        return LAME * (a[0][0] + a[1][1]) * (b[0][0] + b[1][1]) + 2 * SHEAR * strain

    def load(v: Any, w: Any) -> Any:
        return w["f"] * v[0] + w["g"] * v[1]

    matrix = skfem.BilinearForm(stiffness).assemble(basis)
    places = np.moveaxis(np.asarray(basis.global_coordinates()), 0, -1)
    right = skfem.LinearForm(load).assemble(basis, f=forces[0](places), g=forces[1](places))
    known = basis.get_dofs(held_facets(net, mesh))
    found = skfem.solve(*skfem.condense(matrix, right, D=known))
    answer: Numbers = found[basis.nodal_dofs].T
    return answer
