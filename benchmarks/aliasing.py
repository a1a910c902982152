"""Learned on one grid, asked on coarser and finer ones: where an operator is free of its resolution, and where not.

    python benchmarks/aliasing.py                              # all that is not in results/aliasing-runs.jsonl yet
    python benchmarks/aliasing.py --only darcy-16 --seeds 1
    python benchmarks/aliasing.py --quick                      # a smoke run

After "The False Promise of Zero-Shot Super-Resolution" (2025): learned on 16 (or 32) cells a side, asked on 8 to 128,
(a) inputs whose waves all lie below the Nyquist frequency of the training grid, (b) inputs with waves up to three times
(Burgers) and two times (Darcy) as fast. A grid of 8 cells cannot show the waves above its own Nyquist: there the error
is that of what was never seen. Every run has the same CPU seconds: what a step costs is measured first, all models in
interleaved rounds, and the number of steps follows. All have the same data, batches, loss, optimiser and schedule, and
two learning rates of which the validation functions choose with the first seed, in trials of 30 seconds. Burgers is
learned from mirror images −u(−x) besides, but for these trials. A peer is asked on each grid as it is, and on its
training grid behind our interpolation; the better counts. Finished runs are kept.
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
from contests import (
    Step,
    factor,
    keep,
    kept,
    once,
    paired,
    prices_beside,
    seconds_each,
    stepping,
    told,
    with_mirror_images,
)

from continua.axes import ProductRule, Rule, Trapezoid, at, default_rule
from continua.data.pairs import Pairs
from continua.models import Transformer
from continua.models.latent import Latent
from continua.models.zoo import LatentAttention, function_map
from continua.recipes.functions import FunctionSettings, optimiser_of
from continua.tasks.functions import Functions, relative

KEPT = RESULTS / "aliasing-runs.jsonl"
OURS = "Continua"
SLICED = "Continua with slices"
ATTENTION = {OURS: LatentAttention.NONE, SLICED: LatentAttention.SLICES}
MODELS = (OURS, SLICED, *peers.NAMES)
RATES = ((1e-3, 4e-3), (3e-3, 1.2e-2))  # of AdamW and of Muon
CELLS = (8, 16, 32, 64, 128)
SECONDS = {"burgers": 120.0, "darcy": 120.0}
TRIAL = 30.0  # CPU seconds of the runs that choose a learning rate
TRIED = {"burgers": 64, "darcy": 40}  # test functions of these
TESTS = {"burgers": 400, "darcy": 40}
BOUND = 1.10  # of the error on the training grid
BEHIND = "interpolated"


@dataclass(frozen=True)
class Contest:
    """An equation and the cells of its training grid; ours lives on ``latent`` cells and has ``modes`` waves.

    ``test`` functions are asked; ``mirrored`` ones are learned from besides, or not.
    """

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
    mirrored: bool
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
        seen = with_mirror_images(seen) if self.mirrored else seen
        return Functions(seen, coarse.part(slice(self.train, None)), self.batch, self.order)

    @property
    def bands(self) -> dict[str, int]:
        """Waves of the inputs that are asked."""
        return {"seen": self.band, "unseen": self.band * (3 if self.equation == "burgers" else 2)}

    @cached_property
    def tests(self) -> dict[str, Pairs]:
        """Other functions on the finest grid: of the band of the training, and of a wider one."""
        return {name: aliasing_data.made(self.equation, self.test, band, 1) for name, band in self.bands.items()}

    def rule(self, cells: int) -> Rule:
        """The lattice of so many cells a side."""
        if self.equation == "burgers":
            return default_rule(self.task.train.axis, cells)
        return ProductRule((Trapezoid(cells + 1), Trapezoid(cells + 1)))


def contest(equation: str, cells: int, seconds: float) -> Contest:
    """The sizes of both equations: ours for Burgers lives on twice the cells, since a shock has waves above Nyquist."""
    test = TESTS[equation]
    circle = equation == "burgers"
    kind = {"smooth": not circle, "mirrored": circle}
    if circle:
        return Contest(equation, cells, 2 * cells, 3 * cells // 4, 48, 48, 604, test, 1, seconds, **kind)
    return Contest(equation, cells, cells, 8 if cells < 32 else 12, 32, 64, 400, test, 0, seconds, **kind)


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


def prices(contest: Contest, rounds: int, before: dict[str, float]) -> dict[str, float]:
    """CPU seconds of a step of every model; those that came later are measured beside the FNO."""

    def measure(names: list[str]) -> dict[str, float]:
        return seconds_each({name: stepper(contest, name, 0, 0)[1] for name in names}, rounds, 3)

    return prices_beside(peers.FNO, MODELS, before, measure)


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
                errors = task.errors(asked, pairs)
                found[f"{content} {cells}{way}"] = float(errors.mean())
                if way == "" and cells == contest.cells:
                    found[f"{content} {cells}, each"] = [round(error, 6) for error in errors.tolist()]
    return found


def equation(contest: Contest) -> dict[str, float]:
    """Errors of the equation itself where a grid does not show all waves, in the ways of ``aliasing_data.SOLVED``."""
    found = {}
    for content, fine in contest.tests.items():
        for cells in (cells for cells in CELLS if cells < 2 * contest.bands[content]):
            pairs = fine.every(aliasing_data.FINE // cells)
            for way, solve in aliasing_data.SOLVED.items():
                made = solve(pairs.inputs[..., 0].double(), contest.bands[content])[..., None]
                error = relative(made, pairs.outputs.double(), pairs.grid.weights).mean()
                found[f"{content} {cells}: {way}"] = float(error)
    return found


# --- all runs --------------------------------------------------------------------------------------------------------


def key_of(contest: Contest, name: str, rate: int, seed: int) -> str:
    """The name of a run."""
    told = " | mirrored" if contest.mirrored else ""
    return (
        f"{contest.name} | {name} | rate {rate} | seed {seed} | {contest.seconds:g} s | {contest.test} functions{told}"
    )


def trial_of(contest: Contest) -> Contest:
    """The same task for half a minute at the most, without mirror images: learning rates are chosen there."""
    seconds = min(contest.seconds, TRIAL)
    return replace(contest, seconds=seconds, test=TRIED[contest.equation], mirrored=False)


def chosen_rate(contest: Contest, done: dict[str, Any], name: str) -> int | None:
    """The learning rate whose trial did better on the validation functions; None before both are done."""
    keys = [key_of(trial_of(contest), name, rate, 0) for rate in range(len(RATES))]
    if not all(key in done for key in keys):
        return None
    return min(range(len(RATES)), key=lambda rate: done[keys[rate]]["validation"])


def compete(contest: Contest, seeds: int, path: Path, rounds: int, names: list[str]) -> None:
    """All runs of a task that are not kept yet: trials of both learning rates, then the seeds."""
    key = f"{contest.name} prices"
    before = kept(path).get(key, {})
    if not set(names) <= set(before):
        keep(path, key, prices(contest, rounds, before))
    cost = kept(path)[key]
    if contest.equation == "burgers":
        once(path, f"{contest.name} equation, {contest.test} functions", lambda: equation(contest))
    print(f"{contest.name}: ms a step: " + ", ".join(f"{k} {1e3 * v:.1f}" for k, v in cost.items()), flush=True)
    for name in names:
        for rate in range(len(RATES)):
            attempt(trial_of(contest), path, name, rate, 0, cost[name])
    for seed in range(seeds):
        for name in names:
            rate = chosen_rate(contest, kept(path), name)
            assert rate is not None
            attempt(contest, path, name, rate, seed, cost[name])


def attempt(contest: Contest, path: Path, name: str, rate: int, seed: int, price: float) -> None:
    """One run, unless it is kept."""
    steps = max(10, round(contest.seconds / price))
    once(path, key_of(contest, name, rate, seed), lambda: run(contest, name, rate, seed, steps))


# --- tables ----------------------------------------------------------------------------------------------------------


def best(contest: Contest, path: Path, of: Contest) -> dict[str, list[dict[str, Any]]]:
    """The runs ``of`` a contest or of its trial, each model at its better learning rate, as many seeds as there are."""
    done = kept(path)
    found = {}
    for name in MODELS:
        rate = chosen_rate(contest, done, name)
        keys = [] if rate is None else [key_of(of, name, rate, seed) for seed in range(3)]
        runs = [better(done[key]) for key in keys if key in done]
        if runs:
            found[name] = runs
    return found


def better(found: dict[str, Any]) -> dict[str, Any]:
    """A run, of the errors by content and grid the smaller of asking a peer there and on its own grid."""
    grids = [f"{content} {cells}" for content in ("seen", "unseen") for cells in CELLS]
    return found | {grid: min(found[grid], found.get(f"{grid} {BEHIND}", found[grid])) for grid in grids}


def table(contest: Contest, path: Path) -> list[Row]:
    """Ratios, errors beside the best peer on each grid, and all errors of every model, or of its trial."""
    runs = best(contest, path, contest)
    if peers.FNO not in runs or not {OURS, SLICED} & set(runs):
        return []
    trial = trial_of(contest)
    trials = best(contest, path, trial)
    rows = []
    for content in ("seen", "unseen"):
        for name in MODELS:
            if name in runs:
                rows.append(everywhere(contest, runs[name], content, name))
            elif name in trials:
                said = f"{name}, a trial of {trial.seconds:g} s on {trial.test} functions"
                rows.append(everywhere(contest, trials[name], content, said))
        for where, error in kept(path).get(f"{contest.name} equation, {contest.test} functions", {}).items():
            kind, grid = where.split(maxsplit=1)
            if kind == content:
                cells, way = grid.split(": ")
                rows.append(Row(f"{contest.name}, {content} waves, {cells} cells: {way}", error))
        rows += ratios(contest, runs, content)
        rows += contested(contest, runs, content)
    return rows


def everywhere(contest: Contest, found: list[dict[str, Any]], content: str, name: str) -> Row:
    """The error on the training grid, and in the note on every grid."""
    means = {cells: statistics.mean(r[f"{content} {cells}"] for r in found) for cells in CELLS}
    values = [r[f"{content} {contest.cells}"] for r in found]
    note = " · ".join(f"{cells}: {mean:.4f}" for cells, mean in means.items())
    what = f"{contest.name}, {content} waves, on its grid: {name}"
    return Row(what, means[contest.cells], min(values), max(values), note=note)


def ratios(contest: Contest, runs: dict[str, list[dict[str, Any]]], content: str) -> list[Row]:
    """The worst error on finer grids over that on the training grid, seed by seed."""
    finer = [f"{content} {cells}" for cells in CELLS if cells > contest.cells]
    rows = []
    for name, found in runs.items():
        each = [max(r[grid] for grid in finer) / r[f"{content} {contest.cells}"] for r in found]
        mean = statistics.mean(each)
        bounded = name in (OURS, SLICED) and content == "seen"
        target, held = (f"≤ {BOUND}", mean <= BOUND) if bounded else ("", None)
        what = f"{contest.name}, {content} waves, worst finer grid / its grid: {name}"
        rows.append(Row(what, mean, min(each), max(each), "×", target, held))
    return rows


def contested(contest: Contest, runs: dict[str, list[dict[str, Any]]], content: str) -> list[Row]:
    """Ours, with or without attention as the validation functions choose, on each grid beside the best peer there."""
    rows = []
    for cells in CELLS:
        grid = f"{content} {cells}"
        means = {name: statistics.mean(r[grid] for r in found) for name, found in runs.items()}
        rival = min((name for name in peers.NAMES if name in runs), key=means.__getitem__)
        both = [name for name in (OURS, SLICED) if name in runs]
        mine = min(both, key=lambda name: statistics.mean(r["validation"] for r in runs[name]))
        held = means[mine] <= means[rival]
        target = f"≤ {means[rival]:.4f} ({rival})"
        values = [r[grid] for r in runs[mine]]
        what = f"{contest.name}, {content} waves, {cells} cells: {mine}"
        counted = f"{len(values)} seed(s), of the peer {len(runs[rival])}"
        rows.append(Row(what, means[mine], min(values), max(values), "", target, held, counted))
        each = {name: [r.get(f"{grid}, each") for r in runs[name]] for name in (mine, rival)}
        if all(each[mine]) and all(each[rival]):
            rows.append(paired(f"{what}, less error than {rival}, function by function", each[mine], each[rival]))
    return rows


def main() -> None:
    """Measure prices, run what is missing, write the table of what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=ORDER, default=list(ORDER))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seconds", type=float, help="of a run: CPU time")
    parser.add_argument("--tables", action="store_true", help="write the tables of what there is, without a run")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    budgets = {name: 0.5 if given.quick else given.seconds or SECONDS[name] for name in SECONDS}
    path = KEPT.with_name("aliasing-quick.jsonl") if given.quick else KEPT
    contests = {}
    for name in ORDER:
        equation, cells = name.split("-")
        contests[name] = contest(equation, int(cells), budgets[equation])
    for name in [] if given.tables else given.only:
        seeds, rounds = (1, 1) if given.quick else (given.seeds, 4)
        compete(contests[name], seeds, path, rounds, given.models)
    rows = [row for each in contests.values() for row in table(each, path)]
    for row in rows if given.tables else ():
        print(f"{row.name:<76} {row.shown:<26} {row.target:<22} {row.verdict} {row.note}")
    if given.quick:
        path.unlink()
        return
    print(f"\nwritten: {write('aliasing', rows, environment=environment(), seconds=budgets, runs=told(kept(path)))}")


if __name__ == "__main__":
    main()
