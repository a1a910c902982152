"""Meshes of triangles or tetrahedra: what is checked of them, their measure, their boundary and distances to it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from continua.data.simplices import (
    Indices,
    Numbers,
    distances,
    distances_to_faces,
    facets_of,
    parts_of,
    signed_volumes,
)
from continua.errors import GridError, ShapeError

INSIDE = 0  # a node that is on no boundary
HELD = 1  # u = 0 there
INSULATED = 2  # nothing flows through, or no force acts: the normal slope of u, or the traction, is zero
FLAT = 1e-12  # of the box around a mesh: a smaller cell has no size
CELLS = {2: "triangle", 3: "tetrahedron"}
MANY = {2: "triangles", 3: "tetrahedra"}
SIZE = {2: "area", 3: "volume"}
FACETS = {2: "edge", 3: "face"}
IN_ORDER = {2: "counter-clockwise", 3: "so that the last is where the right thumb points round the first three"}


@dataclass(frozen=True, eq=False)
class Mesh:
    """Nodes [n, 2] or [n, 3], triangles [m, 3] or tetrahedra [m, 4] of their numbers, and the tag of each node.

    Tags are ``INSIDE``, ``HELD`` (u = 0) or ``INSULATED`` (∂u/∂ν = 0). What is no mesh of one connected domain is
    refused: cells that are inverted, flat or isolated, nodes that no cell has, a domain that is cut in parts, boundary
    nodes without a tag.
    """

    points: Numbers
    cells: Indices
    tags: Indices

    def __post_init__(self) -> None:
        _check_arrays(self)
        _check_volumes(self)
        _check_parts(self)
        _check_tags(self)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dimension(self) -> int:
        """2 in the plane, 3 in space."""
        return self.points.shape[1]

    @cached_property
    def volumes(self) -> Numbers:
        """The area of each triangle or the volume of each tetrahedron; below zero where it is inverted."""
        return signed_volumes(self.points, self.cells)

    @cached_property
    def weights(self) -> Numbers:
        """The lumped mass: an equal share of all cells around a node. They sum to the size of the domain."""
        made = np.zeros(len(self.points))
        corners = self.cells.shape[1]
        np.add.at(made, self.cells.reshape(-1), np.repeat(self.volumes / corners, corners))
        return made

    @cached_property
    def facets(self) -> Indices:
        """The edges [k, 2] or faces [k, 3] of the boundary: those of one cell alone."""
        found, counts = facets_of(self.cells)
        return found[counts == 1]

    def distances(self, tag: int) -> Numbers:
        """How far each node lies from the boundary with a tag, at most ``FAR``."""
        on = self.tags[self.facets] == tag
        # where the two kinds meet the corner is held, so one end is enough for an insulated facet
        chosen = self.facets[on.any(1) if tag == INSULATED else on.all(1)]
        if self.dimension == 3:
            return distances_to_faces(self.points, self.points[chosen])
        return distances(self.points, self.points[chosen[:, 0]], self.points[chosen[:, 1]])


def _check_arrays(mesh: Mesh) -> None:
    points = mesh.points
    cells = mesh.cells
    if points.ndim != 2 or points.shape[1] not in CELLS or not len(points):
        remedy = "Give points [n, 2] of the plane or [n, 3] of space."
        raise ShapeError("a mesh has nodes in the plane or in space", got=list(points.shape), remedy=remedy)
    corners = points.shape[1] + 1
    many = MANY[points.shape[1]]
    if cells.ndim != 2 or cells.shape[1] != corners or not len(cells):
        remedy = f"Give {many} [m, {corners}] of the numbers of their nodes; split other cells."
        where = "the plane" if corners == 3 else "space"
        raise ShapeError(f"a mesh of {where} is made of {many}", got=list(cells.shape), remedy=remedy)
    if not np.isfinite(points).all():
        bad = int((~np.isfinite(points)).any(1).sum())
        remedy = "Leave these nodes and their cells out."
        raise GridError("the nodes of a mesh are finite", got=f"{bad} with NaN or infinity", remedy=remedy)
    if cells.min() < 0 or cells.max() >= len(points):
        got = f"{cells.min()} to {cells.max()}"
        raise GridError(f"{many} name the nodes 0 to {len(points) - 1}", got=got, remedy="Count nodes from zero.")
    if mesh.tags.shape != (len(points),):
        remedy = "Give one tag for each node."
        raise ShapeError(f"{len(points)} nodes have as many tags", got=list(mesh.tags.shape), remedy=remedy)


def _check_volumes(mesh: Mesh) -> None:
    box = np.prod(np.ptp(mesh.points, axis=0))
    wrong = mesh.volumes <= FLAT * box
    if not wrong.any():
        return
    first = int(np.flatnonzero(wrong)[0])
    kind = "inverted" if mesh.volumes[first] < 0 else "flat"
    cell = CELLS[mesh.dimension]
    got = f"{int(wrong.sum())} of {len(wrong)} inverted or flat, first {cell} {first} ({kind})"
    order = IN_ORDER[mesh.dimension]
    remedy = f"List the nodes of each {cell} {order} (swap two of them), and leave flat ones out."
    raise GridError(f"{MANY[mesh.dimension]} have a positive {SIZE[mesh.dimension]}", got=got, remedy=remedy)


def _check_parts(mesh: Mesh) -> None:
    cell = CELLS[mesh.dimension]
    many = MANY[mesh.dimension]
    facet = FACETS[mesh.dimension]
    used = np.zeros(len(mesh.points), dtype=bool)
    used[mesh.cells] = True
    if not used.all():
        first = int(np.flatnonzero(~used)[0])
        got = f"{int((~used).sum())} in none, first node {first}"
        raise GridError(f"every node belongs to a {cell}", got=got, remedy="Remove the isolated nodes.")
    _, counts = facets_of(mesh.cells)
    if counts.max() > 2:
        got = f"{int((counts > 2).sum())} {facet}s of three or more"
        raise GridError(f"each {facet} belongs to one or two {many}", got=got, remedy=f"Remove doubled {many}.")
    sizes = np.bincount(parts_of(mesh.cells))
    if len(sizes) > 1:
        alone = int((sizes == 1).sum())
        got = f"{len(sizes)} parts, {alone} of them a single isolated {cell}"
        remedy = f"Remove isolated {many}, move holes that cut the domain, or answer each part as a mesh of its own."
        raise GridError(f"the {many} of a mesh hang together by their {facet}s", got=got, remedy=remedy)


def _check_tags(mesh: Mesh) -> None:
    known = np.isin(mesh.tags, (INSIDE, HELD, INSULATED))
    tags_said = f"Use {HELD} where u = 0, {INSULATED} where nothing flows through, {INSIDE} inside."
    if not known.all():
        raise GridError("a boundary tag has a meaning", got=int(mesh.tags[~known][0]), remedy=tags_said)
    on_boundary = np.zeros(len(mesh.points), dtype=bool)
    on_boundary[mesh.facets] = True
    missing = on_boundary & (mesh.tags == INSIDE)
    if missing.any():
        got = f"{int(missing.sum())} of {int(on_boundary.sum())} without"
        raise GridError("every node of the boundary has a tag", got=got, remedy=tags_said)
    if not (mesh.tags[on_boundary] == HELD).any():
        got = "an insulated one alone"
        raise GridError("some of the boundary is held", got=got, remedy=f"Tag some of it {HELD}: u is not unique else.")
