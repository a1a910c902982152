"""Texts in files, as documents one after another: plain text, JSON lines, Parquet and Arrow tables, tar archives.

A source is cut into units before anything is read: parts of a size that fits memory, which many processes read side by
side, and which are the same however many they are.
"""

import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continua.errors import ConfigError, install

PIECE = 2**12  # bytes of plain text that count as one document
LONGEST = 2**24  # bytes up to the next end of a line
TABLES = (".parquet", ".arrow", ".feather")
ARCHIVES = (".tar",)
LINES = (".jsonl", ".ndjson")
PLAIN = ("txt", "text", "md")  # of members of an archive
PACKED = (".gz", ".xz", ".bz2", ".zst", ".zip")


@dataclass(frozen=True)
class Unit:
    """A part of a source: bytes of a text, groups of rows of a table, or a whole archive (``end`` 0)."""

    source: str
    start: int = 0
    end: int = 0


def sources_in(places: Sequence[Path]) -> list[Path]:
    """The files that are named, and those in folders that are named, sorted; hidden ones are left out."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(path for path in place.rglob("*") if path.is_file())
            found += [path for path in inside if not any(p.startswith(".") for p in path.relative_to(place).parts)]
        elif place.is_file():
            found.append(place)
        else:
            raise ConfigError("there is no such text", got=str(place), remedy="Name files, or folders of files.")
    for path in found:
        if path.suffix in PACKED:
            raise ConfigError("packed texts are read unpacked", got=str(path), remedy=f"Unpack {path.name} first.")
    if not found:
        raise ConfigError("there is nothing to read", got=", ".join(map(str, places)), remedy="Name files of text.")
    return found


def units_of(path: Path, size: int) -> list[Unit]:
    """The parts of a file, of about ``size`` bytes."""
    if path.suffix in ARCHIVES:
        return [Unit(str(path))]
    if path.suffix in TABLES:
        return _groups(path, size)
    length = path.stat().st_size
    return [Unit(str(path), start, min(start + size, length)) for start in range(0, length, size)]


def documents(unit: Unit, column: str) -> Iterator[str]:
    """The documents of a unit; ``column`` is the name of the text in tables and JSON."""
    path = Path(unit.source)
    try:
        if path.suffix in ARCHIVES:
            yield from _of_archive(path, column)
        elif path.suffix in TABLES:
            yield from _of_table(path, unit, column)
        elif path.suffix in LINES:
            for line in _lines(path, unit):
                if line.strip():
                    yield _text_in(line, column, path)
        else:
            yield from _pieces(path, unit)
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{path} is no text in UTF-8", got=str(problem), remedy="Convert it, or leave it out.") from (
            problem
        )


def _lines(path: Path, unit: Unit) -> Iterator[bytes]:
    """The lines that begin inside a unit."""
    with path.open("rb") as file:
        if unit.start > 0:
            file.seek(unit.start - 1)
            _line(file, path)  # it began in the unit before
        while file.tell() < unit.end:
            yield _line(file, path)


def _line(file: Any, path: Path) -> bytes:
    line: bytes = file.readline(LONGEST)
    if len(line) == LONGEST and not line.endswith(b"\n"):
        remedy = "Break it into lines."
        raise ConfigError(f"{path} has a line of more than {LONGEST:,} bytes", got=f"{len(line):,}", remedy=remedy)
    return line


def _pieces(path: Path, unit: Unit) -> Iterator[str]:
    held: list[bytes] = []
    count = 0
    for line in _lines(path, unit):
        held.append(line)
        count += len(line)
        if count >= PIECE:
            yield b"".join(held).decode("utf-8")
            held.clear()
            count = 0
    if held:
        yield b"".join(held).decode("utf-8")


def _text_in(line: bytes, column: str, path: Path) -> str:
    try:
        described = json.loads(line)
    except ValueError as problem:
        raise ConfigError(f"{path.name} has a line that is no JSON", got=str(problem), remedy="Mend the file.") from (
            problem
        )
    text = described.get(column) if isinstance(described, dict) else None
    if not isinstance(text, str):
        known = ", ".join(described) if isinstance(described, dict) else type(described).__name__
        raise ConfigError(f"{path.name} has no text named {column!r}", got=known, remedy="Name it: --column NAME.")
    return text


def _of_archive(path: Path, column: str) -> Iterator[str]:
    """The texts of a tar archive, one of each sample, in their order; nothing is unpacked to disk.

    Members of one sample have one name up to its first dot and follow one another, as WebDataset lays them out. Its
    text is what is plain text among them, else what JSON names ``column``.
    """
    try:
        with tarfile.open(path, "r|") as archive:
            sample: list[tuple[str, bytes]] = []
            known = None
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                name, _, ending = member.name.rpartition("/")[2].partition(".")
                key = (member.name.rpartition("/")[0], name)
                if key != known:
                    yield from _of_sample(sample, column, path)
                    sample = []
                    known = key
                if file is not None and ending.rpartition(".")[2] in (*PLAIN, "json"):
                    sample.append((ending.rpartition(".")[2], file.read()))
            yield from _of_sample(sample, column, path)
    except tarfile.TarError as problem:
        raise ConfigError(f"{path} is no whole tar archive", got=str(problem), remedy="Fetch it anew.") from problem


def _of_sample(members: Sequence[tuple[str, bytes]], column: str, path: Path) -> Iterator[str]:
    plain = [content for ending, content in members if ending in PLAIN]
    if plain:
        for content in plain:
            yield content.decode("utf-8")
    else:
        for _, content in members:
            yield _text_in(content, column, path)


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as missing:
        remedy = f"Install it: {install('data')}."
        raise ConfigError("tables are read by pyarrow", got=str(missing), remedy=remedy) from missing
    return pyarrow


def _groups(path: Path, size: int) -> list[Unit]:
    """Row groups of a Parquet file, or record batches of an Arrow file, put together up to a size."""
    library = _arrow()
    try:
        if path.suffix == ".parquet":
            described = library.parquet.ParquetFile(path).metadata
            bytes_of = [described.row_group(i).total_byte_size for i in range(described.num_row_groups)]
        else:
            with library.memory_map(str(path)) as held:
                opened = library.ipc.open_file(held)
                bytes_of = [opened.get_batch(i).nbytes for i in range(opened.num_record_batches)]
    except (library.ArrowException, OSError) as problem:
        raise _no_table(path, problem) from problem
    units = []
    start = 0
    for end in range(1, len(bytes_of) + 1):
        if end == len(bytes_of) or sum(bytes_of[start : end + 1]) > size:
            units.append(Unit(str(path), start, end))
            start = end
    return units


def _of_table(path: Path, unit: Unit, column: str) -> Iterator[str]:
    library = _arrow()
    try:
        if path.suffix == ".parquet":
            opened = library.parquet.ParquetFile(path)
            _require_column(path, opened.schema_arrow.names, column)
            for batch in opened.iter_batches(row_groups=list(range(unit.start, unit.end)), columns=[column]):
                yield from _texts(path, batch.column(0), column)
        else:
            with library.memory_map(str(path)) as held:
                table = library.ipc.open_file(held)
                _require_column(path, table.schema.names, column)
                for index in range(unit.start, unit.end):
                    yield from _texts(path, table.get_batch(index).column(column), column)
    except (library.ArrowException, OSError) as problem:
        raise _no_table(path, problem) from problem


def _texts(path: Path, values: Any, column: str) -> Iterator[str]:
    for value in values:
        text = value.as_py()
        if text is None:
            continue
        if not isinstance(text, str):
            got = type(text).__name__
            raise ConfigError(f"{column!r} of {path.name} is no text", got=got, remedy="Name another: --column NAME.")
        yield text


def _require_column(path: Path, names: Sequence[str], column: str) -> None:
    if column not in names:
        remedy = "Name one: --column NAME."
        raise ConfigError(f"{path.name} has no column {column!r}", got=", ".join(names), remedy=remedy)


def _no_table(path: Path, problem: Exception) -> ConfigError:
    return ConfigError(f"{path} is no whole table", got=str(problem).splitlines()[0], remedy="Fetch it anew.")
