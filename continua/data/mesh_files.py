"""Meshes from files and answers to files: what meshio reads and writes, and what a model wants of it."""

import contextlib
import io
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from continua.data.mesh import HELD, INSIDE, INSULATED, Mesh
from continua.data.simplices import Indices, Numbers, boundary_nodes
from continua.errors import ConfigError, ContinuaError, GridError

SOURCE = "f"  # the point data that hold the source
TAGS = "boundary"  # the point data, or the cell data of lines or faces, that hold boundary tags
FACET_TAGS = (TAGS, "gmsh:physical", "medit:ref")
WRITTEN = (".vtk", ".vtu")
MOST = 2**21  # nodes of a file
KINDS = {2: ("triangle", "line"), 3: ("tetra", "triangle")}  # meshio's words for cells and facets
BOX = {2: "square", 3: "cube"}
REACH = 1e3  # from the unit square or cube: what lies farther has another unit, or another origin
SMALLEST = 1e-2  # extent: what is smaller has another unit


class Boundary(StrEnum):
    """What holds on the whole boundary of a mesh that has no tags."""

    TAGGED = "tagged"
    HELD = "held"


@dataclass(frozen=True, eq=False)
class Placed:
    """A mesh in the unit square or cube, its source [n, components], and how it came there.

    Where it was, a node lay at ``origin`` + ``length`` · its place in the square.
    """

    mesh: Mesh
    source: Numbers
    origin: Numbers
    length: float


def read_mesh(path: Path, boundary: Boundary = Boundary.TAGGED, fit: bool = False) -> Placed:
    """The mesh of a file with its source ``f``; ``fit`` moves and scales it into the unit square or cube.

    A plane domain of triangles or a solid of tetrahedra is wanted, with boundary tags 1 (held) and 2 (insulated) as
    point data ``boundary`` or as cell data of the boundary's lines or faces; without any, ``boundary=Boundary.HELD``
    says that u = 0 on all of it.
    """
    found = _read(path)
    dimension = 3 if any(block.type == "tetra" for block in found.cells) else 2
    points = _points(found, dimension)
    cells = _cells(found, dimension)
    source = _source(found, len(points))
    tags = _tags(found, cells, len(points), boundary)
    if not np.isfinite(points).all():
        bad = int((~np.isfinite(points)).any(1).sum())
        raise GridError("the nodes of a mesh are finite", got=f"{bad} with NaN or infinity", remedy="Leave them out.")
    origin, length = _placement(points, fit)
    mesh = Mesh((points - origin) / length, cells, tags)
    return Placed(mesh, source, origin, length)


def write_answer(path: Path, placed: Placed, answer: Numbers) -> Path:
    """Write the mesh where it was, with ``u``, ``f`` and the boundary tags at its nodes, as .vtk or .vtu."""
    refuse_format(path)
    meshio = _meshio()
    mesh = placed.mesh
    points = _in_space(placed.origin + placed.length * mesh.points)
    values = {"u": answer, SOURCE: placed.source}
    data: dict[str, Any] = {name: _in_space(x) if x.shape[1] == 2 else x[:, 0] for name, x in values.items()}
    data[TAGS] = mesh.tags.astype(np.int32)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = "vtk42" if path.suffix == ".vtk" else "vtu"
    cells = [(KINDS[mesh.dimension][0], mesh.cells)]
    meshio.Mesh(points, cells, point_data=data).write(path, file_format=kind)
    return path


def _in_space(vectors: Numbers) -> Numbers:
    """Two coordinates with a third of zero, as VTK wants vectors."""
    missing = np.zeros((len(vectors), 3 - vectors.shape[1]))
    found: Numbers = np.concatenate([vectors, missing], 1)
    return found


def refuse_format(path: Path) -> None:
    """Answers are .vtk or .vtu files: exactly the file that is named is written."""
    if path.suffix not in WRITTEN:
        remedy = f"Write --out {path.stem or 'answer'}.vtu."
        raise ConfigError("answers on meshes are written as .vtk or .vtu", got=repr(path.name), remedy=remedy)


def _meshio() -> Any:
    try:
        import meshio
    except ImportError as absent:
        remedy = "Install it: pip install 'continua-ml[mesh]'."
        raise ContinuaError("mesh files need meshio", got="none", remedy=remedy) from absent
    return meshio


def _read(path: Path) -> Any:
    if not path.is_file():
        raise GridError("there is no such file", got=path, remedy="Give a mesh that meshio reads: .vtu, .vtk, .msh, …")
    meshio = _meshio()
    remedy = "Give a mesh that meshio reads, such as .vtu, .vtk or .msh, and see that it is whole."
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return meshio.read(path)
    except SystemExit as ended:  # meshio leaves the interpreter over names that it does not know
        raise GridError("this file cannot be read", got=str(path), remedy=remedy) from ended
    except (Exception, RecursionError) as broken:  # its two dozen readers fail in as many ways
        got = f"{path}: {type(broken).__name__} {broken}".strip()
        raise GridError("this file cannot be read", got=got, remedy=remedy) from broken


def _points(found: Any, dimension: int) -> Numbers:
    points = np.asarray(found.points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] not in (2, 3) or not len(points):
        raise GridError("a mesh has nodes", got=f"points {list(points.shape)}", remedy="Give a mesh with nodes.")
    if len(points) > MOST:
        raise GridError(f"a mesh has at most {MOST} nodes", got=len(points), remedy="Give a coarser one.")
    if dimension == 2 and points.shape[1] == 3:
        height = np.ptp(points[:, 2])
        if not height <= 1e-9 * max(float(np.ptp(points[:, :2])), np.finfo(np.float64).tiny):
            remedy = "Give a mesh of the plane, whose third coordinate is constant, or a solid of tetrahedra."
            raise GridError("a domain of triangles lies in a plane", got=f"z over {height:g}", remedy=remedy)
    return points[:, :dimension]


def _cells(found: Any, dimension: int) -> Indices:
    wanted = KINDS[dimension][0]
    blocks = [block.data for block in found.cells if block.type == wanted]
    if not blocks:
        kinds = ", ".join(sorted({block.type for block in found.cells})) or "no cells"
        remedy = "Split other cells into triangles, or those of a solid into tetrahedra."
        raise GridError("a mesh is made of triangles or tetrahedra", got=kinds, remedy=remedy)
    return np.concatenate(blocks).astype(np.int64)


def _source(found: Any, count: int) -> Numbers:
    if SOURCE not in found.point_data:
        known = ", ".join(found.point_data) or "none"
        remedy = (
            f"Give the source f of the equation as point data named {SOURCE!r}, one value (a force: a vector) a node."
        )
        raise GridError("there is nothing to answer: the mesh has no source", got=f"point data: {known}", remedy=remedy)
    values = np.asarray(found.point_data[SOURCE])
    if len(values) != count or values.ndim > 2 or values.dtype.kind not in "fiu":
        got = f"shape {list(values.shape)}"
        raise GridError("the source is a number or a vector a node", got=got, remedy="Give f at each node.")
    values = values.astype(np.float64).reshape(count, -1)
    if not np.isfinite(values).all():
        bad = int((~np.isfinite(values)).any(1).sum())
        raise GridError("the source is finite", got=f"{bad} NaN or infinite", remedy="Give f at every node.")
    return values


def _tags(found: Any, cells: Indices, count: int, boundary: Boundary) -> Indices:
    tags = np.full(count, INSIDE, dtype=np.int64)
    edge = boundary_nodes(cells[(cells >= 0).all(1) & (cells < count).all(1)])
    if boundary is Boundary.HELD:
        tags[edge] = HELD
        return tags
    if TAGS in found.point_data:
        given = np.asarray(found.point_data[TAGS]).reshape(-1)
        if len(given) != count:
            raise GridError(f"{count} nodes have as many tags", got=len(given), remedy="Give one a node.")
        tags[edge] = given[edge].astype(np.int64)
        return tags
    facet = KINDS[cells.shape[1] - 1][1]
    if not _tag_facets(found, facet, tags):
        what = "lines" if facet == "line" else "faces"
        meaning = f"{HELD}: u = 0, {INSULATED}: insulated"
        remedy = f"Give point data {TAGS!r} or tagged {what} ({meaning}), or say --boundary held."
        raise GridError("the boundary has no tags", got="none", remedy=remedy)
    return tags


def _tag_facets(found: Any, facet: str, tags: Indices) -> bool:
    """Tags of facets to their nodes; where two meet the held one wins. False where there are none."""
    some = False
    for name in FACET_TAGS:
        for block, given in zip(found.cells, found.cell_data.get(name, ()), strict=False):
            if block.type != facet:
                continue
            some = True
            for tag in (INSULATED, HELD):
                tags[block.data[np.asarray(given) == tag]] = tag
        if some:
            return True
    return False


def _placement(points: Numbers, fit: bool) -> tuple[Numbers, float]:
    """Where the unit square or cube of a model lies, in the coordinates of the file."""
    box = BOX[points.shape[1]]
    low = points.min(0)
    high = points.max(0)
    extent = float((high - low).max())
    if not extent > 0:
        raise GridError("a domain has an extent", got="one point", remedy="Give a mesh of a domain.")
    if fit:
        length = extent / 0.8  # as large as the polygons that were learned from
        return 0.5 * (low + high) - 0.5 * length, length
    got = f"coordinates from {low.min():g} to {high.max():g}"
    if max(abs(low).max(), abs(high).max()) > REACH or extent < SMALLEST:
        remedy = f"Check the unit of length, or let --fit bring the domain into the {box} (u is scaled back)."
        raise GridError(f"the domain is far from the unit {box} that was learned in", got=got, remedy=remedy)
    if low.min() < -1e-9 or high.max() > 1 + 1e-9:
        off = int(((points < -1e-9) | (points > 1 + 1e-9)).any(1).sum())
        remedy = f"Move these points, or let --fit bring the domain into the {box} (u is scaled back)."
        raise GridError(f"nodes lie in the unit {box}", got=f"{off} outside, {got}", remedy=remedy)
    return np.zeros(points.shape[1]), 1.0
