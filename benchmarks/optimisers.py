"""Which optimiser helps the kernels of the text recipe, at equal CPU time.

python benchmarks/optimisers.py                  # 60 CPU seconds a run, 32 such budgets in all
python benchmarks/optimisers.py --seconds 20     # shorter
python benchmarks/optimisers.py --quick          # a smoke run, nothing is written

Kernels are trained by the optimiser that is named; tables, gains and biases by AdamW(2e-3) in every run. The cost of a
step is measured first, all optimisers in turn; a run then has the number of steps that fills the budget, so that it
can be repeated to the bit and a busy machine shortens nobody's. The learning rate of the kernels is the best of three
on seed 0 with a third of the budget, or of up to five: while the best is the first or the last, one beyond it is tried.
After that come three seeds with the whole budget.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from common import Row, cpu_seconds, environment, interleaved, ratio, write
from rich.console import Console
from rich.table import Table
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from continua.errors import RunError
from continua.optim import (
    KFAC,
    SOAP,
    AdamW,
    ByRole,
    Muon,
    Optimiser,
    Rescaled,
    RiemannianAdam,
    Shampoo,
    SpectrallyNormalised,
)
from continua.recipes import TextSettings
from continua.recipes import text as recipe
from continua.recipes.text import model_of
from continua.tasks import Text
from continua.training import fit

SIZE = TextSettings(d=64, heads=4, depth=4, context=64, batch=16)
REST = AdamW(2e-3)
WINDOWS, SEEDS, BLOCK = 512, 3, 10  # held-out windows; runs of each; steps in one measurement (a multiple of every n)


def text_task() -> Text:
    """The recipe's own, with the beginning of its held-out text."""
    whole: Any = recipe(SIZE).task
    corpus = replace(whole.corpus, validation=whole.corpus.validation[: WINDOWS * SIZE.context + 1])
    return Text(corpus, whole.tokens, SIZE.context, SIZE.batch)


@dataclass(frozen=True)
class Choice:
    """An optimiser of the kernels at a learning rate, and the three rates that are tried first."""

    at: Callable[[float], Optimiser]
    rates: tuple[float, float, float]

    def roles(self, rate: float) -> ByRole:
        """With the rest as it always is."""
        return ByRole(REST, kernel=self.at(rate))


ADAM = (1e-3, 3e-3, 1e-2)
CHOICES = {
    "AdamW": Choice(AdamW, ADAM),
    "Muon": Choice(Muon, (7e-3, 2e-2, 6e-2)),
    "SOAP": Choice(SOAP, ADAM),
    "Shampoo": Choice(Shampoo, (0.05, 0.15, 0.5)),
    "K-FAC": Choice(KFAC, (0.02, 0.06, 0.2)),
    "RiemannianAdam": Choice(RiemannianAdam, ADAM),
    "Rescaled AdamW": Choice(lambda rate: Rescaled(AdamW(rate)), ADAM),
    "SpectrallyNormalised AdamW": Choice(lambda rate: SpectrallyNormalised(AdamW(rate), bound=2.0), ADAM),
}
MOST = 5  # rates that are tried


@dataclass
class Steps:
    """Training steps as the loop takes them: forward, backward, clip, update."""

    optimiser: ByRole
    task: Text
    number: int = 0

    def __post_init__(self) -> None:
        self.model = model_of(SIZE, self.task.tokens.size)
        self.made = self.optimiser.make(self.model)

    def __call__(self) -> None:
        for _ in range(BLOCK):
            example = self.task.example(0, self.number)
            self.number += 1
            self.made.zero_grad()
            (self.task.loss(self.model(example.batch), example) / example.count).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.made.step(0.1)


def calibrated(names: list[str], task: Text, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of a step of each, all of them in every round."""
    cases = {name: Steps(CHOICES[name].roles(CHOICES[name].rates[0]), task) for name in names}
    work = {name: lambda steps=steps: cpu_seconds(steps) / BLOCK for name, steps in cases.items()}  # type: ignore[misc]
    return interleaved(work, rounds, 1)


@dataclass(frozen=True)
class Outcome:
    """The held-out loss of a run, and what it took."""

    loss: float
    cpu: float


def trained(task: Text, optimiser: ByRole, steps: int, seed: int) -> Outcome:
    """One run; one that does not stay finite has an infinite loss."""
    model, start = model_of(replace(SIZE, weights=seed), task.tokens.size), time.process_time()
    options: dict[str, Any] = {"steps": steps, "seed": seed, "evaluate_every": steps, "watch": lambda at: None}
    try:
        loss = fit(model, task, optimiser=optimiser, **options).history[-1].get("validation_loss", math.inf)
    except RunError:
        loss = math.inf
    return Outcome(loss if math.isfinite(loss) else math.inf, time.process_time() - start)


@dataclass(frozen=True)
class Judged:
    """All that was measured of one optimiser."""

    name: str
    steps: int
    milliseconds: float
    cost: float  # over a step of the first
    tuned: dict[float, float]
    rate: float
    runs: list[Outcome]

    @property
    def losses(self) -> list[float]:
        return [run.loss for run in self.runs]

    def row(self) -> Row:
        """The mean over the seeds, with the worst and the best."""
        edge = ", an end of the grid" if self.rate in (min(self.tuned), max(self.tuned)) else ""
        note = f"lr {self.rate:.2g}{edge}; {self.steps} steps, each {self.cost:.2f}× AdamW's"
        mean, low, high = statistics.fmean(self.losses), min(self.losses), max(self.losses)
        return Row(f"held-out loss, {self.name}", mean, low, high, unit="nats a character", note=note)


def judged(name: str, task: Text, seconds: float, cost: tuple[float, float], seeds: int, console: Console) -> Judged:
    """Tune with a third of the budget, then run every seed."""
    choice, (each, over) = CHOICES[name], cost
    steps = max(2, round(seconds / each))
    tuned: dict[float, float] = {}
    waiting = list(choice.rates)
    while waiting:
        rate = waiting.pop()
        got = trained(task, choice.roles(rate), max(2, steps // 3), seed=0)
        tuned[rate] = got.loss
        console.print(f"{name}, lr {rate:g}, {steps // 3} steps: {got.loss:.4f} in {got.cpu:.1f} CPU s", style="dim")
        best = min(tuned, key=tuned.__getitem__)
        if not waiting and len(tuned) < MOST:
            waiting += [best / 3] if best == min(tuned) else [best * 3] if best == max(tuned) else []
    runs = []
    for seed in range(seeds):
        got = trained(task, choice.roles(best), steps, seed)
        runs.append(got)
        console.print(f"{name}, lr {best:g}, seed {seed}, {steps} steps: {got.loss:.4f} in {got.cpu:.1f} CPU s")
    return Judged(name, steps, 1e3 * each, over, tuned, best, runs)


def shown(found: list[Judged]) -> Table:
    """The best first."""
    table = Table("kernels by", "held-out loss, mean [best, worst]", "lr", "steps", "ms a step", "CPU s a run")
    for one in sorted(found, key=lambda j: statistics.fmean(j.losses)):
        row = one.row()
        value = f"{row.value:.4f} [{row.low:.4f}, {row.high:.4f}]"
        used = statistics.fmean(run.cpu for run in one.runs)
        table.add_row(one.name, value, f"{one.rate:.2g}", str(one.steps), f"{one.milliseconds:.0f}", f"{used:.1f}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds of a run")
    parser.add_argument("--quick", action="store_true", help="a smoke run, nothing is written")
    parser.add_argument("--only", nargs="+", choices=list(CHOICES), help="some of them, nothing is written")
    options = parser.parse_args()
    seconds, seeds = (0.5, 2) if options.quick else (options.seconds, SEEDS)
    torch.set_num_threads(1)
    console, names = Console(width=140), options.only or list(CHOICES)
    task = text_task()
    seen = calibrated(names, task, 1 if options.quick else 6)
    over = {name: ratio(seen[name], seen[names[0]]).median for name in names}  # what slows one round slows all in it
    cost = {name: (statistics.median(seen[names[0]]) * over[name], over[name]) for name in names}
    for name, (each, times) in cost.items():
        console.print(f"{name}: {1e3 * each:.1f} ms a step, {times:.2f}×", style="dim")
    found = [judged(name, task, seconds, cost[name], seeds, console) for name in names]
    console.print(shown(found))
    if not options.quick and not options.only:
        rows = sorted((one.row() for one in found), key=lambda row: row.value)
        tuned = {one.name: {f"{rate:g}": round(loss, 4) for rate, loss in one.tuned.items()} for one in found}
        used = {one.name: [round(run.cpu, 1) for run in one.runs] for one in found}
        losses = {one.name: [round(loss, 4) for loss in one.losses] for one in found}
        also = {"seconds": seconds, "tuned_with_a_third": tuned, "losses": losses, "cpu_seconds": used}
        console.print(f"written to {write('optimisers', rows, environment=environment(), **also)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
