"""How long each shipped recipe trains with its own settings: what ``continua recipes`` says.

    python benchmarks/recipes.py           # a few minutes

CPU time on one thread of some steps in a row, late ones (elastic training teaches in its second part) in their share,
times the steps of the recipe; data are made before, evaluations are left out.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import sys
from dataclasses import replace
from typing import Any

import torch
from common import Row, cpu_seconds, environment, estimate, row, write

from continua.errors import ConfigError
from continua.recipes import SHIPPED, build
from continua.training import Training
from continua.training.fit import train

STEPS = 12
ROUNDS = 3


def quiet(progress: object) -> None:
    """No bar."""


def seconds(name: str, steps: int) -> list[float]:
    """CPU seconds of ``steps`` steps spread over a whole run, in some rounds; the first one warms up."""
    bundle = build(name, {})
    task = bundle.task
    short: Training = replace(bundle.training, steps=steps, evaluate_every=10**6, save_every=10**6)
    example: Any = task.example(0, 0)
    del example  # data are on this machine now

    def once() -> None:
        train(
            bundle.model, task, short, optimiser=bundle.optimiser, schedule=bundle.schedule,
            penalties=bundle.penalties, watch=quiet,
        )  # fmt: skip

    return [cpu_seconds(once) for _ in range(ROUNDS + 1)][1:]


def minutes(name: str) -> Row:
    """The training of one recipe: what twice as many steps take more, so that the last evaluation does not count."""
    few = seconds(name, STEPS)
    many = seconds(name, 3 * STEPS)
    whole = build(name, {}).training.steps
    each = [(b - a) / (2 * STEPS) * whole / 60 for a, b in zip(few, many, strict=True)]
    return row(name, estimate(each), unit="min", note=f"{whole} steps")


def main() -> None:
    """Every shipped recipe, or those that are named."""
    torch.set_num_threads(1)
    rows = []
    for name in sys.argv[1:] or SHIPPED:
        try:
            rows.append(minutes(name))
        except ConfigError as missing:  # data that this machine does not have
            print(f"{name}: not measured. {missing}")
            continue
        print(f"{rows[-1].name}: {rows[-1].shown}  {rows[-1].note}", flush=True)
    print(write("recipes", rows, part=bool(sys.argv[1:]), environment=environment()))


if __name__ == "__main__":
    main()
