"""Where the CPU time of an elastic training goes: each kind of step beside a plain native one, without a training.

    python benchmarks/elastic_costs.py               # three interleaved rounds, two minutes of CPU time
    python benchmarks/elastic_costs.py --quick       # a smoke run

The model, data and schedule are those of ``elastic.py``. A kind of step is timed in a short fit that has no other; its
first two steps are left out, so that no switch and no first use is counted. The last rows add up whole trainings from
these, as shares of 800 plain steps: that is what a schedule will cost before anybody has trained it.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import RESULTS, Row, environment, estimate, interleaved, row, write
from elastic_jobs import (
    CONTEXT,
    CORNERS,
    LONGER,
    PATIENT,
    SIZES,
    STEPS,
    USUAL,
    Job,
    Laws,
    laws,
    model_of,
    optimiser_of,
    prepared,
    task_of,
)
from elastic_schedules import PLAINLY, SCHEDULES, Plain, Schedule

from continua.axes import Discretisation, at
from continua.recipes.elastic import lessons
from continua.training import Growth, Progress, Stage, fit

PARTS = (1, 2, 4, 8)
PLAIN, COARSE = "a plain native step", "half of all"
HALVES, MOST = (f"{part} of the width or of the depth in turn" for part in ("half", "three quarters"))
BESIDE = {parts: f"native, with a lesson on 1/{parts} of the batch" for parts in PARTS}
ALONE = "native, without a lesson"
QUARTER, AFTERWARDS = "afterwards, a quarter of all", "afterwards, the sizes of the recipe"
CORNER = f"a plain step of {PATIENT[0]}"
FEWER, SHORTER = ", on half of the batch", ", on half of the context"  # of what goes before
OVER = f", over {PLAIN}"  # ends the names of rows that are steps
FIRST = 2  # steps that are not counted


@dataclass(frozen=True)
class Kind:
    """A fit in which every step is of one kind, and how many steps are timed."""

    model: Any
    own: Laws
    steps: int


def kinds(models: "Models", few: int) -> dict[str, Kind]:
    """All kinds of steps of the schedule; lessons and sizes are drawn, so that these need more steps."""
    own = models.elastic
    usual = laws(Job("elastic", "native", 0, STEPS), own)
    if usual.afterwards is None or usual.grow is None:
        raise SystemExit("the recipe neither grows nor corrects: there is nothing to time")
    made = {PLAIN: Kind(models.plain, Laws(), few), ALONE: Kind(own, Laws(), few)}
    for name, stage in zip((COARSE, HALVES, MOST), usual.grow.stages, strict=True):
        made[name] = Kind(own, Laws(grow=only(stage.sizes)), few + 1)
    for parts in PARTS:
        made[BESIDE[parts]] = Kind(own, Laws(lessons(replace(USUAL, parts=parts, often=1.0))), 2 * few)
    made[PLAIN + FEWER] = Kind(models.plain, Laws(grow=only((at(),), 0.5)), few)
    made[PLAIN + SHORTER] = Kind(models.plain, Laws(grow=only((at(t=CONTEXT // 2),))), few)
    made[CORNER] = Kind(models.corner, Laws(), few)
    longer = replace(usual.afterwards, share=6.0 * few)  # many sizes are drawn
    made[QUARTER] = Kind(own, Laws(afterwards=replace(longer, sizes=(at(d=32, h=1, z=1),))), 1)
    made[AFTERWARDS] = Kind(own, Laws(afterwards=longer), 1)
    return made


def only(sizes: tuple[Discretisation, ...], share: float = 1.0) -> Growth:
    """A growth that stays on these sizes, and a share of each batch."""
    return Growth((Stage(sizes, 0.999, batch=share),))


@dataclass(frozen=True)
class Models:
    """A plain one, that of the recipe, and a plain one of the worst corner."""

    plain: Any
    elastic: Any
    corner: Any


def models_of() -> Models:
    """The first two from the same weights."""
    vocabulary = task_of().tokens.size
    plain, corner = (model_of(size, vocabulary, 0) for size in (SIZES["native"], CORNERS[PATIENT[0]]))
    return Models(plain, prepared(Job("elastic", "native", 0, STEPS), vocabulary), corner)


def step_of(kind: Kind, seeds: list[int]) -> Callable[[], float]:
    """CPU seconds of a mean step; every call draws other sizes, the same ones for all kinds."""
    task = replace(task_of(), limit=1)

    def timed() -> float:
        ends: list[float] = []

        def watch(progress: Progress) -> None:
            ends.append(time.process_time())

        fit(kind.model, task, optimiser=optimiser_of(muon=True), steps=kind.steps, seed=seeds[0], evaluate_every=10**6,
            elastic=kind.own.elastic, grow=kind.own.grow, afterwards=kind.own.afterwards, watch=watch)  # fmt: skip
        spent = [b - a for a, b in itertools.pairwise(ends[:-1])]  # the last one measures held-out data
        return statistics.mean(spent[FIRST - 1 :])

    return timed


def measured(rounds: int, few: int) -> dict[str, list[float]]:
    """Mean steps as shares of the plain one of their round."""
    torch.set_num_threads(1)
    seeds = [0]

    def next_round() -> None:
        done.append(1)
        seeds[0] = len(done) // len(cases)

    done: list[int] = []
    cases = {name: step_of(kind, seeds) for name, kind in kinds(models_of(), few).items()}
    seen = interleaved(cases, rounds, 1, next_round)
    return {name: [a / b for a, b in zip(own, seen[PLAIN], strict=True)] for name, own in seen.items()}


def whole(shares: dict[str, float], schedule: Schedule) -> float:
    """A training over 800 plain steps."""
    own = schedule.settings
    grown = max(own.half, own.most)
    taught = 1 - max(own.start, grown)
    spent = {
        COARSE: own.coarse,
        HALVES: own.half - own.coarse,
        MOST: grown - own.half,
        ALONE: max(own.start - grown, 0.0) + taught * (1 - own.often),
        BESIDE[own.parts]: taught * own.often,
        AFTERWARDS: own.below,
    }
    return sum(share * shares[name] for name, share in spent.items()) * schedule.steps / STEPS


def plainly(shares: dict[str, float], chosen: Plain) -> float:
    """A training of the native size alone over 800 plain steps."""
    first = chosen.stage
    cheap = 0.0 if first is None else first.until
    kind = PLAIN + (SHORTER if first is not None and first.batch == 1 else FEWER)
    return (cheap * shares[kind] + 1 - cheap) * chosen.steps / STEPS


def schedules(shares: dict[str, float]) -> list[Row]:
    """Whole trainings, from the medians of their steps."""
    every = {**SCHEDULES, "the recipe, none afterwards": Schedule(LONGER, replace(USUAL, below=0.0))}
    every = {name: one for name, one in every.items() if one.settings.deep == USUAL.deep}  # whose lessons were timed
    spent = {name: whole(shares, schedule) for name, schedule in every.items()}
    spent |= {name: plainly(shares, chosen) for name, chosen in PLAINLY.items()}
    spent |= {f"{PATIENT[0]} alone, {steps:,} steps": steps * shares[CORNER] / STEPS for steps in PATIENT[1]}
    return [Row(f"{name}: added up, over {STEPS} plain steps", value) for name, value in spent.items()]


def steps_of(seen: dict[str, list[float]]) -> list[Row]:
    """A row for each kind of step."""
    return [row(name + OVER, estimate(values)) for name, values in seen.items() if name != PLAIN]


def kept() -> list[Row]:
    """The steps of the last measurement."""
    lines = json.loads((RESULTS / "elastic_costs.json").read_text(encoding="utf-8"))["rows"]
    return [
        Row(line["name"], line["value"], line["low"], line["high"]) for line in lines if line["name"].endswith(OVER)
    ]


def main() -> None:
    """Time every kind, and add up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--few", type=int, default=8, help="steps of a kind")
    parser.add_argument("--kept", action="store_true", help="add up anew from the steps that were measured before")
    parser.add_argument("--quick", action="store_true", help="few steps, nothing is written")
    chosen = parser.parse_args()
    rows = kept() if chosen.kept else steps_of(measured(1, 4) if chosen.quick else measured(chosen.rounds, chosen.few))
    rows += schedules({line.name.removesuffix(OVER): line.value for line in rows})
    for line in rows:
        print(f"{line.name}: {line.shown}")
    if not chosen.quick:
        about = {} if chosen.kept else {"environment": environment(), "rounds": chosen.rounds}
        print(write("elastic_costs", rows, part=chosen.kept, **about))


if __name__ == "__main__":
    main()
