"""How the kernels of the digits' stems start, chosen by validation digits of three splits, for both models.

    python benchmarks/vision_starts.py             # about 15 minutes of CPU time
    python benchmarks/vision_starts.py --splits 0  # one of them; the table is written when all are there
    python benchmarks/vision_starts.py --held-out  # then what was chosen, every digit held out once: seven minutes
    python benchmarks/vision_starts.py --quick     # a smoke run of a few steps, nothing is written

``vision.py`` chooses by 288 digits of one split, too few for rows with most pixels missing. Here three of the splits of
``vision_folds.py`` hold a fifth of their training digits out for validation, 861 digits in all; what a split itself
holds out is not looked at. All starts of both models take turns with the whole time of ``vision.py``; filling and
learning rate are those that it chose. The start with most right answers over all rows is chosen. Finished splits are
kept in ``results/vision-starts.jsonl``.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import RESULTS, Row, environment, write
from torch import nn
from vision import NAMES, SECONDS, SIZES, Job, Learner, finished, measured, task_of
from vision_folds import FOLDS, fold_of
from vision_folds import rows_of as over_folds
from vision_peers import bare, wide

from continua.data.images import FASHION

KEPT = RESULTS / "vision-starts.jsonl"
SPLITS = (0, 3, 4)
CONVOLUTION = 3**-0.5  # of the width that keeps variance: how ``nn.Conv2d`` starts


def as_convolution(model: nn.Module) -> None:
    """Kernels of the stem start as wide as those of ``nn.Conv2d``, in both models."""
    wide(model)
    if not hasattr(model, "stem"):
        for field in (model.embed.first, *model.embed.later):
            field.coefficients.data.mul_(CONVOLUTION)


Found = dict[str, dict[str, Any]]  # by model and start
Changes = tuple[Callable[[nn.Module], None], ...]
CONVOLVED: dict[str, Changes] = {
    "narrow, a norm": (),
    "as nn.Conv2d, a norm": (as_convolution,),
    "as nn.Conv2d, no norm": (bare, as_convolution),
}
STARTS: dict[str, dict[str, Changes]] = {
    "cells": {**CONVOLVED, f"{1 / CONVOLUTION:.2f} × nn.Conv2d, no norm": (bare, wide)},
    "vit": CONVOLVED,
}


def trained(fold: int, starts: dict[str, dict[str, Changes]], held_out: bool, quick: bool) -> Found:
    """Percent right of validation or held-out digits of a split, of these starts of both models, which take turns."""
    task = fold_of(task_of("digits", FASHION), fold)
    task = task if held_out else task.validation()
    seconds = 1.0 if quick else SECONDS["digits"]
    learners = {}
    for kind, ways in starts.items():
        job = Job("digits", kind, 0.01, "faded", stem=True, seed=fold, seconds=seconds, validation=not held_out)
        for start, changes in ways.items():
            learners[f"{kind}: {start}"] = Learner(job, task, seconds, changes)
    while rest := [learner for learner in learners.values() if learner.used < learner.seconds]:
        min(rest, key=lambda learner: learner.used).learn()
    found = {}
    for name, learner in learners.items():
        learner.model.eval()
        accuracy = measured(learner.model, learner.job, task, SIZES["digits"])
        found[name] = {"steps": learner.steps, "accuracy": accuracy}
        shown = {key: round(value, 1) for key, value in accuracy.items()}
        print(f"split {fold}, {name}, {learner.steps} steps: {shown}", flush=True)
    return found


def known(held_out: bool) -> dict[int, Found]:
    """Finished splits."""
    return {line["fold"]: line["found"] for line in finished(KEPT) if line.get("held out", False) == held_out}


def every(folds: list[int], starts: dict[str, dict[str, Changes]], held_out: bool, quick: bool) -> dict[int, Found]:
    """Train what is missing of these splits."""
    for fold in folds[:1] if quick else folds:
        if fold in known(held_out) and not quick:
            continue
        found = trained(fold, starts, held_out, quick)
        if not quick:
            with KEPT.open("a") as kept:
                kept.write(json.dumps({"fold": fold, "held out": held_out, "found": found}) + "\n")
    return known(held_out)


def chosen_of(splits: dict[int, Found], kind: str) -> str:
    """The start with most right answers to validation digits, over all rows."""

    def right(start: str) -> float:
        return sum(sum(split[f"{kind}: {start}"]["accuracy"].values()) for split in splits.values())

    return max(STARTS[kind], key=right)


def rows_of(splits: dict[int, Found]) -> list[Row]:
    """Percent right over all rows of ``vision.py``, which chooses; the note has the single rows."""
    rows = []
    for kind, name in NAMES.items():
        for start in STARTS[kind]:
            each = [split[f"{kind}: {start}"]["accuracy"] for split in splits.values()]
            means = {key: statistics.mean(one[key] for one in each) for key in each[0]}
            shown = {key: f"{key}×{key}" if float(key) > 0 else f"{-100 * float(key):.0f} % missing" for key in means}
            note = " · ".join(f"{shown[key]} {value:.2f}" for key, value in means.items())
            over = [statistics.mean(one.values()) for one in each]
            what = f"digits, {name}, kernels start {start}: validation, all rows"
            rows.append(Row(what, statistics.mean(over), min(over), max(over), "%", note=note))
    return rows


def main() -> None:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, nargs="*", choices=SPLITS, default=list(SPLITS))
    parser.add_argument("--held-out", action="store_true", help="what was chosen, every digit held out once")
    parser.add_argument("--quick", action="store_true", help="few steps of one split, nothing is written")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    tried = every(chosen.splits, STARTS, False, chosen.quick)
    if chosen.quick or len(tried) < len(SPLITS):
        return
    rows = rows_of(tried)
    if chosen.held_out:
        starts = {kind: chosen_of(tried, kind) for kind in NAMES}
        best = {kind: {start: STARTS[kind][start]} for kind, start in starts.items()}
        folds = every(list(range(FOLDS)), best, True, False)
        own = {kind: f"{kind}: {start}" for kind, start in starts.items()}
        right = {fold: {kind: found[own[kind]]["accuracy"] for kind in NAMES} for fold, found in folds.items()}
        rows += over_folds(right, ", starts chosen on three splits")
    for row in rows:
        print(f"{row.name}: {row.shown}  {row.target} {row.verdict}  {row.note}")
    print(write("vision_starts", rows, environment=environment(), splits=SPLITS, seconds=SECONDS["digits"]))


if __name__ == "__main__":
    main()
