"""``continua inspect RUN``: how a run went, and how its model does at other sizes."""

from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from continua.errors import ContinuaError, RunError
from continua.recipes.runs import bundle_of
from continua.tasks import StoredText, Text
from continua.training import Run
from continua.training.summaries import held_out_of

WINDOWS = 16  # of held-out text for each size: a quick look, not a benchmark


def show(console: Console, run: Run, model: Any, trust: bool = False) -> None:
    """History and drift."""
    about = run.about
    said = f"{run.folder}  recipe {about.get('recipe', '(from Python)')}  {about.get('changes', {})}"
    console.print(f"[bold]run[/bold]  {escape(said)}")
    history = run.history()
    table = Table("step", "loss", "held-out", "seconds a step", title="history")
    measured = [line for line in history if held_out_of(line)]
    for line in measured[:: max(1, len(measured) // 12)] or history[-1:]:
        scores = held_out_of(line)
        held_out = f"{next(iter(scores.values())):.4f}" if scores else "-"
        table.add_row(
            str(line["step"]), f"{line.get('loss', float('nan')):.4f}", held_out, f"{line.get('seconds', 0):.3f}"
        )
    console.print(table)
    for line in history:
        if "note" in line:
            console.print(f"note  {line['note']}", markup=False)
    if "recipe" in about:
        try:
            _drift(console, run, model, trust)
        except RunError as refused:  # what the run itself may not name
            console.print(f"No table of other sizes: {refused}", markup=False)


def _drift(console: Console, run: Run, model: Any, trust: bool) -> None:
    """The held-out loss at the native size and at halves of it, by some windows of the held-out text."""
    task = bundle_of(run, trust=trust).task
    if not isinstance(task, Text | StoredText):
        return
    task = replace(task, limit=WINDOWS)
    native = model.native
    halves = {"d": max(1, native.d.n // 2), "h": max(1, native.h.n // 2), "z": max(1, native.z.steps // 2)}
    wishes: list[dict[str, int]] = [{}, *({k: v} for k, v in halves.items()), halves, {"z": 2 * native.z.steps}]
    table = Table("size", "held-out loss", "against native", title=f"drift over sizes ({WINDOWS} held-out windows)")
    base = None
    for wish in wishes:
        name = ", ".join(f"{k}={v}" for k, v in wish.items()) or "native"
        try:
            loss = task.evaluate(model.at(**wish)).main
        except ContinuaError as refused:
            table.add_row(name, "-", escape(str(refused)))
            continue
        base = loss if base is None else base
        table.add_row(name, f"{loss:.4f}", f"{100 * (loss / base - 1):+.1f} %")
    console.print(table)
