"""Burgers from few points, and Darcy from random ones: ours with and without attention beside kriged and newer peers.

    python benchmarks/scattered.py                     # all that is not in results/scattered-runs.jsonl yet
    python benchmarks/scattered.py --only burgers --seeds 1
    python benchmarks/scattered.py --quick             # a smoke run

Burgers is learned on 64 nodes, from functions and their mirror images −u(−x), and asked from 100 random points, from
clusters, and with a quarter of the circle missing; errors are those over the whole circle. The information floor is the
exact solver run on the input kriged from the same points with the true covariance: who knows the equation and the
prior, and nothing more, makes that error. Peers get that kriged input too. Ours has a spectrum learned from the
training functions. Darcy (two materials) is learned on 29² nodes and asked from 1,000 random points, beside Transolver
and FLARE, which take points as they are. Loss, optimiser, schedule and the two learning rates are those of
``aliasing.py``; trials of a minute, without mirror images, choose between the rates. Finished runs are kept.
"""

import argparse
import math
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

import aliasing_peers as peers
import torch
from aliasing import RATES
from common import RESULTS, Row, environment, write
from contests import Step, factor, keep, kept, once, seconds_each, stepping, with_mirror_images

from continua.axes import Samples, at
from continua.data.burgers import burgers
from continua.data.pairs import Pairs
from continua.data.store import generated
from continua.models import Batch
from continua.models.latent import Latent
from continua.models.zoo import LatentAttention, function_map
from continua.recipes.functions import BurgersSettings, DarcySettings, FunctionSettings, optimiser_of, stride_of
from continua.tasks.functions import Functions, predict, relative, scattered
from continua.typing import Tensor

KEPT = RESULTS / "scattered-runs.jsonl"
OURS = "Continua"
ATTENTIVE = "Continua with attention"
MODELS = {
    "burgers": (OURS, ATTENTIVE, peers.FNO),
    "darcy": (OURS, ATTENTIVE, peers.TRANSOLVER, peers.FLARE),
}
SECONDS = {"burgers": 110.0, "darcy": 60.0}
TRIAL = 60.0  # CPU seconds of the runs that choose a learning rate
DRAWS = 3
TESTS = {"burgers": 100, "darcy": 100}
WAVES = 256  # of the inputs of Burgers: four times what the training grid shows
BOUND = 1.15  # of the information floor


@dataclass(frozen=True)
class Contest:
    """A task with its budget in CPU seconds; ``mirrored`` functions are learned from besides, or not."""

    equation: str
    seconds: float
    mirrored: bool = False

    @property
    def settings(self) -> FunctionSettings:
        """Those of the shipped recipe."""
        return BurgersSettings(held_out=128) if self.equation == "burgers" else DarcySettings(held_out=100)

    @cached_property
    def data(self) -> tuple[Functions, Pairs]:
        """The task on the training grid, and test functions on the fine one."""
        s = self.settings
        count = s.train + s.held_out + (200 if self.equation == "burgers" else 100)  # as fields.py, from the cache
        whole = generated(self.equation, count, None, None, n=s.fine, seed=s.draws)
        coarse = whole.every(stride_of(whole, s.nodes))
        seen = coarse.part(slice(0, s.train))
        seen = with_mirror_images(seen) if self.mirrored else seen
        task = Functions(seen, coarse.part(slice(s.train, s.train + s.held_out)), s.batch, s.order)
        first = s.train + s.held_out
        return task, whole.part(slice(first, first + TESTS[self.equation]))

    @cached_property
    def clouds(self) -> dict[str, list[Tensor]]:
        """Places of the fine lattice where the input is seen, some draws of each kind."""
        draw = torch.Generator().manual_seed(1)
        fine = self.data[1]
        if self.equation == "darcy":
            size = fine.points[..., 0].numel()
            return {"1,000 random points": [torch.randperm(size, generator=draw)[:1000] for _ in range(DRAWS)]}
        n = fine.shape[0]
        quarter = torch.arange(0, n, n // 64)[:48]
        shifts = torch.randint(0, n, (DRAWS,), generator=draw).tolist()
        return {
            "100 random points": [torch.randperm(n, generator=draw)[:100].sort().values for _ in range(DRAWS)],
            "clustered points": [clustered(n, draw) for _ in range(DRAWS)],
            "a quarter of the circle missing": [((quarter + shift) % n).sort().values for shift in shifts],
        }


def clustered(n: int, draw: torch.Generator) -> Tensor:
    """40 points anywhere, and twice 30 within a twelfth of the circle."""
    near = n // 24
    centres = torch.randint(0, n, (2,), generator=draw).tolist()
    crowds = [(centre + torch.randint(-near, near, (30,), generator=draw)) % n for centre in centres]
    return torch.cat([torch.randint(0, n, (40,), generator=draw), *crowds]).unique()


def kriging(n: int, rows: Tensor) -> Tensor:
    """The matrix from values at some of n nodes to the conditional mean at all, under N(0, 625(−Δ + 25)^−2)."""
    k = 2 * math.pi * torch.arange(1, n // 2, dtype=torch.float64)
    variance = 625 * (k * k + 25).pow(-2.0)
    x = torch.arange(n, dtype=torch.float64) / n
    kernel = (variance[:, None] * torch.cos(k[:, None] * x)).sum(0)
    among = kernel[(rows[:, None] - rows) % n] + 1e-10 * torch.eye(len(rows), dtype=torch.float64)
    across = kernel[(torch.arange(n)[:, None] - rows) % n]
    return torch.linalg.solve(among, across.mT).mT


def floor(contest: Contest) -> dict[str, float]:
    """Errors of the exact solver on kriged inputs, over the whole circle."""
    _, fine = contest.data
    inputs = fine.inputs[..., 0].double()
    weights = fine.grid.weights
    found = {}
    for name, draws in contest.clouds.items():
        errors = []
        for rows in draws:
            made = burgers(inputs[:, rows] @ kriging(fine.shape[0], rows).mT, 0.01, 1.0, 1024)
            errors.append(float(relative(made[..., None], fine.outputs.double(), weights).mean()))
        found[name] = statistics.mean(errors)
    return found


# --- one run ---------------------------------------------------------------------------------------------------------


def ours(contest: Contest, name: str, seed: int) -> Any:
    """Our model with fresh weights; the inputs of Burgers have waves beyond the training grid."""
    task, s = contest.data[0], contest.settings
    inputs, outputs = task.train.flat()
    torch.manual_seed(seed)
    slices = LatentAttention.SLICES if name == ATTENTIVE else LatentAttention.NONE
    model = function_map(
        task.train.axis,
        task.train.rule,
        at=at(d=s.d, h=s.heads, m=s.m, z=s.depth),
        modes=s.modes,
        attention=slices,
        sharp=s.sharp,
        input_modes=WAVES if contest.equation == "burgers" else None,
        input_mean=float(inputs.mean()),
        input_spread=float(inputs.std()),
        output_spread=float(outputs.std()),
    )
    assert isinstance(model.embed, Latent)
    model.embed.prior(inputs)
    model.check = False
    return model


def stepper(contest: Contest, name: str, rate: int, seed: int) -> tuple[Any, Step]:
    """A model with fresh weights, and what takes step i of its training at a share of the learning rate."""
    lr, matrix_lr = RATES[rate]
    task = contest.data[0]
    if name in peers.NAMES:
        peer = peers.made(name, task, 17, seed)
        return peer, stepping(peer, peers.optimiser_of(peer, lr, matrix_lr), task, seed)
    model = ours(contest, name, seed)
    made = optimiser_of(FunctionSettings(lr=lr, matrix_lr=matrix_lr)).make(model)
    return model, stepping(model, made, task, seed)


def prices(contest: Contest, rounds: int) -> dict[str, float]:
    """CPU seconds of a step of every model."""
    return seconds_each({name: stepper(contest, name, 0, 0)[1] for name in MODELS[contest.equation]}, rounds, 2)


def run(contest: Contest, name: str, rate: int, seed: int, steps: int) -> dict[str, Any]:
    """Train once, and measure from all clouds."""
    torch.set_num_threads(1)
    model, step = stepper(contest, name, rate, seed)
    start = time.process_time()
    for number in range(steps):
        step(number, factor(number, steps))
    task, fine = contest.data
    found: dict[str, Any] = {"steps": steps, "cpu seconds": time.process_time() - start}
    found["validation"] = float(task.errors(model).mean())
    stride = fine.shape[0] // task.train.shape[0] if contest.equation == "burgers" else 5
    found["training grid"] = float(task.errors(model, fine.every(stride)).mean())
    ask = on_circle if contest.equation == "burgers" else on_points
    for cloud, draws in contest.clouds.items():
        found[cloud] = statistics.mean(ask(contest, model, rows) for rows in draws)
    return found


def on_circle(contest: Contest, model: Any, rows: Tensor) -> float:
    """Mean error over the whole circle; peers get the truly kriged input on the fine lattice."""
    _, fine = contest.data
    asked = fine.grid.nodes
    if isinstance(model, peers.Lattice):
        kriged = (kriging(fine.shape[0], rows) @ fine.inputs[:, rows].double()).float()
        return float(contest.data[0].errors(model, replace(fine, inputs=kriged)).mean())
    inputs = fine.inputs[:, rows]
    answer = predict(model, Batch(inputs, grid=Samples().on(fine.axis, asked[rows][:, 0]), asked=asked))
    return float(relative(answer, fine.outputs, fine.grid.weights.float()).mean())


def on_points(contest: Contest, model: Any, rows: Tensor) -> float:
    """Mean error at the points, from the values there alone."""
    _, fine = contest.data
    points = fine.points.reshape(-1, fine.axis.dim)[rows]
    inputs, outputs, grid = scattered(fine, points)
    answer = predict(model, Batch(inputs, grid=grid))
    return float(relative(answer, outputs.to(answer), grid.weights.to(answer)).mean())


# --- all runs --------------------------------------------------------------------------------------------------------


def key_of(contest: Contest, name: str, rate: int, seed: int) -> str:
    """The name of a run."""
    told = " | mirrored" if contest.mirrored else ""
    return f"{contest.equation} | {name} | rate {rate} | seed {seed} | {contest.seconds:g} s{told}"


def trial_of(contest: Contest) -> Contest:
    """The same task for a minute at the most, without mirror images: learning rates are chosen there."""
    return replace(contest, seconds=min(contest.seconds, TRIAL), mirrored=False)


def chosen_rate(contest: Contest, done: dict[str, Any], name: str) -> int:
    """The learning rate whose trial did better on the validation functions, of those that were tried."""
    keys = {rate: key_of(trial_of(contest), name, rate, 0) for rate in range(len(RATES))}
    tried = [rate for rate, key in keys.items() if key in done]
    return min(tried, key=lambda rate: done[keys[rate]]["validation"]) if tried else 0


def compete(contest: Contest, seeds: int, rates: list[int], path: Path, rounds: int) -> None:
    """All runs of a task that are not kept yet."""
    cost_key = f"{contest.equation} prices"
    if cost_key not in kept(path):
        keep(path, cost_key, prices(contest, rounds))
    if contest.equation == "burgers" and "floor" not in kept(path):
        keep(path, "floor", floor(contest))
    cost = kept(path)[cost_key]
    print(f"{contest.equation}: ms a step: " + ", ".join(f"{k} {1e3 * v:.1f}" for k, v in cost.items()), flush=True)
    names = MODELS[contest.equation]
    trial = trial_of(contest)
    for name in names:
        for rate in rates:
            attempt(trial, path, name, rate, 0, cost[name])
    for seed in range(seeds):
        for name in names:
            attempt(contest, path, name, chosen_rate(contest, kept(path), name), seed, cost[name])


def attempt(contest: Contest, path: Path, name: str, rate: int, seed: int, price: float) -> None:
    """One run, unless it is kept."""
    steps = max(4, round(contest.seconds / price))
    once(path, key_of(contest, name, rate, seed), lambda: run(contest, name, rate, seed, steps))


def table(contest: Contest, path: Path) -> list[Row]:
    """Errors from each kind of points: beside the floor and the peers."""
    done = kept(path)
    runs = {}
    for name in MODELS[contest.equation]:
        rate = chosen_rate(contest, done, name)
        keys = [key_of(contest, name, rate, seed) for seed in range(3)]
        runs[name] = [done[key] for key in keys if key in done]
    if not all(runs.values()):
        return []
    rows = []
    for what in ("training grid", *contest.clouds):
        means = {name: statistics.mean(r[what] for r in found) for name, found in runs.items()}
        rival = min((name for name in means if name in peers.NAMES), key=means.__getitem__)
        least = done["floor"].get(what) if contest.equation == "burgers" else None
        if least is not None:
            rows.append(Row(f"burgers, {what}: the exact solver on kriged inputs", least, note="the floor"))
        for name, found in runs.items():
            values = [r[what] for r in found]
            mine = name not in peers.NAMES
            most = min(means[rival], math.inf if least is None else BOUND * least)
            target = f"≤ {most:.4f} ({'floor' if most < means[rival] else rival})" if mine else ""
            note = f"{len(found)} seed(s)" + ("" if least is None else f", {means[name] / least:.2f} of the floor")
            held = means[name] <= most if mine else None
            what_of = f"{contest.equation}, {what}: {name}"
            rows.append(Row(what_of, means[name], min(values), max(values), "", target, held, note))
    return rows


def main() -> None:
    """Run what is missing, write the table of what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=int, nargs="*", default=list(range(len(RATES))), help="which are tried")
    parser.add_argument("--seconds", type=float, help="of a run: CPU time")
    parser.add_argument("--tables", action="store_true", help="write the tables of what there is, without a run")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    path = KEPT.with_name("scattered-quick.jsonl") if given.quick else KEPT
    budgets = {name: 0.2 if given.quick else given.seconds or SECONDS[name] for name in MODELS}
    contests = {name: Contest(name, seconds, mirrored=name == "burgers") for name, seconds in budgets.items()}
    for name in [] if given.tables else given.only:
        seeds = 1 if given.quick else given.seeds
        compete(contests[name], seeds, [0] if given.quick else given.rates, path, 1 if given.quick else 4)
    rows = [row for each in contests.values() for row in table(each, path)]
    for row in rows:
        print(f"{row.name:<70} {row.shown:<26} {row.target:<22} {row.verdict} {row.note}")
    if given.quick:
        path.unlink()
        return
    print(f"\nwritten: {write('scattered', rows, environment=environment(), seconds=budgets, runs=kept(path))}")


if __name__ == "__main__":
    main()
