"""One elastic training against separately trained models of the same sizes, on the embedded text.

    python benchmarks/elastic.py                        # 3 seeds, two hours of CPU time; two processes by --jobs 2
    python benchmarks/elastic.py --adamw --seeds 1      # AdamW for everything, elastic and separate, without growth
    python benchmarks/elastic.py --equal                # 800 steps for the elastic training too
    python benchmarks/elastic.py --quick                # a smoke run of a few steps

Every run is one thread, the same data and the same kind of optimiser; losses are nats a character on 600 windows spread
over the held-out text. A separate model has exactly the d, h, e, m, z of the size it is compared with, 800 steps, and
the better of two learning rates, chosen on the first seed. Finished runs are kept in ``results/elastic-runs.jsonl`` and
not repeated; delete the file to start anew.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from common import RESULTS, Row, cpu_seconds, environment, interleaved, ratio, row, write
from elastic_jobs import (
    EQUAL,
    EVERY,
    LONGER,
    LR,
    NAMES,
    NEW,
    OLD,
    SIZES,
    STEPS,
    TWELVE,
    Job,
    Laws,
    best_factors,
    finished,
    jobs,
    key,
    laws,
    model_of,
    optimiser_of,
    prepared,
    task_of,
    work,
)  # fmt: skip
from elastic_table import Table

from continua.lab.cost.beside import write_beside
from continua.models import Transformer
from continua.tasks import python_source
from continua.training import fit


def run_all(every: list[Job], path: Path, parallel: int) -> list[dict[str, Any]]:
    """Each training in a process of its own, ``parallel`` at a time."""
    names = list(asdict(every[0]))
    done = {tuple(line[name] for name in names) for line in finished(path)}
    waiting = [job for job in every if key(job) not in done]
    running: list[tuple[Job, subprocess.Popen[str]]] = []
    total, began = len(waiting), time.monotonic()
    while waiting or running:
        while waiting and len(running) < parallel:
            job = waiting.pop(0)
            command = [sys.executable, __file__, "--job", json.dumps(asdict(job))]
            running.append(
                (job, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
            )
        for pair in [pair for pair in running if pair[1].poll() is not None]:
            running.remove(pair)
            job, process = pair
            lines = (process.stdout.read() if process.stdout else "").strip().splitlines()
            if process.returncode or not lines:
                raise SystemExit(f"{job} failed with code {process.returncode}")
            with path.open("a") as kept:
                kept.write(lines[-1] + "\n")
            said = json.loads(lines[-1])
            left = len(waiting) + len(running)
            print(f"{total - left}/{total}  {job.kind} {job.size} seed {job.seed} × {job.factor:g}: "
                  f"{said['losses'][job.size]:.4f}  {said['cpu']:.0f} CPU-s, {time.monotonic() - began:.0f} s in all",
                  flush=True)  # fmt: skip
        time.sleep(0.5)
    return finished(path)


def times(variant: str, steps: int = 24, rounds: int = 6) -> list[Row]:
    """What a training costs: whole schedules of few steps, and plain ones at twelve sizes, interleaved."""
    muon = variant != OLD
    vocabulary = task_of().tokens.size
    fits = {name: trained(model_of(EVERY[name], vocabulary, 0), Laws(), steps, muon) for name in TWELVE}
    job = Job("elastic", "native", 0, steps, muon)
    own = prepared(job, vocabulary)
    fits["ours"] = trained(own, laws(job, own), steps, muon)
    seen = interleaved({name: lambda one=one: cpu_seconds(one) for name, one in fits.items()}, rounds, 1)
    longer = 1.0 if variant in (EQUAL, OLD) else LONGER / STEPS
    whole = [longer * value for value in seen["ours"]]
    found = ratio(whole, seen["native"])
    total = [sum(seen[name][i] for name in TWELVE) for i in range(rounds)]
    share = ratio(whole, total)
    note = f"the whole schedule in {steps} steps, {rounds} interleaved rounds, times {longer:g} for its steps"
    return [
        row("elastic / plain training, CPU time", found, target="≤ 1.5", held=found.median <= 1.5, note=note),
        row("elastic / 12 separate trainings, CPU time", share, target="≤ 0.21", held=share.median <= 0.21),
    ]


def trained(model: Transformer, own: Laws, steps: int, muon: bool) -> Callable[[], object]:
    """A short training, to be timed."""
    task = replace(task_of(), limit=1)
    optimiser, seeds = optimiser_of(muon), itertools.count()  # a new seed draws other sizes
    return lambda: fit(model, task, optimiser=optimiser, steps=steps, seed=next(seeds), evaluate_every=steps,
                       elastic=own.elastic, grow=own.grow, afterwards=own.afterwards,
                       watch=lambda at: None)  # fmt: skip


def told(rows: list[Row], variant: str) -> list[Row]:
    """The rows, printed; at equal steps they are reported, and promise nothing."""
    if variant == EQUAL:
        rows = [replace(line, target="", held=None) for line in rows]
    for line in rows:
        print(f"{line.name}: {line.shown}  {line.target} {line.verdict}  {line.note}")
    return rows


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--adamw", action="store_true", help="no Muon and no growth; written as elastic_adamw")
    parser.add_argument("--equal", action="store_true", help="as many steps as separate models have; elastic_equal")
    parser.add_argument("--separate", action="store_true", help="train the separate models only, write no table")
    parser.add_argument("--brief", action="store_true", help="train nothing for rows that promise nothing")
    parser.add_argument("--quick", action="store_true", help="few steps, nothing is written")
    parser.add_argument("--timeless", action="store_true", help="keep the times measured before")
    parser.add_argument("--times", action="store_true", help="measure the times alone")
    parser.add_argument("--rounds", type=int, default=6, help="of times")
    parser.add_argument("--timed", type=int, default=24, help="steps of a schedule that is timed")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job:
        print(json.dumps(work(Job(**json.loads(chosen.job)))))
        return
    variant = OLD if chosen.adamw else EQUAL if chosen.equal else NEW
    if chosen.times:
        rows = told(times(variant, chosen.timed, chosen.rounds), variant)
        print(write(NAMES[variant], rows, part=True))
        return
    steps, seeds = (20, 1) if chosen.quick else (chosen.steps, chosen.seeds)
    path = RESULTS / f"elastic-{'quick' if chosen.quick else 'runs'}.jsonl"
    every = [job for job in jobs(variant, seeds, steps) if job.kind == "separate" or not chosen.separate]
    every = [job for job in every if not chosen.brief or (job.kind in ("separate", "elastic") and job.size in SIZES)]
    lines = run_all([job for job in every if job.seed == 0], path, chosen.jobs)
    better = best_factors(lines, steps, variant != OLD)
    rest = [replace(job, factor=better[job.size]) if job.kind == "separate" else job for job in every if job.seed]
    lines = run_all(rest, path, chosen.jobs) if rest else lines
    if chosen.separate:
        return
    table = Table(lines, variant, seeds, steps)
    rows = [*table.rows(), *table.worst(), *table.corners(), *table.stored()]
    rows += (
        times(variant, 6, 1) if chosen.quick else [] if chosen.timeless else times(variant, chosen.timed, chosen.rounds)
    )
    rows = told(rows, variant)
    if chosen.quick:
        path.unlink()
        return
    if variant != EQUAL:  # whose separate models are those of the usual table
        print(write_beside(table.separate(), RESULTS / f"{NAMES[variant]}_separate.json"))
    first = table.by["elastic", "native", 0, table.longer, table.muon, 1.0]
    corpus = python_source()
    also = {"steps": steps, "seeds": seeds, "lr": LR, "corpus": {"name": corpus.name, "sha256": corpus.sha256}}
    print(
        write(
            NAMES[variant], rows, environment=environment(), part=chosen.timeless, depth=first.get("depth", []), **also
        )
    )


if __name__ == "__main__":
    main()
