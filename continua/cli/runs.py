"""``continua runs`` lists what was trained, ``continua compare A B`` says how two runs differ. Both only read."""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from continua.cli.out import refuse_unwritable, writing
from continua.errors import ConfigError
from continua.lab.figure import pyplot, save
from continua.training import Run
from continua.training.summaries import Summary, differences, is_number, main_score, places, summary

COLOURS = ("#0072b2", "#d55e00")
WIDTH = 40  # characters of a value that are shown


def run(folder: Path) -> None:
    """Print the table of the runs in ``folder``, the newest first."""
    console = Console()
    if folder.exists() and not folder.is_dir():
        raise ConfigError("runs are in a folder", got=folder, remedy="Give the folder that holds them.")
    found = sorted((summary(place) for place in places(folder)), key=lambda one: -one.changed)
    if not found:
        console.print(f"There are no runs in {folder}. Make one: continua fit text", markup=False)
        return
    table = Table("run", "recipe", "steps", "best held-out", "changed", "MB", "state", title=f"runs in {folder}")
    for one in found:
        name = one.folder if one.folder == folder else one.folder.relative_to(folder)
        when = datetime.datetime.fromtimestamp(one.changed).strftime("%Y-%m-%d %H:%M")
        steps = f"{one.done}" if one.planned is None else f"{one.done} of {one.planned}"
        best = "-" if one.best is None else f"{one.best:.4f}"
        table.add_row(*map(escape, (str(name), one.recipe, steps, best, when, f"{one.bytes / 1e6:.1f}", one.state)))
    console.print(table)


# --- two runs ---------------------------------------------------------------------------------------------------------


def compare(first: Path, second: Path, out: Path | None) -> None:
    """Print the settings that differ and how both went; draw both losses."""
    console = Console()
    runs = (Run.open(first), Run.open(second))
    drawn = out or Path("runs", "compare", f"{first.resolve().name}-{second.resolve().name}.png")
    refuse_unwritable(drawn)
    names = [escape(str(one.folder)) for one in runs]
    rows = differences(*(one.about for one in runs))
    table = Table("setting", *names, title="settings that differ")
    for key, *values in rows:
        table.add_row(escape(key), *(escape(_short(value)) for value in values))
    console.print(table if rows else "Both runs have the same settings.")
    table = Table("", *names, title="how they went")
    for name, values in _outcomes([summary(one.folder) for one in runs]):
        table.add_row(name, *values)
    console.print(table)
    with writing(drawn):
        draw(runs, drawn)
    console.print(f"Picture: {drawn}", markup=False, soft_wrap=True)


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def _outcomes(found: Sequence[Summary]) -> list[tuple[str, list[str]]]:
    def shown(value: float | None, digits: int = 4) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    return [
        ("steps", [f"{one.done}" for one in found]),
        ("last training loss", [shown(one.last_loss) for one in found]),
        ("best held-out", [shown(one.best) for one in found]),
        ("at step", ["-" if one.best_step is None else str(one.best_step) for one in found]),
        ("seconds a step", [shown(one.seconds, 3) for one in found]),
        ("state", [one.state for one in found]),
    ]


def draw(runs: Sequence[Run], path: Path) -> Path:
    """The losses of the runs over their steps: training as a line, held-out data as dots."""
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(7.4, 4.4), layout="constrained")
    for opened, colour in zip(runs, COLOURS, strict=True):
        lines = [line for line in opened.history() if "note" not in line]
        loss = [(line["step"], line["loss"]) for line in lines if is_number(line.get("loss"))]
        held = [(line["step"], score) for line in lines if (score := main_score(line)) is not None]
        name = str(opened.folder).replace("$", r"\$")
        if loss:
            panel.plot(*zip(*loss, strict=True), color=colour, lw=0.8, alpha=0.45, label=f"{name}: training")
        if held:
            panel.plot(*zip(*held, strict=True), "o-", color=colour, ms=4, lw=1.4, label=f"{name}: held out")
    panel.set(xlabel="step", ylabel="loss", title="Two runs")
    panel.grid(alpha=0.25)
    if panel.has_data():
        panel.legend(frameon=False, fontsize=8)
    return save(plt, figure, path)
