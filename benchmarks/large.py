"""One elastic model of six million parameters, for the benchmarks of speculation, export and serving.

    python benchmarks/large.py                 # trains it into runs/large, about ten CPU minutes
    python benchmarks/large.py --steps 6       # into runs/large-6: does all of it run?

The recipe is that of ``continua fit elastic``; the other benchmarks make the run themselves where it is not there.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from continua.axes import Discretisation, at
from continua.cli.pareto import FILE, measure
from continua.recipes import start
from continua.training import Run

FOLDER = Path("runs/large")
SETTINGS: dict[str, Any] = {
    "d": 256, "heads": 8, "depth": 8, "context": 256, "batch": 8, "steps": 450, "evaluate_every": 450,
    "save_every": 150, "below": 0,
}  # fmt: skip
WINDOWS = 64  # of held-out text for each size
SIZES: tuple[Discretisation, ...] = (
    at(),
    *(at(z=z) for z in (7, 6, 5, 4, 3)),
    *(at(h=h) for h in (6, 4)),
    *(at(h=6, z=z) for z in (6, 5, 4)),
    *(at(h=4, z=z) for z in (6, 5, 4)),
    at(d=192),
    at(d=192, z=4),
    at(d=192, h=4, z=4),
    at(d=128),
    at(d=128, h=4, z=4),
)


def large_run(folder: Path = FOLDER, steps: int | None = None) -> Path:
    """The folder of the run, which is trained where there is none."""
    if not (folder / "run.json").is_file():
        changes = SETTINGS if steps is None else {**SETTINGS, "steps": steps, "evaluate_every": steps}
        start("elastic", changes, folder, device="cpu")
    return folder


def with_losses(folder: Path, windows: int = WINDOWS) -> Path:
    """The same with the held-out losses of its sizes."""
    if not (folder / FILE).is_file():
        found = measure(Console(), Run.open(folder), [*SIZES], windows, torch.device("cpu"))
        found.save(folder / FILE)
    return folder


def main() -> None:
    """Train and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = FOLDER if options.steps is None else FOLDER.with_name(f"large-{options.steps}")
    with_losses(large_run(folder, options.steps), WINDOWS if options.steps is None else 1)


if __name__ == "__main__":
    main()
