"""Every digit held out once: images as functions beside a ViT on five splits of scikit-learn's digits.

    python benchmarks/vision_folds.py            # about 8 minutes of CPU time
    python benchmarks/vision_folds.py --narrow   # stems that start narrow with a norm behind them, for both, besides
    python benchmarks/vision_folds.py --quick    # a smoke run of a few steps, nothing is written

``vision.py`` measures three seeds on the same 359 held-out digits, too few to tell two good models apart. Here each of
five trainings holds out another fifth, so that all 1,795 are measured, each by a model that never saw it. Models
and turns are those of ``vision.py``, stems start wide without a norm, as its validation images chose. These are of the
first split alone: another split may hold some of them out, for both models alike. Finished splits are kept in
``results/vision-folds.jsonl``.
"""

import argparse
import json
import math
import os
import statistics
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import RESULTS, Row, environment, write
from vision import NAMES, chosen_of, finished, task_of, work
from vision import rows_of as over_seeds

from continua.data.images import FASHION
from continua.tasks.images import Images

FOLDS = 5
KEPT = RESULTS / "vision-folds.jsonl"


def fold_of(task: Images, number: int) -> Images:
    """The same digits, of which another fifth is held out."""
    moved = number * len(task.held[0])
    return replace(task, pixels=task.pixels.roll(moved, 0), labels=task.labels.roll(moved, 0))


def trained(narrow: bool, quick: bool) -> dict[int, dict[str, dict[str, float]]]:
    """Percent right of both models, split by split."""
    task = task_of("digits", FASHION)
    bests = chosen_of("digits", task, RESULTS / "vision-runs.jsonl", quick=False)
    bests = {kind: replace(job, wide=not narrow) for kind, job in bests.items()}
    known = {line["fold"]: line["accuracy"] for line in finished(KEPT) if line["narrow"] == narrow}
    for fold in range(1 if quick else FOLDS):
        if fold in known and not quick:
            continue
        jobs = [replace(bests[kind], seed=fold) for kind in NAMES]
        lines = work(jobs, fold_of(task, fold), quick)
        found = {line["kind"]: line["accuracy"] for line in lines}
        print(f"split {fold}:", {kind: {k: round(v, 1) for k, v in own.items()} for kind, own in found.items()})
        if quick:
            return {fold: found}
        steps = {line["kind"]: line["steps"] for line in lines}
        with KEPT.open("a") as kept:
            kept.write(json.dumps({"fold": fold, "narrow": narrow, "steps": steps, "accuracy": found}) + "\n")
        known[fold] = found
    return known


def rows_of(splits: dict[int, dict[str, dict[str, float]]], starts: str = "") -> list[Row]:
    """The rows of ``vision.py`` over all digits; the difference is with its error from split to split."""
    lines = {kind: [{"accuracy": split[kind]} for split in splits.values()] for kind in NAMES}
    rows = []
    for key, row in zip(splits[0]["vit"], over_seeds(f"all digits{starts}", lines), strict=True):
        lead = [split["cells"][key] - split["vit"][key] for split in splits.values()]
        rows.append(replace(row, note=f"{row.note}; ours less the ViT's {with_error(lead)}"))
    return rows


def with_error(differences: list[float]) -> str:
    """Their mean, and two standard errors of it."""
    count = len(differences)
    error = 2 * statistics.stdev(differences) / math.sqrt(count) if count > 1 else math.nan
    return f"{statistics.mean(differences):+.2f} ± {error:.2f}"


def main() -> None:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--narrow", action="store_true", help="stems that start narrow, with a norm behind them")
    parser.add_argument("--quick", action="store_true", help="few steps of one split, nothing is written")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = rows_of(trained(chosen.narrow, chosen.quick), ", narrow" * chosen.narrow)
    for row in rows:
        print(f"{row.name}: {row.shown}  {row.target} {row.verdict}  {row.note}")
    if not chosen.quick:
        print(write("vision_folds", rows, environment=environment(), part=chosen.narrow, splits=FOLDS))


if __name__ == "__main__":
    main()
