"""Images at other resolutions and with pixels missing: function patches beside a ViT of the same size.

    python benchmarks/vision.py                             # 3 seeds, about 13 minutes of CPU time
    python benchmarks/vision.py --fashion FOLDER            # where the four idx files of Fashion-MNIST are
    python benchmarks/vision.py --quick                     # a smoke run of a few steps, nothing is written

Both models have the same width, heads, depth and cells (the ViT also its class token), the same CPU seconds on one
thread, the same changes of the training images (affine maps, missing pixels), optimisers and schedule. Learning rates,
and for the ViT how missing pixels are filled and whether its patches are finer, are chosen on a validation part of the
training images with a third of the time.
The ViT gets other resolutions resized to its own. Finished trainings are kept in ``results/vision-runs.jsonl``.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import RESULTS, Row, environment, write

from continua.data.images import FASHION, observed_pixels, point_sets, resampled
from continua.models import Batch, Pixels, Scaled, Transformer, initialise, zoo
from continua.optim import ByRole
from continua.recipes.vision import FashionSettings, VisionSettings, optimiser_of
from continua.recipes.vision import model_of as function_patches_of
from continua.tasks.images import Images, digits, fashion_mnist
from continua.tasks.task import Example, Score, generator_for
from continua.training import fit

RATES = (0.02, 0.01)  # of Muon, which trains the kernels
FILLS = ("weighted", "nearest", "background")
SIZES = {"digits": (6, 8, 12, 16, 32), "fashion": (14, 20, 28, 56)}
FINER = {"digits": 4, "fashion": 7}  # the patches in each direction that the ViT may have instead
RESIZED = {"fashion": 14}  # a size at which ours is also measured on images resized to its own first, as the ViT's are
SHARES = (0.25, 0.5, 0.75)
SECONDS = {"digits": 40.0, "fashion": 40.0}
MEASURED = 1000  # held-out images of Fashion-MNIST that are measured: the first of its 10,000
PROMISED = {("digits", "8"): 97.0, ("digits", "16"): 95.0, ("digits", "-0.5"): 90.0}
NAMES = {"cells": "function patches", "vit": "ViT"}


@dataclass(frozen=True)
class Job:
    """One training."""

    data: str  # digits or fashion
    kind: str  # cells or vit
    rate: float
    fill: str = ""
    cells: int = 2
    seed: int = 0
    seconds: float = 30.0
    validation: bool = False


# --- the peer --------------------------------------------------------------------------------------------------------


def filled(images: torch.Tensor, observed: torch.Tensor, how: str) -> torch.Tensor:
    """Missing pixels take the nearest observed one, a Gaussian mean of one pixel's width, or the background."""
    high, wide = images.shape[-2:]
    place = torch.stack(torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij"), -1).view(-1, 2).float()
    square, flat = torch.cdist(place, place).square(), images.flatten(2)
    shared = observed.dim() == 1  # one way of filling serves the whole batch then
    flags = observed.expand(len(images), -1)
    if how == "background":
        return torch.where(flags[:, None], flat, -1.0).view_as(images)
    parts, size = [], len(images) if shared else 32
    for u, seen in zip(flat.split(size), flags.split(size), strict=True):
        one = seen[:1] if shared else seen
        if how == "nearest":
            index = torch.where(one[:, None], square, torch.inf).argmin(-1)
            parts.append(u.gather(2, index[:, None].expand(len(u), u.shape[1], -1)))
        else:
            near = torch.where(one[:, None], (-square / 2).exp() + 1e-12, 0.0)
            known = torch.where(seen[:, None], u, 0.0)
            mean = known.flatten(0, 1) @ near[0].mT if shared else (known @ near.mT).flatten(0, 1)
            mean = mean.view_as(u) / near.sum(-1)[:, None]
            parts.append(torch.where(seen[:, None], u, mean))
    return torch.cat(parts).view_as(images)


@dataclass(frozen=True)
class Filled:
    """The same task for a model that needs whole images: gaps are filled first."""

    task: Images
    how: str

    def example(self, seed: int, step: int) -> Example:
        """The images of the task, filled."""
        found = self.task.example(seed, step)
        return Example(Batch(filled(found.batch.values, found.batch.observed, self.how)), found.target)

    def loss(self, answer: torch.Tensor, example: Example) -> torch.Tensor:
        """As the task has it."""
        return self.task.loss(answer, example)

    def evaluate(self, model: Any) -> Score:
        """As the task has it."""
        return self.task.evaluate(model)


# --- trainings -------------------------------------------------------------------------------------------------------


def settings_of(job: Job) -> VisionSettings:
    """What the recipes use, at another learning rate."""
    chosen = VisionSettings() if job.data == "digits" else FashionSettings()
    return replace(chosen, kernel_lr=job.rate, weights=job.seed, cells=job.cells)


def task_of(data: str, folder: Path) -> Images:
    """Digits, or Fashion-MNIST, with the changes of the recipes."""
    if data == "digits":
        usual = VisionSettings()
        return digits(warp=usual.warp, missing=usual.missing, apart=usual.apart)
    usual = FashionSettings()
    return fashion_mnist(folder, warp=usual.warp, missing=usual.missing, apart=usual.apart)


def model_of(job: Job, task: Images) -> Transformer:
    """Ours, or a ViT of its size."""
    chosen = settings_of(job)
    if job.kind == "cells":
        return function_patches_of(chosen, task.classes)
    side = task.pixels.shape[-1]
    pixels = Pixels(side, side, 1, (side // chosen.cells, side // chosen.cells))
    model = zoo.vit(pixels, d=chosen.d, heads=chosen.heads, depth=chosen.depth, labels=task.classes)
    initialise(model, Scaled(), torch.Generator().manual_seed(job.seed))
    return model


def steps_in(seconds: float, task: Any, make: Callable[[], Transformer], optimiser: ByRole) -> int:
    """How many steps fit into these CPU seconds, from twenty of them."""
    model, least = make(), []
    for _ in range(2):
        start = time.process_time()
        fit(model, task, optimiser=optimiser, steps=20, evaluate_every=10**6, watch=lambda at: None)
        least.append(time.process_time() - start)
    return max(20, round(20 * seconds / min(least)))


def work(job: Job, task: Images, quick: bool) -> dict[str, Any]:
    """Train and measure."""
    task = task.validation() if job.validation else task
    given: Any = task if job.kind == "cells" else Filled(task, job.fill)
    few = _Deaf(given)  # nothing is measured on the way: only the last weights are used
    optimiser = optimiser_of(settings_of(job))
    steps = 20 if quick else steps_in(job.seconds, few, lambda: model_of(job, task), optimiser)
    model = model_of(job, task)
    start = time.process_time()
    fit(model, few, optimiser=optimiser, steps=steps, seed=job.seed, evaluate_every=10**6, watch=lambda at: None)
    cpu = time.process_time() - start
    model.eval()
    accuracy = measured(model, job, task, (task.pixels.shape[-1],) if job.validation else SIZES[job.data])
    numbers = sum(p.numel() for p in model.parameters())
    return {**asdict(job), "steps": steps, "cpu": cpu, "parameters": numbers, "accuracy": accuracy}


class _Deaf:
    """A task whose evaluation costs nothing."""

    def __init__(self, task: Any) -> None:
        self.task, self.example, self.loss = task, task.example, task.loss

    def evaluate(self, model: Any) -> Score:
        """Nothing."""
        return Score({"loss": 0.0})


@torch.no_grad()
def measured(model: Transformer, job: Job, task: Images, sizes: tuple[int, ...]) -> dict[str, float]:
    """Percent right of held-out images: by side of the image, and (with a minus) by share of missing pixels."""
    pixels, labels = (part[:MEASURED] for part in task.held)
    side, found = pixels.shape[-1], {}
    for size in sizes:
        seen = pixels if size == side else resampled(pixels, size)
        if job.kind == "vit" and size != side:
            seen = resampled(seen, side)
        found[str(size)] = 100 * task.measure(model, seen, labels).values["accuracy"]
        if job.kind == "cells" and size == RESIZED.get(job.data):
            found[f"{size}→{side}"] = 100 * task.measure(model, resampled(seen, side), labels).values["accuracy"]
    for share in SHARES:
        flags = observed_pixels(len(pixels), side * side, share, generator_for("holes", job.data, share))
        if job.kind == "vit":
            whole = filled(torch.where(flags.view(-1, 1, side, side), pixels, torch.nan), flags, job.fill)
            found[f"-{share}"] = 100 * task.measure(model, whole, labels).values["accuracy"]
        else:  # coordinates and values of what is there, and nothing else
            answers = [model(point_sets(p, f)) for p, f in zip(pixels.split(250), flags.split(250), strict=True)]
            found[f"-{share}"] = 100 * (torch.cat(answers).argmax(-1) == labels).double().mean().item()
    return found


def finished(path: Path) -> list[dict[str, Any]]:
    """What was trained before."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def run(job: Job, task: Images, path: Path, quick: bool) -> dict[str, Any]:
    """Train, unless that was done before; the choice of what counts as the same is the job itself."""
    for line in finished(path):
        if all(line[k] == v for k, v in asdict(job).items()):
            return line
    line = work(job, task, quick)
    with path.open("a") as kept:
        kept.write(json.dumps(line) + "\n")
    shown = {k: round(v, 1) for k, v in line["accuracy"].items()}
    print(f"{job.data} {job.kind} lr {job.rate:g} {job.fill} seed {job.seed}{' (validation)' * job.validation}: "
          f"{line['steps']} steps, {line['cpu']:.0f} CPU-s, {shown}", flush=True)  # fmt: skip
    return line


def chosen_of(data: str, kind: str, task: Images, path: Path, quick: bool) -> Job:
    """The best learning rate, filling and patches, by whole and half missing validation images."""

    def score(job: Job) -> float:
        got = run(job, task, path, quick)["accuracy"]
        return got[str(task.pixels.shape[-1])] + got["-0.5"]

    cells = (VisionSettings if data == "digits" else FashionSettings).cells
    plain = Job(data, kind, RATES[0], FILLS[0] if kind == "vit" else "", cells, 0, 0.3 * SECONDS[data], True)
    best = max((replace(plain, rate=rate) for rate in RATES), key=score)
    if kind == "vit":
        best = max((replace(best, fill=fill) for fill in FILLS), key=score)
        best = max((replace(best, cells=finer) for finer in (cells, FINER[data])), key=score)
    return replace(best, seconds=SECONDS[data], validation=False)


# --- the table -------------------------------------------------------------------------------------------------------


def rows_of(data: str, lines: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """Ours with the peer's beside it, mean between the least and the greatest of the seeds."""
    rows = []
    for key in lines["cells"][0]["accuracy"]:
        if "→" in key:  # ours alone: the ViT has no other way
            ours = [line["accuracy"][key] for line in lines["cells"]]
            name = "{0}×{0} pixels, resized to {1}×{1} first".format(*key.split("→"))
            rows.append(Row(f"{data}, {name}", statistics.mean(ours), min(ours), max(ours), "%"))
            continue
        ours, theirs = ([line["accuracy"][key] for line in lines[kind]] for kind in ("cells", "vit"))
        where = f"{key}×{key} pixels" if not key.startswith("-") else f"{100 * float(key[1:]):.0f} % of pixels missing"
        bound = PROMISED.get((data, key))
        mean = statistics.mean(ours)
        note = f"ViT {statistics.mean(theirs):.1f} [{min(theirs):.1f}, {max(theirs):.1f}]"
        target, held = ("", None) if bound is None else (f"≥ {bound:g}", mean >= bound)
        rows.append(Row(f"{data}, {where}", mean, min(ours), max(ours), "%", target, held, note))
    return rows


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fashion", type=Path, default=FASHION, help="the folder of its idx files")
    parser.add_argument("--only", choices=["digits", "fashion"])
    parser.add_argument("--quick", action="store_true", help="few steps, nothing is written")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / ("vision-quick.jsonl" if chosen.quick else "vision-runs.jsonl")
    rows, choices = [], {}
    for data in [chosen.only] if chosen.only else ["digits", "fashion"]:
        task = task_of(data, chosen.fashion)
        lines: dict[str, list[dict[str, Any]]] = {}
        for kind in NAMES:
            best = chosen_of(data, kind, task, path, chosen.quick)
            seeds = range(1 if chosen.quick else chosen.seeds)
            lines[kind] = [run(replace(best, seed=seed), task, path, chosen.quick) for seed in seeds]
            used = {k: round(statistics.mean(line[k] for line in lines[kind]), 1) for k in ("steps", "cpu")}
            choices[f"{data}, {NAMES[kind]}"] = {
                "lr": best.rate, "fill": best.fill, "cells": best.cells,
                "parameters": lines[kind][0]["parameters"], **used}  # fmt: skip
        rows += rows_of(data, lines)
    for line in rows:
        print(f"{line.name}: {line.shown}  {line.target} {line.verdict}  {line.note}")
    if chosen.quick:
        path.unlink()
        return
    print(write("vision", rows, environment=environment(), part=bool(chosen.only), choices=choices,
                seconds=SECONDS, measured=MEASURED, seeds=chosen.seeds))  # fmt: skip


if __name__ == "__main__":
    main()
