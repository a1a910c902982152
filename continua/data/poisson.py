"""Poisson's equation on random polygons with holes, solved by finite elements on meshes that are never alike."""

from typing import Any

import numpy as np

from continua.data.generation import ShareDone
from continua.data.mesh import HELD, Mesh
from continua.data.mesh_features import POISSON, features
from continua.data.mesh_pairs import MeshPairs, Sample, gathered, sample_of
from continua.data.polygons import meshed, random_polygon
from continua.data.simplices import Numbers
from continua.data.sources import Source
from continua.errors import ContinuaError
from continua.settings import Seed, Size, checked

WAVES = 4  # of the source, along each direction
LARGE = 4000  # nodes: a mesh with fewer is solved with elements of second order


@checked
def poisson_meshes(count: Size, n: Size = 700, seed: Seed = 0, watch: ShareDone | None = None) -> MeshPairs:
    """−Δu = f on random polygons with holes, u = 0 or ∂u/∂ν = 0 on each ring: (f, boundary) ↦ u at ``n`` mesh nodes.

    Polygon i and its source are functions of (seed, i), its mesh of (seed, i, n): sets of other sizes show the same
    problems on other meshes. Finite elements of second order (of first order above 4,000 nodes) give u.
    """
    numbers = n * (POISSON.channels + 4)
    return gathered(POISSON.name, count, numbers, lambda i: _sample(n, seed, i), watch)


def _sample(n: int, seed: int, i: int) -> Sample:
    polygon = random_polygon(np.random.default_rng([1, seed, i]))
    source = Source.drawn(np.random.default_rng([2, seed, i]), 2, WAVES)
    mesh = meshed(polygon, n, np.random.default_rng([3, seed, i, n]))
    u = solved(mesh, source)
    return sample_of(mesh, features(mesh, source(mesh.points)), u[:, None])


def solved(mesh: Mesh, source: Source, order: int | None = None) -> Numbers:
    """u at the nodes, by finite elements of the given order: second below ``LARGE`` nodes, first above, by default."""
    skfem = finite_elements()
    order = order if order is not None else 2 if len(mesh) < LARGE else 1
    net = skfem.MeshTri(mesh.points.T.copy(), mesh.cells.T.copy(), sort_t=False)
    element = skfem.ElementTriP2() if order == 2 else skfem.ElementTriP1()
    basis = skfem.Basis(net, element, intorder=2 * order + 1)

    def stiffness(u: Any, v: Any, w: Any) -> Any:
        return u.grad[0] * v.grad[0] + u.grad[1] * v.grad[1]

    def load(v: Any, w: Any) -> Any:
        return w["f"] * v

    matrix = skfem.BilinearForm(stiffness).assemble(basis)
    strength = source(np.moveaxis(np.asarray(basis.global_coordinates()), 0, -1))
    right = skfem.LinearForm(load).assemble(basis, f=strength)
    known = basis.get_dofs(held_facets(net, mesh))
    found = skfem.solve(*skfem.condense(matrix, right, D=known))
    answer: Numbers = found[basis.nodal_dofs[0]]
    return answer


def held_facets(net: Any, mesh: Mesh) -> Any:
    """The numbers that scikit-fem has for the facets where u = 0."""
    facets = net.boundary_facets()
    return facets[(mesh.tags[net.facets[:, facets]] == HELD).all(0)]


def finite_elements() -> Any:
    """scikit-fem, or a sentence where it is missing."""
    try:
        import skfem
    except ImportError as absent:
        remedy = "Install it: pip install 'continua-ml[mesh]'."
        raise ContinuaError("finite elements need scikit-fem", got="none", remedy=remedy) from absent
    return skfem
