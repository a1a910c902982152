"""What the trainings of ``series.py`` share: budgets of CPU seconds, two learning rates, seeds, and what is kept."""

import json
import sys
import time
from collections.abc import Callable
from statistics import mean, stdev
from typing import Any

from common import RESULTS, Row

SEEDS = (0, 1, 2)
RATES = (2e-3, 6e-3)
CHOOSING = 4  # rates are compared after this part of the budget


class Runs:
    """Finished runs, one line each."""

    def __init__(self, quick: bool, name: str = "series") -> None:
        self.quick = quick
        self.path = RESULTS / f"{name}-{'quick' if quick else 'runs'}.jsonl"
        self.done: dict[str, Any] = {}
        if self.path.is_file() and not quick:
            lines = map(json.loads, self.path.read_text(encoding="utf-8").splitlines())
            self.done = {line["run"]: line["found"] for line in lines}

    def __call__(self, name: str, work: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What a run found, now or before."""
        if name not in self.done:
            start = time.process_time()
            found = work() | {"cpu": round(time.process_time() - start, 1)}
            RESULTS.mkdir(exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"run": name, "found": found}) + "\n")
            self.done[name] = found
            said = ", ".join(f"{key} {value:.4g}" for key, value in found.items())
            print(f"{name}: {said}", file=sys.stderr, flush=True)
        return self.done[name]

    def seconds(self, budget: float) -> float:
        return 2.0 if self.quick else budget


def tried(runs: Runs, name: str, measure: Callable[[float, int, bool], dict[str, float]]) -> list[dict[str, float]]:
    """The runs of all seeds at the better of two rates; ``measure(rate, seed, choosing)`` names what to minimise
    ``chosen`` when it is choosing."""
    marks = {r: runs(f"{name}, rate {r}, choosing", lambda r=r: measure(r, 0, True))["chosen"] for r in RATES}
    best = min(marks, key=lambda r: marks[r])
    return [runs(f"{name}, seed {seed}", lambda s=seed: measure(best, s, False) | {"rate": best}) for seed in SEEDS]


def steps_for(make: Callable[[int], Any], fit: Callable[[Any], Any], seconds: float) -> int:
    """How many steps fit into so many CPU seconds, by a short trial."""
    fit(make(3))  # what is made once
    start = time.process_time()
    fit(make(5))
    begun = time.process_time() - start
    start = time.process_time()
    fit(make(65))
    return max(int(60 * seconds / max(time.process_time() - start - begun, 1e-3)), 5)


def shown(found: list[float], percent: bool = True) -> str:
    scale = 100 if percent else 1
    return f"{scale * mean(found):.1f} ± {scale * stdev(found):.1f}" if len(found) > 1 else f"{scale * found[0]:.1f}"


def line(name: str, values: list[float], **rest: Any) -> Row:
    """A row: the mean over seeds, lowest and highest."""
    return Row(name, mean(values), min(values), max(values), **rest)
