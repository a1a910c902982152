"""Images at other resolutions and with pixels missing: images as functions beside a ViT of the same size.

    python benchmarks/vision.py                             # 3 seeds, about 25 minutes of CPU time
    python benchmarks/vision.py --fashion FOLDER            # where the four idx files of Fashion-MNIST are
    python benchmarks/vision.py --quick                     # a smoke run of a few steps, nothing is written

Both models have the same width, heads and depth (the ViT also its class token), the same CPU seconds on one thread,
in turns of a few steps, the same changes of the training images (affine maps, missing pixels, other sizes in every
other batch), optimisers, clipping and cosine. Of both, validation images choose with a third of the time: the learning
rate, whether local kernels (a convolutional stem) or cells (patches) make the tokens, how kernels start, how missing
pixels are filled, and the rate again; of the ViT without a stem also whether its patches are finer. Of the best two of
all that was tried, validation images choose with the whole time; ``vision_starts.py`` chose the digits' start anew. The
ViT is told in a channel which pixels were observed; other sizes are resized for it. Finished trainings are kept.
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, dataclass, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import RESULTS, Row, environment, write
from contests import Together
from torch import nn
from vision_peers import MEANS, Filled, StemViT, bare, filled, told, wide

from continua.data.images import FASHION, observed_pixels, point_sets, resampled
from continua.models import Batch, Pixels, Scaled, initialise, zoo
from continua.recipes.vision import FashionSettings, VisionSettings, optimiser_of
from continua.recipes.vision import model_of as function_patches_of
from continua.tasks.images import Images, digits, fashion_mnist
from continua.tasks.task import generator_for

RATES = (0.02, 0.01)  # of Muon, which trains the kernels
FILLS = {"cells": tuple(MEANS), "vit": (*MEANS, "nearest")}
SIZES = {"digits": (6, 8, 12, 16, 32), "fashion": (14, 20, 28, 56)}
FINER = {"digits": 4, "fashion": 7}  # the patches in each direction that the ViT may have instead
MIXED = {"digits": (6, 12), "fashion": (14, 20)}  # other sizes of training images
STEMS = {"digits": (2, 2), "fashion": (2, 2, 2)}  # strides of local kernels: as many tokens, for both models
SHARES = (0.25, 0.5, 0.75)
SECONDS = {"digits": 40.0, "fashion": 40.0}
MEASURED = 1000  # validation images that are measured, at most; of held-out images all
PROMISED = {("digits", "8"): 97.0, ("digits", "16"): 95.0, ("digits", "-0.5"): 90.0}
NAMES = {"cells": "images as functions", "vit": "ViT"}
CLIP = 1.0
TURN = 5  # steps of one model before another has its turn
DRAWS = 4  # of missing pixels, for each of up to so many images; more have one


@dataclass(frozen=True)
class Job:
    """One training."""

    data: str  # digits or fashion
    kind: str  # cells or vit
    rate: float
    fill: str = ""
    cells: int = 2
    stem: bool = False
    seed: int = 0
    seconds: float = 30.0
    validation: bool = False
    wide: bool = False  # kernels of a stem start wide, and no norm stands behind it


# --- trainings -------------------------------------------------------------------------------------------------------


def settings_of(job: Job) -> VisionSettings:
    """What the recipes use, at another learning rate."""
    chosen = VisionSettings() if job.data == "digits" else FashionSettings()
    chosen = replace(chosen, kernel_lr=job.rate, weights=job.seed, cells=job.cells)
    if not job.stem:
        return chosen
    windows, prior = MEANS.get(job.fill, MEANS["weighted"])
    return replace(chosen, stem=STEMS[job.data], windows=windows, prior=prior)


def task_of(data: str, folder: Path) -> Images:
    """Digits, or Fashion-MNIST, with the changes of the recipes."""
    if data == "digits":
        usual = VisionSettings()
        return digits(warp=usual.warp, missing=usual.missing, apart=usual.apart, sizes=MIXED[data])
    usual = FashionSettings()
    return fashion_mnist(folder, warp=usual.warp, missing=usual.missing, apart=usual.apart, sizes=MIXED[data])


def model_of(job: Job, task: Images) -> nn.Module:
    """Ours, or a ViT of its size."""
    model = fresh(job, task)
    for change in (bare, wide) if job.wide else ():
        change(model)
    return model


def fresh(job: Job, task: Images) -> nn.Module:
    """With first weights as they are now."""
    chosen = settings_of(job)
    if job.kind == "cells":
        return function_patches_of(chosen, task.classes)
    side = task.pixels.shape[-1]
    whole = torch.ones(1, 1, side, side, dtype=torch.bool)
    channels = 1 + len(filled(torch.zeros(1, 1, side, side), whole, job.fill))
    if job.stem:
        torch.manual_seed(job.seed)
        return StemViT(side, channels, chosen.stem, task.classes, chosen)
    pixels = Pixels(side, side, channels, (side // chosen.cells, side // chosen.cells))
    model = zoo.vit(pixels, d=chosen.d, heads=chosen.heads, depth=chosen.depth, labels=task.classes)
    initialise(model, Scaled(), torch.Generator().manual_seed(job.seed))
    return model


def optimisers_of(job: Job, model: nn.Module) -> list[Any]:
    """Muon for kernels and AdamW for the rest, in the convolutions of the peer too."""
    chosen = settings_of(job)
    if not isinstance(model, StemViT):
        return [optimiser_of(chosen).make(model)]
    later = [layer.weight for layer in list(model.stem)[1:]]
    return [optimiser_of(chosen).make(model.vit), Together(model.stem, later, chosen.lr, chosen.kernel_lr)]


@dataclass
class Learner:
    """A model that is trained beside others: its own CPU seconds, and a cosine to zero over them."""

    job: Job
    task: Images
    seconds: float
    changes: tuple[Callable[[nn.Module], None], ...] = ()  # of the fresh model
    used: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        self.model = model_of(self.job, self.task)
        for change in self.changes:
            change(self.model)
        if hasattr(self.model, "check"):
            self.model.check = False
        self.given: Any = self.task if self.job.kind == "cells" else Filled(self.task, self.job.fill)
        self.optimisers = optimisers_of(self.job, self.model)

    def learn(self) -> None:
        """A few steps, as long as the time lasts."""
        before = self.used
        start = time.process_time()
        for _ in range(TURN):
            share = self.used / self.seconds
            if share >= 1:
                return
            self.step(min(1.0, share / 0.03 + 0.01) * 0.5 * (1 + math.cos(math.pi * share)))
            self.used = before + time.process_time() - start

    def step(self, factor: float) -> torch.Tensor:
        """One step at a share of the learning rates; its loss."""
        example = self.given.example(self.job.seed, self.steps)
        for each in self.optimisers:
            each.zero_grad()
        loss = self.given.loss(self.model(example.batch), example) / example.count
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        for each in self.optimisers:
            each.step(factor)
        self.steps += 1
        return loss.detach()


def work(jobs: list[Job], task: Images, quick: bool) -> list[dict[str, Any]]:
    """Train models by turns of a few steps, so that a busy machine is as busy for each, and measure them."""
    learners = []
    for job in jobs:
        own = validation_of(task) if job.validation else task
        learners.append(Learner(job, own, 1.0 if quick else job.seconds))
    while rest := [learner for learner in learners if learner.used < learner.seconds]:
        min(rest, key=lambda learner: learner.used / learner.seconds).learn()
    return [line_of(learner) for learner in learners]


def line_of(learner: Learner) -> dict[str, Any]:
    """What is kept of a training."""
    job, task, model = learner.job, learner.task, learner.model
    model.eval()
    accuracy = measured(model, job, task, (task.pixels.shape[-1],) if job.validation else SIZES[job.data])
    numbers = sum(p.numel() for p in model.parameters())
    used = {"steps": learner.steps, "cpu": learner.used, "parameters": numbers}
    return {**asdict(job), **used, "accuracy": accuracy}


def validation_of(task: Images, count: int = MEASURED) -> Images:
    """A part of the training images to train on, and a few of the rest to measure."""
    part = task.validation()
    few = len(part.pixels) - len(part.held[0]) + count
    return replace(part, pixels=part.pixels[:few], labels=part.labels[:few], held_out=min(count / few, part.held_out))


@torch.no_grad()
def measured(model: nn.Module, job: Job, task: Images, sizes: tuple[int, ...]) -> dict[str, float]:
    """Percent right of held-out images: by side of the image, and (with a minus) by share of missing pixels."""
    pixels, labels = task.held
    side, found = pixels.shape[-1], {}
    for size in sizes:
        seen = pixels if size == side else resampled(pixels, size)
        if job.kind == "vit":
            seen = told(seen, None, job.fill, side)
        found[str(size)] = 100 * task.measure(model, seen, labels).values["accuracy"]
    for share in SHARES:
        count = DRAWS if len(labels) <= MEASURED else 1
        draws = [generator_for("holes", job.data, share, draw) for draw in range(count)]
        right = [with_holes(model, job, task, share, draw) for draw in draws]
        found[f"-{share}"] = 100 * statistics.mean(right)
    return found


@torch.no_grad()
def with_holes(model: nn.Module, job: Job, task: Images, share: float, draw: torch.Generator) -> float:
    """The share of held-out images that are read rightly where so many of their pixels are missing."""
    pixels, labels = task.held
    side = pixels.shape[-1]
    flags = observed_pixels(len(pixels), side * side, share, draw)
    right = 0
    for p, f, y in zip(pixels.split(250), flags.split(250), labels.split(250), strict=True):
        if job.kind == "vit":
            seen = Batch(told(torch.where(f.view_as(p), p, torch.nan), f, job.fill, side))
        else:  # coordinates and values of what is there, and nothing else
            seen = point_sets(p, f)
        right += int((model(seen).argmax(-1) == y).sum())
    return right / len(labels)


def finished(path: Path) -> list[dict[str, Any]]:
    """What was trained before."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def run(jobs: list[Job], task: Images, path: Path, quick: bool) -> list[dict[str, Any]]:
    """Train side by side what was not trained before; the job itself says what counts as the same."""
    known = {job_of(line): line for line in finished(path)}
    missing = [job for job in jobs if job not in known]
    for line in work(missing, task, quick):
        job = job_of(line)
        known[job] = line
        with path.open("a") as kept:
            kept.write(json.dumps(line) + "\n")
        shown = {k: round(v, 1) for k, v in line["accuracy"].items()}
        tokens = f"{'wide ' * job.wide}stem" if job.stem else f"{job.cells} cells"
        seed = "validation" if job.validation else f"seed {job.seed}"
        print(f"{job.data} {job.kind}, {tokens}, lr {job.rate:g} {job.fill} {seed}: "
              f"{line['steps']} steps, {line['cpu']:.0f} CPU-s, {shown}", flush=True)  # fmt: skip
    return [known[job] for job in jobs]


def job_of(line: dict[str, Any]) -> Job:
    """The training that a kept line is of."""
    return Job(**{each.name: line[each.name] for each in fields(Job) if each.name in line})


Trials = Generator[list[Job], dict[Job, float], Job]  # asks for the scores of trainings, and returns the best


def choosing(data: str, kind: str) -> Trials:
    """The best tokens, learning rate, filling and patches, by validation images, whole and with pixels missing.

    A third of the time makes all choices; of the best two of all that it tried, the whole time chooses.
    """
    tried: dict[Job, float] = {}

    def best_of(jobs: Iterable[Job]) -> Trials:
        jobs = list(jobs)
        scores = yield jobs
        tried.update(scores)
        return max(jobs, key=lambda job: scores[job])

    cells = (VisionSettings if data == "digits" else FashionSettings).cells
    first = FILLS[kind][0]
    short = 0.3 * SECONDS[data]
    plain = Job(data, kind, RATES[0], first if kind == "vit" else "", cells, seconds=short, validation=True)
    stem = replace(plain, fill=first, stem=True)
    kinds = (plain, stem, replace(stem, wide=True))
    best = yield from best_of(replace(each, rate=rate) for each in kinds for rate in RATES)
    if best.fill:
        best = yield from best_of(replace(best, fill=fill) for fill in FILLS[kind])
        best = yield from best_of(replace(best, rate=rate) for rate in RATES)
    if kind == "vit" and not best.stem:
        best = yield from best_of(replace(best, cells=finer) for finer in (cells, FINER[data]))
    first_two = sorted(tried, key=lambda job: tried[job], reverse=True)[:2]
    best = yield from best_of(replace(job, seconds=SECONDS[data]) for job in first_two)
    return replace(best, validation=False, wide=best.wide and (data, kind) != ("digits", "cells"))


def chosen_of(data: str, task: Images, path: Path, quick: bool) -> dict[str, Job]:
    """The choices of both models, whose trials take turns."""
    chosen: dict[str, Job] = {}
    asking = {kind: choosing(data, kind) for kind in NAMES}
    wanted = {kind: next(trials) for kind, trials in asking.items()}
    while wanted:
        scores: dict[Job, float] = {}
        for beside in zip_longest(*wanted.values()):
            jobs = [job for job in beside if job is not None]
            for job, line in zip(jobs, run(jobs, task, path, quick), strict=True):
                scores[job] = sum(line["accuracy"].values())
        for kind in list(wanted):
            try:
                wanted[kind] = asking[kind].send({job: scores[job] for job in wanted[kind]})
            except StopIteration as done:
                chosen[kind] = done.value
                del wanted[kind]
    return chosen


# --- the table -------------------------------------------------------------------------------------------------------


def rows_of(data: str, lines: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """Ours with the peer's beside it, mean between the least and the greatest of the seeds."""
    rows = []
    for key in lines["cells"][0]["accuracy"]:
        ours, theirs = ([line["accuracy"][key] for line in lines[kind]] for kind in ("cells", "vit"))
        where = f"{key}×{key} pixels" if not key.startswith("-") else f"{100 * float(key[1:]):.0f} % of pixels missing"
        bound = PROMISED.get((data, key))
        mean = statistics.mean(ours)
        note = f"ViT {statistics.mean(theirs):.1f} [{min(theirs):.1f}, {max(theirs):.1f}]"
        target = "≥ ViT" if bound is None else f"≥ {bound:g}, ≥ ViT"
        held = round(mean - max(statistics.mean(theirs), bound or 0.0), 6) >= 0  # as many right is enough
        rows.append(Row(f"{data}, {where}", mean, min(ours), max(ours), "%", target, held, note))
    return rows


def filling_rows(data: str, best: Job, path: Path) -> list[Row]:
    """What each way of filling makes of validation images with most pixels missing, at its better learning rate."""
    found: dict[str, Row] = {}
    for line in sorted(finished(path), key=lambda line: (sum(line["accuracy"].values()), line["rate"])):
        job = job_of(line)
        if replace(best, rate=job.rate, fill=job.fill, seconds=0.3 * SECONDS[data], validation=True) == job:
            name = (
                f"{data}, {NAMES[best.kind]}, filled by {line['fill']}, 75 % missing: validation, a third of the time"
            )
            whole = f"whole images {next(iter(line['accuracy'].values())):.1f}"
            found[line["fill"]] = Row(name, line["accuracy"]["-0.75"], unit="%", note=whole)
    return [found[fill] for fill in FILLS[best.kind] if fill in found]


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fashion", type=Path, default=FASHION, help="the folder of its idx files")
    parser.add_argument("--only", choices=["digits", "fashion"])
    parser.add_argument("--trials", action="store_true", help="choose on validation images, and stop there")
    parser.add_argument("--quick", action="store_true", help="few steps, nothing is written")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / ("vision-quick.jsonl" if chosen.quick else "vision-runs.jsonl")
    rows: list[Row] = []
    choices: dict[str, Any] = {}
    trained: dict[str, int] = {}
    for data in [chosen.only] if chosen.only else ["digits", "fashion"]:
        task = task_of(data, chosen.fashion)
        bests = chosen_of(data, task, path, chosen.quick)
        if chosen.trials:
            print(*bests.values(), sep="\n")
            continue
        lines: dict[str, list[dict[str, Any]]] = {kind: [] for kind in NAMES}
        for seed in range(1 if chosen.quick else chosen.seeds):
            jobs = [replace(bests[kind], seed=seed) for kind in NAMES]
            for job, line in zip(jobs, run(jobs, task, path, chosen.quick), strict=True):
                lines[job.kind].append(line)
        for kind, best in bests.items():
            used = {k: round(statistics.mean(line[k] for line in lines[kind]), 1) for k in ("steps", "cpu")}
            choices[f"{data}, {NAMES[kind]}"] = {
                "lr": best.rate, "fill": best.fill, "cells": best.cells, "stem": best.stem, "wide": best.wide,
                "parameters": lines[kind][0]["parameters"], **used}  # fmt: skip
        rows += rows_of(data, lines)
        for kind in NAMES:
            rows += filling_rows(data, bests[kind], path)
        trained[data] = len(lines["vit"])
    for line in rows:
        print(f"{line.name}: {line.shown}  {line.target} {line.verdict}  {line.note}")
    if chosen.quick:
        path.unlink()
    if chosen.quick or chosen.trials:
        return
    before = RESULTS / "vision.json"
    if chosen.only and before.is_file():
        known = json.loads(before.read_text(encoding="utf-8"))
        choices = {**known["choices"], **choices}
        trained = {**known["seeds"], **trained}
    print(write("vision", rows, environment=environment(), part=bool(chosen.only), choices=choices,
                seconds=SECONDS, seeds=trained))  # fmt: skip


if __name__ == "__main__":
    main()
