"""What elastic training is made of: each choice left out or changed, at equal CPU time, against the default.

    python benchmarks/elastic_trials.py                   # every trial, 3 seeds: some hours of CPU time
    python benchmarks/elastic_trials.py --only default weight --seeds 1 --seconds 60
    python benchmarks/elastic_trials.py --quick           # a smoke run

The model, data and sizes are those of ``elastic.py``. A run has the number of steps that fills the budget: the cost of
a step is measured first. Losses are nats a character; the last column is the mean over the sizes of the loss over that
of the default. Finished runs are kept in ``results/elastic-trials.jsonl``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import RESULTS, Row, environment, write
from elastic import FINER, LR, SIZES, WINDOWS, model_of, task_of

from continua.axes import LeftEnd, at
from continua.fields import BSpline, Legendre, Nodal
from continua.flow import Fixed, LieTrotter
from continua.models import Transformer
from continua.models.build import continuous_parts
from continua.models.elastic import elastic
from continua.models.init import GPT2Init, initialise
from continua.optim import AdamW, ByRole, Muon
from continua.training import Elastic, KineticEnergy, Smoothness, fit


@dataclass(frozen=True)
class Trial:
    """A change of the default: of the law, of the model, of the penalties or of the optimiser."""

    law: Elastic | None = Elastic()  # noqa: RUF009  (frozen)
    model: str = "elastic"
    penalties: Any = None
    optimiser: ByRole = field(default_factory=lambda: ByRole(AdamW(LR)))


TRIALS = {
    "default": Trial(),
    "plain training, only read at other sizes": Trial(law=None),
    "own loss instead of imitation": Trial(Elastic(distil=0.0)),
    "half loss, half imitation": Trial(Elastic(distil=0.5)),
    "weight 1": Trial(Elastic(weight=1.0)),
    "weight 0.25": Trial(Elastic(weight=0.25)),
    "from the first step": Trial(Elastic(start=0.0)),
    "from 70 % on": Trial(Elastic(start=0.7)),
    "from the first step, weight 1": Trial(Elastic(start=0.0, weight=1.0)),
    "one size on the whole batch": Trial(Elastic(draws=1, parts=1)),
    "four sizes on quarters": Trial(Elastic(draws=4, parts=4)),
    "few widths": Trial(Elastic(d=(64, 96, 128))),
    "never twice the steps": Trial(Elastic(deep=0.0)),
    "no calibration": Trial(model="bare"),
    "Fourier resampling along widths": Trial(model="fourier"),
    "Legendre functions of depth": Trial(model="legendre"),
    "B-splines of depth": Trial(model="spline"),
    "kinetic energy": Trial(penalties=1e-3 * KineticEnergy()),
    "smoothness over depth": Trial(penalties=1e-4 * Smoothness("z")),
    "Muon for kernels": Trial(optimiser=ByRole(AdamW(LR), kernel=Muon(0.02))),
}


def made(kind: str, vocabulary: int, seed: int) -> Transformer:
    """The model of a trial."""
    if kind in ("elastic", "bare"):
        model = elastic(model_of(SIZES["native"], vocabulary, seed))
        for part in model.modules() if kind == "bare" else ():
            if getattr(part, "calibration", None) is not None:
                part.calibration = None
        return model
    d, h, z = SIZES["native"]
    bases = {"fourier": Nodal(LeftEnd(z)), "legendre": Legendre(z), "spline": BSpline(z, 2)}
    native = at(d=d, h=h, z=Fixed(z, LieTrotter()))
    model = Transformer(**continuous_parts(vocab=vocabulary, at=native, context=128, bases={"z": bases[kind]}))
    initialise(model, GPT2Init(), torch.Generator().manual_seed(seed))
    return model


def train(name: str, seed: int, steps: int) -> tuple[Transformer, float]:
    """One run, and its CPU seconds."""
    torch.set_num_threads(1)
    trial, task = TRIALS[name], replace(task_of(), limit=1)
    model = made(trial.model, task.tokens.size, seed)
    start = time.process_time()
    fit(model, task, optimiser=trial.optimiser, penalties=trial.penalties, steps=steps, seed=seed,
        evaluate_every=steps, elastic=trial.law, watch=lambda at: None)  # fmt: skip
    return model.eval(), time.process_time() - start


def work(name: str, seed: int, seconds: float) -> dict[str, Any]:
    """Find the number of steps, train, and measure every size."""
    few = 12
    _, cpu = train(name, seed, few)  # of these 40 % are alone, as in a whole run
    steps = max(few, round(seconds / (cpu / few)))
    model, cpu = train(name, seed, steps)
    task, losses = replace(task_of(), limit=WINDOWS), {}
    wishes = {
        **{n: dict(zip("dhz", size, strict=True)) for n, size in SIZES.items()},
        "twice the steps": FINER["twice the steps"],
    }
    for size, wish in wishes.items():
        losses[size] = task.evaluate(model.at(**wish)).main
    return {"trial": name, "seed": seed, "seconds": seconds, "steps": steps, "cpu": cpu, "losses": losses}


def run_all(names: list[str], seeds: int, seconds: float, path: Path) -> list[dict[str, Any]]:
    """Each run in a process of its own; finished ones are kept."""

    def known() -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    done = {(line["trial"], line["seed"], line["seconds"]) for line in known()}
    waiting = [(n, s) for s in range(seeds) for n in names if (n, s, seconds) not in done]
    for number, (name, seed) in enumerate(waiting, 1):
        command = [sys.executable, __file__, "--job", json.dumps([name, seed, seconds])]
        found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
        line = found.stdout.strip().splitlines()[-1]
        with path.open("a") as kept:
            kept.write(line + "\n")
        said = json.loads(line)
        print(f"{number}/{len(waiting)}  {name}, seed {seed}: native {said['losses']['native']:.4f}, "
              f"half of all {said['losses']['half of all']:.4f}  {said['steps']} steps", flush=True)  # fmt: skip
    return [line for line in known() if line["seconds"] == seconds and line["seed"] < seeds]


def rows_of(lines: list[dict[str, Any]]) -> list[Row]:
    """One line a trial: its native loss, and the other sizes in the note."""
    by = {(line["trial"], line["seed"]): line for line in lines}
    seeds = sorted({line["seed"] for line in lines})
    rows = []
    for name in TRIALS:
        mine = [by[name, s] for s in seeds if (name, s) in by and ("default", s) in by]
        if not mine:
            continue
        ratios = [statistics.mean(line["losses"][k] / by["default", line["seed"]]["losses"][k] for k in line["losses"])
                  for line in mine]  # fmt: skip
        each = {k: statistics.mean(line["losses"][k] for line in mine) for k in mine[0]["losses"]}
        note = "; ".join(f"{k} {v:.3f}" for k, v in each.items())
        steps = round(statistics.mean(line["steps"] for line in mine))
        mean = 100 * (statistics.mean(ratios) - 1)
        rows.append(Row(name, mean, 100 * (min(ratios) - 1), 100 * (max(ratios) - 1), "%",
                        note=f"{note}; {steps} steps, {len(mine)} seeds"))  # fmt: skip
    return rows


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="CPU seconds of a run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="trials whose name begins with one of these")
    parser.add_argument("--quick", action="store_true", help="a second each, nothing is written")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job:
        print(json.dumps(work(*json.loads(chosen.job))))
        return
    names = [n for n in TRIALS if n == "default" or not chosen.only or n.startswith(tuple(chosen.only))]
    path = RESULTS / ("elastic-trials-quick.jsonl" if chosen.quick else "elastic-trials.jsonl")
    seeds, seconds = (1, 1.0) if chosen.quick else (chosen.seeds, chosen.seconds)
    rows = rows_of(run_all(names, seeds, seconds, path))
    for line in rows:
        print(f"{line.name}: {line.shown}  {line.note}")
    if chosen.quick:
        path.unlink()
    else:
        print(write("elastic_trials", rows, environment=environment(), seconds=seconds, seeds=seeds))


if __name__ == "__main__":
    main()
