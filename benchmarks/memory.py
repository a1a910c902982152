"""Peak bytes of attention over the number of tokens: the slope of log bytes over log n, up to 16,384.

    python benchmarks/memory.py                  # about four minutes on one core

The cases and the counter are those of ``tests/operators/test_memory.py``;
the peaks come from the allocator's own record.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from common import Row, environment, write
from rich.console import Console
from rich.progress import track
from rich.table import Table

from continua.lab.cost.memory import silent
from tests.measure import slope
from tests.operators.test_memory import BLOCKED, FUSED, LARGE, LINEAR, bytes_over


def main() -> int:
    torch.set_num_threads(1)
    console, rows, peaks = Console(), [], {}
    jobs = [(name, case, train) for name, case in {**FUSED, **BLOCKED}.items() for train in (False, True)]
    for name, case, train in track(jobs, "measuring", console=console, transient=True):
        label = f"{name}, {'training' if train else 'inference'}"
        with silent():
            peaks[label] = bytes_over(LARGE, *case, train=train)
        found = -slope(LARGE, peaks[label])
        rows.append(Row(label, found, target=f"≤ {LINEAR}", held=found <= LINEAR))
    table = Table("attention", "slope of peak bytes over n", "target", "")
    for row in rows:
        table.add_row(row.name, row.shown, row.target, row.verdict)
    console.print(table)
    write("memory", rows, environment=environment(), tokens=LARGE, peak_bytes=peaks)
    return 0 if all(row.held for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
