"""Poisson's equation on random polygons with holes, solved by finite elements on meshes that are never alike."""

import functools
import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from continua import memory
from continua.axes import Grid, Interval, Product
from continua.data.generation import ShareDone, check_finite
from continua.data.mesh import HELD, INSULATED, Mesh, Numbers
from continua.data.polygons import meshed, random_polygon
from continua.errors import ConfigError, ContinuaError, ShapeError
from continua.settings import Seed, Size, checked
from continua.typing import Tensor

SQUARE = Product((Interval(), Interval()))  # polygons lie in it
CHANNELS = ("source", "held", "insulated", "distance to held", "distance to insulated", "x", "y")
WAVES = 4  # of the source, along each direction
LARGE = 4000  # nodes: a mesh with fewer is solved with elements of second order
STRENGTH = 10.0  # of the source


@dataclass(frozen=True, eq=False)
class MeshPairs:
    """Functions on meshes with one number of nodes: inputs[i] ↦ outputs[i] at the nodes of mesh i.

    ``inputs`` [count, n, channels], ``outputs`` [count, n, 1], ``points`` [count, n, 2] and ``weights`` [count, n], the
    lumped masses. ``triangles`` are those of all meshes, one after the other; mesh i has ``sizes[i]`` of them.
    """

    name: str
    inputs: Tensor
    outputs: Tensor
    points: Tensor
    weights: Tensor
    triangles: Tensor
    sizes: Tensor

    def __post_init__(self) -> None:
        count, nodes = self.weights.shape
        shapes = [x.shape[:2] for x in (self.inputs, self.outputs, self.points)]
        if any(shape != (count, nodes) for shape in shapes) or len(self.sizes) != count:
            got = f"inputs {list(self.inputs.shape)}, outputs {list(self.outputs.shape)}, weights {[count, nodes]}"
            raise ShapeError("functions on meshes have values at every node", got=got, remedy="Give one row a mesh.")
        for what in ("inputs", "outputs", "points", "weights"):
            check_finite(getattr(self, what), what)

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def nodes(self) -> int:
        """How many each mesh has."""
        return self.weights.shape[1]

    def grid(self, rows: Any = slice(None)) -> Grid:
        """The nodes of some meshes with their measure."""
        return Grid(self.points[rows].float(), self.weights[rows].float())

    def part(self, rows: slice) -> "MeshPairs":
        """Some of the meshes."""
        if not len(self.weights[rows]):
            raise ConfigError("no mesh is chosen", got=f"{rows.start}:{rows.stop}", remedy=f"There are {len(self)}.")
        ends = self.sizes.cumsum(0)
        chosen = torch.arange(len(self))[rows]
        pieces = [self.triangles[int(ends[i] - self.sizes[i]) : int(ends[i])] for i in chosen]
        values = {what: getattr(self, what)[rows] for what in ("inputs", "outputs", "points", "weights", "sizes")}
        return replace(self, triangles=torch.cat(pieces), **values)

    def triangles_of(self, i: int) -> Tensor:
        """The triangles [m, 3] of mesh i."""
        ends = self.sizes.cumsum(0)
        return self.triangles[int(ends[i] - self.sizes[i]) : int(ends[i])]

    @cached_property
    def sha256(self) -> str:
        """Names the content: numbers measured on other data cannot be compared."""
        digest = hashlib.sha256(self.name.encode())
        for values in (self.inputs, self.outputs, self.points, self.weights, self.triangles):
            digest.update(f"{values.dtype} {tuple(values.shape)}".encode())
            digest.update(values.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


@checked
def poisson_meshes(count: Size, n: Size = 700, seed: Seed = 0, watch: ShareDone | None = None) -> MeshPairs:
    """−Δu = f on random polygons with holes, u = 0 or ∂u/∂ν = 0 on each ring: (f, boundary) ↦ u at ``n`` mesh nodes.

    Polygon i and its source are functions of (seed, i), its mesh of (seed, i, n): sets of other sizes show the same
    problems on other meshes. Finite elements of second order (of first order above 4,000 nodes) give u.
    """
    memory.require(8 * 2 * count * n * (len(CHANNELS) + 4), f"{count} meshes of {n} nodes", "Ask for fewer.")
    made = []
    for i in range(count):
        made.append(_sample(n, seed, i))
        if watch is not None:
            watch((i + 1) / count)
    inputs, outputs, points, weights, triangles = zip(*made, strict=True)
    return MeshPairs(
        name="poisson",
        inputs=torch.stack(inputs),
        outputs=torch.stack(outputs),
        points=torch.stack(points),
        weights=torch.stack(weights),
        triangles=torch.cat(triangles),
        sizes=torch.tensor([len(each) for each in triangles]),
    )


def _sample(n: int, seed: int, i: int) -> tuple[Tensor, ...]:
    polygon = random_polygon(np.random.default_rng([1, seed, i]))
    source = Source.drawn(np.random.default_rng([2, seed, i]))
    mesh = meshed(polygon, n, np.random.default_rng([3, seed, i, n]))
    u = solved(mesh, source)
    inputs = features(mesh, source(mesh.points))
    whole = (inputs, u[:, None], mesh.points, mesh.weights)
    return *(torch.from_numpy(x).float() for x in whole), torch.from_numpy(mesh.triangles).int()


@dataclass(frozen=True, eq=False)
class Source:
    """f(x) = a₀ + Σ_k a_k cos(πk·x + φ_k): a level and some waves."""

    level: float
    sizes: Numbers
    phases: Numbers

    @classmethod
    def drawn(cls, draw: np.random.Generator) -> "Source":
        """Waves of normal size, smaller the shorter they are."""
        k = _wave_numbers()
        sizes = STRENGTH * draw.normal(size=len(k)) / (1 + (k**2).sum(-1))
        return cls(STRENGTH * float(draw.normal()) / 2, sizes, draw.uniform(0, 2 * np.pi, len(k)))

    def __call__(self, points: Numbers) -> Numbers:
        """f at points [..., 2]."""
        angles = np.pi * points @ _wave_numbers().T + self.phases
        found: Numbers = self.level + np.cos(angles) @ self.sizes
        return found


@functools.cache
def _wave_numbers() -> Numbers:
    k = np.arange(-WAVES, WAVES + 1)
    pairs = np.stack(np.meshgrid(k, k, indexing="ij"), -1).reshape(-1, 2)
    half = (pairs[:, 0] > 0) | ((pairs[:, 0] == 0) & (pairs[:, 1] > 0))
    found: Numbers = pairs[half].astype(np.float64)
    return found


def features(mesh: Mesh, source: Numbers) -> Numbers:
    """What a model reads at each node, [n, 7]: see ``CHANNELS``; coordinates run from −1 to 1."""
    if source.shape != (len(mesh),):
        remedy = "Give one value of f for each node."
        raise ShapeError(f"{len(mesh)} nodes have as many sources", got=list(source.shape), remedy=remedy)
    columns = [
        source / STRENGTH,
        mesh.tags == HELD,
        mesh.tags == INSULATED,
        mesh.distances(HELD) / 0.1,
        mesh.distances(INSULATED) / 0.5,
        2 * mesh.points[:, 0] - 1,
        2 * mesh.points[:, 1] - 1,
    ]
    found: Numbers = np.stack([np.asarray(x, dtype=np.float64) for x in columns], -1)
    return found


def solved(mesh: Mesh, source: Source, order: int | None = None) -> Numbers:
    """u at the nodes, by finite elements of the given order: second below ``LARGE`` nodes, first above, by default."""
    skfem = _skfem()
    order = order if order is not None else 2 if len(mesh) < LARGE else 1
    net = skfem.MeshTri(mesh.points.T.copy(), mesh.triangles.T.copy(), sort_t=False)
    element = skfem.ElementTriP2() if order == 2 else skfem.ElementTriP1()
    basis = skfem.Basis(net, element, intorder=2 * order + 1)

    def stiffness(u: Any, v: Any, w: Any) -> Any:
        return u.grad[0] * v.grad[0] + u.grad[1] * v.grad[1]

    def load(v: Any, w: Any) -> Any:
        return w["f"] * v

    matrix = skfem.BilinearForm(stiffness).assemble(basis)
    strength = source(np.moveaxis(np.asarray(basis.global_coordinates()), 0, -1))
    right = skfem.LinearForm(load).assemble(basis, f=strength)
    facets = net.boundary_facets()
    held = facets[(mesh.tags[net.facets[:, facets]] == HELD).all(0)]
    known = basis.get_dofs(held)
    found = skfem.solve(*skfem.condense(matrix, right, D=known))
    answer: Numbers = found[basis.nodal_dofs[0]]
    return answer


def _skfem() -> Any:
    try:
        import skfem
    except ImportError as absent:
        remedy = "Install it: pip install 'continua-ml[mesh]'."
        raise ContinuaError("finite elements need scikit-fem", got="none", remedy=remedy) from absent
    return skfem
