"""Cheaper schedules of elastic training: what each size loses against separate models, and whether its bound holds.

    python benchmarks/elastic_schedules.py               # what is missing, one seed: four minutes of CPU time each
    python benchmarks/elastic_schedules.py --quick       # a smoke run

Model, data, sizes, separate models and bounds are those of ``elastic.py``, whose schedule holds them;
``elastic_costs.py`` says what steps cost. Finished runs are kept in ``results/elastic-schedules.jsonl``.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import RESULTS, Row, environment, write
from elastic_jobs import (
    CONTEXT,
    EVERY,
    LONGER,
    NEW,
    SIZES,
    STEPS,
    USUAL,
    WINDOWS,
    best_factors,
    finished,
    model_of,
    optimiser_of,
    task_of,
)  # fmt: skip
from elastic_table import BOUNDS, FINER_BOUNDS, Table

from continua.axes import at
from continua.convert import elastic
from continua.models import Transformer
from continua.optim import CosineDecay
from continua.recipes.elastic import ElasticSettings, afterwards, corrected, growth, lessons, optimiser
from continua.settings import Share
from continua.training import Growth, Stage, fit
from continua.training.sizes import native_sizes

SEED = 0
DEEP = "twice the steps"
FAR = ("quarter width", "one head and one step")  # below half along some axes: nothing is promised


@dataclass(frozen=True)
class Schedule:
    """So many steps with some settings of the recipe."""

    steps: int
    settings: ElasticSettings


@dataclass(frozen=True)
class Plain:
    """Training of the native size alone, perhaps with a first stage; the last share of the learning rates."""

    stage: Stage | None = None
    steps: int = STEPS
    floor: Share = CosineDecay.floor

    @property
    def grow(self) -> Growth | None:
        """As a fit takes it."""
        return None if self.stage is None else Growth((self.stage,))


RECIPE = "the recipe"
LEADS = (0.0, -2.0, -3.0, -4.0, -6.0)  # of the gains of parts; the recipe does not train them
SCHEDULES = {  # the recipe, and changes of it
    RECIPE: Schedule(LONGER, USUAL),
    "a fifth of the lessons at twice the steps": Schedule(LONGER, replace(USUAL, deep=0.2)),
    "a lesson of weight 0.8 at every step": Schedule(LONGER, replace(USUAL, often=1.0, share=0.8)),
    "native from a third of the steps on": Schedule(LONGER, replace(USUAL, coarse=0.17, half=1 / 3, most=0.0)),
    "three times as many steps afterwards": Schedule(LONGER, replace(USUAL, below=3 * USUAL.below)),
}

LESS = 0.55  # until this share of the steps examples are few, or short
PLAINLY = {  # the same savings for plain training of the native size, and fewer steps that cost as much
    "plain training, half of each batch until 55 % of its steps": Plain(Stage((at(),), LESS, batch=0.5)),
    "plain training, half of each batch at 0.7 of the learning rates until 55 % of its steps": Plain(
        Stage((at(),), LESS, batch=0.5, rate=0.7)
    ),
    "plain training, half of the context until 55 % of its steps": Plain(Stage((at(t=CONTEXT // 2),), LESS)),
    "plain training, 630 steps": Plain(steps=630),
    "plain training, learning rates down to zero": Plain(floor=0.0),
}


def work_plainly(name: str, shorter: int) -> dict[str, Any]:
    """Train the native size alone, as separate models are, and measure it."""
    task = replace(task_of(), limit=WINDOWS)
    model = model_of(SIZES["native"], task.tokens.size, SEED)
    factor = best_factors(finished(RESULTS / "elastic-runs.jsonl"), STEPS, muon=True)["native"]
    chosen = PLAINLY[name]
    steps = chosen.steps // shorter
    start = time.process_time()
    fit(
        model,
        replace(task, limit=1),
        optimiser=optimiser_of(muon=True, factor=factor),
        steps=steps,
        seed=SEED,
        evaluate_every=steps,
        grow=chosen.grow,
        schedule=CosineDecay(floor=chosen.floor),
    )
    spent = time.process_time() - start
    return {"schedule": name, "cpu": spent, "losses": {"native": task.evaluate(model.eval()).main}}


def work(name: str, shorter: int) -> dict[str, Any]:
    """Train by a schedule, and measure the sizes that are held to something."""
    torch.set_num_threads(1)
    if name in PLAINLY:
        return work_plainly(name, shorter)
    chosen = SCHEDULES[name]
    own = chosen.settings
    task = replace(task_of(), limit=WINDOWS)
    model = corrected(elastic(model_of(SIZES["native"], task.tokens.size, SEED)), own)
    steps = chosen.steps // shorter
    start = time.process_time()
    fit(
        model,
        replace(task, limit=1),
        optimiser=optimiser(own),
        steps=steps,
        seed=SEED,
        evaluate_every=steps,
        elastic=lessons(own),
        grow=growth(model.native, own),
        afterwards=afterwards(native_sizes(model), own),
    )
    spent = time.process_time() - start
    model.eval()
    views = {size: model.at(**dict(zip("dhz", EVERY[size], strict=True))) for size in (*BOUNDS, *FAR)}
    views[DEEP] = model.at(z=2 * SIZES["native"][2])
    losses = {size: task.evaluate(view).main for size, view in views.items()}
    if name == RECIPE:
        losses |= {f"{DEEP}, g = {lead:g}": task.evaluate(divided(model, lead)).main for lead in LEADS}
    return {"schedule": name, "cpu": spent, "losses": losses}


def divided(model: Transformer, lead: float) -> Any:
    """Twice the steps, where the parts of a step begin with other shares of its work; changes the model."""
    with torch.no_grad():
        for own, gain in model.named_parameters():
            if own.endswith((".o over d by p.coefficients", ".w2 over d by p.coefficients")):
                gain.fill_(lead)
    return model.at(z=2 * SIZES["native"][2])


def gaps_of(losses: dict[str, float], apart: Table) -> dict[str, tuple[float, float]]:
    """By how many percent each size lies above what it is compared with, and how many are promised."""
    found = {}
    for size, bound in BOUNDS.items():
        if size in losses:
            found[size] = (100 * (losses[size] / apart.apart(size)[SEED] - 1), bound)
    if DEEP in losses:
        found[DEEP] = (100 * (losses[DEEP] / losses["native"] - 1), FINER_BOUNDS[DEEP])
    return found


def row_of(line: dict[str, Any], apart: Table) -> Row:
    """The size of a schedule that misses its promise by most, or keeps it most narrowly; all sizes beside it."""
    name = line["schedule"]
    gaps = gaps_of(line["losses"], apart)
    over = {size: gap - bound for size, (gap, bound) in gaps.items()}
    worst = max(over, key=lambda size: over[size])
    far = {size: 100 * (line["losses"][size] / apart.apart(size)[SEED] - 1) for size in FAR if size in line["losses"]}
    note = "; ".join(f"{size} {gap:+.2f}" for size, gap in {**{k: gap for k, (gap, _) in gaps.items()}, **far}.items())
    if name in PLAINLY:
        return Row(name, gaps["native"][0], None, None, "%", note="native, against separately trained")
    return Row(name, over[worst], None, None, "points", "≤ 0", over[worst] <= 0, f"{worst}; {note}")


def finer_rows(line: dict[str, Any]) -> list[Row]:
    """What twice the steps lose against the native ones, by the share of the first part."""
    losses = line["losses"]
    return [
        Row(f"the recipe, {name}, against native", 100 * (loss / losses["native"] - 1), None, None, "%")
        for name, loss in losses.items()
        if name.startswith(f"{DEEP}, ")
    ]


def run_missing(path: Path, shorter: int) -> list[dict[str, Any]]:
    """Each schedule in a process of its own; finished ones are kept."""
    done = {line["schedule"] for line in finished(path)}
    for name in [name for name in (*PLAINLY, *SCHEDULES) if name not in done]:
        command = [sys.executable, __file__, "--job", json.dumps([name, shorter])]
        told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
        with path.open("a") as kept:
            kept.write(told.strip().splitlines()[-1] + "\n")
    return finished(path)


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps, nothing is written")
    parser.add_argument("--kept", action="store_true", help="tell of finished runs alone")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job:
        print(json.dumps(work(*json.loads(chosen.job))))
        return
    path = RESULTS / f"elastic-schedules{'-quick' if chosen.quick else ''}.jsonl"
    lines = finished(path) if chosen.kept else run_missing(path, 50 if chosen.quick else 1)
    apart = Table(finished(RESULTS / "elastic-runs.jsonl"), NEW, 1, STEPS)
    rows = [row_of(run, apart) for run in lines if run["schedule"] in {**PLAINLY, **SCHEDULES}]
    rows += [line for run in lines for line in finer_rows(run)]
    for line in rows:
        print(f"{line.name}: {line.shown}  {line.target} {line.verdict}  {line.note}")
    if chosen.quick:
        path.unlink()
        return
    print(write("elastic_schedules", rows, environment=environment(), seeds=1))


if __name__ == "__main__":
    main()
