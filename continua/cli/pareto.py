"""``continua pareto RUN``: one checkpoint at many sizes; and sizes chosen by a budget, ``--at latency=5ms``."""

import re
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from continua.axes import Discretisation
from continua.cli.out import refuse_unwritable, writing
from continua.cli.sizes import parse_at
from continua.devices import machine
from continua.errors import ConfigError
from continua.lab import Pareto, pareto
from continua.lab.cost.pareto import typed_budget
from continua.recipes.runs import bundle_of
from continua.tasks import Functions, Text
from continua.training import Run

FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "s": 1.0, "ms": 1e-3, "us": 1e-6,
         "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}  # fmt: skip
FILE = "pareto.json"
SLACK = 1.5  # times are not the same twice
CAPTION = "best *: nothing quicker has a lower loss. MB: the weights of that size and what a pass needs beside them."
WINDOWS = 16  # windows of held-out text for a quick look


def run(
    path: Path, sizes: list[str], windows: int, out: Path | None, device: torch.device, trust: bool = False
) -> None:
    """Measure, print, draw and keep; what was measured before stays in the file."""
    console = Console()
    opened = Run.open(path)
    kept = opened.folder / FILE
    drawn = out or opened.folder / "pareto.png"
    refuse_unwritable(drawn)
    if out is None:
        refuse_unwritable(kept)
    wishes = [parse_at(size) for size in sizes]
    found = measure(console, opened, [Discretisation(), *wishes] if wishes else None, windows, device, trust)
    show(console, found)
    found = _joined(console, found, kept)
    written = [*_keep(console, found, kept), drawn]
    with writing(drawn):
        found.plot(drawn)
    console.print(f"written: {', '.join(map(str, written))}", markup=False)


def _joined(console: Console, found: Pareto, kept: Path) -> Pareto:
    """What was measured now, and before at other sizes; a table that cannot be read is written anew."""
    try:
        return found.joined(Pareto.load(kept)) if kept.is_file() else found
    except ConfigError as damage:
        console.print(f"It is written anew: {damage}", markup=False)
        return found


def _keep(console: Console, found: Pareto, kept: Path) -> list[Path]:
    """Write the table into the run, for budgets to choose from; a run that cannot be written costs that alone."""
    try:
        return [found.save(kept)]
    except OSError as problem:
        console.print(f"Not kept for budgets: {kept} ({problem.strerror or problem}).", markup=False)
        return []


def measure(
    console: Console,
    run: Run,
    sizes: list[Discretisation] | None,
    windows: int,
    device: torch.device,
    trust: bool = False,
) -> Pareto:
    """Held-out loss, time, FLOPs and memory of each size, with a bar. The first of ``sizes`` is the native one."""
    if "recipe" not in run.about:
        remedy = "Measure it from Python: continua.lab.pareto(model, task)."
        raise ConfigError("this run was not made by a recipe", got=run.folder, remedy=remedy)
    model = run.model().to(device)
    bundle = bundle_of(run, trust=trust)
    task = bundle.task
    if windows and isinstance(task, Text | Functions):
        task = replace(task, limit=windows)
    law = bundle.training.elastic
    native = {"d": model.native.d.n, "h": model.native.h.n, "z": model.native.z.steps}
    drew = law.over(model).drew if law is not None else lambda sizes: sizes == native
    with Progress(console=console, transient=True) as bar:
        shown = bar.add_task("measuring", total=None)
        return pareto(model, task, sizes, drew, watch=lambda done, all_: bar.update(shown, completed=done, total=all_))


def show(console: Console, found: Pareto) -> None:
    """The table: the native size first, then by time; what is on the front, and what was never trained."""
    native, *others = found.points
    front = found.front()
    table = Table(title="one checkpoint, many sizes (one sample forward)", caption=CAPTION)
    for name in ("size", "held-out", "to native", "ms", "MFLOP", "MB", "best", "trained"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("size", "best", "trained") else "right")
    for point in [native, *sorted(others, key=lambda p: p.seconds)]:
        table.add_row(
            point.name,
            f"{point.loss:.4f}",
            f"{100 * (point.loss / native.loss - 1):+.1f} %",
            f"{1e3 * point.seconds:.2f}",
            f"{point.flops / 1e6:.1f}",
            f"{point.bytes / 1e6:.2f}",
            "*" if point in front else "",
            {True: "yes", False: "no", None: "?"}[point.trained],
        )
    console.print(table)


def sizes_for(console: Console, path: Path, wish: str, device: torch.device, trust: bool = False) -> Discretisation:
    """``d=64,z=3``, or the best size within a budget: ``latency=5ms``, ``flops=20M``, ``memory=2MB`` (of one sample).

    A budget looks at what ``continua pareto`` measured; where it did not, or on another machine, that is done now.
    """
    items = [item.strip() for item in wish.split(",") if item.strip()]
    limits = {item.partition("=")[0]: item.partition("=")[2] for item in items if not re.match(r"[a-z]=", item)}
    if not limits:
        return parse_at(wish)
    if len(limits) < len(items):
        raise ConfigError("--at takes sizes or a budget", got=wish, remedy="Write d=64,z=3 or latency=5ms.")
    opened = Run.open(path)
    kept = opened.folder / FILE
    found = Pareto.load(kept) if kept.is_file() else None
    if found is None or ("latency" in limits and found.measured_on != machine(device)):
        found = measure(console, opened, None, WINDOWS, device, trust)
        _keep(console, found, kept)
    point = found.pick(**{name: _number(text) for name, text in limits.items()})
    console.print(f"{wish}: {point.name}, held-out loss {point.loss:.4f}, {1e3 * point.seconds:.2f} ms", markup=False)
    return point.at


def hint(found: Pareto) -> str:
    """A latency that some size keeps on this machine and the native one does not, as it is typed after ``--at``."""
    native = found.points[0]
    quick = [point.seconds for point in found.front() if point.seconds < native.seconds / SLACK]
    return typed_budget("latency", SLACK * min(quick, default=native.seconds))


def _number(text: str) -> float:
    """``5ms``, ``20M``, ``1.5e6``.

    >>> _number("5ms"), _number("20M")
    (0.005, 20000000.0)
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if found is None or found[2] not in FACTORS:
        raise ConfigError("a budget is a number with a unit", got=text, remedy="For example 5ms, 20M or 2MB.")
    return float(found[1]) * FACTORS[found[2]]
