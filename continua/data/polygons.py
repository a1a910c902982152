"""Random polygons with holes, and triangle meshes of them with any number of nodes."""

from dataclasses import dataclass

import numpy as np

from continua.data.mesh import HELD, INSIDE, INSULATED, Mesh
from continua.data.simplices import Indices, Numbers, distances, signed_volumes
from continua.errors import ConfigError, SolveError

GAP = 0.09  # between two boundaries, and from a hole to itself
NARROW = np.pi / 4  # no corner is sharper
FEWEST = 300  # nodes: with fewer some gap is not resolved
TRIES = 200


@dataclass(frozen=True, eq=False)
class Polygon:
    """A polygon with holes: corners [k, 2] of each ring, the outer one first; ``held`` says where u = 0."""

    rings: tuple[Numbers, ...]
    held: tuple[bool, ...]

    @property
    def area(self) -> float:
        """That of the outer ring without the holes."""
        each = [abs(_area(ring)) for ring in self.rings]
        return float(each[0] - sum(each[1:]))

    def contains(self, points: Numbers) -> np.ndarray:
        """Which points lie in the domain."""
        found = inside(self.rings[0], points)
        for hole in self.rings[1:]:
            found &= ~inside(hole, points)
        return found

    def distance(self, points: Numbers) -> Numbers:
        """How far points lie from any boundary."""
        starts = np.concatenate(self.rings)
        ends = np.concatenate([np.roll(ring, -1, 0) for ring in self.rings])
        return distances(points, starts, ends)


def random_polygon(draw: np.random.Generator) -> Polygon:
    """A star of 5 to 10 corners in the unit square with up to three holes of 3 to 6 corners, all well apart.

    The outer boundary is held; a hole is held or insulated, as a coin says.
    """
    outer = _outer(draw)
    rings = [outer]
    wanted = int(draw.integers(0, 4))
    for _ in range(TRIES):
        if len(rings) > wanted:
            break
        hole = _star(draw, draw.uniform(0.15, 0.85, 2), draw.uniform(0.06, 0.13), int(draw.integers(3, 7)), 0.7)
        if _fits(hole, rings):
            rings.append(hole)
    held = (True, *(bool(draw.integers(2)) for _ in rings[1:]))
    return Polygon(tuple(rings), held)


def meshed(polygon: Polygon, n: int, draw: np.random.Generator) -> Mesh:
    """A Delaunay mesh of exactly ``n`` nodes: the boundary in equal steps, a turned and shaken lattice inside.

    The spacing is the largest that gives at least n nodes; what is too many inside is left out at random.
    """
    if n < FEWEST:
        raise ConfigError("a mesh resolves its holes", got=f"{n} nodes", remedy=f"Use {FEWEST} or more.")
    for _ in range(20):
        boundary, tags, within = _nodes(polygon, n, draw)
        keep = np.sort(draw.permutation(len(within))[: n - len(boundary)])
        points = np.concatenate([boundary, within[keep]])
        triangles = _delaunay(polygon, points)
        areas = signed_volumes(points, triangles)
        every = np.concatenate([tags, np.full(len(keep), INSIDE)])
        whole = abs(areas.sum() - polygon.area) < 1e-9 and len(np.unique(triangles)) == n
        if whole and areas.min() > 1e-3 * areas.mean():
            return Mesh(points, triangles, every)
    raise SolveError("this polygon could not be meshed", got=f"{n} nodes", remedy="Use more nodes, or another seed.")


def _outer(draw: np.random.Generator) -> Numbers:
    for _ in range(TRIES):
        ring = _star(draw, np.array([0.5, 0.5]), draw.uniform(0.38, 0.48), int(draw.integers(5, 11)), 0.4)
        if _is_open(ring):
            return ring
    raise SolveError("no polygon was found", got=f"{TRIES} tries", remedy="Use another seed.")


def _star(draw: np.random.Generator, centre: Numbers, radius: float, corners: int, least: float) -> Numbers:
    """Corners at random angles, at ``least`` to one times the radius."""
    steps = draw.uniform(0.6, 1.4, corners)
    angles = draw.uniform(0, 2 * np.pi) + 2 * np.pi * np.cumsum(steps) / steps.sum()
    radii = radius * draw.uniform(least, 1.0, corners)
    made: Numbers = centre + radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], -1)
    return made


def _is_open(ring: Numbers) -> bool:
    """Whether corners are wide and edges that do not meet are apart."""
    before = np.roll(ring, 1, 0) - ring
    after = np.roll(ring, -1, 0) - ring
    cosine = (before * after).sum(-1) / np.sqrt((before**2).sum(-1) * (after**2).sum(-1))
    if np.arccos(np.clip(cosine, -1, 1)).min() < NARROW or np.sqrt((after**2).sum(-1)).min() < GAP:
        return False
    count = len(ring)
    for i in range(count):
        others = [j for j in range(count) if j not in (i, (i - 1) % count)]
        starts = ring[others]
        ends = np.roll(ring, -1, 0)[others]
        if distances(ring[i : i + 1], starts, ends)[0] < GAP:
            return False
    return True


def _fits(hole: Numbers, rings: list[Numbers]) -> bool:
    """Whether a hole is open, lies in the outer ring and is apart from all others."""
    if not _is_open_hole(hole) or not inside(rings[0], hole).all():
        return False
    edge = np.roll(hole, -1, 0) - hole
    along = np.linspace(0, 1, 8, endpoint=False)[:, None, None]
    samples = (hole + along * edge).reshape(-1, 2)
    for ring in rings:
        if distances(samples, ring, np.roll(ring, -1, 0)).min() < GAP:
            return False
        corners = distances(ring, hole, np.roll(hole, -1, 0))
        if corners.min() < GAP:
            return False
    return not any(inside(ring, hole).any() or inside(hole, ring).any() for ring in rings[1:])


def _is_open_hole(hole: Numbers) -> bool:
    """Whether its edges are long enough to be seen; a mesh lies around its corners, so these may be sharp."""
    edge = np.roll(hole, -1, 0) - hole
    return bool(np.sqrt((edge**2).sum(-1)).min() > GAP / 3)


def _nodes(polygon: Polygon, n: int, draw: np.random.Generator) -> tuple[Numbers, Indices, Numbers]:
    """Nodes of the boundary with their tags, and at least as many inside as are still wanted."""
    spacing = np.sqrt(polygon.area * 2 / (np.sqrt(3) * n))
    turn = draw.uniform(0, np.pi / 3)
    shift = draw.uniform(0, 1, 2)
    shaken = draw.uniform(-0.22, 0.22, (4 * n + 400, 2))
    for _ in range(100):
        boundary, tags = _divided(polygon, spacing)
        lattice = _lattice(spacing, turn, shift)
        lattice = lattice + spacing * shaken[np.arange(len(lattice)) % len(shaken)]
        lattice = lattice[polygon.contains(lattice)]
        within = lattice[polygon.distance(lattice) > 0.62 * spacing]
        if len(boundary) + len(within) >= n:
            return boundary, tags, within
        spacing *= 0.985
    raise SolveError("no spacing gives so many nodes", got=n, remedy="Use another number of nodes.")


def _divided(polygon: Polygon, spacing: float) -> tuple[Numbers, Indices]:
    """The boundary in steps of about the spacing."""
    points = []
    tags = []
    for ring, held in zip(polygon.rings, polygon.held, strict=True):
        for start, end in zip(ring, np.roll(ring, -1, 0), strict=True):
            steps = max(1, round(float(np.hypot(*(end - start))) / spacing))
            share = np.arange(steps)[:, None] / steps
            points.append(start + share * (end - start))
            tags.append(np.full(steps, HELD if held else INSULATED))
    return np.concatenate(points), np.concatenate(tags)


def _lattice(spacing: float, turn: float, shift: Numbers) -> Numbers:
    """A turned triangular lattice over the unit square."""
    count = int(np.ceil(1.5 / spacing)) + 2
    i, j = np.meshgrid(np.arange(-count, count), np.arange(-count, count), indexing="ij")
    flat = np.stack([i + 0.5 * j, np.sqrt(0.75) * j], -1).reshape(-1, 2) + shift
    turned = flat @ np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]).T
    points = 0.5 + spacing * turned
    found: Numbers = points[(np.abs(points - 0.5) < 0.5).all(-1)]
    return found


def _delaunay(polygon: Polygon, points: Numbers) -> Indices:
    """The triangles whose centres lie in the domain, counter-clockwise."""
    from scipy.spatial import Delaunay

    triangles = Delaunay(points).simplices.astype(np.int64)
    triangles = triangles[polygon.contains(points[triangles].mean(1))]
    turned = signed_volumes(points, triangles) < 0
    triangles[turned] = triangles[turned][:, ::-1]
    box = np.prod(np.ptp(points, axis=0))
    flat = np.abs(signed_volumes(points, triangles)) <= 1e-10 * box  # along a straight edge of the boundary
    found: Indices = triangles[~flat]
    return found


def inside(ring: Numbers, points: Numbers) -> np.ndarray:
    """Which points lie in a ring: a ray to the right crosses it an odd number of times."""
    x = points[:, :1]
    y = points[:, 1:]
    starts = ring
    ends = np.roll(ring, -1, 0)
    crosses = (starts[:, 1] > y) != (ends[:, 1] > y)
    rise = np.where(ends[:, 1] == starts[:, 1], 1.0, ends[:, 1] - starts[:, 1])
    at = starts[:, 0] + (y - starts[:, 1]) / rise * (ends[:, 0] - starts[:, 0])
    return ((crosses & (x < at)).sum(-1) % 2).astype(bool)


def _area(ring: Numbers) -> float:
    after = np.roll(ring, -1, 0)
    return float(0.5 * (ring[:, 0] * after[:, 1] - ring[:, 1] * after[:, 0]).sum())
