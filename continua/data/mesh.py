"""Triangle meshes of plane domains: what is checked of them, their measure, their boundary and distances to it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from continua.errors import GridError, ShapeError

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]

INSIDE = 0  # a node that is on no boundary
HELD = 1  # u = 0 there
INSULATED = 2  # nothing flows through: the normal slope of u is zero
FAR = 0.5  # distances are cut here, and are this where there is no such boundary
AT_ONCE = 2**21  # pairs of nodes and edges that are measured at a time
FLAT = 1e-12  # of the area of the box around a mesh: a smaller triangle has none


@dataclass(frozen=True, eq=False)
class Mesh:
    """Nodes [n, 2], triangles [m, 3] of their numbers, and the boundary tag of each node.

    Tags are ``INSIDE``, ``HELD`` (u = 0) or ``INSULATED`` (∂u/∂ν = 0). What is no mesh of one connected domain is
    refused: triangles that are inverted, flat or isolated, nodes that no triangle has, a domain that is cut in parts,
    boundary nodes without a tag.
    """

    points: Numbers
    triangles: Indices
    tags: Indices

    def __post_init__(self) -> None:
        _check_arrays(self)
        _check_areas(self)
        _check_parts(self)
        _check_tags(self)

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def areas(self) -> Numbers:
        """The area of each triangle; below zero where its nodes go clockwise."""
        return signed_areas(self.points, self.triangles)

    @cached_property
    def weights(self) -> Numbers:
        """The lumped mass: a third of the area of all triangles around a node. They sum to the area of the domain."""
        made = np.zeros(len(self.points))
        np.add.at(made, self.triangles.reshape(-1), np.repeat(self.areas / 3, 3))
        return made

    @cached_property
    def edges(self) -> Indices:
        """The edges of the boundary, [k, 2]: those of one triangle alone."""
        pairs, counts = _edges(self.triangles)
        return pairs[counts == 1]

    def distances(self, tag: int) -> Numbers:
        """How far each node lies from the boundary with a tag, at most ``FAR``."""
        on = self.tags[self.edges] == tag
        # where the two kinds meet the corner is held, so one end is enough for an insulated edge
        chosen = self.edges[on.any(1) if tag == INSULATED else on.all(1)]
        return distances(self.points, self.points[chosen[:, 0]], self.points[chosen[:, 1]])


def signed_areas(points: Numbers, triangles: Indices) -> Numbers:
    """Half of the cross product of two sides of each triangle."""
    a = points[triangles[:, 1]] - points[triangles[:, 0]]
    b = points[triangles[:, 2]] - points[triangles[:, 0]]
    found: Numbers = 0.5 * (a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0])
    return found


def distances(points: Numbers, starts: Numbers, ends: Numbers) -> Numbers:
    """The distance [n] of points to the nearest of some segments, at most ``FAR``."""
    found = np.full(len(points), FAR)
    if not len(starts):
        return found
    rows = max(1, AT_ONCE // len(starts))
    along = ends - starts
    square = np.maximum((along**2).sum(-1), np.finfo(np.float64).tiny)
    for first in range(0, len(points), rows):
        part = slice(first, first + rows)
        from_start = points[part, None] - starts
        share = np.clip((from_start * along).sum(-1) / square, 0.0, 1.0)
        gap = from_start - share[..., None] * along
        found[part] = np.minimum(FAR, np.sqrt((gap**2).sum(-1)).min(-1))
    return found


def boundary_nodes(triangles: Indices) -> Indices:
    """The numbers of the nodes that lie on an edge of one triangle alone."""
    pairs, counts = _edges(triangles)
    found: Indices = np.unique(pairs[counts == 1])
    return found


def _edges(triangles: Indices) -> tuple[Indices, Indices]:
    """All edges, each once with its lower number first, and of how many triangles it is one."""
    each = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    pairs, counts = np.unique(np.sort(each, 1), axis=0, return_counts=True)
    return pairs, counts


def _check_arrays(mesh: Mesh) -> None:
    points = mesh.points
    triangles = mesh.triangles
    if points.ndim != 2 or points.shape[1] != 2 or not len(points):
        remedy = "Give points [n, 2] of a plane domain."
        raise ShapeError("a mesh has nodes in the plane", got=list(points.shape), remedy=remedy)
    if triangles.ndim != 2 or triangles.shape[1] != 3 or not len(triangles):
        remedy = "Give triangles [m, 3] of the numbers of their nodes; split other cells into triangles."
        raise ShapeError("a mesh is made of triangles", got=list(triangles.shape), remedy=remedy)
    if not np.isfinite(points).all():
        bad = int((~np.isfinite(points)).any(1).sum())
        remedy = "Leave these nodes and their triangles out."
        raise GridError("the nodes of a mesh are finite", got=f"{bad} with NaN or infinity", remedy=remedy)
    if triangles.min() < 0 or triangles.max() >= len(points):
        got = f"{triangles.min()} to {triangles.max()}"
        remedy = "Count nodes from zero."
        raise GridError(f"triangles name the nodes 0 to {len(points) - 1}", got=got, remedy=remedy)
    if mesh.tags.shape != (len(points),):
        remedy = "Give one tag for each node."
        raise ShapeError(f"{len(points)} nodes have as many tags", got=list(mesh.tags.shape), remedy=remedy)


def _check_areas(mesh: Mesh) -> None:
    box = np.prod(np.ptp(mesh.points, axis=0))
    wrong = mesh.areas <= FLAT * box
    if not wrong.any():
        return
    first = int(np.flatnonzero(wrong)[0])
    kind = "inverted" if mesh.areas[first] < 0 else "flat"
    got = f"{int(wrong.sum())} of {len(wrong)} inverted or flat, first triangle {first} ({kind})"
    remedy = "List the nodes of each triangle counter-clockwise (swap two of them), and leave flat ones out."
    raise GridError("triangles have a positive area", got=got, remedy=remedy)


def _check_parts(mesh: Mesh) -> None:
    used = np.zeros(len(mesh.points), dtype=bool)
    used[mesh.triangles] = True
    if not used.all():
        first = int(np.flatnonzero(~used)[0])
        got = f"{int((~used).sum())} in none, first node {first}"
        raise GridError("every node belongs to a triangle", got=got, remedy="Remove the isolated nodes.")
    pairs, counts = _edges(mesh.triangles)
    if counts.max() > 2:
        got = f"{int((counts > 2).sum())} edges of three or more"
        raise GridError("an edge belongs to one or two triangles", got=got, remedy="Remove doubled triangles.")
    sizes = _part_sizes(mesh.triangles, pairs)
    if len(sizes) > 1:
        alone = int((sizes == 1).sum())
        got = f"{len(sizes)} parts, {alone} of them a single isolated triangle"
        remedy = "Remove isolated triangles, move holes that cut the domain, or answer each part as a mesh of its own."
        raise GridError("the triangles of a mesh hang together by their edges", got=got, remedy=remedy)


def _part_sizes(triangles: Indices, pairs: Indices) -> Indices:
    """How many triangles each part has, where neighbours share an edge."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    each = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    width = int(triangles.max()) + 1
    sorted_each = np.sort(each, 1)
    names = np.searchsorted(pairs[:, 0] * width + pairs[:, 1], sorted_each[:, 0] * width + sorted_each[:, 1])
    owners = np.tile(np.arange(len(triangles)), 3)
    graph = coo_matrix((np.ones(len(names)), (owners, names)), shape=(len(triangles), len(pairs))).tocsr()
    _, parts = connected_components(graph @ graph.T, directed=False)
    sizes: Any = np.bincount(parts)
    return np.asarray(sizes, dtype=np.int64)


def _check_tags(mesh: Mesh) -> None:
    known = np.isin(mesh.tags, (INSIDE, HELD, INSULATED))
    tags_said = f"Use {HELD} where u = 0, {INSULATED} where nothing flows through, {INSIDE} inside."
    if not known.all():
        raise GridError("a boundary tag has a meaning", got=int(mesh.tags[~known][0]), remedy=tags_said)
    on_boundary = np.zeros(len(mesh.points), dtype=bool)
    on_boundary[mesh.edges] = True
    missing = on_boundary & (mesh.tags == INSIDE)
    if missing.any():
        got = f"{int(missing.sum())} of {int(on_boundary.sum())} without"
        raise GridError("every node of the boundary has a tag", got=got, remedy=tags_said)
    if not (mesh.tags[on_boundary] == HELD).any():
        got = "an insulated one alone"
        raise GridError("some of the boundary is held", got=got, remedy=f"Tag some of it {HELD}: u is not unique else.")
