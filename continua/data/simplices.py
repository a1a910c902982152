"""Triangles and tetrahedra: sizes, facets, the parts they hang together in, distances to segments and faces."""

from itertools import combinations
from math import factorial

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]

FAR = 0.5  # distances are cut here, and are this where there is nothing to be far from
AT_ONCE = 2**21  # pairs of points and segments that are measured at a time
NEAREST = 12  # faces that are measured for a point: those with the nearest middles


def signed_volumes(points: Numbers, cells: Indices) -> Numbers:
    """The area of each triangle [m, 3] of the plane, or the volume of each tetrahedron [m, 4]; < 0 if inverted."""
    sides = points[cells[:, 1:]] - points[cells[:, :1]]
    found: Numbers = np.linalg.det(sides) / factorial(points.shape[1])
    return found


def facets_of(cells: Indices) -> tuple[Indices, Indices]:
    """All facets, each once with its numbers rising, and of how many cells it is one."""
    every = _each_facet(cells)
    _, first, counts = np.unique(_keys(every), return_index=True, return_counts=True)
    return every[first], counts


def boundary_nodes(cells: Indices) -> Indices:
    """The numbers of the nodes that lie on a facet of one cell alone."""
    facets, counts = facets_of(cells)
    found: Indices = np.unique(facets[counts == 1])
    return found


def parts_of(cells: Indices) -> Indices:
    """The number of the part to which each cell belongs, where neighbours share a facet."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    keys = _keys(_each_facet(cells))
    owners = np.tile(np.arange(len(cells)), cells.shape[1])
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    pairs = (owners[order][same], owners[order][same + 1])
    graph = coo_matrix((np.ones(len(same)), pairs), shape=(len(cells), len(cells)))
    _, parts = connected_components(graph, directed=False)
    return np.asarray(parts, dtype=np.int64)


def _each_facet(cells: Indices) -> Indices:
    """The facets of all cells, one kind after the other, with rising numbers."""
    corners = range(cells.shape[1])
    kinds = combinations(corners, cells.shape[1] - 1)
    every: Indices = np.sort(np.concatenate([cells[:, list(kind)] for kind in kinds]), 1)
    return every


def _keys(facets: Indices) -> Indices:
    """One whole number a facet, rising as its numbers do: up to 2²¹ nodes."""
    base = int(facets.max()) + 1
    made: Indices = facets[:, 0]
    for column in facets.T[1:]:
        made = made * base + column
    return made


def distances(points: Numbers, starts: Numbers, ends: Numbers) -> Numbers:
    """The distance [n] of points to the nearest of some segments, at most ``FAR``."""
    found = np.full(len(points), FAR)
    if not len(starts):
        return found
    rows = max(1, AT_ONCE // len(starts))
    for first in range(0, len(points), rows):
        part = slice(first, first + rows)
        found[part] = np.minimum(FAR, _to_segments(points[part, None], starts, ends).min(-1))
    return found


def distances_to_faces(points: Numbers, faces: Numbers) -> Numbers:
    """The distance [n] of points in space to the nearest of some triangles [k, 3, 3], at most ``FAR``.

    Only the ``NEAREST`` faces by their middles are measured, which is enough where neighbours are of similar size.
    """
    from scipy.spatial import cKDTree

    if not len(faces):
        return np.full(len(points), FAR)
    count = min(NEAREST, len(faces))
    _, near = cKDTree(faces.mean(1)).query(points, count)
    near = np.asarray(near).reshape(len(points), count)
    best = np.full(len(points), FAR)
    for each in near.T:
        best = np.minimum(best, _to_faces(points, faces[each]))
    return best


def _to_segments(points: Numbers, starts: Numbers, ends: Numbers) -> Numbers:
    """The distance of points to segments, shapes as they broadcast."""
    along = ends - starts
    square = np.maximum((along**2).sum(-1), np.finfo(np.float64).tiny)
    from_start = points - starts
    share = np.clip((from_start * along).sum(-1) / square, 0.0, 1.0)
    gap = from_start - share[..., None] * along
    found: Numbers = np.sqrt((gap**2).sum(-1))
    return found


def _to_faces(points: Numbers, faces: Numbers) -> Numbers:
    """The distance of each point to its own triangle: to the plane where its foot lies inside, else to an edge."""
    a, b, c = faces.transpose(1, 0, 2)
    normal = np.cross(b - a, c - a)
    length = np.maximum(np.sqrt((normal**2).sum(-1)), np.finfo(np.float64).tiny)
    normal = normal / length[:, None]
    height = ((points - a) * normal).sum(-1)
    edges = [(a, b), (b, c), (c, a)]
    inside = np.all([(np.cross(end - start, points - start) * normal).sum(-1) >= 0 for start, end in edges], 0)
    rim = np.min([_to_segments(points, start, end) for start, end in edges], 0)
    found: Numbers = np.where(inside, np.abs(height), rim)
    return found
