"""``continua fit``: train a recipe, or go on with a run."""

import os
from pathlib import Path

import torch
from rich.console import Console

from continua.cli.run import held_out_of
from continua.cli.sizes import parse_at
from continua.errors import ConfigError
from continua.recipes import SHIPPED, build, changes_of, parse, resume, start
from continua.training import Run


def run(
    recipe: str,
    changes: list[str],
    text: Path | None,
    wish: str,
    folder: Path | None,
    again: Path | None,
    compiles: bool,
    device: torch.device,
) -> None:
    """Start or resume, and say what to do next."""
    console = Console()
    settings = parse(changes)
    if text is not None:
        settings["text"] = str(text.absolute())
    if wish:
        settings["at"] = parse_at(wish)
    if compiles:
        settings["compile"] = True
    if again is not None:
        fitted = resume(again, settings, str(device))
    elif not recipe:
        remedy = f"Shipped: {', '.join(SHIPPED)}. Or go on with a run: --resume RUN."
        raise ConfigError("fit needs a recipe", got="none", remedy=remedy)
    else:
        fitted = start(
            recipe, settings, folder or Path("runs", Path(recipe.rpartition(":")[2] or recipe).stem), str(device)
        )
    if os.environ.get("RANK", "0") != "0":  # one of many processes: the first one speaks
        return
    home = fitted.run.folder if fitted.run is not None else "."
    measured = [scores for line in fitted.history if (scores := held_out_of(line))]
    scores = measured[-1] if measured else {}
    shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
    console.print(f"{fitted.ended}: {home}" + (f"  held-out: {shown}" if shown else ""))
    if fitted.ended == "interrupted":
        console.print(f"Go on with: continua fit --resume {home}")
        return
    if fitted.run is not None:
        _report(console, fitted.run)
    console.print(f"Look at it with: continua inspect {home}")


def _report(console: Console, run: Run) -> None:
    """What the recipe says of its best model."""
    bundle = build(run.about["recipe"], changes_of(run))
    if bundle.report is not None:
        for line in bundle.report(run.model(), run.folder):
            console.print(line, markup=False, highlight=False)
