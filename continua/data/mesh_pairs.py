"""Sets of functions on meshes, each mesh another one."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from continua import memory
from continua.axes import Grid
from continua.data.generation import ShareDone, check_finite
from continua.data.mesh import Mesh, Numbers
from continua.errors import ConfigError, ShapeError
from continua.typing import Tensor


@dataclass(frozen=True, eq=False)
class MeshPairs:
    """Functions on meshes with one number of nodes: inputs[i] ↦ outputs[i] at the nodes of mesh i.

    ``inputs`` [count, n, channels], ``outputs`` [count, n, answers], ``points`` [count, n, 2 or 3] and ``weights``
    [count, n], the lumped masses. ``cells`` are the triangles or tetrahedra of all meshes, one after the other; mesh i
    has ``sizes[i]`` of them, none where its points are a cloud.
    """

    name: str
    inputs: Tensor
    outputs: Tensor
    points: Tensor
    weights: Tensor
    cells: Tensor
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
        pieces = [self.cells[int(ends[i] - self.sizes[i]) : int(ends[i])] for i in chosen]
        values = {what: getattr(self, what)[rows] for what in ("inputs", "outputs", "points", "weights", "sizes")}
        return replace(self, cells=torch.cat(pieces), **values)

    def cells_of(self, i: int) -> Tensor:
        """The triangles [m, 3] or tetrahedra [m, 4] of mesh i."""
        ends = self.sizes.cumsum(0)
        return self.cells[int(ends[i] - self.sizes[i]) : int(ends[i])]

    @cached_property
    def sha256(self) -> str:
        """Names the content: numbers measured on other data cannot be compared."""
        digest = hashlib.sha256(self.name.encode())
        for values in (self.inputs, self.outputs, self.points, self.weights, self.cells):
            digest.update(f"{values.dtype} {tuple(values.shape)}".encode())
            digest.update(values.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs and outputs at the nodes of one mesh."""

    inputs: Tensor
    outputs: Tensor
    points: Tensor
    weights: Tensor
    cells: Tensor


def sample_of(mesh: Mesh, inputs: Numbers, outputs: Numbers) -> Sample:
    """All nodes of a mesh, in single precision."""
    return Sample(
        single(inputs), single(outputs), single(mesh.points), single(mesh.weights), torch.from_numpy(mesh.cells).int()
    )


def single(values: Numbers) -> Tensor:
    """A tensor in single precision."""
    return torch.from_numpy(values).float()


def gathered(name: str, count: int, numbers: int, make: Callable[[int], Sample], watch: ShareDone | None) -> MeshPairs:
    """``make(i)`` for i < ``count``; a sample has that many ``numbers``."""
    memory.require(8 * 2 * count * numbers, f"{count} meshes", "Ask for fewer.")
    made = []
    for i in range(count):
        made.append(make(i))
        if watch is not None:
            watch((i + 1) / count)
    return MeshPairs(
        name=name,
        inputs=torch.stack([each.inputs for each in made]),
        outputs=torch.stack([each.outputs for each in made]),
        points=torch.stack([each.points for each in made]),
        weights=torch.stack([each.weights for each in made]),
        cells=torch.cat([each.cells for each in made]),
        sizes=torch.tensor([len(each.cells) for each in made]),
    )
