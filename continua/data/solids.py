"""Random solids, balls and boxes in one with holes in them, by their signed distance, and meshes of tetrahedra."""

from dataclasses import dataclass
from enum import Enum

import numpy as np

from continua.data.mesh import HELD, INSIDE, INSULATED, Mesh
from continua.data.simplices import Indices, Numbers, boundary_nodes, parts_of, signed_volumes
from continua.errors import ConfigError, SolveError

FEWEST = 1000  # nodes: with fewer a hole is not resolved
CLOSE = 0.25  # of an edge: a node that is nearer to the surface along it is brought there
# the six tetrahedra of a cube around its diagonal, by the numbers of its corners 4i + 2j + k (Kuhn)
KUHN = np.array([[0, 4, 6, 7], [0, 6, 2, 7], [0, 2, 3, 7], [0, 3, 1, 7], [0, 1, 5, 7], [0, 5, 4, 7]])


class Shape(Enum):
    """What a piece is."""

    BALL = "ball"
    BOX = "box"
    DRILL = "drill"  # a round hole from end to end along the third of its own axes


@dataclass(frozen=True, eq=False)
class Piece:
    """A shape around ``centre``, turned by ``frame`` (its axes in rows), of half the size ``half`` [3]."""

    shape: Shape
    centre: Numbers
    half: Numbers
    frame: Numbers

    def distance(self, points: Numbers) -> Numbers:
        """How far points lie outside; below zero inside."""
        own = (points - self.centre) @ self.frame.T
        if self.shape is Shape.BALL:
            return np.sqrt((own**2).sum(-1)) - self.half[0]
        if self.shape is Shape.DRILL:
            return np.sqrt((own[..., :2] ** 2).sum(-1)) - self.half[0]
        beyond = np.abs(own) - self.half
        outside = np.sqrt((np.maximum(beyond, 0) ** 2).sum(-1))
        found: Numbers = outside + np.minimum(beyond.max(-1), 0)
        return found


@dataclass(frozen=True, eq=False)
class Solid:
    """All ``pieces`` in one without the ``holes``; ``held`` says where u = 0: outside first, then on each hole."""

    pieces: tuple[Piece, ...]
    holes: tuple[Piece, ...]
    held: tuple[bool, ...]

    def surfaces(self, points: Numbers) -> Numbers:
        """How far points lie outside of the pieces, and inside of each hole, [surface, n]."""
        outer = np.min([piece.distance(points) for piece in self.pieces], 0)
        found: Numbers = np.stack([outer, *(-hole.distance(points) for hole in self.holes)])
        return found

    def distance(self, points: Numbers) -> Numbers:
        """Below zero in the solid; the distance to its surface near it."""
        found: Numbers = self.surfaces(points).max(0)
        return found


def random_solid(draw: np.random.Generator) -> Solid:
    """Two to four balls and boxes that overlap, in the unit cube, with up to two holes: a hollow or a drill.

    The outside is held; a hole is held or insulated, as a coin says.
    """
    pieces = [_piece(draw, np.full(3, 0.5), 0.22, 0.3)]
    for _ in range(int(draw.integers(1, 4))):
        before = pieces[int(draw.integers(len(pieces)))]
        way = draw.normal(size=3)
        centre = before.centre + before.half.min() * way / np.sqrt((way**2).sum())
        pieces.append(_piece(draw, np.clip(centre, 0.3, 0.7), 0.14, 0.24))
    holes = []
    for _ in range(int(draw.integers(0, 3))):
        inside = pieces[int(draw.integers(len(pieces)))]
        shape = Shape.BALL if draw.integers(2) else Shape.DRILL
        radius = draw.uniform(0.06, 0.1)
        holes.append(Piece(shape, inside.centre + draw.uniform(-0.05, 0.05, 3), np.full(3, radius), _frame(draw)))
    held = (True, *(bool(draw.integers(2)) for _ in holes))
    return Solid(tuple(pieces), tuple(holes), held)


def _piece(draw: np.random.Generator, centre: Numbers, least: float, most: float) -> Piece:
    if draw.integers(2):
        return Piece(Shape.BALL, centre, np.full(3, draw.uniform(least, most)), np.eye(3))
    return Piece(Shape.BOX, centre, 0.8 * draw.uniform(least, most, 3), _frame(draw))


def _frame(draw: np.random.Generator) -> Numbers:
    """Three axes at right angles in any direction."""
    made, _ = np.linalg.qr(draw.normal(size=(3, 3)))
    return np.asarray(made, dtype=np.float64)


def solid_mesh(solid: Solid, n: int, draw: np.random.Generator) -> Mesh:
    """A mesh of tetrahedra with ``n`` nodes or a few more: a turned lattice, cut along the surface.

    Lattice nodes close to the surface are brought there first, so that no piece gets thin (after Labelle and Shewchuk,
    2007, on another lattice).
    """
    if n < FEWEST:
        raise ConfigError("a mesh resolves its holes", got=f"{n} nodes", remedy=f"Use {FEWEST} or more.")
    frame = _frame(draw)
    shift = draw.uniform(0, 1, 3)
    spacing = 1.2 * (_volume(solid) / n) ** (1 / 3)
    for _ in range(40):
        points, cells = cut_lattice(solid, *_lattice(solid, spacing, frame, shift))
        if len(points) >= n:
            return _tagged(solid, points, cells)
        spacing *= min(0.99, (max(len(points), 1) / n) ** (1 / 3))
    raise SolveError("this solid could not be meshed", got=f"{n} nodes", remedy="Use more nodes, or another seed.")


def _volume(solid: Solid) -> float:
    """By counting points of a lattice."""
    along = (np.arange(40) + 0.5) / 40
    every = np.stack(np.meshgrid(along, along, along, indexing="ij"), -1).reshape(-1, 3)
    return float((solid.distance(every) < 0).mean())


def _lattice(solid: Solid, spacing: float, frame: Numbers, shift: Numbers) -> tuple[Numbers, Indices]:
    """Nodes and cells of a turned lattice around a solid: those of cubes that it may reach."""
    count = int(np.ceil(1.75 / spacing)) + 1
    along = np.arange(count) - count / 2
    lattice = np.stack(np.meshgrid(along, along, along, indexing="ij"), -1).reshape(-1, 3) + shift
    points = 0.5 + spacing * lattice @ frame
    inside = solid.distance(points) <= 0
    i, j, k = np.meshgrid(*(np.arange(count - 1),) * 3, indexing="ij")
    first = ((i * count + j) * count + k).reshape(-1)
    steps = [(a * count + b) * count + c for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    corners = np.stack([first + step for step in steps], -1)
    corners = corners[inside[corners].any(1)]
    return _used(points, corners[:, KUHN].reshape(-1, 4))


def _tagged(solid: Solid, points: Numbers, cells: Indices) -> Mesh:
    """Each node of the boundary has the tag of the surface that is nearest."""
    tags = np.full(len(points), INSIDE, dtype=np.int64)
    edge = boundary_nodes(cells)
    nearest = solid.surfaces(points[edge]).argmax(0)
    kinds = np.array([HELD if held else INSULATED for held in solid.held])
    tags[edge] = kinds[nearest]
    return Mesh(points, cells, tags)


# --- cutting ---------------------------------------------------------------------------------------------------------


def cut_lattice(solid: Solid, points: Numbers, cells: Indices) -> tuple[Numbers, Indices]:
    """The part of a mesh that lies in a solid: cells that cross its surface are cut there."""
    level = solid.distance(points)
    points, level = _snapped(solid, points, level, cells)
    kept = cells[(level[cells] <= 0).all(1) & (level[cells] < 0).any(1)]
    crossed = cells[(level[cells] > 0).any(1) & (level[cells] < 0).any(1)]
    edges = _crossing(level, crossed)
    every = np.concatenate([points, _meeting(solid, points, edges)])
    pieces = _cut(level, crossed, Crossings(len(points), edges))
    cells = np.concatenate([kept, pieces])
    turned = signed_volumes(every, cells) < 0
    cells[turned] = cells[turned][:, [1, 0, 2, 3]]
    parts = parts_of(cells)
    return _used(every, cells[parts == np.bincount(parts).argmax()])


def _used(points: Numbers, cells: Indices) -> tuple[Numbers, Indices]:
    """The nodes that cells have, and the cells in their numbers."""
    used, numbers = np.unique(cells, return_inverse=True)
    return points[used], numbers.reshape(-1, 4).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Crossings:
    """New nodes where edges (inside, outside) meet the surface: edge i has the number ``start`` + i."""

    start: int
    edges: Indices

    def of(self, inside: Indices, outside: Indices) -> Indices:
        """The numbers of the nodes on some edges."""
        base = self.start
        keys = self.edges[:, 0] * base + self.edges[:, 1]
        found: Indices = base + np.searchsorted(keys, inside * base + outside)
        return found


def _crossing(level: Numbers, cells: Indices) -> Indices:
    """The edges [k, 2] from a node inside to one outside, sorted."""
    pairs = np.concatenate([cells[:, [i, j]] for i in range(4) for j in range(4) if i != j])
    pairs = pairs[(level[pairs[:, 0]] < 0) & (level[pairs[:, 1]] > 0)]
    found: Indices = np.unique(pairs, axis=0)
    return found


def _meeting(solid: Solid, points: Numbers, edges: Indices) -> Numbers:
    """Where edges meet the surface, by halving."""
    low = points[edges[:, 0]]
    high = points[edges[:, 1]]
    for _ in range(20):
        middle = 0.5 * (low + high)
        inside = (solid.distance(middle) <= 0)[:, None]
        low = np.where(inside, middle, low)
        high = np.where(inside, high, middle)
    found: Numbers = 0.5 * (low + high)
    return found


def _snapped(solid: Solid, points: Numbers, level: Numbers, cells: Indices) -> tuple[Numbers, Numbers]:
    """Bring nodes to the nearest meeting of their edges with the surface where it is ``CLOSE``; they are on it then."""
    edges = _crossing(level, cells)
    meeting = _meeting(solid, points, edges)
    length = np.sqrt(((points[edges[:, 0]] - points[edges[:, 1]]) ** 2).sum(-1))
    nodes = edges.T.reshape(-1)
    targets = np.concatenate([meeting, meeting])
    share = np.sqrt(((targets - points[nodes]) ** 2).sum(-1)) / np.concatenate([length, length])
    order = np.argsort(-share, kind="stable")  # the nearest is written last
    order = order[share[order] < CLOSE]
    moved = points.copy()
    after = level.copy()
    moved[nodes[order]] = targets[order]
    after[nodes[order]] = 0.0
    return moved, after


def _cut(level: Numbers, cells: Indices, crossings: Crossings) -> Indices:
    """The parts inside of cells that cross the surface. Diagonals of quadrilaterals start at the lower number, so that
    neighbours agree."""
    sign = np.sign(level[cells]).astype(np.int64)
    rank = np.argsort(sign * (int(cells.max()) + 1) + cells, 1)  # inside by rising numbers, then on it, then outside
    cells = np.take_along_axis(cells, rank, 1)
    inside = (sign < 0).sum(1)
    outside = (sign > 0).sum(1)
    made = []
    a, b, c, p = cells[(inside == 3) & (outside == 1)].T
    ap, bp, cp = (crossings.of(x, p) for x in (a, b, c))
    made += [(a, b, c, cp), (a, b, bp, cp), (a, ap, bp, cp)]
    a, b, z, p = cells[(inside == 2) & (outside == 1)].T
    ap, bp = (crossings.of(x, p) for x in (a, b))
    made += [(a, b, bp, z), (a, bp, ap, z)]
    a, b, p, q = cells[(inside == 2) & (outside == 2)].T
    ap, bp, aq, bq = (crossings.of(x, y) for x, y in ((a, p), (b, p), (a, q), (b, q)))
    made += [(a, b, bp, bq), (a, ap, aq, bq), (a, ap, bq, bp)]
    a, p, q, r = cells[(inside == 1) & (outside == 3)].T
    made.append((a, *(crossings.of(a, x) for x in (p, q, r))))
    a, z, p, q = cells[(inside == 1) & (outside == 2)].T
    made.append((a, z, *(crossings.of(a, x) for x in (p, q))))
    a, y, z, p = cells[(inside == 1) & (outside == 1)].T
    made.append((a, y, z, crossings.of(a, p)))
    found: Indices = np.concatenate([np.stack(corners, -1) for corners in made])
    return found
