"""Clothes beside the ViT that validation images passed over: the start, the norm and the filling that ours has.

    python benchmarks/vision_narrow.py --fashion FOLDER   # where the idx files are; about 5 minutes of CPU time
    python benchmarks/vision_narrow.py --quick            # a smoke run of a few steps, nothing is written

In ``vision.py`` a third of the time chooses another ViT, and with the whole time this one did a little better on
validation images. Trainings take turns as there, and are kept in ``results/vision-narrow.jsonl``.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import RESULTS, environment, write
from vision import NAMES, SECONDS, Job, rows_of, run, task_of

from continua.data.images import FASHION

SEEDS = 3
DATA = "fashion"


def main() -> None:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion", type=Path, default=FASHION, help="the folder of its idx files")
    parser.add_argument("--quick", action="store_true", help="few steps of one seed, nothing is written")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / ("vision-quick.jsonl" if chosen.quick else "vision-narrow.jsonl")
    task = task_of(DATA, chosen.fashion)
    lines: dict[str, list[dict[str, object]]] = {kind: [] for kind in NAMES}
    for seed in range(1 if chosen.quick else SEEDS):
        jobs = [Job(DATA, kind, 0.01, "beside", 4, stem=True, seed=seed, seconds=SECONDS[DATA]) for kind in NAMES]
        for job, line in zip(jobs, run(jobs, task, path, chosen.quick), strict=True):
            lines[job.kind].append(line)
    rows = rows_of(f"{DATA}, a ViT that starts as ours", lines)
    for row in rows:
        print(f"{row.name}: {row.shown}  {row.target} {row.verdict}  {row.note}")
    if chosen.quick:
        path.unlink()
        return
    print(write("vision_narrow", rows, environment=environment(), seeds=SEEDS))


if __name__ == "__main__":
    main()
