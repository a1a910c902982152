"""The cheat-sheet as a recipe against the defaults: held-out loss at equal steps and at equal CPU seconds.

    python benchmarks/preset.py                  # about four minutes of CPU time;  --quick: a look, nothing is written

Both recipes learn Python's own source at the same size (d = 64, 4 heads, context 64, batch 8), one thread, the same
seeds for weights and data. The first 96 windows of the held-out text are measured after training, out of the time.
The third model separates what the optimiser does from what the flow does: the defaults' own four steps, with the
cheat-sheet's optimiser and first tables.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from common import Row, environment, write
from rich.console import Console

from continua.models.init import initialise
from continua.recipes import Bundle, build
from continua.recipes.cheatsheet import Even
from continua.training import Training, fit

SIZE = {"d": 64, "context": 64, "batch": 8}
WINDOWS, PROBE = 96, 150


@dataclass(frozen=True)
class Outcome:
    """One run: what it cost and what it reached, at its own discretisation and at its native one."""

    steps: int
    cpu: float
    loss: float
    native: float
    evaluations: float

    @property
    def a_step(self) -> float:
        return self.cpu / self.steps


def defaults(seed: int) -> Bundle:
    return build("text", {**SIZE, "weights": seed})


def preset(seed: int) -> Bundle:
    return build("cheatsheet", {**SIZE, "weights": seed})


def mixed(seed: int) -> Bundle:
    """The defaults with the optimiser and the first tables of the cheat-sheet."""
    made = defaults(seed)
    initialise(made.model, Even(SIZE["d"] ** -0.5), torch.Generator().manual_seed(seed))
    return replace(made, optimiser=preset(seed).optimiser)


def trained(bundle: Bundle, steps: int, seed: int) -> Outcome:
    """Fit, timed without the measurement, and measure."""
    settings: dict[str, Any] = {f.name: getattr(bundle.training, f.name) for f in fields(Training)}
    settings |= {"steps": steps, "seed": seed, "evaluate_every": steps}
    start = time.process_time()
    done = fit(
        bundle.model,
        replace(bundle.task, limit=1),
        optimiser=bundle.optimiser,
        schedule=bundle.schedule,
        penalties=bundle.penalties,
        watch=lambda at: None,
        **settings,
    )
    cpu = time.process_time() - start
    held_out, place = replace(bundle.task, limit=WINDOWS), bundle.training.at
    done.model.eval()
    native = held_out.evaluate(done.model).main
    loss = native if place is None else held_out.evaluate(done.model.at(place)).main
    evaluations = statistics.mean(line.get("evaluations", done.model.native.z.steps) for line in done.history)
    return Outcome(steps, cpu, loss, native, evaluations)


def spread(name: str, values: list[float], unit: str = "nats", note: str = "") -> Row:
    """The mean over seeds, between the smallest and the largest."""
    return Row(name, statistics.mean(values), min(values), max(values), unit, note=note)


def rows(found: dict[str, list[Outcome]]) -> list[Row]:
    """What the documentation quotes."""
    ours, equal, long, both = (found[name] for name in ("preset", "defaults", "longer", "mixed"))

    def cost(runs: list[Outcome]) -> str:
        return f"{statistics.mean(o.steps for o in runs):.0f} steps, {statistics.mean(o.cpu for o in runs):.0f} s"

    ratio = [a.a_step / b.a_step for a, b in zip(ours, long, strict=True)]
    seen = "search and walk; the defaults make 4"
    return [
        spread("cheat-sheet", [o.loss for o in ours], note=cost(ours)),
        spread("defaults, equal steps", [o.loss for o in equal], note=cost(equal)),
        spread("defaults, equal CPU seconds", [o.loss for o in long], note=cost(long)),
        spread("defaults with its optimiser and tables, equal steps", [o.loss for o in both], note=cost(both)),
        spread("cheat-sheet, native steps", [o.native for o in ours], note="the same weights, 4 steps of Dopri5"),
        spread("CPU time of a step, cheat-sheet / defaults", ratio, "×"),
        spread("evaluations of the field a step, cheat-sheet", [o.evaluations for o in ours], "", seen),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, few steps, nothing is written")
    parser.add_argument("--steps", type=int, default=40, help="of the cheat-sheet")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    steps, seeds = (8, 1) if options.quick else (options.steps, options.seeds)
    torch.set_num_threads(1)
    console = Console(width=120)
    found: dict[str, list[Outcome]] = {name: [] for name in ("preset", "defaults", "longer", "mixed")}

    def go(name: str, make: Callable[[int], Bundle], count: int, seed: int) -> Outcome:
        found[name].append(trained(make(seed), count, seed))
        console.print(f"seed {seed}  {name}: {found[name][-1]}", style="dim", soft_wrap=True)
        return found[name][-1]

    trained(defaults(0), steps=10, seed=0)  # what is made once is not part of a step
    cost = trained(defaults(0), PROBE, seed=0).a_step
    for seed in range(seeds):
        ours = go("preset", preset, steps, seed)
        go("defaults", defaults, steps, seed)
        go("mixed", mixed, steps, seed)
        cost = go("longer", defaults, max(steps, round(ours.cpu / cost)), seed).a_step
    made = rows(found)
    for each in made:
        console.print(f"{each.name}: {each.shown}  {each.note}", soft_wrap=True)
    if not options.quick:
        console.print(f"written to {write('preset', made, environment=environment(), seeds=seeds, size=SIZE)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
