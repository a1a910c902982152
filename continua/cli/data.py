"""The work behind ``continua data``."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from continua.cli.folders import open_model
from continua.convert.tokenizer import TOKENIZER
from continua.data import (
    BytePairs,
    Characters,
    FieldFiles,
    TokenFiles,
    Tokeniser,
    built,
    built_fields,
    documents,
    sources_in,
    units_of,
)
from continua.data.field_files import ABOUT as FIELDS
from continua.data.token_files import ABOUT
from continua.errors import ConfigError
from continua.files import read_bytes

COLUMNS = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
LEARNED_FROM = 2**25  # bytes of text that byte pairs are learned from


@dataclass(frozen=True)
class Wishes:
    """The options of ``build``."""

    tokenizer: str = "characters"
    column: str = "text"
    held_out: float = 0.05
    separator: str = ""
    jobs: int = 1
    megabytes: int = 64


def build(texts: list[Path], out: Path, wishes: Wishes) -> None:
    """Build with a bar, and say what there is."""
    console = Console()
    _require_some(wishes.megabytes, wishes.jobs)
    with Progress(*COLUMNS, console=console, transient=True) as bar:
        shown = bar.add_task("reading the alphabet" if wishes.tokenizer == "characters" else "reading", total=None)
        tokeniser = tokeniser_of(wishes.tokenizer, texts, wishes.column)
        separator = _separator(tokeniser, wishes.separator)

        def watch(done: int, total: int, tokens: int) -> None:
            bar.update(shown, description=f"{tokens:,} tokens", completed=done, total=total)

        made = built(
            texts,
            out,
            tokeniser,
            held_out=wishes.held_out,
            column=wishes.column,
            separator=separator,
            unit_bytes=wishes.megabytes * 2**20,
            jobs=wishes.jobs,
            watch=watch,
        )
    _say(console, made)
    console.print(f"continua fit text --text {out} learns from it.", markup=False, soft_wrap=True)


def build_fields(arrays: list[Path], out: Path, domain: str, held_out: float, jobs: int, megabytes: int) -> None:
    """Build with a bar, and say what there is."""
    console = Console()
    _require_some(megabytes, jobs)
    words = tuple(word.strip() for word in domain.split(","))
    with Progress(*COLUMNS, console=console, transient=True) as bar:
        shown = bar.add_task("reading", total=None)

        def watch(done: int, total: int, paths: int) -> None:
            bar.update(shown, description=f"{paths:,} paths", completed=done, total=total)

        made = built_fields(arrays, out, words, held_out=held_out, unit_bytes=megabytes * 2**20, jobs=jobs, watch=watch)
    _say(console, made)
    console.print(f"continua fit fields --set folder={out} learns from it.", markup=False, soft_wrap=True)


def _require_some(megabytes: int, jobs: int) -> None:
    if megabytes < 1 or jobs < 1:
        got = f"--unit {megabytes} --jobs {jobs}"
        raise ConfigError("units and processes are counted from one", got=got, remedy="Use 1 or more.")


def opened(folder: Path) -> TokenFiles | FieldFiles:
    """What a folder holds: fields where it says so, else texts."""
    return FieldFiles.open(folder) if (folder / FIELDS).is_file() else TokenFiles.open(folder)


def show(folder: Path) -> None:
    """Say what there is."""
    _say(Console(), opened(folder))


def check(folder: Path) -> None:
    """Say which shards are damaged; with one the command fails."""
    console = Console()
    found = opened(folder)
    with console.status("reading every shard"):
        damaged = list(found.damaged())
    for file in damaged:
        console.print(f"damaged: {file}", markup=False)
    if damaged:
        console.print(f"Copy {'it' if len(damaged) == 1 else 'them'} anew, or build the folder again.", markup=False)
        raise typer.Exit(1)
    console.print(f"{len(found.shards) + len(found.held_out_shards)} shards are as they were written.", markup=False)


def tokeniser_of(wish: str, texts: list[Path], column: str) -> Tokeniser:
    """Characters of all texts, byte pairs learned from their beginning, or the tokeniser of a file or folder."""
    if wish == "characters":
        alphabet: set[str] = set()
        for text in _all(texts, column):
            alphabet.update(text)
        return Characters("".join(sorted(alphabet)))
    if wish.startswith("pairs:"):
        if not wish[6:].isdigit():
            raise ConfigError("byte pairs are counted", got=wish, remedy="Write --tokenizer pairs:8192.")
        return BytePairs.of(_beginning(texts, column), int(wish[6:]))
    place = Path(wish)
    if (place / ABOUT).is_file():
        return TokenFiles.open(place).tokeniser
    described = place / TOKENIZER if place.is_dir() else place
    if described.is_file():
        return BytePairs(read_bytes(described).decode())
    if place.is_dir():
        return open_model(place).tokens()
    remedy = "Use characters, pairs:8192, a tokenizer.json or a folder that has one."
    raise ConfigError("there is no such tokeniser", got=wish, remedy=remedy)


def _all(texts: list[Path], column: str) -> Iterator[str]:
    for path in sources_in(texts):
        for unit in units_of(path, 2**26):
            yield from documents(unit, column)


def _beginning(texts: list[Path], column: str) -> str:
    held = []
    count = 0
    for text in _all(texts, column):
        held.append(text)
        count += len(text)
        if count >= LEARNED_FROM:
            break
    return "".join(held)


def _separator(tokeniser: Tokeniser, wish: str) -> int | None:
    if not wish:
        return None
    ids = tokeniser.encode(wish)
    if len(ids) != 1:
        raise ConfigError("a separator is one token", got=f"{len(ids)} tokens for {wish!r}", remedy="Name another.")
    return int(ids[0])


def _say(console: Console, made: TokenFiles | FieldFiles) -> None:
    shards = f"{len(made.shards) + len(made.held_out_shards)} shards"
    if isinstance(made, FieldFiles):
        kind = made.kind
        grid = "×".join(str(count) for count in kind.grid)
        console.print(
            f"{made.folder}: paths of {kind.times} times on {grid} nodes in {shards}", markup=False, soft_wrap=True
        )
        console.print(f"{len(made.train):,} paths to learn from, {len(made.held_out):,} held out", markup=False)
        console.print(f"{kind.dtype}, {kind.shape[-1]} channels, sha256 {made.sha256[:16]}…", markup=False)
        return
    console.print(f"{made.folder}: {made.documents:,} documents in {shards}", markup=False, soft_wrap=True)
    console.print(f"{len(made.train):,} tokens to learn from, {len(made.held_out):,} held out", markup=False)
    console.print(f"tokeniser of {made.tokeniser.size:,} tokens, sha256 {made.sha256[:16]}…", markup=False)
