"""Two-way maps between our tensors and those in a file, said as data.

An ``Entry`` names one of our tensors, the tensor(s) in the file, and how the one lies in the other. ``{z}`` in a file's
name stands for the layer number: all layers together are one tensor of ours; ``{x}`` in the same way for the number of
an expert, the second dimension of ours.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch

import torch

from continua.errors import CheckpointError
from continua.typing import Tensor


@dataclass(frozen=True)
class Layout:
    """How a tensor of ours, without its layer axis, lies in the file.

    The first ``rows`` dimensions of ours are merged into the rows of a matrix, the others into its columns; a
    one-dimensional tensor in the file merges all. ``transpose`` stores that matrix as [in, out]. ``part=(i, n)`` means
    that it is the i-th of n equal pieces along the output side, or the ``units`` ones from the i-th on; with ``heads``
    these are pieces of each of so many blocks of rows. ``shape`` is what the file gives it where that is neither a
    matrix nor a vector (a convolution, a leading one). ``taps`` moves our first dimension, the places of a convolution,
    behind the others. ``neighbours`` is for heads [h, e, …] whose first so many coordinates are turned: pairs of
    neighbours in the file, one half behind the other in ours.
    """

    rows: int = 1
    transpose: bool = False
    part: tuple[int, int] = (0, 1)
    shape: tuple[int, ...] = ()
    heads: int = 1
    taps: bool = False
    units: int = 1
    neighbours: int = 0

    def take(self, stored: Tensor, shape: torch.Size) -> Tensor:
        """File → ours."""
        if not shape:  # a number
            return stored
        if self.taps:
            return stored.movedim(-1, 0).reshape(shape)
        index, count = self.part
        stored = stored.flatten(1) if self.shape and self.transpose else stored
        if self.heads > 1:
            piece = stored.unflatten(0, (self.heads, count, -1))[:, index : index + self.units].flatten(0, 2)
        else:
            side = -1 if self.transpose else 0
            size = stored.shape[side] // count
            piece = stored.narrow(side, index * size, self.units * size)
        ours = (piece.mT if self.transpose and piece.dim() == 2 else piece).reshape(shape)
        return _halves(ours, self.neighbours) if self.neighbours else ours

    def give(self, ours: Tensor, flat: bool) -> Tensor:
        """Ours → this entry's piece of the file's tensor."""
        if ours.dim() == 0:
            return ours
        ours = _neighbours(ours, self.neighbours) if self.neighbours else ours
        if flat:
            return ours.reshape(-1)
        if self.taps:
            return ours.movedim(0, -1)
        if self.shape and not self.transpose:
            return ours.reshape(self.shape)
        matrix = ours.flatten(self.rows).flatten(0, self.rows - 1)
        matrix = matrix.mT if self.transpose else matrix
        return matrix.reshape(self.shape) if self.shape else matrix

    def whole(self, shape: torch.Size, flat: bool) -> list[int]:
        """The shape of the file's tensor, of which ours [shape] is one of the parts."""
        found = list(self.give(torch.empty(shape, device="meta"), flat).shape)
        if not found:
            return found
        side = -1 if self.transpose else 0
        found[side] = found[side] * self.part[1] // self.units
        return found

    def join(self, pieces: list[Tensor]) -> Tensor:
        """Put the pieces of one tensor of the file together."""
        if self.heads > 1:
            return torch.cat([piece.unflatten(0, (self.heads, -1)) for piece in pieces], 1).flatten(0, 1)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1 if self.transpose else 0)


def _halves(x: Tensor, turned: int) -> Tensor:
    """Of the first ``turned`` coordinates of each head the even ones, then the odd ones."""
    first = x[:, :turned]
    return torch.cat([first[:, ::2], first[:, 1::2], x[:, turned:]], 1)


def _neighbours(x: Tensor, turned: int) -> Tensor:
    """The inverse."""
    pairs = x[:, :turned].unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    return torch.cat([pairs, x[:, turned:]], 1)


@dataclass(frozen=True)
class Entry:
    """One of our tensors and where it is in the file; ``flat`` marks vectors (biases, norms).

    The first layers, ``begins`` of them, are not in the file: nothing reads their rows, which are one.
    """

    ours: str
    theirs: str
    layout: Layout = Layout()
    flat: bool = False
    begins: int = 0


@dataclass(frozen=True)
class NameMap:
    """All entries of an architecture, a prefix that files may carry, and names that hold no weight of ours.

    ``bare`` names (patterns) never carry the prefix: a head stands beside the trunk, not in it. ``single`` means one
    layer whose names have no number; our tensors have a layer axis of length one all the same.
    """

    entries: tuple[Entry, ...]
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    single: bool = False

    def load(self, stored: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return our state from the file's; every name must be accounted for."""
        plain = {name.removeprefix(self.prefix): name for name in stored}
        used: set[str] = set()
        state: dict[str, Tensor] = {}
        for entry in self.entries:
            names = layer_names(entry.theirs, target[entry.ours])[entry.begins :]
            _require(names, plain)
            lead = self._numbered(entry)
            shape = target[entry.ours].shape
            pieces = (_taken(entry, name, stored[plain[name]], shape[lead:]) for name in names)  # one at a time
            # a copy, which torch aligns: in a file tensors lie anywhere, and products may round by where they lie
            found = _stacked(pieces, len(names)) if lead else _copied(next(pieces))
            if entry.begins:
                found = torch.cat([found.new_ones(entry.begins, *found.shape[1:]), found])
            state[entry.ours] = found.view(shape)
            used.update(names)
        extra = [n for n in plain if n not in used and not _any_of(n, self.ignored)]
        if extra:
            shown = ", ".join(sorted(extra)[:3])
            remedy = "The file belongs to another architecture or has a head that Continua does not read yet."
            raise CheckpointError("the file has tensors without a place in the model", got=shown, remedy=remedy)
        return state

    def store(self, state: Mapping[str, Tensor], prefixed: bool = True) -> dict[str, Tensor]:
        """Return the file's tensors from our state, with or without the prefix: the inverse of ``load``."""
        pieces: dict[str, list[Tensor]] = {}
        layouts: dict[str, Layout] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.layout.part[0]):
            lead = self._numbered(entry)
            whole = state[entry.ours].flatten(0, lead - 1) if lead else state[entry.ours]
            for place, name in list(enumerate(layer_names(entry.theirs, state[entry.ours])))[entry.begins :]:
                ours = whole[place] if lead else whole
                pieces.setdefault(name, []).append(entry.layout.give(ours, entry.flat))
                layouts[name] = entry.layout
        return {self._spelt(n, prefixed): layouts[n].join(parts).contiguous() for n, parts in pieces.items()}

    def _numbered(self, entry: Entry) -> int:
        """How many leading dimensions of ours are numbers in the names of the file."""
        return int(self.single or "{z}" in entry.theirs) + int("{x}" in entry.theirs)

    def _spelt(self, name: str, prefixed: bool) -> str:
        return self.prefix + name if prefixed and not _any_of(name, self.bare) else name


def _any_of(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def layer_names(pattern: str, ours: Tensor) -> list[str]:
    """Spell a name out for every layer of our tensor, and for every expert of it."""
    if "{x}" in pattern:
        return [pattern.format(z=z, x=x) for z in range(ours.shape[0]) for x in range(ours.shape[1])]
    return [pattern.format(z=z) for z in range(len(ours))] if "{z}" in pattern else [pattern]


def scale(ours: str, theirs: str) -> Entry:
    """The scale of an RMSNorm."""
    return Entry(f"{ours}.scale.coefficients", f"{theirs}.weight", flat=True)


def norm(ours: str, theirs: str) -> tuple[Entry, Entry]:
    """Scale and shift of a LayerNorm."""
    return (
        scale(ours, theirs),
        Entry(f"{ours}.shift.coefficients", f"{theirs}.bias", flat=True),
    )


def _copied(piece: Tensor) -> Tensor:
    return piece.clone(memory_format=torch.contiguous_format)


def _stacked(pieces: Iterable[Tensor], count: int) -> Tensor:
    """torch.stack without all pieces in memory beside it; the dtype is the one that holds all."""
    room: Tensor | None = None
    for place, piece in enumerate(pieces):
        if room is None:
            room = piece.new_empty(count, *piece.shape)
        elif piece.dtype != room.dtype:
            room = room.to(torch.promote_types(room.dtype, piece.dtype))
        room[place] = piece
    if room is None:
        raise CheckpointError("a model has layers", got="none", remedy="Check config.json.")
    return room


def _require(names: Iterable[str], plain: Mapping[str, str]) -> None:
    missing = [name for name in names if name not in plain]
    if missing:
        shown = ", ".join(missing[:3])
        raise CheckpointError(
            "the file lacks tensors of this architecture", got=f"no {shown}", remedy="Check config.json."
        )


def _taken(entry: Entry, name: str, stored: Tensor, shape: torch.Size) -> Tensor:
    """Ours from the file's, whose shape and dtype must be those that ``store`` would write."""
    wanted = entry.layout.whole(shape, entry.flat)
    got = list(stored.shape)
    if got != wanted:
        remedy = "config.json and the weights do not belong together."
        if got == wanted[::-1]:
            remedy = "It is transposed: write the folder with save_pretrained of its own architecture."
        raise CheckpointError(f"{name} needs shape {wanted} for {entry.ours}", got=got, remedy=remedy)
    if not stored.is_floating_point() or stored.dtype.itemsize < 2:
        remedy = "Dequantise the weights, and write them as float16, bfloat16 or float32."
        raise CheckpointError(f"{name} must hold real numbers", got=stored.dtype, remedy=remedy)
    return entry.layout.take(stored, shape)


def widest(tensors: Iterable[Tensor]) -> torch.dtype:
    """The one dtype that holds all of these exactly: bfloat16 beside float16 or float32 is float32."""
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
