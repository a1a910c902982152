"""Token files: a text of any length as numbers on disk, read where they are wanted and never as a whole.

A folder holds ``tokens.json`` and shards ``train-00000.npy``, ``held-out-00000.npy``, …: plain arrays of numpy, mapped
into memory. ``built`` makes it, one shard of each kind a unit of the sources, by any number of processes; what was
interrupted goes on where it stopped. Every file gets its name when it is whole.
"""

import bisect
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from continua.config import from_plain, to_plain
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
from continua.data.documents import Unit, documents, sources_in, units_of
from continua.data.tokens import Tokeniser
from continua.errors import ConfigError
from continua.typing import Tensor

FORMAT = "continua tokens 1"
ABOUT = "tokens.json"
TRAIN = "train"
HELD_OUT = "held-out"
UNIT_BYTES = 2**26


@dataclass(frozen=True)
class Shard:
    """One array of token numbers."""

    file: str
    tokens: int
    sha256: str


class Tokens:
    """The numbers of some shards, one behind another, as if they were one row."""

    def __init__(self, folder: Path, shards: Sequence[Shard], size: int) -> None:
        self.size = size
        self._places = [folder / shard.file for shard in shards]
        self._held = [_mapped(place, shard.tokens) for place, shard in zip(self._places, shards, strict=True)]
        self._ends = np.cumsum([shard.tokens for shard in shards]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends else 0

    def read(self, start: int, length: int) -> NDArray[Any]:
        """``length`` numbers from ``start`` on, across the ends of shards."""
        parts = []
        while length > 0:
            which = bisect.bisect_right(self._ends, start)
            begin = start - (self._ends[which - 1] if which else 0)
            part = self._held[which][begin : begin + length]
            parts.append(part)
            start += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def windows(self, starts: Sequence[int], length: int) -> Tensor:
        """Rows of ``length`` numbers [n, length]."""
        rows = np.stack([self.read(int(start), length) for start in starts]).astype(np.int64)
        if rows.size and int(rows.max()) >= self.size:
            got = f"token {int(rows.max())} of {self.size}"
            remedy = f"A shard is damaged: continua data check {self._places[0].parent} says which."
            raise ConfigError("token files hold numbers that no token has", got=got, remedy=remedy)
        return torch.from_numpy(rows)


@dataclass(frozen=True)
class TokenFiles:
    """A folder of token files: what is learned from, what is held out, and the tokeniser of both."""

    folder: Path
    tokeniser: Tokeniser
    shards: tuple[Shard, ...]
    held_out_shards: tuple[Shard, ...]
    documents: int
    sha256: str

    @classmethod
    def open(cls, folder: str | Path) -> "TokenFiles":
        """The files of a folder, each there and of the length that is written of it."""
        folder = Path(folder)
        with opened(folder, ABOUT, FORMAT, "token", "continua data build TEXTS --out FOLDER") as about:
            shards = tuple(Shard(**one) for one in about[TRAIN])
            held_out = tuple(Shard(**one) for one in about[HELD_OUT])
            tokeniser = from_plain(about["tokeniser"])
            count = int(about["documents"])
        require_shards(folder, (*shards, *held_out))
        return cls(folder, tokeniser, shards, held_out, count, digest_of((*shards, *held_out)))

    @cached_property
    def train(self) -> Tokens:
        """What is learned from."""
        return Tokens(self.folder, self.shards, self.tokeniser.size)

    @cached_property
    def held_out(self) -> Tokens:
        """What is measured on."""
        return Tokens(self.folder, self.held_out_shards, self.tokeniser.size)

    def require_unchanged(self) -> None:
        """Refuse shards that are not what was written; folders of more than 2 GiB are not read whole for that."""
        require_unchanged(self.folder, (*self.shards, *self.held_out_shards))

    def damaged(self) -> Iterator[str]:
        """The shards whose content is not what was written. All of it is read."""
        return changed(self.folder, (*self.shards, *self.held_out_shards))


@dataclass(frozen=True)
class BuildRequest:
    """All that decides what the files hold."""

    tokeniser: dict[str, Any]
    sources: tuple[tuple[str, int, int], ...]  # name, bytes, time of the last change
    held_out: float
    column: str
    separator: int | None
    unit_bytes: int


def built(
    places: Sequence[Path],
    out: Path,
    tokeniser: Tokeniser,
    *,
    held_out: float = 0.05,
    column: str = "text",
    separator: int | None = None,
    unit_bytes: int = UNIT_BYTES,
    jobs: int = 1,
    watch: Watch | None = None,
) -> TokenFiles:
    """Write the texts as token files into ``out``, or go on where an earlier call with the same wishes stopped.

    Every ``1 / held_out``-th document is held out. ``separator`` is put behind each document. The files are the same
    for any number of ``jobs``.
    """
    if not 0.0 < held_out < 1.0:
        raise ConfigError("a share of the documents is held out", got=held_out, remedy="Use 0 < held_out < 1.")
    found = sources_in(places)
    stats = [(str(path.resolve()), path.stat()) for path in found]
    sources = tuple((name, seen.st_size, seen.st_mtime_ns) for name, seen in stats)
    request = BuildRequest(to_plain(tokeniser), sources, held_out, column, separator, unit_bytes)
    begun(out, ABOUT, json.dumps(asdict(request), sort_keys=True), "token")
    units = [unit for path in found for unit in units_of(path, unit_bytes)]
    return _sealed(out, request, each_unit(out, units, partial(write_unit, out, request), jobs, watch, "tokens"))


def write_unit(out: Path, request: BuildRequest, unit: Unit, index: int) -> dict[str, Any]:
    """Read a unit, and write its shards; the last file that is written says that they are whole."""
    tokeniser: Tokeniser = from_plain(request.tokeniser)
    dtype = np.uint16 if tokeniser.size <= 2**16 else np.uint32
    parts: dict[str, list[NDArray[Any]]] = {TRAIN: [], HELD_OUT: []}
    every = round(1 / request.held_out)
    first = int.from_bytes(hashlib.sha256(f"{index}".encode()).digest()[:4], "little")
    count = 0
    for text in documents(unit, request.column):
        ids = tokeniser.encode(text).numpy().astype(dtype)
        if request.separator is not None:
            ids = np.append(ids, dtype(request.separator))
        parts[HELD_OUT if (first + count) % every == every - 1 else TRAIN].append(ids)
        count += 1
    made: dict[str, Any] = {"documents": count, "tokens": 0}
    for name, held in parts.items():
        ids = np.concatenate(held) if held else np.empty(0, dtype)
        file = out / f"{name}-{index:05d}.npy"
        made[name] = asdict(Shard(file.name, len(ids), save_array(file, ids)))
        made["tokens"] += len(ids)
    return note(out, index, made)


def _sealed(out: Path, request: BuildRequest, units: Sequence[dict[str, Any]]) -> TokenFiles:
    """Write what the folder holds, and take away what was only needed to go on."""
    shards = {name: [made[name] for made in units if made[name]["tokens"]] for name in (TRAIN, HELD_OUT)}
    if not shards[TRAIN] or not shards[HELD_OUT]:
        got = f"{sum(made['documents'] for made in units)} documents"
        remedy = "Give more text, or hold out a larger share: --held-out 0.2."
        raise ConfigError("some documents are learned from and some held out", got=got, remedy=remedy)
    about = {
        "format": FORMAT,
        "tokeniser": request.tokeniser,
        "documents": sum(made["documents"] for made in units),
        "column": request.column,
        "separator": request.separator,
        **shards,
    }
    sealed(out, ABOUT, about, [shard["file"] for own in shards.values() for shard in own])
    return TokenFiles.open(out)


def _mapped(place: Path, tokens: int) -> NDArray[Any]:
    held = mapped(place)
    if held.shape != (tokens,) or held.dtype not in (np.uint16, np.uint32):
        raise damaged(place, f"{held.dtype} {list(held.shape)}, {tokens} were written")
    return held
