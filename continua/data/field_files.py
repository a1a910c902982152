"""Field files: paths of fields of any number on disk, read where they are wanted and never as a whole.

A path is a field at equal times, [times, *grid, channels]. A folder holds ``fields.json`` and shards
``train-00000.npy``, ``held-out-00000.npy``, … of paths, plain arrays of numpy that are mapped into memory. Whole paths
are held out, so that nothing is measured on a flow that was learned from. It is built as token files are.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from continua.axes import Axis, Circle, Interval, Product, factors
from continua.data.building import (
    Watch,
    begun,
    changed,
    damaged,
    digest_of,
    each_unit,
    mapped,
    note,
    opened,
    require_shards,
    require_unchanged,
    save_array,
    sealed,
)
from continua.data.pairs import Pairs, lattice
from continua.errors import ConfigError
from continua.typing import Tensor

FORMAT = "continua fields 1"
ABOUT = "fields.json"
TRAIN = "train"
HELD_OUT = "held-out"
UNIT_BYTES = 2**28
REAL = ("float16", "float32", "float64")
WORDS = ("circle", "interval", "cells")


@dataclass(frozen=True)
class FieldShard:
    """One array of paths."""

    file: str
    paths: int
    sha256: str


@dataclass(frozen=True)
class Kind:
    """What all paths of a folder have in common: [times, *grid, channels], a dtype, and where the nodes lie."""

    shape: tuple[int, ...]
    dtype: str
    domain: tuple[str, ...]  # of each direction: circle, interval or cells

    @classmethod
    def of(cls, shape: Sequence[int], dtype: str, domain: Sequence[str]) -> "Kind":
        """From what was written; ValueError where that is nothing of the kind."""
        made = cls(tuple(int(count) for count in shape), str(dtype), tuple(domain))
        words = all(word in WORDS for word in made.domain)
        if len(made.grid) != len(made.domain) or min(made.shape) < 1 or dtype not in REAL or not words:
            raise ValueError(f"a kind of {made.dtype} {list(made.shape)} on {made.domain}")
        return made

    @property
    def times(self) -> int:
        """How many times a path is looked at."""
        return self.shape[0]

    @property
    def grid(self) -> tuple[int, ...]:
        """How many nodes there are along each direction."""
        return self.shape[1:-1]

    @property
    def bytes(self) -> int:
        """Of one path."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    @property
    def axis(self) -> Axis:
        """The domain: lines of length one."""
        lines: list[Interval | Circle] = [Circle() if word == "circle" else Interval() for word in self.domain]
        return lines[0] if len(lines) == 1 else Product(tuple(lines))

    @property
    def points(self) -> Tensor:
        """Where nodes lie [*grid, k]: at equal places of a circle, from end to end of an interval, or amid cells."""
        lines = []
        for word, count, line in zip(self.domain, self.grid, factors(self.axis), strict=True):
            steps = torch.arange(count, dtype=torch.float64)
            parts = {"circle": steps / count, "interval": steps / max(1, count - 1), "cells": (steps + 0.5) / count}
            lines.append(line.start + line.length * parts[word])
        return lattice(self.axis, *lines)


class Paths:
    """The paths of some shards, one behind another, and the windows in them."""

    def __init__(self, folder: Path, shards: Sequence[FieldShard], kind: Kind) -> None:
        self.kind = kind
        self._places = [folder / shard.file for shard in shards]
        self._held = [_mapped(place, shard, kind) for place, shard in zip(self._places, shards, strict=True)]
        self._ends = np.cumsum([shard.paths for shard in shards])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def windows(self, lag: int) -> int:
        """How many pairs of a time and one ``lag`` later there are."""
        return len(self) * (self.kind.times - lag)

    def read(self, numbers: NDArray[Any], lag: int) -> tuple[Tensor, Tensor]:
        """Fields at the beginning and at the end of some windows: [n, *grid, channels] each."""
        starts: list[NDArray[Any]] = []
        ends: list[NDArray[Any]] = []
        for path, time in zip(*np.divmod(numbers, self.kind.times - lag), strict=True):
            which = int(np.searchsorted(self._ends, path, side="right"))
            own = self._held[which][path - (self._ends[which - 1] if which else 0)]
            if not (np.isfinite(own[time]).all() and np.isfinite(own[time + lag]).all()):
                remedy = f"A shard is damaged: continua data check {self._places[0].parent} says which."
                raise ConfigError("field files hold finite numbers", got=self._places[which].name, remedy=remedy)
            starts.append(own[time])
            ends.append(own[time + lag])
        return torch.from_numpy(np.stack(starts)), torch.from_numpy(np.stack(ends))


@dataclass(frozen=True)
class FieldFiles:
    """A folder of field files: what is learned from, what is held out, and the domain of both."""

    folder: Path
    kind: Kind
    shards: tuple[FieldShard, ...]
    held_out_shards: tuple[FieldShard, ...]
    sha256: str

    @classmethod
    def open(cls, folder: str | Path) -> "FieldFiles":
        """The files of a folder, each there and of the shape that is written of it."""
        folder = Path(folder)
        with opened(folder, ABOUT, FORMAT, "field", "continua data fields ARRAYS --out FOLDER") as about:
            shards = tuple(FieldShard(**one) for one in about[TRAIN])
            held_out = tuple(FieldShard(**one) for one in about[HELD_OUT])
            kind = Kind.of(**about["kind"])
        require_shards(folder, (*shards, *held_out))
        return cls(folder, kind, shards, held_out, digest_of((*shards, *held_out), repr(kind)))

    @cached_property
    def train(self) -> Paths:
        """What is learned from."""
        return Paths(self.folder, self.shards, self.kind)

    @cached_property
    def held_out(self) -> Paths:
        """What is measured on."""
        return Paths(self.folder, self.held_out_shards, self.kind)

    def pairs(self, paths: Paths, numbers: NDArray[Any], lag: int) -> Pairs:
        """Some windows as pairs of functions in memory."""
        inputs, outputs = (values.to(torch.float32) for values in paths.read(numbers, lag))
        return Pairs(self.folder.name, self.kind.axis, inputs, outputs, self.kind.points)

    def require_unchanged(self) -> None:
        """Refuse shards that are not what was written; folders of more than 2 GiB are not read whole for that."""
        require_unchanged(self.folder, (*self.shards, *self.held_out_shards))

    def damaged(self) -> Iterator[str]:
        """The shards whose content is not what was written. All of it is read."""
        return changed(self.folder, (*self.shards, *self.held_out_shards))


@dataclass(frozen=True)
class FieldUnit:
    """Some paths of an array on disk."""

    source: str
    start: int
    end: int


@dataclass(frozen=True)
class FieldRequest:
    """All that decides what the files hold."""

    kind: dict[str, Any]
    sources: tuple[tuple[str, int, int], ...]  # name, bytes, time of the last change
    held_out: float
    unit_bytes: int


def built_fields(
    places: Sequence[Path],
    out: Path,
    domain: Sequence[str],
    *,
    held_out: float = 0.1,
    unit_bytes: int = UNIT_BYTES,
    jobs: int = 1,
    watch: Watch | None = None,
) -> FieldFiles:
    """Write arrays [paths, times, *grid, channels] as field files, or go on where an earlier call stopped.

    ``domain`` says for each direction of the grid whether it is a ``circle``, an ``interval`` with nodes at both ends,
    or the ``cells`` of one. Every ``1 / held_out``-th path is held out. The files are the same for any number of
    ``jobs``.
    """
    if not 0.0 < held_out < 1.0:
        raise ConfigError("a share of the paths is held out", got=held_out, remedy="Use 0 < held_out < 1.")
    found = _sources(places)
    kind = _common(found, tuple(domain))
    sources = tuple((str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in found)
    request = FieldRequest(asdict(kind), sources, held_out, unit_bytes)
    begun(out, ABOUT, json.dumps(asdict(request), sort_keys=True), "field")
    many = max(1, unit_bytes // kind.bytes)
    units = [
        FieldUnit(str(path), start, min(start + many, count))
        for path in found
        for count in (len(mapped(path)),)
        for start in range(0, count, many)
    ]
    made = each_unit(out, units, partial(write_fields, out, request), jobs, watch, "paths")
    shards = {name: [one[name] for one in made if one[name]["paths"]] for name in (TRAIN, HELD_OUT)}
    if not shards[TRAIN] or not shards[HELD_OUT]:
        got = f"{sum(one['paths'] for one in made)} paths"
        remedy = "Give more of them, or hold out a larger share: --held-out 0.5."
        raise ConfigError("some paths are learned from and some held out", got=got, remedy=remedy)
    about = {"format": FORMAT, "kind": request.kind, **shards}
    sealed(out, ABOUT, about, [shard["file"] for own in shards.values() for shard in own])
    return FieldFiles.open(out)


def write_fields(out: Path, request: FieldRequest, unit: FieldUnit, index: int) -> dict[str, Any]:
    """Read a unit, and write its shards; the last file that is written says that they are whole."""
    values = mapped(Path(unit.source))
    every = round(1 / request.held_out)
    numbers = np.arange(unit.start, unit.end)
    apart = numbers % every == every - 1
    made: dict[str, Any] = {"paths": len(numbers)}
    for name, own in ((TRAIN, numbers[~apart]), (HELD_OUT, numbers[apart])):
        part = np.ascontiguousarray(values[own])
        if not np.isfinite(part).all():
            wrong = int(own[~np.isfinite(part.reshape(len(part), -1)).all(1)][0])
            remedy = "Leave it out, or fill what is missing."
            raise ConfigError("paths are made of finite numbers", got=f"path {wrong} of {unit.source}", remedy=remedy)
        file = out / f"{name}-{index:05d}.npy"
        made[name] = asdict(FieldShard(file.name, len(part), save_array(file, part)))
    return note(out, index, made)


def _sources(places: Sequence[Path]) -> list[Path]:
    """The arrays that are named, and those in folders that are named, sorted."""
    found: list[Path] = []
    for place in places:
        inside = sorted(place.rglob("*.npy")) if place.is_dir() else [place]
        found += inside
    for path in found:
        if path.suffix != ".npy" or not path.is_file():
            remedy = "Save arrays by numpy.save, and name them or a folder of them."
            raise ConfigError("fields are read from .npy files", got=str(path), remedy=remedy)
    if not found:
        raise ConfigError("there is nothing to read", got=", ".join(map(str, places)), remedy="Name .npy files.")
    return found


def _common(found: Sequence[Path], domain: tuple[str, ...]) -> Kind:
    """What all arrays have in common; refuse those that differ."""
    if not domain or any(word not in WORDS for word in domain):
        got = ",".join(domain)
        raise ConfigError("a domain has a word for each direction", got=got, remedy=f"Use {', '.join(WORDS)}.")
    kinds = []
    for path in found:
        values = mapped(path)
        if values.ndim != len(domain) + 3 or str(values.dtype) not in REAL or min(values.shape) < 1:
            got = f"{values.dtype} {list(values.shape)} in {path.name}"
            remedy = "Lay it out so, and name each direction: --domain circle,interval."
            wanted = ", ".join(f"n{i + 1}" for i in range(len(domain)))
            raise ConfigError(f"fields are real arrays [paths, times, {wanted}, channels]", got=got, remedy=remedy)
        kinds.append(Kind(tuple(values.shape[1:]), str(values.dtype), domain))
        if kinds[-1] != kinds[0]:
            got = (
                f"{kinds[0].dtype} {list(kinds[0].shape)}, and {kinds[-1].dtype} {list(kinds[-1].shape)} in {path.name}"
            )
            remedy = "Bring them to one grid and dtype, or build a folder of each."
            raise ConfigError("all paths of a folder have one shape", got=got, remedy=remedy)
    return kinds[0]


def _mapped(place: Path, shard: FieldShard, kind: Kind) -> NDArray[Any]:
    held = mapped(place)
    if held.shape != (shard.paths, *kind.shape) or str(held.dtype) != kind.dtype:
        wanted = f"{kind.dtype} {[shard.paths, *kind.shape]}"
        raise damaged(place, f"{held.dtype} {list(held.shape)}, {wanted} were written")
    return held
