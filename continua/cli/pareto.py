"""``continua pareto RUN``: one checkpoint at many sizes; and sizes chosen by a budget, ``--at latency=5ms``."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from continua.axes import Discretisation
from continua.cli.out import refuse_unwritable, writing
from continua.cli.sizes import parse_at
from continua.devices import machine
from continua.errors import ConfigError
from continua.lab import Beside, Pareto, Point, line_through, many_sizes, pareto, read_beside, size_grid
from continua.lab.cost.pareto import point_name, typed_budget
from continua.recipes.runs import bundle_of
from continua.tasks import Functions, StoredText, Text
from continua.training import Run

FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "s": 1.0, "ms": 1e-3, "us": 1e-6,
         "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}  # fmt: skip
FILE = "pareto.json"
SLACK = 1.5  # times are not the same twice
CAPTION = "best *: nothing quicker has a lower loss. MB: the weights of that size and what a pass needs beside them."
CAPTION_OF_MANY = "best *: nothing with fewer FLOPs has a lower loss; ms and MB are measured for these alone."
AGAINST = "loss: held out; %: above the native one. "
AGAINST_IN_NATS = (
    "loss: held out, in nats; %: above the native one; ppl: perplexity over the native one; "
    "α: share of its tokens that the native size keeps (--draft). "
)
WINDOWS = 16  # windows of held-out text for a quick look
USUAL_WINDOWS = 64


def run(
    path: Path,
    sizes: list[str],
    windows: int | None,
    out: Path | None,
    device: torch.device,
    trust: bool = False,
    *,
    many: bool = False,
    beside: Path | None = None,
) -> None:
    """Measure, print, draw and keep; what was measured before stays in the file."""
    console = Console()
    opened = Run.open(path)
    kept = opened.folder / FILE
    drawn = out or opened.folder / "pareto.png"
    refuse_unwritable(drawn)
    if out is None:
        refuse_unwritable(kept)
    others = () if beside is None else read_beside(beside)
    wishes = [parse_at(size) for size in sizes]
    few = windows if windows is not None else WINDOWS if many else USUAL_WINDOWS
    asked = [Discretisation(), *wishes] if wishes else None
    found = measure(console, opened, asked, few, device, trust, many=many)
    show(console, found, opened.model() if many else None)
    _compare(console, found, others)
    found = _joined(console, found, kept)
    written = [*_keep(console, found, kept), drawn]
    with writing(drawn):
        found.plot(drawn, beside=others)
    console.print(f"written: {', '.join(map(str, written))}", markup=False)


def _compare(console: Console, found: Pareto, others: Sequence[Beside]) -> None:
    """The worst of the sizes, against the line through other models."""
    line = line_through(others)
    if line is None:
        return
    most = found.points[0].flops
    inside = [point for point in found.points if point.flops <= most]
    for kind, some in (("", inside), ("trained ", [point for point in inside if point.trained])):
        worst = max(some, key=lambda point: point.loss / line(point.flops), default=found.points[0])
        expected = line(worst.flops)
        said = (
            f"worst of {len(some)} {kind}sizes up to the native cost, against the line through {len(others)} models: "
        )
        said += f"{worst.name}, {100 * (worst.loss / expected - 1):+.1f} %"
        said += f" (perplexity × {math.exp(min(worst.loss - expected, 700.0)):.3f})" if found.nats else ""
        console.print(said, markup=False, highlight=False)


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
    *,
    many: bool = False,
) -> Pareto:
    """Held-out loss, time, FLOPs and memory of each size, with a bar. The first of ``sizes`` is the native one.

    ``many`` adds those of ``lab.many_sizes`` and measures times on the front alone.
    """
    if "recipe" not in run.about:
        remedy = "Measure it from Python: continua.lab.pareto(model, task)."
        raise ConfigError("this run was not made by a recipe", got=run.folder, remedy=remedy)
    model = run.model().to(device)
    bundle = bundle_of(run, trust=trust)
    task = bundle.task
    if windows and isinstance(task, Text | StoredText | Functions):
        task = replace(task, limit=windows)
    law = bundle.training.elastic
    if many:
        every = [*many_sizes(model), *size_grid(model), *(sizes or ())]
        sizes = list({point_name(model, wish): wish for wish in every}.values())
    native = {"d": model.native.d.n, "h": model.native.h.n, "z": model.native.z.steps}
    drew = law.over(model).drew if law is not None else lambda sizes: sizes == native
    with Progress(console=console, transient=True) as bar:
        shown = bar.add_task("measuring", total=None)

        def watch(done: int, total: int) -> None:
            bar.update(shown, completed=done, total=total)

        return pareto(model, task, sizes, drew, watch=watch, front_only=many)


def show(console: Console, found: Pareto, model: Any = None) -> None:
    """The table: the native size first, then by time; what is on the front, and what was never trained.

    Of many sizes of a ``model``, those on the front over FLOPs and the usual ones, by FLOPs.
    """
    native, *others = found.points
    front = found.front() if model is None else found.front("flops")
    if model is None:
        others.sort(key=lambda point: point.seconds or 0.0)
    else:
        usual = [point_name(model, wish) for wish in size_grid(model)]
        others = sorted((p for p in others if p in front or p.name in usual), key=lambda point: point.flops)
    title = "one checkpoint, many sizes (one sample forward)"
    if model is not None:
        title = f"{1 + len(others)} of {len(found.points)} sizes of one checkpoint (one sample forward)"
    table = Table(title=title, padding=(0, 0, 0, 1))
    table.caption = (AGAINST_IN_NATS if found.nats else AGAINST) + (CAPTION if model is None else CAPTION_OF_MANY)
    for name in ("size", "loss", "%", *(["ppl", "α"] if found.nats else []), "ms", "MFLOP", "MB", "best", "trained"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("size", "best", "trained") else "right")
    for point in [native, *others]:
        table.add_row(*_cells(found, point, point in front))
    console.print(table)


def _cells(found: Pareto, point: Point, best: bool) -> list[str]:
    """What the table says of one size."""
    ratio = found.perplexity_ratio(point)
    percent = 100 * (point.loss / found.points[0].loss - 1)
    return [
        point.name,
        f"{point.loss:.4f}",
        f"{percent:+.1f}" if percent < 99.95 else f"{percent:+.0f}",
        *([] if ratio is None else [f"×{ratio:.3f}" if ratio < 10 else f"×{ratio:.3g}"]),
        *([] if ratio is None else ["–" if point.alpha is None else f"{point.alpha:.2f}"]),
        "–" if point.seconds is None else f"{1e3 * point.seconds:.2f}",
        f"{point.flops / 1e6:.1f}",
        "–" if point.bytes is None else f"{point.bytes / 1e6:.2f}",
        "*" if best else "",
        {True: "yes", False: "no", None: "?"}[point.trained],
    ]


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
    took = "" if point.seconds is None else f", {1e3 * point.seconds:.2f} ms"
    console.print(f"{wish}: {point.name}, held-out loss {point.loss:.4f}{took}", markup=False)
    return point.at


def hint(found: Pareto) -> str:
    """A latency that some size keeps on this machine and the native one does not, as it is typed after ``--at``."""
    native = found.points[0].seconds or 0.0
    times = [point.seconds for point in found.front() if point.seconds is not None]
    return typed_budget("latency", SLACK * min((took for took in times if took < native / SLACK), default=native))


def _number(text: str) -> float:
    """``5ms``, ``20M``, ``1.5e6``.

    >>> _number("5ms"), _number("20M")
    (0.005, 20000000.0)
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if found is None or found[2] not in FACTORS:
        raise ConfigError("a budget is a number with a unit", got=text, remedy="For example 5ms, 20M or 2MB.")
    return float(found[1]) * FACTORS[found[2]]
