"""What the checks of settings cost: their share of a forward pass, and the time to import them beside pydantic's.

    python benchmarks/validation.py              # about a minute on one core

The checks of a pass are those of all objects that it makes: they are recorded once and repeated alone. Every round
times checks and pass, so that a busy machine slows both.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import continua as ct
from benchmarks.common import cpu_seconds, environment, estimate, interleaved, python, ratio, row, write
from continua.settings import Door

MOST_OF_A_PASS = 0.005
MOST_OF_AN_IMPORT = 0.05  # seconds
TIMES = 100  # checks in a row: those of one pass are shorter than the clock's tick
IMPORT = "import time, torch; start = time.process_time(); {}; print(time.process_time() - start)"
Passes = dict[str, Callable[[], object]]


def passes() -> Passes:
    """Small models on little, where a check weighs most; ``at`` is said anew at each call."""
    torch.manual_seed(0)
    words = ct.Transformer.continuous(vocab=64, at=ct.at(d=128, h=4, z=6)).eval()
    gpt2 = ct.zoo.gpt2(vocab=512, d=256, heads=4, depth=6, context=256).eval()
    line = torch.randint(64, (1, 32))
    page = torch.randint(64, (8, 128))
    return {
        "one line of 32 words": lambda: words(line),
        "one line of 32 words, at(d=64, h=2, z=3)": lambda: words.at(d=64, h=2, z=3)(line),
        "one line of 32 words, adaptive steps": lambda: words.at(z=ct.Adaptive(ct.Dopri5(), rtol=1e-2))(line),
        "gpt2 of width 256, 8 × 128": lambda: gpt2(page),
    }


def checks_of(work: Callable[[], object]) -> Callable[[], None]:
    """The checks of one pass, ``TIMES`` times."""
    made: list[tuple[Door, tuple[Any, ...], dict[str, Any]]] = []
    admit = Door.admit

    def noted(door: Door, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        made.append((door, args, dict(given)))
        return admit(door, args, given)

    work()
    with mock.patch.object(Door, "admit", noted):
        work()

    def again() -> None:
        for _ in range(TIMES):
            for door, args, given in made:
                door.admit(args, given)

    return again


def imported(statement: str) -> float:
    """CPU seconds of an import in a fresh process that has torch already."""
    done = subprocess.run(python("-c", IMPORT.format(statement)), capture_output=True, text=True, check=True)
    return float(done.stdout)


def main(rounds: int) -> int:
    torch.set_num_threads(1)
    rows = []
    with torch.no_grad():
        for name, work in passes().items():
            cases = {"checks": checks_of(work), "pass": work}
            timed = {key: (lambda case=case: cpu_seconds(case)) for key, case in cases.items()}
            seen = interleaved(timed, rounds=rounds, warmup=2)
            shares = ratio([value / TIMES for value in seen["checks"]], seen["pass"])
            rows.append(row(name, shares, target=f"< {MOST_OF_A_PASS}", held=shares.median < MOST_OF_A_PASS))
    statements = {"ours": "import continua.settings", "theirs": "from pydantic import BaseModel, TypeAdapter"}
    starts = {name: (lambda code=code: imported(code)) for name, code in statements.items()}
    spent = interleaved(starts, rounds=rounds, warmup=1)
    ours = estimate(spent["ours"])
    theirs = estimate(spent["theirs"])
    promised = f"< {MOST_OF_AN_IMPORT}"
    rows.append(
        row("import of the checks after torch", ours, unit="s", target=promised, held=ours.median < MOST_OF_AN_IMPORT)
    )
    rows.append(row("import of pydantic after torch", theirs, unit="s"))
    write("validation", rows, environment=environment())
    return 0 if all(one.held is not False for one in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
