"""Learned on one grid, asked on coarser and finer ones: where an operator is free of its resolution, and where not.

    python benchmarks/aliasing.py                              # all that is not in results/aliasing-runs.jsonl yet
    python benchmarks/aliasing.py --only darcy-16 --seeds 1
    python benchmarks/aliasing.py --quick                      # a smoke run

After "The False Promise of Zero-Shot Super-Resolution" (2025): learned on 16 (or 32) cells a side, asked on 8 to 128,
(a) inputs whose waves all lie below the Nyquist frequency of the training grid, (b) inputs with waves up to three times
(Burgers) and two times (Darcy) as fast. A grid of 8 cells cannot show the waves above its own Nyquist: there the error
is that of what was never seen. Every run has the same CPU seconds: what a step costs is measured first, all models in
interleaved rounds, and the number of steps follows. All have the same data, batches, loss, optimiser and schedule, and
two learning rates of which the validation functions choose with the first seed. A peer is asked on each grid as it is,
and on its training grid behind our interpolation; the better counts. Finished runs are kept.
"""

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import aliasing_data
import aliasing_peers as peers
import torch
from common import RESULTS, Row, environment, write
from contests import Step, factor, keep, kept, seconds_each, stepping

from continua.axes import ProductRule, Rule, Trapezoid, at, default_rule
from continua.data.pairs import Pairs
from continua.models import Transformer
from continua.models.latent import Latent
from continua.models.zoo import LatentAttention, function_map
from continua.recipes.functions import FunctionSettings, optimiser_of
from continua.tasks.functions import Functions

KEPT = RESULTS / "aliasing-runs.jsonl"
OURS = "Continua"
SLICED = "Continua with slices"
ATTENTION = {OURS: LatentAttention.NONE, SLICED: LatentAttention.SLICES}
MODELS = (OURS, SLICED, *peers.NAMES)
RATES = ((1e-3, 4e-3), (3e-3, 1.2e-2))  # of AdamW and of Muon
CELLS = (8, 16, 32, 64, 128)
BOUND = 1.10  # of the error on the training grid
BEHIND = "interpolated"


@dataclass(frozen=True)
class Contest:
    """An equation and the cells of its training grid; ours lives on ``latent`` cells and has ``modes`` waves."""

    equation: str
    cells: int
    latent: int
    modes: int
    width: int
    hidden: int
    train: int
    test: int
    order: int
    seconds: float
    smooth: bool
    held_out: int = 60
    batch: int = 20

    @property
    def name(self) -> str:
        """The equation and its training grid."""
        return f"{self.equation}-{self.cells}"

    @property
    def band(self) -> int:
        """Waves of the inputs to learn from: all below Nyquist, in turns of a circle and half turns of a square."""
        return self.cells // 2 if self.equation == "burgers" else self.cells

    @cached_property
    def task(self) -> Functions:
        """Functions on the training grid, and those that choose the learning rate."""
        whole = aliasing_data.made(self.equation, self.train + self.held_out, self.band, 0)
        coarse = whole.every(aliasing_data.FINE // self.cells)
        seen = coarse.part(slice(0, self.train))
        return Functions(seen, coarse.part(slice(self.train, None)), self.batch, self.order)

    @cached_property
    def tests(self) -> dict[str, Pairs]:
        """Other functions on the finest grid: of the band of the training, and of a wider one."""
        wide = self.band * (3 if self.equation == "burgers" else 2)
        bands = {"seen": self.band, "unseen": wide}
        return {name: aliasing_data.made(self.equation, self.test, band, 1) for name, band in bands.items()}

    def rule(self, cells: int) -> Rule:
        """The lattice of so many cells a side."""
        if self.equation == "burgers":
            return default_rule(self.task.train.axis, cells)
        return ProductRule((Trapezoid(cells + 1), Trapezoid(cells + 1)))


def contest(equation: str, cells: int, seconds: float) -> Contest:
    """The sizes of both equations: ours for Burgers lives on twice the cells, since a shock has waves above Nyquist."""
    if equation == "burgers":
        return Contest(equation, cells, 2 * cells, 3 * cells // 4, 48, 48, 604, 64, 1, seconds, smooth=False)
    return Contest(equation, cells, cells, 8 if cells < 32 else 12, 32, 64, 400, 40, 0, seconds, smooth=True)


ORDER = ("burgers-16", "darcy-16", "burgers-32", "darcy-32")


def ours(contest: Contest, name: str, seed: int) -> Transformer:
    """Our model with fresh weights: the waves of its inputs are those of the training functions."""
    inputs, outputs = contest.task.train.flat()
    torch.manual_seed(seed)
    model = function_map(
        contest.task.train.axis,
        contest.rule(contest.latent),
        at=at(d=contest.width, h=4, m=contest.hidden, z=4),
        modes=contest.modes,
        attention=ATTENTION[name],
        smooth=contest.smooth,
        input_modes=contest.band,
        input_mean=float(inputs.mean()),
        input_spread=float(inputs.std()),
        output_spread=float(outputs.std()),
    )
    assert isinstance(model.embed, Latent)
    model.embed.prior(inputs, contest.task.train.grid)
    model.check = False
    return model


def stepper(contest: Contest, name: str, rate: int, seed: int) -> tuple[Any, Step]:
    """A model with fresh weights, and what takes step i of its training at a share of the learning rate."""
    lr, matrix_lr = RATES[rate]
    task = contest.task
    if name in peers.NAMES:
        peer = peers.made(name, task, contest.cells // 2 + 1, seed)
        return peer, stepping(peer, peers.optimiser_of(peer, lr, matrix_lr), task, seed)
    model = ours(contest, name, seed)
    made = optimiser_of(FunctionSettings(lr=lr, matrix_lr=matrix_lr)).make(model)
    return model, stepping(model, made, task, seed)


def prices(contest: Contest, rounds: int) -> dict[str, float]:
    """CPU seconds of a step of every model."""
    return seconds_each({name: stepper(contest, name, 0, 0)[1] for name in MODELS}, rounds, 3)


def run(contest: Contest, name: str, rate: int, seed: int, steps: int) -> dict[str, Any]:
    """Train once, and measure on every grid."""
    torch.set_num_threads(1)
    model, step = stepper(contest, name, rate, seed)
    start = time.process_time()
    for number in range(steps):
        step(number, factor(number, steps))
    found: dict[str, Any] = {"steps": steps, "cpu seconds": time.process_time() - start}
    task = contest.task
    found["validation"] = float(task.errors(model).mean())
    found["parameters"] = sum(p.numel() for p in model.parameters())
    ways = {"": model}
    if name in peers.NAMES:
        own = ours(replace(contest, latent=contest.cells), OURS, 0)
        assert isinstance(own.embed, Latent)
        ways[f" {BEHIND}"] = peers.Interpolated(model, own.embed, task)
    for content, fine in contest.tests.items():
        for cells in CELLS:
            pairs = fine.every(aliasing_data.FINE // cells)
            for way, asked in ways.items():
                found[f"{content} {cells}{way}"] = float(task.errors(asked, pairs).mean())
    return found


# --- all runs --------------------------------------------------------------------------------------------------------


def key_of(contest: Contest, name: str, rate: int, seed: int) -> str:
    """The name of a run."""
    return f"{contest.name} | {name} | rate {rate} | seed {seed} | {contest.seconds:g} s"


def chosen_rate(contest: Contest, done: dict[str, Any], name: str) -> int | None:
    """The learning rate whose first seed did better on the validation functions; None before both are done."""
    keys = [key_of(contest, name, rate, 0) for rate in range(len(RATES))]
    if not all(key in done for key in keys):
        return None
    return min(range(len(RATES)), key=lambda rate: done[keys[rate]]["validation"])


def compete(contest: Contest, seeds: int, path: Path, rounds: int) -> None:
    """All runs of a task that are not kept yet."""
    key = f"{contest.name} prices"
    if key not in kept(path):
        keep(path, key, prices(contest, rounds))
    cost = kept(path)[key]
    print(f"{contest.name}: ms a step: " + ", ".join(f"{k} {1e3 * v:.1f}" for k, v in cost.items()), flush=True)
    for seed in range(seeds):
        for name in MODELS:
            for rate in range(len(RATES)):
                done = kept(path)
                key = key_of(contest, name, rate, seed)
                if key in done or (seed and rate != chosen_rate(contest, done, name)):
                    continue
                found = run(contest, name, rate, seed, max(10, round(contest.seconds / cost[name])))
                keep(path, key, found)
                grids = [f"{content} {cells}" for content in contest.tests for cells in CELLS]
                print(f"{key}: " + " ".join(f"{found[grid]:.4f}" for grid in grids), flush=True)


# --- tables ----------------------------------------------------------------------------------------------------------


def best(contest: Contest, path: Path) -> dict[str, list[dict[str, float]]]:
    """The runs of each model at its better learning rate, as many seeds as there are; of a peer the better way."""
    done = kept(path)
    found = {}
    for name in MODELS:
        rate = chosen_rate(contest, done, name)
        if rate is None:
            continue
        keys = [key_of(contest, name, rate, seed) for seed in range(3)]
        found[name] = [better(done[key]) for key in keys if key in done]
    return found


def better(found: dict[str, float]) -> dict[str, float]:
    """The errors by content and grid; the smaller of asking a peer there and on its own grid."""
    grids = [f"{content} {cells}" for content in ("seen", "unseen") for cells in CELLS]
    chosen = {grid: min(found[grid], found.get(f"{grid} {BEHIND}", found[grid])) for grid in grids}
    return chosen | {"validation": found["validation"]}


def table(contest: Contest, path: Path) -> list[Row]:
    """Ratios, errors beside the best peer on each grid, and all errors of every model."""
    runs = best(contest, path)
    if set(runs) != set(MODELS):
        return []
    rows = []
    counted = f"{min(map(len, runs.values()))} seed(s)"
    for content in ("seen", "unseen"):
        own = f"{content} {contest.cells}"
        for name, found in runs.items():
            means = {cells: statistics.mean(r[f"{content} {cells}"] for r in found) for cells in CELLS}
            values = [r[own] for r in found]
            note = " · ".join(f"{cells}: {mean:.4f}" for cells, mean in means.items())
            what = f"{contest.name}, {content} waves, on its grid: {name}"
            rows.append(Row(what, means[contest.cells], min(values), max(values), note=note))
        rows += ratios(contest, runs, content)
        rows += contested(contest, runs, content, counted)
    return rows


def ratios(contest: Contest, runs: dict[str, list[dict[str, float]]], content: str) -> list[Row]:
    """The worst error on finer grids over that on the training grid, seed by seed."""
    finer = [f"{content} {cells}" for cells in CELLS if cells > contest.cells]
    rows = []
    for name, found in runs.items():
        each = [max(r[grid] for grid in finer) / r[f"{content} {contest.cells}"] for r in found]
        mean = statistics.mean(each)
        bounded = name == OURS and content == "seen"
        target, held = (f"≤ {BOUND}", mean <= BOUND) if bounded else ("", None)
        what = f"{contest.name}, {content} waves, worst finer grid / its grid: {name}"
        rows.append(Row(what, mean, min(each), max(each), "×", target, held))
    return rows


def contested(contest: Contest, runs: dict[str, list[dict[str, float]]], content: str, counted: str) -> list[Row]:
    """Ours, with or without attention as the validation functions choose, on each grid beside the best peer there."""
    rows = []
    for cells in CELLS:
        grid = f"{content} {cells}"
        means = {name: statistics.mean(r[grid] for r in found) for name, found in runs.items()}
        rival = min(peers.NAMES, key=means.__getitem__)
        mine = min((OURS, SLICED), key=lambda name: statistics.mean(r["validation"] for r in runs[name]))
        held = means[mine] <= means[rival]
        target = f"≤ {means[rival]:.4f} ({rival})"
        values = [r[grid] for r in runs[mine]]
        what = f"{contest.name}, {content} waves, {cells} cells: {mine}"
        rows.append(Row(what, means[mine], min(values), max(values), "", target, held, counted))
    return rows


def main() -> None:
    """Measure prices, run what is missing, write the table of what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=ORDER, default=list(ORDER))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120.0, help="of a run: CPU time")
    parser.add_argument("--tables", action="store_true", help="write the tables of what there is, without a run")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    seconds = 0.5 if given.quick else given.seconds
    path = KEPT.with_name("aliasing-quick.jsonl") if given.quick else KEPT
    contests = {}
    for name in ORDER:
        equation, cells = name.split("-")
        contests[name] = contest(equation, int(cells), seconds)
    for name in [] if given.tables else given.only:
        compete(contests[name], 1 if given.quick else given.seeds, path, 1 if given.quick else 4)
    rows = [row for each in contests.values() for row in table(each, path)]
    for row in rows if given.tables else ():
        print(f"{row.name:<76} {row.shown:<26} {row.target:<22} {row.verdict} {row.note}")
    if given.quick:
        path.unlink()
        return
    print(f"\nwritten: {write('aliasing', rows, environment=environment(), seconds=seconds, runs=kept(path))}")


if __name__ == "__main__":
    main()
