"""``continua recipes``: which recipes there are and what can be set; ``continua fit --dry-run``: what would happen."""

import itertools
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from continua.memory import available, readable
from continua.recipes import Bundle, build
from continua.recipes.listing import recipes, settings_listed, summary, time_of
from continua.recipes.recipe import find, keys, valued_changes
from continua.settings.text import Setting
from continua.training import train
from continua.training.progress import Progress

TRIAL = 4  # steps of a dry run; the first one warms up
FEW = {"train": 40, "held_out": 2}  # functions of a dry run: the model does not depend on their number


def run(name: str) -> None:
    """List the recipes, or the settings of one."""
    console = Console()
    if not name:
        table = Table("recipe", "what it trains", "time")
        for row in recipes():
            table.add_row(*row)
        console.print(table)
        console.print("Settings of one: continua recipes RECIPE. Train it: continua fit RECIPE.")
        return
    own, training = settings_listed(name)
    console.print(f"{name}: {summary(name)}", markup=False)
    if time_of(name):
        console.print(f"Time: {time_of(name)}.", markup=False)
    console.print(_table("set by --set key=value", own))
    console.print(_table("of the training", training))


def _table(title: str, settings: list[Setting]) -> Table:
    table = Table(title, "default", "takes", "what it does")
    for one in settings:
        table.add_row(*(text.replace("[", r"\[") for text in (one.name, one.default, one.takes, one.about)))
    return table


def dry_run(recipe: str, changes: Mapping[str, Any], folder: Path) -> None:
    """Build everything, try a few steps on it and say what a fit would do. Nothing is kept."""
    console = Console()
    settings = valued_changes(recipe, changes)
    whole = keys(find(recipe))
    few = FEW if set(FEW) <= set(whole) else {}
    with _elsewhere():
        bundle = build(recipe, {**settings, **few})
        seconds = _seconds(bundle)
    for line in outlook(bundle, seconds, folder):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def outlook(bundle: Bundle, seconds: float, folder: Path) -> Iterator[str]:
    """What a fit of a bundle would do, line by line."""
    weights = list(bundle.model.parameters())
    count = sum(parameter.numel() for parameter in weights)
    size = sum(parameter.numel() * parameter.element_size() for parameter in weights)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    steps = bundle.training.total
    yield f"model       {count:,} parameters, {readable(size)}"
    yield f"size        {bundle.model.native}"
    yield f"steps       {steps:,}, evaluated every {bundle.training.evaluate_every:,}"
    spent = f"about {_spoken(seconds * steps)} on this machine ({seconds:.3g} s a step)"
    yield f"time        {spent}, data and evaluations aside"
    yield f"memory      about {readable(peak)} of {readable(available() + peak)}"
    yield f"checkpoint  {readable(3 * size)} or so, into {folder}"
    yield "Nothing was written."


def _seconds(bundle: Bundle) -> float:
    """Seconds a step, from a few steps."""
    stamps: list[float] = []

    def watch(at: Progress) -> None:
        stamps.append(time.perf_counter())

    never = 10**9
    training = replace(bundle.training, steps=TRIAL, evaluate_every=never, save_every=never, tensorboard=False)
    train(
        bundle.model,
        bundle.task,
        training,
        optimiser=bundle.optimiser,
        schedule=bundle.schedule,
        penalties=bundle.penalties,
        watch=watch,
    )
    return min(later - earlier for earlier, later in itertools.pairwise(stamps))


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Generated data are kept in a folder that is thrown away."""
    before = os.environ.get("CONTINUA_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CONTINUA_CACHE"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["CONTINUA_CACHE"]
            else:
                os.environ["CONTINUA_CACHE"] = before


def _spoken(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"
