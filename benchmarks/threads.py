"""How many threads a training step wants, and how they should wait for one another.

    python benchmarks/threads.py                 # about five minutes on two cores

A step is a forward and a backward pass of one batch: wall time, medians of interleaved rounds, as ratios to one thread;
on the machine as it is, and beside neighbours that keep every core busy. Threads of OpenMP spin while they wait unless
``OMP_WAIT_POLICY=PASSIVE`` says otherwise, and one that spins keeps the core that another needs. The command
``continua`` waits passively, on ``continua.devices.default_threads()`` threads: that is the row with a target.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from common import Row, environment, estimate, interleaved, python, ratio, row, write
from rich.console import Console
from rich.table import Table

from continua.devices import cores, default_threads
from continua.models import zoo

ROUNDS = 7
MODELS = {"d=64": (64, 4), "d=128, the demo": (128, 4), "d=256": (256, 4)}
SURROUNDINGS = {"as it is": 0, "busy": cores()}
POLICIES = {"spinning": "", "passive": "PASSIVE"}
TOKENS = 64
BATCH = 8
TARGET = 2.0  # beside busy neighbours, the default against one thread


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Processes that do nothing, as fast as they can."""
    busy = [subprocess.Popen(python("-c", "while True: pass")) for _ in range(count)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


def step(model: torch.nn.Module, tokens: torch.Tensor, threads: int) -> Callable[[], float]:
    """The seconds of one forward and backward pass on so many threads."""

    def go() -> float:
        torch.set_num_threads(threads)
        start = time.perf_counter()
        model(tokens).square().mean().backward()
        return time.perf_counter() - start

    return go


def child() -> None:
    """All seconds of one process, whose way of waiting was fixed when torch was loaded; written as JSON."""
    found = {}
    for name, (width, depth) in MODELS.items():
        model = zoo.gpt2(vocab=128, d=width, heads=4, depth=depth, context=TOKENS)
        tokens = torch.randint(128, (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))
        cases = {str(n): step(model, tokens, n) for n in sorted({1, 2, cores()})}
        for surroundings, count in SURROUNDINGS.items():
            with neighbours(count):
                found[f"{name}, {surroundings}"] = interleaved(cases, ROUNDS, warmup=1)
    sys.stdout.write(json.dumps(found))


def measured(policy: str) -> dict[str, dict[str, list[float]]]:
    """What a child found with this way of waiting."""
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    if policy:
        surroundings["OMP_WAIT_POLICY"] = policy
    done = subprocess.run(python(__file__, "child"), env=surroundings, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, dict[str, list[float]]] = json.loads(done.stdout)
    return found


def rows_of(waiting: str, found: dict[str, dict[str, list[float]]]) -> Iterator[Row]:
    default = str(min(2, cores()))
    for name, seconds in found.items():
        yield row(f"{waiting}, {name}: one thread", estimate(seconds["1"]), unit="s")
        for n, values in seconds.items():
            if n == "1":
                continue
            got = ratio(values, seconds["1"])
            promised = waiting == "passive" and n == default
            held = {"target": f"≤ {TARGET:g}", "held": got.median <= TARGET} if promised else {}
            yield row(f"{waiting}, {name}: {n} threads / one", got, **held)


def main() -> int:
    if "child" in sys.argv:
        child()
        return 0
    console = Console()
    rows = [one for waiting, policy in POLICIES.items() for one in rows_of(waiting, measured(policy))]
    table = Table("step", "median", "target", "")
    for one in rows:
        table.add_row(one.name, one.shown, one.target, one.verdict)
    console.print(table)
    console.print(f"written: {write('threads', rows, default=default_threads(), environment=environment())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
