"""Folders of shards, built unit by unit: by any number of processes, and gone on with where an earlier call stopped."""

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from continua.errors import ConfigError, ContinuaError
from continua.files import aside, fault_of, flush, inside, read_bytes, sha256_of, write_text

REQUEST = "request.json"
READ_AT_START = 2**31  # bytes of a folder whose shards are all compared before training

Made = dict[str, Any]  # what is written of a unit
Write = Callable[[Any, int], Made]  # of a unit, and its number
Watch = Callable[[int, int, int], None]  # units done, units in all, what is counted so far


def begun(out: Path, about: str, request: str, what: str) -> None:
    """Make the folder of a request, or go on with it; refuse one of another request, or one that is finished."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / REQUEST
    if (out / about).is_file() and not file.is_file():
        raise ConfigError(f"there are {what} files already", got=str(out), remedy="Name another folder for --out.")
    if not file.is_file():
        if any(out.iterdir()):
            raise ConfigError(f"{what} files get a folder of their own", got=str(out), remedy="Name an empty one.")
        write_text(file, request)
    elif read_bytes(file).decode() != request:
        remedy = "Name another folder, or delete this one: sources or wishes changed since."
        raise ConfigError(f"other {what} files were begun here", got=str(out), remedy=remedy)


def each_unit(
    out: Path, units: Sequence[Any], write: Write, jobs: int, watch: Watch | None, counted: str
) -> list[Made]:
    """What ``write`` says of every unit; those that are done already are not written again."""
    done = {i: made for i in range(len(units)) if (made := _finished(out, i)) is not None}
    told = sum(made[counted] for made in done.values())
    if watch is not None:
        watch(len(done), len(units), told)
    for index, made in _made(units, write, [i for i in range(len(units)) if i not in done], jobs):
        done[index] = made
        told += made[counted]
        if watch is not None:
            watch(len(done), len(units), told)
    return [done[i] for i in range(len(units))]


def _made(units: Sequence[Any], write: Write, missing: Sequence[int], jobs: int) -> Iterator[tuple[int, Made]]:
    if jobs <= 1 or len(missing) <= 1:
        for index in missing:
            yield index, write(units[index], index)
        return
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    with ProcessPoolExecutor(min(jobs, len(missing)), mp_context=context) as pool:
        running = {pool.submit(write, units[index], index): index for index in missing}
        try:
            while running:
                ready, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ready:
                    yield running.pop(future), future.result()
        finally:
            for future in running:
                future.cancel()


def save_array(file: Path, values: NDArray[Any]) -> str:
    """Write an array whole or not at all; its SHA-256."""
    with aside(file) as partial:
        with partial.open("wb") as opened:
            np.save(opened, values, allow_pickle=False)
        flush(partial)
        digest = sha256_of(partial)
        partial.replace(file)
    return digest


def note(out: Path, index: int, made: Made) -> Made:
    """Say that a unit is whole: the last file that is written of it."""
    write_text(_note(out, index), json.dumps(made))
    return made


def _note(out: Path, index: int) -> Path:
    return out / f"unit-{index:05d}.json"


def _finished(out: Path, index: int) -> Made | None:
    """What an earlier call wrote of a unit, where it came to its end."""
    file = _note(out, index)
    if not file.is_file():
        return None
    made: Made = json.loads(read_bytes(file))
    return made


def sealed(out: Path, about: str, described: Made, files: Sequence[str]) -> None:
    """Write what the folder holds, and take away what was only needed to go on."""
    write_text(out / about, json.dumps(described, indent=1))
    kept = {about, *files}
    for path in out.iterdir():
        if path.name not in kept and (path.name == REQUEST or path.suffix in (".npy", ".json")):
            path.unlink()


@runtime_checkable
class HashedShard(Protocol):
    """A shard, as it is written of it."""

    @property
    def file(self) -> str:
        """Its name in the folder."""
        ...

    @property
    def sha256(self) -> str:
        """Of its bytes."""
        ...


@contextmanager
def opened(folder: Path, about: str, form: str, what: str, command: str) -> Iterator[Made]:
    """What a finished folder says of itself; entries that are missing or of another type are refused as damage."""
    found = _described(folder, about, what, command)
    try:
        if found["format"] != form:
            remedy = f"Build it again: {command}."
            raise ConfigError(f"{folder} is of another format", got=found["format"], remedy=remedy)
        yield found
    except (KeyError, TypeError, ValueError) as problem:
        if isinstance(problem, ContinuaError):
            raise
        raise damaged(folder / about, problem) from problem


def digest_of(shards: Sequence[HashedShard], more: str = "") -> str:
    """The SHA-256 of all shards together, and of ``more`` that a folder says."""
    return hashlib.sha256((more + "".join(shard.sha256 for shard in shards)).encode()).hexdigest()


def changed(folder: Path, shards: Sequence[HashedShard]) -> Iterator[str]:
    """The shards whose content is not what was written. All of it is read."""
    for shard in shards:
        if sha256_of(folder / shard.file) != shard.sha256:
            yield shard.file


def require_unchanged(folder: Path, shards: Sequence[HashedShard]) -> None:
    """Refuse shards that are not what was written. Large folders are left to ``continua data check``."""
    if sum((folder / shard.file).stat().st_size for shard in shards) > READ_AT_START:
        return
    for file in changed(folder, shards):
        raise damaged(folder / file, "another SHA-256 than was written")


def _described(folder: Path, about: str, what: str, command: str) -> Made:
    if not (folder / about).is_file():
        unfinished = (folder / REQUEST).is_file()
        remedy = "Give the command again: it goes on." if unfinished else f"{command} makes it."
        said = f"{folder} is not finished" if unfinished else f"{folder} holds no {what} files"
        raise ConfigError(said, got=f"no {about}", remedy=remedy)
    try:
        found = json.loads(read_bytes(folder / about))
    except (OSError, ValueError) as problem:
        raise damaged(folder / about, problem) from problem
    if not isinstance(found, dict):
        raise damaged(folder / about, type(found).__name__)
    return found


def require_shards(folder: Path, shards: Sequence[HashedShard]) -> None:
    """Refuse shards that are missing, or lie elsewhere."""
    for shard in shards:
        file = shard.file
        place = inside(folder, file)
        if place is None:
            raise ConfigError("shards lie in their folder", got=file, remedy="Build the folder again.")
        fault = fault_of(place)
        if fault is not None:
            raise ConfigError(f"a shard of {folder} {fault}", got=file, remedy="Copy the folder anew.")


def mapped(place: Path) -> NDArray[Any]:
    """An array on disk, of which only what is read comes into memory."""
    try:
        held: NDArray[Any] = np.load(place, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as problem:
        raise damaged(place, problem) from problem
    return held


def damaged(place: Path, problem: object) -> ConfigError:
    """The refusal of a file that is not what was written."""
    return ConfigError(f"{place} is damaged", got=str(problem), remedy="Copy it anew, or build the folder again.")
