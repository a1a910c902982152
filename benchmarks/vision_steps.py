"""Where images as functions and a ViT differ: the price of a training step, and what as many steps of both teach.

    python benchmarks/vision_steps.py                       # about 5 minutes of CPU time
    python benchmarks/vision_steps.py --fashion FOLDER      # where the four idx files of Fashion-MNIST are
    python benchmarks/vision_steps.py --quick               # a few steps, nothing is written

Both models and their trainings are those of ``vision.py``. Prices are medians of interleaved rounds of single steps.
With as many steps, on clothes, both start as they do now, or without what was found to help: kernels of the stem that
start narrow, and a norm behind it. Validation images are read whole and with half of their pixels missing.
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import Row, environment, interleaved, write
from torch import nn
from torch.nn.functional import cross_entropy
from vision import NAMES, Job, Learner, task_of, validation_of
from vision_peers import bare, told, wide

from continua.data.images import FASHION, observed_pixels
from continua.models import Batch
from continua.tasks.images import Images
from continua.tasks.task import generator_for

STEPS = 350
VALIDATED = 6000  # images
ROUNDS = 40
FILL = {"digits": "faded", "fashion": "beside"}
CELLS = {"digits": 2, "fashion": 4}


class Measured(NamedTuple):
    """Of a training of so many steps."""

    training: float  # the mean loss of its last fifth
    losses: dict[str, float]
    accuracies: dict[str, float]


def job_of(data: str, kind: str) -> Job:
    """A training behind a stem, gaps filled alike for both."""
    return Job(data, kind, 0.01, FILL[data], CELLS[data], stem=True)


CHANGES: dict[str, tuple[Callable[[nn.Module], None], ...]] = {
    "as it is": (),
    "no norm behind the stem": (bare,),
    "no norm, kernels start wide": (bare, wide),
}


def price_rows(data: str, task: Images, rounds: int) -> list[Row]:
    """CPU milliseconds of a step of both, and their ratio."""
    learners = {kind: Learner(job_of(data, kind), task, math.inf) for kind in NAMES}

    def seconds(kind: str) -> float:
        start = time.process_time()
        learners[kind].step(0.1)
        return time.process_time() - start

    found = interleaved({kind: lambda kind=kind: seconds(kind) for kind in NAMES}, rounds, 3)
    ratios = [ours / theirs for ours, theirs in zip(found["cells"], found["vit"], strict=True)]
    middle = {kind: 1e3 * statistics.median(values) for kind, values in found.items()}
    ratio = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4)
    note = f"{middle['cells']:.1f} and {middle['vit']:.1f} ms, quartiles of {rounds} pairs"
    name = f"{data}, CPU time of a training step, of the ViT's"
    return [Row(name, ratio, low, high, target="≤ 1", held=ratio <= 1, note=note)]


def trained(kind: str, changes: tuple[Callable[[nn.Module], None], ...], task: Images, steps: int) -> Measured:
    """So many steps with a cosine to zero."""
    learner = Learner(job_of("fashion", kind), task, math.inf, changes)
    losses: list[torch.Tensor] = []
    for step in range(steps):
        share = step / steps
        losses.append(learner.step(min(1.0, share / 0.03 + 0.01) * 0.5 * (1 + math.cos(math.pi * share))))
    learner.model.eval()
    return Measured(float(torch.stack(losses[-steps // 5 :]).mean()), *validated(learner, task))


@torch.no_grad()
def validated(learner: Learner, task: Images) -> tuple[dict[str, float], dict[str, float]]:
    """Losses and percent right of validation images, whole and with the same half of their pixels missing."""
    pixels, labels = task.held
    side = pixels.shape[-1]
    half = observed_pixels(1, side * side, 0.5, generator_for("holes", "fashion", 0.5, 0))[0]
    losses: dict[str, float] = {}
    accuracies: dict[str, float] = {}
    for name, flags in {"whole": None, "half missing": half}.items():
        answers = []
        for part in pixels.split(500):
            given: Any = Batch(part, observed=flags)
            if learner.job.kind == "vit":
                given = Batch(told(part, flags, learner.job.fill, side))
            answers.append(learner.model(given))
        answer = torch.cat(answers)
        losses[name] = float(cross_entropy(answer, labels))
        accuracies[name] = 100 * float((answer.argmax(-1) == labels).double().mean())
    return losses, accuracies


def step_rows(task: Images, steps: int) -> list[Row]:
    """As many steps of both, as they are and without what changed."""
    rows = []
    for what, changes in CHANGES.items():
        for kind, name in NAMES.items():
            found = trained(kind, changes, task, steps)
            note = (
                f"whole {found.accuracies['whole']:.1f}, half missing {found.accuracies['half missing']:.1f} % right; "
            )
            note += f"losses {found.losses['whole']:.3f} and {found.losses['half missing']:.3f}"
            rows.append(Row(f"fashion, {steps} steps, {name}, {what}: loss of training", found.training, note=note))
            print(rows[-1].name, rows[-1].shown, note, flush=True)
    return rows


def main() -> None:
    """Measure both, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion", type=Path, default=FASHION, help="the folder of its idx files")
    parser.add_argument("--quick", action="store_true", help="few steps, nothing is written")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for data in ("digits", "fashion"):
        rows += price_rows(data, task_of(data, chosen.fashion), 4 if chosen.quick else ROUNDS)
    task = validation_of(task_of("fashion", chosen.fashion), 500 if chosen.quick else VALIDATED)
    rows += step_rows(task, 5 if chosen.quick else STEPS)
    for row in rows:
        print(f"{row.name}: {row.shown}  {row.target} {row.verdict}  {row.note}")
    if not chosen.quick:
        print(write("vision_steps", rows, environment=environment()))


if __name__ == "__main__":
    main()
