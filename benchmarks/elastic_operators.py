"""Operators of many sizes from one checkpoint, and uncertainty from its sizes: Burgers' equation.

    python benchmarks/elastic_operators.py        # what is not in results/elastic_operators-runs.jsonl yet
    python benchmarks/elastic_operators.py --quick

Errors on 200 functions never seen over the CPU time of an answer, for one elastic model at half of width, of heads, of
hidden width and of steps, beside models that were trained separately at those sizes for the same CPU seconds each, and
one that was trained plainly at full size and is cut. A smaller width resamples the circle of channels, as is usual for
these models, or takes the first of nested ones. Then ensembles: sizes of the elastic model against three models whose
training cost as much as the one.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from common import RESULTS, Row, environment, write
from contests import keep, kept

from continua.axes import Discretisation, Nested, at
from continua.data.store import generated
from continua.models import Batch, load
from continua.models.latent import Latent
from continua.models.zoo import function_map
from continua.recipes.functions import SCHEDULE, BurgersSettings, model_of, optimiser_of, task_of
from continua.tasks.ensembles import Ensemble, coverage, ensemble, spread_tells_error
from continua.tasks.functions import Functions, predict
from continua.training import Elastic, fit

KEPT = RESULTS / "elastic_operators-runs.jsonl"
STORE = RESULTS.parent.parent / ".cache" / "elastic_operators"
SECONDS = 40.0
WARM = 4  # steps before those that are priced
PRICED = 20
SETTINGS = BurgersSettings(train=1024, held_out=200, attention=True, d=32, m=32, heads=4, depth=4, modes=16)
SIZES: dict[str, Discretisation] = {
    "native": at(d=32, h=4, m=32, z=4),
    "half width": at(d=16, h=4, m=16, z=4),
    "half heads": at(d=32, h=2, m=32, z=4),
    "half hidden": at(d=32, h=4, m=16, z=4),
    "half steps": at(d=32, h=4, m=32, z=2),
    "half of all": at(d=16, h=2, m=16, z=2),
}
SEPARATE = {
    "half width": {"d": 16, "m": 16},
    "half steps": {"depth": 2},
    "half of all": {"d": 16, "m": 16, "heads": 2, "depth": 2},
}
ELASTIC = {"elastic": "one elastic model", "nested": "one elastic model on nested channels"}
MEMBERS = ("half width", "half heads", "half steps")


def data() -> Functions:
    """Burgers' equation on 64 nodes."""
    whole = generated("burgers", SETTINGS.train + SETTINGS.held_out, n=SETTINGS.fine, seed=SETTINGS.draws)
    return task_of(whole, SETTINGS)


def nested(task: Functions, settings: BurgersSettings) -> Any:
    """As the model of the recipe, but half of the channels are every second one instead of a resampled circle."""
    inputs, outputs = task.train.flat()
    torch.manual_seed(settings.weights)
    model = function_map(
        task.train.axis,
        task.train.rule,
        at=at(d=Nested(settings.d), h=settings.heads, m=Nested(settings.m), z=settings.depth),
        modes=settings.modes,
        attention=settings.attention,
        input_mean=float(inputs.mean()),
        input_spread=float(inputs.std()),
        output_spread=float(outputs.std()),
    )
    assert isinstance(model.embed, Latent)
    model.embed.prior(inputs)
    return model


def trained(task: Functions, make: Callable[[], Any], seconds: float, elastic: Elastic | None) -> Any:
    """A model trained for about so many CPU seconds; what a step costs is measured first."""
    torch.set_num_threads(1)
    _fitted(task, make(), WARM, elastic)
    used = time.process_time()
    _fitted(task, make(), PRICED, elastic)
    steps = max(PRICED, round(seconds * PRICED / (time.process_time() - used)))
    return _fitted(task, make(), steps, elastic)


def _fitted(task: Functions, model: Any, steps: int, elastic: Elastic | None) -> Any:
    fit(
        model,
        task,
        optimiser=optimiser_of(SETTINGS),
        schedule=SCHEDULE,
        steps=steps,
        elastic=elastic,
        evaluate_every=10**9,
        save_every=10**9,
        clip=None,
        watch=lambda at: None,
    )
    return model


def job(name: str, seconds: float) -> dict[str, Any]:
    """Train one model, keep it, measure its sizes."""
    task = data()
    kind, _, rest = name.partition(": ")
    changes: dict[str, Any] = {}
    sizes = Elastic(d=(16, 24, 32), h=(2, 4), z=(2, 4), m=(16, 32), deep=0.0, start=0.2)
    if kind == "separate":
        changes = dict(SEPARATE[rest])
    if kind == "member":
        changes = {"weights": int(rest)}
        seconds = seconds / 3
    settings = replace(SETTINGS, **changes)
    make = partial(nested if kind == "nested" else model_of, task, settings)
    model = trained(task, make, seconds, sizes if kind in ELASTIC else None)
    model.save(STORE / name.replace(": ", "-").replace(" ", "-"))
    asked = SIZES if kind in (*ELASTIC, "plain") else {"native": None}
    return {size: measured(model, task, where) for size, where in asked.items()}


def measured(model: Any, task: Functions, where: Discretisation | None) -> dict[str, float]:
    """The error at one size, and the CPU milliseconds of an answer to 50 functions."""
    view = model if where is None else model.at(where)
    error = float(task.errors(view).mean())
    inputs = task.held_out.flat()[0][:50]
    held = (model.at(model.native) if where is None else view).held()
    spent = []
    for _ in range(7):
        begin = time.process_time()
        held(Batch(inputs, grid=task.held_out.grid))
        spent.append(time.process_time() - begin)
    return {"error": error, "milliseconds": 1e3 * statistics.median(spent)}


def uncertain() -> dict[str, dict[str, float]]:
    """Ensembles of sizes and of models: error, coverage of two spreads, and how well spreads rank errors.

    The native size may answer alone, and the others tell its uncertainty.
    """
    task = data()
    pairs = task.held_out
    batch = Batch(pairs.flat()[0], grid=pairs.grid)
    truth = pairs.flat()[1]
    grown = load(STORE / "elastic")
    kinds: dict[str, Ensemble] = {
        "sizes of one": ensemble(grown, [SIZES[name] for name in MEMBERS]),
        "three models": Ensemble(tuple(load(STORE / f"member-{i}") for i in range(3))),
    }
    given = {name: members.answer(batch) for name, members in kinds.items()}
    given["the native size, with the spread of sizes"] = replace(given["sizes of one"], mean=predict(grown, batch))
    found = {}
    for name, answers in given.items():
        off = (answers.mean - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)
        found[name] = {
            "error": float(off.mean()),
            "coverage": coverage(answers, truth),
            "rank correlation": spread_tells_error(answers, truth),
        }
    return found


def names() -> Sequence[str]:
    """All trainings, the most important first."""
    return [*ELASTIC, "plain", *(f"separate: {k}" for k in SEPARATE), *(f"member: {i}" for i in range(3))]


def table(done: dict[str, Any]) -> list[Row]:
    """Errors and times by size, then the ensembles."""
    rows = []
    for size in SIZES:
        for name in (*ELASTIC, "plain", f"separate: {size}"):
            if name not in done:
                continue
            found = done[name].get(size, done[name].get("native"))
            cut = "a plain model" if size == "native" else "a plain model, cut"
            said = {**ELASTIC, "plain": cut}.get(name, "trained separately")
            rows.append(Row(f"{size}, {said}: relative error", found["error"], note=f"{found['milliseconds']:.0f} ms"))
    for name, found in done.get("uncertain", {}).items():
        rows += [Row(f"ensemble, {name}: {what}", value) for what, value in found.items()]
    return rows


def main() -> None:
    """Train what is missing, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--job", choices=[*names(), "uncertain"])
    parser.add_argument("--tables", action="store_true", help="write the table of what there is, without a run")
    given = parser.parse_args()
    seconds = 1.0 if given.quick else SECONDS
    path = KEPT.with_name("elastic_operators-quick.jsonl") if given.quick else KEPT
    wanted = [given.job] if given.job else [*names(), "uncertain"]
    for name in [] if given.tables else wanted:
        if name not in kept(path):
            keep(path, name, uncertain() if name == "uncertain" else job(name, seconds))
            print(name, json.dumps(kept(path)[name]), flush=True)
    if given.quick:
        path.unlink()
    elif not given.job:
        print(f"written: {write('elastic_operators', table(kept(path)), seconds=SECONDS, environment=environment())}")


if __name__ == "__main__":
    main()
