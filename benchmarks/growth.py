"""Does growth pay? Plain text without lessons, and elastic models of images and functions against separate ones.

    python benchmarks/growth.py                       # one seed, about 25 minutes of CPU time
    python benchmarks/growth.py --only text --seeds 3
    python benchmarks/growth.py --quick               # a smoke run of a few steps

Every run is one thread and Muon for the kernels. Text: the held-out loss is measured every 25 steps of the last part of
a run, and the first step at which it is below what plain training ends with after 800 steps is looked for, each run
with a cosine that ends with its own steps. What a step of each stage costs is measured in interleaved rounds beside
native steps, so a busy machine favours nobody. Images and functions: one elastic training by growth and lessons against
separate models of the same sizes. Finished runs are kept in ``results/growth-runs.jsonl``; delete it to start anew.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import RESULTS, Row, cpu_seconds, environment, interleaved, write
from elastic_jobs import SIZES, USUAL, model_of, optimiser_of, task_of

from continua.axes import Discretisation, at
from continua.convert import elastic
from continua.fields import counted
from continua.models import Pixels, Transformer
from continua.models.build import discrete_axes, pre_norm
from continua.models.init import GPT2Init, initialise
from continua.models.patches import Patches
from continua.models.readout import Readout
from continua.operators import GELU, Attention, LayerNorm, Learned, Pointwise
from continua.optim import AdamW, ByRole, Cosine, Muon
from continua.recipes import BurgersSettings, build
from continua.recipes.elastic import growth, lessons
from continua.tasks import digits
from continua.training import Copied, Elastic, Growth, Progress, Stage, fit

STEPS, WINDOWS, EVERY, LATE = 800, 128, 25, 0.7
LENGTHS = (600, 700)
HALF = at(d=64, h=2, z=2)


@dataclass(frozen=True)
class Schedule:
    """How a text model grows: sizes with the shares of steps at which they end, and how new layers start."""

    stages: tuple[tuple[Discretisation, float], ...]
    copied: str = ""

    @property
    def growth(self) -> Growth:
        """The same as a law."""
        stages = tuple(Stage((size,), until) for size, until in self.stages)
        return Growth(stages, Copied(self.copied)) if self.copied else Growth(stages)

    def shares(self) -> list[tuple[Discretisation | None, float]]:
        """Each size with its share of all steps; None is native."""
        found: list[tuple[Discretisation | None, float]] = []
        before = 0.0
        for size, until in self.stages:
            found.append((size, until - before))
            before = until
        return [*found, (None, 1 - before)]


SCHEDULES = {
    "half of all, half width, native": Schedule(((HALF, 0.15), (at(d=64), 0.35))),
    "half of all, half depth, native": Schedule(((HALF, 0.15), (at(z=2), 0.35))),
    "half depth, native": Schedule(((at(z=2), 0.35),)),
    "half depth, native, new layers as copies": Schedule(((at(z=2), 0.35),), "z"),
}


@dataclass(frozen=True)
class Job:
    """One training of a part: ``name`` is a schedule or a size, ``plain`` and ``elastic`` among them."""

    part: str
    name: str
    seed: int
    steps: int


# --- text -------------------------------------------------------------------------------------------------------------


def text_job(job: Job) -> dict[str, Any]:
    """Train plainly or by a schedule; the held-out losses of the last part."""
    task = replace(task_of(), limit=WINDOWS)
    model = model_of(SIZES["native"], task.tokens.size, job.seed)
    grow = None
    if job.name != "plain":
        model = elastic(model)
        grow = SCHEDULES[job.name].growth
    curve: list[tuple[int, float]] = []
    asked = 0.0

    def watch(progress: Progress) -> None:
        nonlocal asked
        if progress.step == job.steps or (progress.step % EVERY == 0 and progress.step >= LATE * job.steps):
            start = time.process_time()
            curve.append((progress.step, task.evaluate(model.eval()).main))
            model.train()
            asked += time.process_time() - start

    start = time.process_time()
    fit(model, replace(task, limit=1), optimiser=optimiser_of(True), steps=job.steps, seed=job.seed,
        evaluate_every=job.steps, grow=grow, watch=watch)  # fmt: skip
    return {**asdict(job), "cpu": time.process_time() - start - asked, "curve": curve}


def text_costs(names: Sequence[str], rounds: int) -> dict[str, float]:
    """CPU time of a step of each stage of some schedules over that of a native one."""
    task = replace(task_of(), limit=1)
    sizes = {str(size): size for name in names for size, _ in SCHEDULES[name].stages}
    few = 10
    works: dict[str, Callable[[], float]] = {}
    for name, size in {"native": None, **sizes}.items():
        model = model_of(SIZES["native"], task.tokens.size, 0)
        model = model if size is None else elastic(model)
        grow = None if size is None else Growth((Stage((size,), 0.999),))
        work = lambda m=model, g=grow: fit(m, task, optimiser=optimiser_of(True), steps=few, evaluate_every=1000,  # noqa: E731
                                           grow=g, watch=lambda at: None)  # fmt: skip
        works[name] = lambda work=work: cpu_seconds(work)
    seen = interleaved(works, rounds, 1)
    return {name: statistics.median(a / b for a, b in zip(seen[name], seen["native"], strict=True)) for name in seen}


def text_time(schedule: Schedule, steps: int, reached: int, costs: dict[str, float]) -> float:
    """The cost of the first ``reached`` of ``steps`` steps, in native steps."""
    total, left = 0.0, float(reached)
    for size, share in schedule.shares():
        here = min(left, share * steps)
        total += here * costs["native" if size is None else str(size)]
        left -= here
    return total


def text_rows(lines: list[dict[str, Any]], steps: int, rounds: int) -> list[Row]:
    """The time to plain training's loss, schedule by schedule: the best length, the others in the note."""
    by = {(line["name"], line["seed"], line["steps"]): line for line in lines if line["part"] == "text"}
    known = [name for name in SCHEDULES if any(key[0] == name for key in by)]
    costs = text_costs(known, rounds)
    seeds = sorted({line["seed"] for line in lines if line["part"] == "text"})
    aims = {seed: by["plain", seed, steps]["curve"][-1][1] for seed in seeds}
    rows = [Row("text, plain training, loss after its steps", statistics.mean(aims.values()), unit="nats",
                note=f"{steps} steps, {len(seeds)} seed(s)")]  # fmt: skip
    for name in known:
        schedule = SCHEDULES[name]
        found: dict[int, list[float]] = {}
        said = []
        for length in sorted({key[2] for key in by if key[0] == name}):
            times, ends = [], []
            for seed in seeds:
                curve = by[name, seed, length]["curve"]
                reached = next((step for step, loss in curve if loss <= aims[seed]), None)
                ends.append(curve[-1][1])
                if reached is not None:
                    times.append(text_time(schedule, length, reached, costs) / steps)
            said.append(f"{length} steps end at {statistics.mean(ends):.4f}, {len(times)} of {len(seeds)} reach it")
            if len(times) == len(seeds):
                found[length] = times
        title = f"text, CPU time to plain training's loss: {name}"
        if found:
            best = min(found.values(), key=statistics.mean)
            value = statistics.mean(best)
            rows.append(Row(title, value, min(best), max(best), "", "≤ 0.8", value <= 0.8, "; ".join(said)))
        else:
            longest = max(key[2] for key in by if key[0] == name)
            spent = text_time(schedule, longest, longest, costs) / steps
            title = f"text, CPU time without reaching plain training's loss: {name}"
            rows.append(Row(title, spent, target="≤ 0.8 and reach it", held=False, note="; ".join(said)))
    return rows


# --- images and functions: one elastic training against separate ones -------------------------------------------------

PARTS = {"native": (2, 2, 2), "half width": (1, 2, 2), "half depth": (2, 2, 1), "half of all": (1, 1, 1)}  # halves
IMAGE, IMAGE_STEPS = (64, 4, 4, 16), 300  # d, h, z and the inner width of a head
WAVES_STEPS = 500
LONGER = 1.5  # steps of the elastic training over those of each separate one, as in ``elastic.py``


def image_model(size: tuple[int, int, int], seed: int) -> Transformer:
    """A plain ViT of this size for digits of 8 × 8 pixels."""
    d, h, z = size
    axes, native = discrete_axes(d, h, 4 * d, z, IMAGE[3])
    weights = counted(axes, z)
    fixed = weights.autonomous()
    block = pre_norm((Attention(weights), Pointwise(weights, GELU())), lambda: LayerNorm(weights))
    pixels = Pixels(8, 8, 1, patch=(2, 2))
    embed = Patches(fixed, pixels, Learned(fixed, 1 + pixels.count))
    readout = Readout(fixed, 10, before=(LayerNorm(fixed),), bias=True, first=True)
    model = Transformer(axes, native, embed, block, readout)
    initialise(model, GPT2Init(), torch.Generator().manual_seed(seed))
    return model


def sized(native: tuple[int, int, int], name: str) -> tuple[int, int, int]:
    """A size by its name."""
    d, h, z = (max(1, n * part // 2) for n, part in zip(native, PARTS[name], strict=True))
    return d, h, z


def image_job(job: Job) -> dict[str, Any]:
    """Train a ViT of one size, or the elastic one, and measure."""
    task = digits(64, warp=0.1)
    optimiser = ByRole(AdamW(3e-3, decay=0.05), kernel=Muon(0.02))
    if job.name != "elastic":
        model = image_model(sized(IMAGE[:3], job.name), job.seed)
        return {**asdict(job), **told(model, task, job, optimiser, None, None, {job.name: {}})}
    model = elastic(image_model(IMAGE[:3], job.seed))
    grow = growth(model.native, USUAL)
    views = {name: dict(zip("dhz", sized(IMAGE[:3], name), strict=True)) for name in PARTS}
    return {**asdict(job), **told(model, task, job, optimiser, grow, lessons(USUAL), views)}


def burgers_job(job: Job) -> dict[str, Any]:
    """Train an operator of one size, or the elastic one that begins on a coarse grid too, and measure."""
    usual = BurgersSettings(weights=job.seed)
    native = (usual.d, usual.heads, usual.depth)
    if job.name != "elastic":
        d, h, z = sized(native, job.name)
        bundle = build("burgers", {"weights": job.seed, "d": d, "m": d, "heads": h, "depth": z})
        return {**asdict(job), **told(bundle.model, bundle.task, job, bundle.optimiser, None, None, {job.name: {}})}
    bundle = build("burgers", {"weights": job.seed})
    d, h, z = sized(native, "half of all")
    grow = Growth((Stage((at(t=32, d=d, h=h, z=z),), USUAL.coarse), Stage((at(d=d), at(d=d), at(z=z)), USUAL.half)))
    views = {name: dict(zip("dhz", sized(native, name), strict=True)) for name in PARTS}
    law = replace(lessons(USUAL), deep=0.0, joined=0.0)
    return {**asdict(job), **told(bundle.model, bundle.task, job, bundle.optimiser, grow, law, views)}


def told(
    model: Transformer,
    task: Any,
    job: Job,
    optimiser: ByRole,
    grow: Growth | None,
    law: Elastic | None,
    views: dict[str, dict[str, int]],
) -> dict[str, Any]:
    """Train, and the scores of each view."""
    start = time.process_time()
    fit(model, task, optimiser=optimiser, schedule=Cosine(floor=0.0), steps=job.steps, seed=job.seed,
        evaluate_every=job.steps, grow=grow, elastic=law, watch=lambda at: None)  # fmt: skip
    cpu = time.process_time() - start
    model.eval()
    return {"cpu": cpu, "scores": {name: dict(task.evaluate(model.at(**wish)).values) for name, wish in views.items()}}


def compared_rows(lines: list[dict[str, Any]], part: str) -> list[Row]:
    """Each size of the elastic model against the separate one: the first score of each seed."""
    own = [line for line in lines if line["part"] == part]
    seeds = sorted({line["seed"] for line in own})
    by = {(line["name"], line["seed"]): line for line in own}
    rows = []
    for name in PARTS:
        scores = [(by["elastic", s]["scores"][name], by[name, s]["scores"][name]) for s in seeds]
        ratios = [100 * (next(iter(a.values())) / next(iter(b.values())) - 1) for a, b in scores]
        said = "; ".join(f"{key} {statistics.mean(a[key] for a, _ in scores):.4f} against "
                         f"{statistics.mean(b[key] for _, b in scores):.4f}" for key in scores[0][0])  # fmt: skip
        title = f"{part}, {name}, against separately trained"
        note = f"{said}, {len(seeds)} seed(s)"
        rows.append(Row(title, statistics.mean(ratios), min(ratios), max(ratios), "%", note=note))
    times = [sum(by[name, s]["cpu"] for name in PARTS) for s in seeds]
    share = [by["elastic", s]["cpu"] / time for s, time in zip(seeds, times, strict=True)]
    title = f"{part}, elastic / four separate trainings, CPU time"
    note = "whole runs, one after another"
    rows.append(Row(title, statistics.mean(share), min(share), max(share), note=note))
    return rows


# --- every part -------------------------------------------------------------------------------------------------------

WORK: dict[str, Callable[[Job], dict[str, Any]]] = {"text": text_job, "images": image_job, "burgers": burgers_job}


def jobs(part: str, seeds: int, share: float) -> list[Job]:
    """The trainings of a part, ``share`` of the usual steps each."""
    every = []
    for seed in range(seeds):
        if part == "text":
            every.append(Job(part, "plain", seed, round(share * STEPS)))
            every += [Job(part, name, seed, round(share * n)) for name in SCHEDULES for n in LENGTHS]
        else:
            steps = round(share * (IMAGE_STEPS if part == "images" else WAVES_STEPS))
            every.append(Job(part, "elastic", seed, round(LONGER * steps)))
            every += [Job(part, name, seed, steps) for name in PARTS]
    return every


def finished(path: Path) -> list[dict[str, Any]]:
    """What was trained before."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def run_all(every: list[Job], path: Path) -> list[dict[str, Any]]:
    """Each training in a process of its own, one at a time; what this call asked for."""
    keys = ("part", "name", "seed", "steps")
    done = {tuple(line[key] for key in keys) for line in finished(path)}
    waiting = [job for job in every if tuple(asdict(job).values()) not in done]
    for number, job in enumerate(waiting, 1):
        command = [sys.executable, __file__, "--job", json.dumps(asdict(job))]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip().splitlines()[-1]
        with path.open("a") as kept:
            kept.write(said + "\n")
        line = json.loads(said)
        print(f"{number}/{len(waiting)}  {job.part}, {job.name}, seed {job.seed}, {job.steps} steps: "
              f"{line.get('scores') or line['curve'][-1][1]}  {line['cpu']:.0f} CPU-s", flush=True)  # fmt: skip
    asked = {tuple(asdict(job).values()) for job in every}
    return [line for line in finished(path) if tuple(line[key] for key in keys) in asked]


def main() -> None:
    """Run what is missing, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], choices=list(WORK))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few steps, nothing is written")
    parser.add_argument("--finished", action="store_true", help="train nothing, write the rows of what was trained")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.job:
        job = Job(**json.loads(chosen.job))
        print(json.dumps(WORK[job.part](job)))
        return
    share = 0.025 if chosen.quick else 1.0
    path = RESULTS / f"growth-{'quick' if chosen.quick else 'runs'}.jsonl"
    rows: list[Row] = []
    for part in chosen.only or WORK:
        if chosen.finished:
            lines = [line for line in finished(path) if line["part"] == part]
        else:
            lines = run_all(jobs(part, chosen.seeds, share), path)
        if part == "text":
            rows += text_rows(lines, round(share * STEPS), 1 if chosen.quick else 7)
        else:
            rows += compared_rows(lines, part)
    for line in rows:
        print(f"{line.name}: {line.shown}  {line.target} {line.verdict}  {line.note}")
    if chosen.quick:
        path.unlink()
    else:
        print(write("growth", rows, part=bool(chosen.only), environment=environment(), seeds=chosen.seeds))


if __name__ == "__main__":
    main()
