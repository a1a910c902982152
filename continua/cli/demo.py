"""``continua demo``: train one elastic text model, look at all its sizes, let it write at two of them."""

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from continua.axes import at
from continua.cli.again import code_of, goes_on
from continua.cli.generate import Author, Writing, written
from continua.cli.pareto import FILE, hint, measure, show
from continua.lab.figure import pyplot, save
from continua.recipes import resume, start, tokens_of
from continua.settings.text import pairs
from continua.training import Fitted, Run

FULL = {"steps": 1000, "evaluate_every": 200, "below": 0}  # under four minutes on two cores
QUICK = {"steps": 24, "evaluate_every": 12, "below": 0, "d": 32, "heads": 4, "depth": 2, "context": 32, "batch": 8}
WINDOWS = 64  # of held-out text for each size
PROMPT = "def "
WRITING = Writing(tokens=160, temperature=0.7)


def run(out: Path | None, again: str, changes: list[str], quick: bool, device: torch.device) -> None:
    """Train (or go on, or start anew), then the table, the pictures and the samples."""
    console = Console()
    began = time.perf_counter()
    folder = out or Path("runs", "demo-quick" if quick else "demo")
    if quick:
        console.print(
            "A quick check: a tiny model and few steps. Its text is noise; continua demo shows what is meant."
        )
    fitted = _trained(console, folder, again, {**(QUICK if quick else FULL), **pairs(changes)}, device)
    code = code_of(console, fitted)
    if fitted.ended == "interrupted":
        words = f"continua demo{' --quick' if quick else ''}{f' --out {folder}' if out else ''} --again resume"
        console.print(f"Stopped. Go on with: {words}", markup=False, soft_wrap=True)
    if code:
        raise typer.Exit(code)
    opened = Run.open(folder)
    console.print("\nThe same checkpoint at other sizes: widths, heads and steps are chosen when it runs.")
    model = opened.model().to(device)
    sizes = [model.native, at(**_half(model))] if quick else None
    found = measure(console, opened, sizes, 4 if quick else WINDOWS, device)
    show(console, found)
    found.save(folder / FILE)
    pictures = [found.plot(folder / "pareto.png"), loss_curve(opened.history(), folder / "loss.png")]
    tokens = tokens_of(opened)
    for name, wish in (("full size", {}), ("half of everything", _half(model))):
        text = tokens.decode(torch.tensor([*written(Author(model.at(**wish), tokens), PROMPT, WRITING)]))
        console.print(Panel(Text(text), title=f"written at {name}", expand=False), highlight=False)
    for line in (
        f"Pictures: {', '.join(map(str, pictures))}",
        f"Go on: continua generate {folder} --at {hint(found)} --prompt 'class '",
        f"  or:  continua inspect {folder}",
        f"Done in {time.perf_counter() - began:.0f} s.",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _half(model: Any) -> dict[str, int]:
    """Half the width, the heads and the steps."""
    native = model.native
    return {"d": max(1, native.d.n // 2), "h": max(1, native.h.n // 2), "z": max(1, native.z.steps // 2)}


def _trained(console: Console, out: Path, again: str, settings: dict[str, Any], device: torch.device) -> Fitted:
    """A run in ``out``: a new one, or the one that is there."""
    goes = goes_on(console, out, again)
    if goes:
        return resume(out, device=str(device))
    console.print(
        f"Training one elastic model on the source of Python's own library, into {out} (Ctrl-C loses nothing).",
        markup=False,
    )
    return start("elastic", settings, out, str(device), anew=goes is False)


def loss_curve(history: Sequence[dict[str, Any]], path: Path) -> Path:
    """The loss of every step, a running mean, and what was held out."""
    plt = pyplot()
    lines = [line for line in history if "loss" in line and "note" not in line]
    steps = [line["step"] for line in lines]
    losses = [line["loss"] for line in lines]
    reach = max(1, len(losses) // 40)
    smooth = [sum(near) / len(near) for i in range(len(losses)) if (near := losses[max(0, i - reach) : i + reach + 1])]
    held = [(line["step"], line["validation_loss"]) for line in lines if "validation_loss" in line]
    figure, panel = plt.subplots(figsize=(7, 4.2), layout="constrained")
    panel.plot(steps, losses, color="0.85", lw=0.8, label="every step")
    panel.plot(steps, smooth, color="#0072b2", lw=1.6, label="running mean")
    if held:
        panel.plot(*zip(*held, strict=True), "o", color="#d55e00", label="held out")
    for step, words in marks(lines).items():
        panel.axvline(step, color="0.6", lw=0.8, ls=":")
        panel.annotate(words, (step, max(losses)), (4, -10), textcoords="offset points", fontsize=8)
    panel.set(xlabel="step", ylabel="nats a character")
    panel.grid(alpha=0.25)
    panel.legend(frameon=False)
    panel.set_title("Training", fontsize=11)
    return save(plt, figure, path)


def marks(lines: Sequence[dict[str, Any]]) -> dict[int, str]:
    """What begins at which step: a finer grid, lessons for other sizes."""
    switched = [after["step"] for before, after in pairwise(lines) if after.get("stage") != before.get("stage")]
    found = dict.fromkeys(switched, "finer grid")
    first = next((line["step"] for line in lines if "elastic" in line), None)
    return found if first is None else {**found, first: "other sizes join"}
