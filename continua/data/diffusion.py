"""Diffusion in random solids: −Δu = f on tetrahedra by finite elements, and clouds of their nodes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from continua.data.generation import ShareDone
from continua.data.mesh import HELD, Mesh
from continua.data.mesh_features import DIFFUSION, features
from continua.data.mesh_pairs import MeshPairs, Sample, gathered, single
from continua.data.poisson import finite_elements
from continua.data.simplices import Numbers
from continua.data.solids import random_solid, solid_mesh
from continua.data.sources import Source
from continua.errors import SolveError
from continua.settings import Seed, Size, checked

WAVES = 2  # of the source, along each direction
FINEST = 6000  # nodes of the mesh that a cloud of fewer points is taken from
CLOSE = 1e-8  # of the right side: where conjugate gradients end


@dataclass(frozen=True, eq=False)
class SolidProblem:
    """A mesh, the source at its nodes, and the solution there."""

    mesh: Mesh
    source: Numbers
    answer: Numbers


def solid_problem(n: int, seed: int, i: int) -> SolidProblem:
    """Problem i of a seed in a mesh of ``n`` nodes or a few more: solid and source are functions of (seed, i)."""
    solid = random_solid(np.random.default_rng([5, seed, i]))
    source = Source.drawn(np.random.default_rng([6, seed, i]), 3, WAVES)
    mesh = solid_mesh(solid, n, np.random.default_rng([7, seed, i, n]))
    return SolidProblem(mesh, source(mesh.points), diffused(mesh, source))


@checked
def diffusion_points(count: Size, n: Size = 2000, seed: Seed = 0, watch: ShareDone | None = None) -> MeshPairs:
    """−Δu = f in random solids, u = 0 or ∂u/∂ν = 0 on each surface: (f, boundary) ↦ u at ``n`` points.

    The points are nodes of a mesh of ``FINEST`` nodes, or of ``n`` where that is more; each has the mass of the nodes
    that lie nearest to it.
    """
    return gathered(DIFFUSION.name, count, n * (DIFFUSION.channels + 5), lambda i: _sample(n, seed, i), watch)


def _sample(n: int, seed: int, i: int) -> Sample:
    from scipy.spatial import cKDTree

    problem = solid_problem(max(n, FINEST), seed, i)
    mesh = problem.mesh
    rows = np.sort(np.random.default_rng([8, seed, i, n]).permutation(len(mesh))[:n])
    _, owner = cKDTree(mesh.points[rows]).query(mesh.points)
    weights = np.bincount(owner, mesh.weights, minlength=n).astype(np.float64)
    inputs = features(mesh, problem.source)[rows]
    none = torch.empty(0, 4, dtype=torch.int32)
    return Sample(single(inputs), single(problem.answer[rows, None]), single(mesh.points[rows]), single(weights), none)


def diffused(mesh: Mesh, source: Source) -> Numbers:
    """u at the nodes of a mesh of tetrahedra, by elements of first order and conjugate gradients."""
    skfem = finite_elements()
    net = skfem.MeshTet(mesh.points.T.copy(), mesh.cells.T.copy(), sort_t=False)
    basis = skfem.Basis(net, skfem.ElementTetP1(), intorder=2)

    def stiffness(u: Any, v: Any, w: Any) -> Any:
        return u.grad[0] * v.grad[0] + u.grad[1] * v.grad[1] + u.grad[2] * v.grad[2]

    def load(v: Any, w: Any) -> Any:
        return w["f"] * v

    matrix = skfem.BilinearForm(stiffness).assemble(skfem.Basis(net, skfem.ElementTetP1(), intorder=1))
    strength = basis.interpolate(source(mesh.points))
    right = skfem.LinearForm(load).assemble(basis, f=strength)
    return _solved(matrix, right, np.flatnonzero(mesh.tags == HELD))


def _solved(matrix: Any, right: Numbers, known: Any) -> Numbers:
    """Zero where it is known; conjugate gradients behind the diagonal elsewhere."""
    from scipy.sparse import diags
    from scipy.sparse.linalg import cg

    free = np.setdiff1d(np.arange(len(right)), known)
    inner = matrix[free][:, free]
    found, failed = cg(inner, right[free], rtol=CLOSE, M=diags(1 / inner.diagonal()), maxiter=5000)
    if failed:
        raise SolveError("conjugate gradients did not end", got=f"{len(free)} nodes", remedy="Use another seed.")
    answer: Numbers = np.zeros(len(right))
    answer[free] = found
    return answer
