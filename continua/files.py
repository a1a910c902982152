"""Files that are written whole or not at all, and read only where they are what they should be."""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

LARGEST_TEXT = 256 * 2**20  # bytes of a description: more than any of ours has, less than memory
HUB_SNAPSHOTS = "snapshots"  # of a model in the cache of Hugging Face: folders of links …
HUB_BLOBS = "blobs"  # … to the files beside them


def write_text(path: Path, text: str) -> None:
    """``write_bytes`` of text in UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file by one rename: after a crash it holds what it held before, or all of ``content``."""
    with aside(path) as partial:
        with partial.open("wb") as file:
            file.write(content)
        flush(partial)
        os.replace(partial, path)
    flush(path.parent)


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A name beside ``path`` that no other writer uses; what is left there in the end is removed."""
    partial = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder beside ``out`` that becomes ``out`` in the end; nothing is left of it where that fails."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        yield made
        os.replace(made, out)


def flush(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk before going on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fault_of(path: Path) -> str | None:
    """Why ``path`` is not a plain file that lies in its folder (a link out of it, a pipe, a device); None if it is.

    A model in the cache of Hugging Face is a folder of links to the blobs beside it: these are its own.
    """
    try:
        seen = path.lstat()
        if stat.S_ISLNK(seen.st_mode):
            if path.resolve().parent not in _homes(path.parent.resolve()):
                return "is a link out of its folder"
            seen = path.stat()
    except FileNotFoundError:
        return "is missing"
    except (OSError, RuntimeError) as problem:  # a loop of links is a RuntimeError in some versions of Python
        return f"cannot be read: {_why(problem)}"
    return None if stat.S_ISREG(seen.st_mode) else "is not a plain file"


def read_bytes(path: Path, limit: int = LARGEST_TEXT) -> bytes:
    """What a plain file holds; pipes, devices, links out of the folder and what is too large are an ``OSError``."""
    fault = fault_of(path)
    if fault is not None:
        raise OSError(f"{path.name} {fault}")
    size = path.stat().st_size
    if size > limit:
        raise OSError(f"{path.name} has {size:,} bytes, more than {limit:,}")
    return path.read_bytes()


def inside(folder: Path, name: object) -> Path | None:
    """The place that ``name`` means in ``folder``; None where it is absolute, leads out of it or is no name."""
    if not isinstance(name, str) or not name or "\0" in name or "\\" in name:
        return None
    parts = PurePosixPath(name).parts
    if PurePosixPath(name).is_absolute() or ".." in parts or not parts:
        return None
    place = folder.joinpath(*parts)
    try:
        within = place.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return None
    return place if within else None


def _homes(folder: Path) -> tuple[Path, ...]:
    """The folders in which the files of a folder may lie."""
    is_cached = folder.parent.name == HUB_SNAPSHOTS and folder.parent.parent.name.startswith("models--")
    return (folder, folder.parent.parent / HUB_BLOBS) if is_cached else (folder,)


def _why(problem: Exception) -> str:
    return (problem.strerror or str(problem)) if isinstance(problem, OSError) else str(problem)
