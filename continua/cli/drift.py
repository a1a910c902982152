"""``continua drift``: what a model loses at other sizes, and what these cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from continua.axes import Discretisation, at
from continua.cli.folders import open_model
from continua.cli.lift import ROWS, calibrated, working
from continua.cli.out import refuse_unwritable, writing
from continua.cli.sizes import parse_at
from continua.cli.texts import batches, read_texts
from continua.convert import best_steps
from continua.flow import Fixed
from continua.lab import Drift, drift, usual_sizes
from continua.models import Batch, lift

TIMED = (8, 64)  # texts and tokens of the batch that is timed
DEEPEST = 12  # steps: of deeper models the pair to join is not searched for


def run(folder: Path, wishes: Sequence[str], file: Path | None, out: Path | None, device: torch.device) -> None:
    """Calibrate what has one size, measure, print, draw."""
    console = Console()
    asked = [parse_at(wish) for wish in wishes]
    drawn = out or Path("runs/drift") / f"{folder.resolve().name}.png"
    refuse_unwritable(drawn)
    opened = open_model(folder)
    tokens = opened.tokens()
    checked = lift(opened.model) if opened.is_discrete else opened.model
    for wish in asked:
        checked.structure(checked.settle(wish))  # a size that it has not is refused before the work
    if opened.is_discrete:
        model, texts = calibrated(console, opened, file, device)
    else:
        model = opened.model.to(device)
        with working(console, "reading texts"):
            texts = read_texts(file, tokens)
    held_out = batches(texts.held_out, tokens, model, device)
    if not asked:
        with working(console, "choosing sizes"):
            asked = [*usual_sizes(model), *_fewer_steps(model, batches(texts.calibration, tokens, model, device, ROWS))]
    found = measured(console, model, held_out, asked)
    show(console, found, f"{folder.resolve().name}: {len(texts.held_out)} texts held out ({texts.source})")
    with writing(drawn):
        found.plot(drawn, f"{folder.resolve().name} at other sizes")
    console.print(f"written: {drawn}", markup=False, highlight=False, soft_wrap=True)


def measured(console: Console, model: Any, held_out: Sequence[Batch], asked: Sequence[Discretisation]) -> Drift:
    """All sizes, with a bar."""
    with Progress(console=console, transient=True) as bar:
        shown = bar.add_task("measuring", total=None)

        def watch(done: int, total: int) -> None:
            bar.update(shown, completed=done, total=total)

        return drift(model, held_out, asked, timed_batch(model, held_out), watch=watch)


def timed_batch(model: Any, held_out: Sequence[Batch]) -> Batch:
    """Tokens of the texts in a batch without padding: 8 texts of 64 tokens, or as many as the model has room for."""
    rows, tokens = TIMED
    tokens = min(tokens, model.embed.room or tokens)
    every = torch.cat([batch.values[batch.observed] for batch in held_out])  # type: ignore[index]
    return Batch(every.repeat(-(-rows * tokens // len(every)))[: rows * tokens].view(rows, tokens))


def _fewer_steps(model: Any, data: Sequence[Batch]) -> list[Discretisation]:
    """One step less; of models that are not deep, by joining the pair that loses least."""
    control = model.native.z
    if not isinstance(control, Fixed) or control.steps < 2:
        return []
    if control.steps > DEEPEST:
        return [at(z=control.steps - 1)]
    return [at(z=best_steps(model, data[:1], control.steps - 1))]


def show(console: Console, found: Drift, title: str) -> None:
    """The table, the native size first."""
    texts, tokens = found.timed
    table = Table(title=title, padding=(0, 0, 0, 1))
    likeness = "KL: of native to these answers, in nats" if found.nats else "cosine: of embeddings to native ones"
    table.caption = f"{likeness}. GFLOP, ms: {texts} × {tokens} tokens forward, weights held. MB: weights. %: of native"
    for name in ("size", "KL" if found.nats else "cosine", "GFLOP", "%", "ms", "%", "MB", "%"):
        table.add_column(name, no_wrap=True, justify="left" if name == "size" else "right")
    native = found.points[0]
    for point in found.points:
        table.add_row(
            point.name,
            f"{point.likeness:.3f}",
            f"{point.flops / 1e9:.3g}",
            f"{100 * point.flops / native.flops:.0f}",
            f"{1e3 * point.seconds:.1f}",
            f"{100 * point.seconds / native.seconds:.0f}",
            f"{point.bytes / 1e6:.3g}",
            f"{100 * point.bytes / native.bytes:.0f}",
        )
    console.print(table)
