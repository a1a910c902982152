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
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import RESULTS, Row, cpu_seconds, environment, interleaved, ratio, row, write

from continua.fields import counted
from continua.lab.cost.tolerance import depth_front
from continua.models import Transformer
from continua.models.build import discrete_axes, pre_norm
from continua.models.elastic import elastic
from continua.models.embed import Tokens
from continua.models.init import GPT2Init, initialise
from continua.models.readout import Readout
from continua.operators import GELU, Attention, Causal, LayerNorm, Learned, Pointwise
from continua.optim import AdamW, ByRole, Muon
from continua.recipes import TextSettings
from continua.tasks import Characters, Text, python_source
from continua.training import Elastic, fit

D, H, E, Z, CONTEXT, BATCH = 128, 4, 32, 4, 128, 16
LR, MUON_LR, WINDOWS = 4e-3, 0.02, 600
SIZES = {  # d, h, z; m = 4d and e = 32 always
    "native": (128, 4, 4),
    "half width": (64, 4, 4),
    "half heads": (128, 2, 4),
    "half depth": (128, 4, 2),
    "half of all": (64, 2, 2),
    "5/8 width": (80, 4, 4),
    "3 steps": (128, 4, 3),
    "3 heads": (128, 3, 4),
}
MORE = {"half width and heads": (64, 2, 4), "half width and depth": (64, 4, 2), "half heads and depth": (128, 2, 2),
        "5/8 width, 3 heads, 3 steps": (80, 3, 3)}  # fmt: skip
FINER = {"twice the steps": {"z": 8}, "twice the width": {"d": 256}}
BOUNDS = {"native": 3.0, "half of all": 8.0, "5/8 width": 8.0, "3 steps": 8.0, "3 heads": 8.0}  # percent; halves: 6
UNSEEN = ("5/8 width", "3 steps", "3 heads")


@dataclass(frozen=True)
class Job:
    """One training."""

    kind: str  # separate, elastic, or longer: the native size for as much time as the elastic training takes
    size: str
    seed: int
    steps: int
    muon: bool = False  # for the kernels


def optimiser_of(muon: bool) -> ByRole:
    """AdamW; for the kernels Muon, if asked for."""
    rest = AdamW(LR, decay=TextSettings.decay)
    return ByRole(rest, kernel=Muon(MUON_LR)) if muon else ByRole(rest)


def task_of() -> Text:
    """Python's own source."""
    corpus = python_source()
    return Text(corpus, Characters.of(corpus.train + corpus.validation), CONTEXT, BATCH)


def model_of(size: tuple[int, int, int], vocabulary: int, seed: int) -> Transformer:
    """A plain GPT of this size."""
    d, h, z = size
    axes, native = discrete_axes(d, h, 4 * d, z, E)
    weights = counted(axes, z)
    fixed = weights.autonomous()
    block = pre_norm(
        (Attention(weights, mask=Causal()), Pointwise(weights, GELU(tanh=True))), lambda: LayerNorm(weights)
    )
    readout = Readout(fixed, vocabulary, before=(LayerNorm(fixed),), tied=True)
    model = Transformer(axes, native, Tokens(fixed, vocabulary, Learned(fixed, CONTEXT)), block, readout)
    initialise(model, GPT2Init(), torch.Generator().manual_seed(seed))
    return model


def work(job: Job) -> dict[str, Any]:
    """Train and measure."""
    torch.set_num_threads(1)
    task = replace(task_of(), limit=WINDOWS)
    model = model_of(SIZES[job.size], task.tokens.size, job.seed)
    if job.kind == "elastic":
        model = elastic(model)
    start = time.process_time()
    fit(
        model,
        replace(task, limit=1),
        optimiser=optimiser_of(job.muon),
        steps=job.steps,
        seed=job.seed,
        evaluate_every=job.steps,
        elastic=Elastic() if job.kind == "elastic" else None,
    )
    found: dict[str, Any] = {**asdict(job), "cpu": time.process_time() - start, "losses": {}}
    model.eval()
    views = {job.size: model}
    if job.kind == "elastic":
        wishes = {name: dict(zip("dhz", size, strict=True)) for name, size in {**SIZES, **MORE}.items()}
        views = {name: model.at(**wish) for name, wish in {**wishes, **FINER}.items()}
        few = replace(task, limit=64)
        found["depth"] = [asdict(each) for each in depth_front(model, few)] if job.seed == 0 else []
    for name, view in views.items():
        found["losses"][name] = task.evaluate(view).main
    return found


def jobs(seeds: int, steps: int, muon: bool) -> list[Job]:
    """Seed by seed, the longest first."""
    every = []
    for seed in range(seeds):
        every += [Job("elastic", "native", seed, steps), Job("longer", "native", seed, round(1.5 * steps))]
        every += [Job("separate", name, seed, steps) for name in SIZES]
    return [replace(job, muon=muon) for job in every]


def finished(path: Path) -> list[dict[str, Any]]:
    """What was trained before."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def run_all(every: list[Job], path: Path, parallel: int) -> list[dict[str, Any]]:
    """Each training in a process of its own, ``parallel`` at a time."""
    done = {tuple(line[k] for k in ("kind", "size", "seed", "steps")) for line in finished(path)}
    waiting = [job for job in every if (job.kind, job.size, job.seed, job.steps) not in done]
    running: list[tuple[Job, subprocess.Popen[str]]] = []
    total, began = len(every), time.monotonic()
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
            print(f"{total - left}/{total}  {job.kind} {job.size} seed {job.seed}: {said['losses'][job.size]:.4f}  "
                  f"{said['cpu']:.0f} CPU-s, {time.monotonic() - began:.0f} s since the start", flush=True)  # fmt: skip
        time.sleep(0.5)
    return finished(path)


def rows_of(lines: list[dict[str, Any]], steps: int, seeds: int) -> list[Row]:
    """Ratios seed by seed, their means over the seeds."""
    by = {(line["kind"], line["size"], line["seed"]): line for line in lines
          if line["steps"] in (steps, round(1.5 * steps)) and line["seed"] < seeds}  # fmt: skip
    rows = []
    for name in SIZES:
        apart = [by["separate", name, s]["losses"][name] for s in range(seeds)]
        ours = [by["elastic", "native", s]["losses"][name] for s in range(seeds)]
        note = f"{statistics.mean(ours):.4f} against {statistics.mean(apart):.4f} nats"
        note += ", never trained" if name in UNSEEN else ""
        rows.append(percent(f"{name}, against separately trained", ours, apart, BOUNDS.get(name, 6.0), note))
    longer = [by["longer", "native", s]["losses"]["native"] for s in range(seeds)]
    native = [by["elastic", "native", s]["losses"]["native"] for s in range(seeds)]
    note = f"{statistics.mean(native):.4f} against {statistics.mean(longer):.4f} nats"
    rows.append(percent("native, against plain training for 1.5 times the steps", native, longer, None, note))
    for name in FINER:
        finer = [by["elastic", "native", s]["losses"][name] for s in range(seeds)]
        rows.append(percent(f"{name}, against native", finer, native, 1.0, f"{statistics.mean(finer):.4f} nats"))
    return rows


def times(muon: bool, steps: int = 16, rounds: int = 8) -> list[Row]:
    """What a step costs: elastic with and without lessons, and plain at twelve sizes, interleaved."""
    every = {**SIZES, **MORE}
    fits = {name: trained(model_of(size, task_of().tokens.size, 0), None, steps, muon) for name, size in every.items()}
    own = elastic(model_of(SIZES["native"], task_of().tokens.size, 0))
    laws = {"alone": Elastic(start=1.0), "lessons": Elastic(start=0.0)}
    fits |= {name: trained(own, law, steps, muon) for name, law in laws.items()}
    seen = interleaved({name: lambda one=one: cpu_seconds(one) for name, one in fits.items()}, rounds, 1)
    start = Elastic().start
    whole = [start * a + (1 - start) * b for a, b in zip(seen["alone"], seen["lessons"], strict=True)]
    found = ratio(whole, seen["native"])
    total = [sum(seen[name][i] for name in every) for i in range(rounds)]
    share = ratio(whole, total)
    note = f"{start:.0%} of the steps alone, the others with lessons; {rounds} interleaved rounds of {steps} steps"
    return [
        row("elastic / plain training, CPU time", found, target="≤ 1.5", held=found.median <= 1.5, note=note),
        row("elastic / 12 separate trainings, CPU time", share, target="≤ 0.25", held=share.median <= 0.25),
    ]


def trained(model: Transformer, law: Elastic | None, steps: int, muon: bool) -> Callable[[], object]:
    """A short training, to be timed."""
    task = replace(task_of(), limit=1)
    optimiser, seeds = optimiser_of(muon), itertools.count()  # a new seed draws other sizes
    return lambda: fit(model, task, optimiser=optimiser, steps=steps, seed=next(seeds), evaluate_every=steps,
                       elastic=law, watch=lambda at: None)  # fmt: skip


def percent(name: str, ours: list[float], theirs: list[float], bound: float | None, note: str) -> Row:
    """Mean of the ratios of each seed, in percent, between the least and the greatest."""
    each = [100 * (a / b - 1) for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.mean(each)
    target, held = ("", None) if bound is None else (f"≤ +{bound:g}", mean <= bound)
    return Row(name, mean, min(each), max(each), "%", target, held, note)


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--muon", action="store_true", help="Muon for the kernels; written as elastic_muon")
    parser.add_argument("--quick", action="store_true", help="few steps, nothing is written")
    parser.add_argument("--timeless", action="store_true", help="keep the times measured before")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job:
        print(json.dumps(work(Job(**json.loads(chosen.job)))))
        return
    steps, seeds = (20, 1) if chosen.quick else (chosen.steps, chosen.seeds)
    name = "elastic_muon" if chosen.muon else "elastic"
    path = RESULTS / f"{name.replace('_', '-')}-{'quick' if chosen.quick else 'runs'}.jsonl"
    lines = run_all(jobs(seeds, steps, chosen.muon), path, chosen.jobs)
    rows = rows_of(lines, steps, seeds)
    rows += times(chosen.muon, 2, 1) if chosen.quick else [] if chosen.timeless else times(chosen.muon)
    for line in rows:
        print(f"{line.name}: {line.shown}  {line.target} {line.verdict}  {line.note}")
    if chosen.quick:
        path.unlink()
        return
    depth = next((line["depth"] for line in lines if line["kind"] == "elastic" and line["seed"] == 0), [])
    corpus = python_source()
    also = {"steps": steps, "seeds": seeds, "lr": LR, "corpus": {"name": corpus.name, "sha256": corpus.sha256}}
    print(write(name, rows, environment=environment(), part=chosen.timeless, depth=depth, **also))


if __name__ == "__main__":
    main()
