"""How many threads a training step wants: alone on the machine, and beside neighbours that keep every core busy.

    python benchmarks/threads.py                 # about three minutes on two cores

A step is a forward and a backward pass of one batch. Wall time, medians of interleaved rounds, as ratios to one thread.
The default of ``--threads`` (``continua.devices.default_threads``) is what these rows say.
"""

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

ROUNDS = 5
MODELS = {"small (d=64)": (64, 4), "demo (d=128)": (128, 4), "d=256": (256, 6)}
TOKENS = 64
BATCH = 8
LOSES_AT_MOST = 2.0  # beside busy neighbours, the default against one thread


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


def measure(name: str, width: int, depth: int, counts: list[int]) -> list[Row]:
    model = zoo.gpt2(vocab=128, d=width, heads=4, depth=depth, context=TOKENS)
    tokens = torch.randint(128, (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))
    cases = {str(n): step(model, tokens, n) for n in counts}
    rows = []
    for surroundings, count in (("alone", 0), ("busy machine", cores())):
        with neighbours(count):
            seconds = interleaved(cases, ROUNDS, warmup=1)
        rows.append(row(f"{name}, {surroundings}: one thread", estimate(seconds["1"]), unit="s"))
        for n in counts[1:]:
            found = ratio(seconds[str(n)], seconds["1"])
            is_default = n == default_threads()
            promised = is_default and count > 0
            note = "the default" if is_default else ""
            label = f"{name}, {surroundings}: {n} threads / one"
            target = f"≤ {LOSES_AT_MOST}" if promised else ""
            rows.append(row(label, found, note=note, target=target, held=found.median <= LOSES_AT_MOST or None))
    return [r if r.target else Row(r.name, r.value, r.low, r.high, r.unit, note=r.note) for r in rows]


def main() -> int:
    console = Console()
    counts = sorted({1, 2, cores(), 2 * cores()})
    rows = [found for name, size in MODELS.items() for found in measure(name, *size, counts)]
    table = Table("step", "median", "target", "", "note")
    for one in rows:
        table.add_row(one.name, one.shown, one.target, one.verdict, one.note)
    console.print(table)
    console.print(f"written: {write('threads', rows, default=default_threads(), environment=environment())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
