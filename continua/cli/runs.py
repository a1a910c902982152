"""``continua runs`` lists what was trained, ``continua compare A B`` says how two runs differ. Both only read."""

import datetime
import fcntl
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from continua.cli.out import refuse_unwritable, writing
from continua.cli.run import held_out_of
from continua.errors import ConfigError, ContinuaError
from continua.files import fault_of
from continua.lab.figure import pyplot, save
from continua.training import Run
from continua.training.run import ABOUT, LOCK, METRICS

COLOURS = ("#0072b2", "#d55e00")
WIDTH = 40  # characters of a value that are shown
UNSAID = ("format", "version", "files")  # of run.json: nothing that was chosen


@dataclass(frozen=True)
class Summary:
    """A run in one line."""

    folder: Path
    recipe: str
    done: int
    planned: int | None
    best: float | None
    best_step: int | None
    last_loss: float | None
    seconds: float | None
    changed: float
    bytes: int
    state: str


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


def places(folder: Path) -> list[Path]:
    """The run folders in a folder, up to two levels down, or the folder itself; links are not followed."""
    if (folder / ABOUT).is_file():
        return [folder]
    found = [path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{ABOUT}")]
    return sorted(place for place in found if not place.is_symlink() and not place.parent.is_symlink())


def summary(folder: Path) -> Summary:
    """What a run folder says of itself; one that cannot be read is listed as such."""
    changed = max((path.stat().st_mtime for path in (folder / ABOUT, folder / METRICS) if path.is_file()), default=0.0)
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    try:
        opened = Run.open(folder)
    except ContinuaError:
        return Summary(folder, "?", 0, None, None, None, None, None, changed, size, "unreadable")
    lines = [line for line in opened.history() if "note" not in line]
    done = max((line["step"] for line in lines), default=0)
    planned = _planned(opened.about)
    measured = [(score, line["step"]) for line in lines if (score := _main(line)) is not None]
    best, step = min(measured, default=(None, None))
    losses = [line["loss"] for line in lines if _is_number(line.get("loss"))]
    times = sorted(line["seconds"] for line in lines if _is_number(line.get("seconds")))
    seconds = times[len(times) // 2] if times else None
    state = "training" if is_busy(folder) else "done" if planned is not None and done >= planned else "stopped"
    recipe = str(opened.about.get("recipe", "(from Python)"))
    return Summary(
        folder, recipe, done, planned, best, step, losses[-1] if losses else None, seconds, changed, size, state
    )


def _planned(about: Mapping[str, Any]) -> int | None:
    training = about.get("training")
    steps = training.get("steps") if isinstance(training, dict) else None
    return steps if isinstance(steps, int) else None


def _main(line: Mapping[str, Any]) -> float | None:
    """The main held-out number of a line, if it is one."""
    first = next(iter(held_out_of(line).values()), None)
    return first if _is_number(first) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_busy(folder: Path) -> bool:
    """Whether a process is training this run now."""
    lock = folder / LOCK
    if fault_of(lock) is not None:
        return False
    with lock.open() as held:
        try:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


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


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What two descriptions say differently: name, value of the first, value of the second (None: it says nothing).

    >>> differences({"recipe": "text", "changes": {"d": 8}}, {"recipe": "text", "changes": {"d": 16}})
    [('changes.d', 8, 16)]
    """
    left = _flat(first)
    right = _flat(second)
    keys = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    return [(key, left.get(key), right.get(key)) for key in keys if key.split(".")[0] not in UNSAID]


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(_flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value})
    return flat


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
        loss = [(line["step"], line["loss"]) for line in lines if _is_number(line.get("loss"))]
        held = [(line["step"], score) for line in lines if (score := _main(line)) is not None]
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
