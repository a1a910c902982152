"""Token files: a text of any length as numbers on disk, read where they are wanted and never as a whole.

A folder holds ``tokens.json`` and shards ``train-00000.npy``, ``held-out-00000.npy``, …: plain arrays of numpy, mapped
into memory. ``built`` makes it, one shard of each kind a unit of the sources, by any number of processes; what was
interrupted goes on where it stopped. Every file gets its name when it is whole.
"""

import bisect
import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from continua.config import from_plain, to_plain
from continua.data.documents import Unit, documents, sources_in, units_of
from continua.data.tokens import Tokeniser
from continua.errors import ConfigError, ContinuaError
from continua.files import aside, fault_of, flush, inside, read_bytes, sha256_of, write_text
from continua.typing import Tensor

FORMAT = "continua tokens 1"
ABOUT = "tokens.json"
REQUEST = "request.json"
TRAIN = "train"
HELD_OUT = "held-out"
UNIT_BYTES = 2**26

Watch = Callable[[int, int, int], None]  # units done, units in all, tokens so far


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
        about = _described(folder)
        try:
            if about["format"] != FORMAT:
                got = about["format"]
                raise ConfigError(f"{folder} is of another format", got=got, remedy="Build it again from its texts.")
            shards = tuple(Shard(**one) for one in about[TRAIN])
            held_out = tuple(Shard(**one) for one in about[HELD_OUT])
            tokeniser = from_plain(about["tokeniser"])
            count = int(about["documents"])
        except (KeyError, TypeError, ValueError) as problem:
            if isinstance(problem, ContinuaError):
                raise
            raise _damaged(folder / ABOUT, problem) from problem
        for shard in (*shards, *held_out):
            place = inside(folder, shard.file)
            if place is None:
                raise ConfigError("shards lie in their folder", got=shard.file, remedy="Build the folder again.")
            fault = fault_of(place)
            if fault is not None:
                raise ConfigError(f"a shard of {folder} {fault}", got=shard.file, remedy="Copy the folder anew.")
        whole = hashlib.sha256("".join(shard.sha256 for shard in (*shards, *held_out)).encode()).hexdigest()
        return cls(folder, tokeniser, shards, held_out, count, whole)

    @cached_property
    def train(self) -> Tokens:
        """What is learned from."""
        return Tokens(self.folder, self.shards, self.tokeniser.size)

    @cached_property
    def held_out(self) -> Tokens:
        """What is measured on."""
        return Tokens(self.folder, self.held_out_shards, self.tokeniser.size)

    def damaged(self) -> Iterator[str]:
        """The shards whose content is not what was written. All of it is read."""
        for shard in (*self.shards, *self.held_out_shards):
            if sha256_of(self.folder / shard.file) != shard.sha256:
                yield shard.file


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
    out.mkdir(parents=True, exist_ok=True)
    _begun(out, request)
    units = [unit for path in found for unit in units_of(path, unit_bytes)]
    done = {i: made for i in range(len(units)) if (made := _finished(out, i)) is not None}
    told = sum(made["tokens"] for made in done.values())
    if watch is not None:
        watch(len(done), len(units), told)
    for index, made in _made(out, request, units, [i for i in range(len(units)) if i not in done], jobs):
        done[index] = made
        told += made["tokens"]
        if watch is not None:
            watch(len(done), len(units), told)
    return _sealed(out, request, [done[i] for i in range(len(units))])


def _begun(out: Path, request: BuildRequest) -> None:
    text = json.dumps(asdict(request), sort_keys=True)
    file = out / REQUEST
    if (out / ABOUT).is_file() and not file.is_file():
        raise ConfigError("there are token files already", got=str(out), remedy="Name another folder for --out.")
    if not file.is_file():
        if any(out.iterdir()):
            raise ConfigError("token files get a folder of their own", got=str(out), remedy="Name an empty one.")
        write_text(file, text)
    elif read_bytes(file).decode() != text:
        remedy = "Name another folder, or delete this one: texts, tokeniser or wishes changed since."
        raise ConfigError("other token files were begun here", got=str(out), remedy=remedy)


def _made(
    out: Path, request: BuildRequest, units: Sequence[Unit], missing: Sequence[int], jobs: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    if jobs <= 1 or len(missing) <= 1:
        for index in missing:
            yield index, write_unit(out, request, units[index], index)
        return
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    with ProcessPoolExecutor(min(jobs, len(missing)), mp_context=context) as pool:
        running = {pool.submit(write_unit, out, request, units[index], index): index for index in missing}
        try:
            while running:
                ready, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ready:
                    yield running.pop(future), future.result()
        finally:
            for future in running:
                future.cancel()


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
        with aside(file) as partial:
            with partial.open("wb") as opened:
                np.save(opened, ids, allow_pickle=False)
            flush(partial)
            made[name] = asdict(Shard(file.name, len(ids), sha256_of(partial)))
            partial.replace(file)
        made["tokens"] += len(ids)
    write_text(_note(out, index), json.dumps(made))
    return made


def _note(out: Path, index: int) -> Path:
    return out / f"unit-{index:05d}.json"


def _finished(out: Path, index: int) -> dict[str, Any] | None:
    """What an earlier call wrote of a unit, where it came to its end."""
    note = _note(out, index)
    if not note.is_file():
        return None
    made: dict[str, Any] = json.loads(read_bytes(note))
    return made


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
    write_text(out / ABOUT, json.dumps(about, indent=1))
    kept = {ABOUT, *(shard["file"] for own in shards.values() for shard in own)}
    for path in out.iterdir():
        if path.name not in kept and (path.name == REQUEST or path.suffix in (".npy", ".json")):
            path.unlink()
    return TokenFiles.open(out)


def _described(folder: Path) -> dict[str, Any]:
    if not (folder / ABOUT).is_file():
        unfinished = (folder / REQUEST).is_file()
        remedy = (
            "Give the command again: it goes on." if unfinished else "continua data build TEXTS --out FOLDER makes it."
        )
        what = f"{folder} is not finished" if unfinished else f"{folder} holds no token files"
        raise ConfigError(what, got=f"no {ABOUT}", remedy=remedy)
    try:
        about = json.loads(read_bytes(folder / ABOUT))
    except (OSError, ValueError) as problem:
        raise _damaged(folder / ABOUT, problem) from problem
    if not isinstance(about, dict):
        raise _damaged(folder / ABOUT, type(about).__name__)
    return about


def _mapped(place: Path, tokens: int) -> NDArray[Any]:
    try:
        held: NDArray[Any] = np.load(place, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as problem:
        raise _damaged(place, problem) from problem
    if held.shape != (tokens,) or held.dtype not in (np.uint16, np.uint32):
        raise _damaged(place, f"{held.dtype} {list(held.shape)}, {tokens} were written")
    return held


def _damaged(place: Path, problem: object) -> ConfigError:
    return ConfigError(f"{place} is damaged", got=str(problem), remedy="Copy it anew, or build the folder again.")
