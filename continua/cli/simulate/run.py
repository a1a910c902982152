"""What ``continua simulate`` does: simulate, measure, draw, film and keep; what is done is not done again."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from continua import __version__
from continua.cli.out import refuse_unwritable, writing
from continua.cli.simulate import meanfield, particles, phase
from continua.cli.simulate.outcome import Outcome, Row, Stages
from continua.cli.simulate.settings import Circle, MeanField, Phase, Shared, Sphere
from continua.errors import ConfigError
from continua.files import read_bytes
from continua.lab.theory.phase import ABOUT, CELLS
from continua.lab.theory.phase import Phase as Diagram

SUMMARY = "summary.json"
NUMBERS = "numbers.npz"
MANY = 20_000  # tokens at once from which on more than one thread pays
RUNS: dict[type[Shared], Callable[[Any, Path, Stages], Outcome]] = {
    Circle: particles.run,
    Sphere: particles.run,
    MeanField: meanfield.run,
    Phase: phase.run,
}


def run(settings: Shared, out: Path | None, anew: bool) -> None:
    """Simulate into a folder, unless that was done before."""
    console = Console()
    folder = out or settings.folder
    asked = plain(settings)
    before = _before(folder)
    if before is not None and not anew:
        _same(settings, asked, before, folder)
        if before["settings"] == asked and all((folder / name).is_file() for name in before["files"]):
            console.print(
                f"Simulated before, with the same settings: {folder} (--again anew repeats it).", markup=False
            )
            _show(console, settings, before["rows"], folder, before["files"])
            return
    refuse_unwritable(folder / SUMMARY)
    if anew:
        with writing(folder):
            _forget(folder, before)
    began = time.perf_counter()
    try:
        with writing(folder), _few_threads(settings), Progress(console=console, transient=True) as bar:
            outcome = RUNS[type(settings)](settings, folder, Stages(bar))
    except KeyboardInterrupt:
        console.print(f"Stopped. {_what_is_left(settings, folder)}", markup=False)
        return
    rows = [*outcome.rows, ("seconds", f"{time.perf_counter() - began:.1f}")]
    with writing(folder):
        files = _keep(folder, asked, settings, outcome, rows)
    _show(console, settings, rows, folder, files)


@contextmanager
def _few_threads(settings: Shared) -> Iterator[None]:
    """One thread for few tokens: on a busy machine threads wait for one another far longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if settings.tokens_at_once > MANY else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- what is kept ---------------------------------------------------------------------------------------------------


def plain(settings: Shared) -> dict[str, Any]:
    """Settings as JSON knows them; no noise is null."""
    return {key: None if value == math.inf else value for key, value in asdict(settings).items()}


def _before(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(read_bytes(folder / SUMMARY))
        rows = [[str(cell) for cell in row] for row in found["rows"]]
        files = [str(name) for name in found["files"]]
        settings = dict(found["settings"])
        return {"what": found["what"], "settings": settings, "files": files, "rows": rows}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _same(settings: Shared, asked: dict[str, Any], before: dict[str, Any], folder: Path) -> None:
    """Refuse a folder that holds something else."""
    own = {"what": before["what"], **before["settings"]}
    for key, value in {"what": settings.name, **asked}.items():
        if own.get(key) != value and key not in settings.swept:
            got = f"{key}={own.get(key)} there and {key}={value} now"
            remedy = "Choose another --out, or write --again anew to forget what is there."
            raise ConfigError(f"{folder} holds another simulation", got=got, remedy=remedy)


def _forget(folder: Path, before: dict[str, Any] | None) -> None:
    """Delete the files of a simulation, and no others."""
    for name in [SUMMARY, *(before or {"files": []})["files"], CELLS, ABOUT]:
        (folder / Path(name).name).unlink(missing_ok=True)


def _what_is_left(settings: Shared, folder: Path) -> str:
    if isinstance(settings, Phase):
        done = len(Diagram.load(folder).cells) if folder.is_dir() else 0
        return f"{done} cells are kept in {folder}: the same command goes on with them."
    return "Nothing was written."


def _keep(folder: Path, asked: dict[str, Any], settings: Shared, outcome: Outcome, rows: list[Row]) -> list[str]:
    """Numbers first and the summary last: where it is, all is."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [picture.name for picture in outcome.pictures]
    if outcome.arrays:
        arrays: dict[str, Any] = {**outcome.arrays}
        numpy.savez_compressed(folder / NUMBERS, **arrays)
        files.append(NUMBERS)
    summary = {"what": settings.name, "continua": __version__, "settings": asked, **outcome.numbers}
    text = json.dumps({**summary, "files": files, "rows": rows}, indent=1, ensure_ascii=False, allow_nan=False)
    aside = folder / f"{SUMMARY}.aside"
    aside.write_text(text + "\n", encoding="utf-8")
    os.replace(aside, folder / SUMMARY)
    return files


def _show(console: Console, settings: Shared, rows: list[Any], folder: Path, files: list[str]) -> None:
    table = Table(title=f"{settings.name}, {settings.interaction}", show_header=False)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    console.print(f"written to {folder}: {', '.join([*files, SUMMARY])}", highlight=False, soft_wrap=True, markup=False)
