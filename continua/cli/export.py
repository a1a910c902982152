"""``continua export``: a model as one file that runs without torch, as a program, or as a Hugging Face folder."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from continua.cli.lift import working
from continua.cli.sizes import parse_at
from continua.convert import Exported, export
from continua.convert.export import opened
from continua.errors import ContinuaError
from continua.recipes.runs import bundle_of
from continua.tasks import StoredText, Text
from continua.training import Run
from continua.training.run import ABOUT

WINDOWS = 8  # of held-out text, to compare and measure on


@dataclass(frozen=True)
class Wishes:
    """The options of the command."""

    at: str = ""
    int8: bool = False
    probe: bool = False


def run(folder: Path, out: Path, wishes: Wishes) -> None:
    """Export, and say what was written and how far it is from torch."""
    console = Console()
    at = parse_at(wishes.at) if wishes.at else None
    with working(console, f"exporting {folder}"):
        source = opened(folder)
        model: Any = source.model if at is None else source.model.at(at)
        data = held_out(folder) if wishes.int8 else None
        made = export(model, out, int8=wishes.int8, probe=wishes.probe, tokens=source.tokens, data=data)
    _show(console, made, wishes.int8)


def held_out(folder: Path) -> torch.Tensor | None:
    """Some windows of the held-out text of a run; None where there is none at hand."""
    if not (folder / ABOUT).is_file():
        return None
    try:
        task = bundle_of(Run.open(folder)).task
    except ContinuaError:
        return None
    if not isinstance(task, Text | StoredText):
        return None
    return replace(task, limit=WINDOWS).held_out_windows()[:, :-1]


def _show(console: Console, made: Exported, int8: bool) -> None:
    if made.compared:
        table = Table("size", "largest difference from torch", *(["more loss, nats a token"] if int8 else []))
        for one in made.compared:
            more = [f"{one.more_loss:+.4f}"] if int8 else []
            table.add_row(one.where, f"{one.difference:.1e}", *more)
        console.print(table)
    for note in made.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    console.print(f"written: {made.path}; {_use(made)}", markup=False, highlight=False, soft_wrap=True)


def _use(made: Exported) -> str:
    """How what was written is used."""
    if made.path.is_dir():
        return "transformers loads it."
    if made.path.suffix == ".pt2":
        return f'torch.export.load("{made.path}") loads it.'
    verb = {"decoder": "generate", "encoder": "embed"}.get(made.kind, "predict")
    size = made.path.stat().st_size / 1e6
    return f'{size:.1f} MB; ct.Session("{made.path}").{verb}(…) runs it without torch.'
