"""Equations on random polygons with holes, never two alike: ours with and without attention beside peers.

    python benchmarks/polygons.py                      # everything that is not in results/polygons-runs.jsonl yet
    python benchmarks/polygons.py --only FLARE         # one model; the table is written when all are there
    python benchmarks/polygons.py --picture FILE.png   # train ours once more and draw what it answers
    python benchmarks/polygons.py --quick              # a smoke run
    python benchmarks/polygons.py --equation elasticity   # plane strain instead of Poisson's equation

Every run has the same CPU seconds: what a step costs is measured first, all models in interleaved rounds of one
process, and the number of steps follows from it. All have the same data, batches, loss (relative L² against the lumped
mass), optimiser (Muon for matrices, AdamW for the rest), cosine to zero and two learning rates, of which the validation
polygons choose in trials of a fifth of the time; then there are three seeds. Test polygons are other ones: in meshes of
a size between those of training, in meshes four times finer, and as clouds of points without a mesh. There are 200 of
them, since errors differ much between polygons; ours and the best peer are compared polygon by polygon, too. Finished
runs are kept.
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

import polygons_peers as peers
import torch
from common import RESULTS, Row, environment, write
from contests import Step, factor, keep, kept, once, paired, prices_beside, seconds_each, stepping, told

from continua.axes import Grid
from continua.data.mesh_features import ELASTICITY, POISSON, Equation
from continua.data.mesh_pairs import MeshPairs
from continua.data.mesh_store import generated_meshes
from continua.lab.canvas.meshes import draw_meshes
from continua.models import Batch
from continua.models.zoo import LatentAttention
from continua.recipes.meshes import TEST, PoissonSettings, model_of, optimiser_of, seed_of, task_of
from continua.tasks.functions import predict, relative
from continua.tasks.meshes import OnMeshes

EQUATIONS = {equation.name: equation for equation in (POISSON, ELASTICITY)}
NAMES = {POISSON: "polygons", ELASTICITY: "elasticity"}  # of the results
OURS = "Continua"
SLICED = "Continua with slices"
GATED = "Continua with gates"
CLOUD = "cloud of points"
ATTENTION = {OURS: LatentAttention.NONE, SLICED: LatentAttention.SLICES, GATED: LatentAttention.GATES}
FNO = "FNO on a grid"
PEERS = ("Transolver", "FLARE", FNO, "DeepONet", "GINO")
MODELS = (OURS, SLICED, GATED, *PEERS)
RATES = ((1e-3, 4e-3), (3e-3, 1.2e-2))  # of AdamW and of Muon
SETTINGS = PoissonSettings()
TESTS = 200


@dataclass(frozen=True)
class Contest:
    """The data of all runs, the CPU seconds of each, and how many test polygons are asked."""

    settings: PoissonSettings
    seconds: float
    tests: int = TESTS
    equation: Equation = POISSON

    @cached_property
    def task(self) -> OnMeshes:
        """The training meshes, and the validation polygons."""
        return task_of(self.settings, self.equation)

    @cached_property
    def test(self) -> dict[str, MeshPairs]:
        """Test polygons in meshes of two sizes."""
        s = self.settings
        sizes = {f"{s.nodes} nodes": s.nodes, f"{4 * s.nodes} nodes": 4 * s.nodes}
        seed = seed_of(s, TEST)
        return {name: generated_meshes(self.tests, n, seed, equation=self.equation) for name, n in sizes.items()}

    @property
    def spread(self) -> float:
        """Of the answers."""
        return float(torch.cat([pairs.outputs.flatten() for pairs in self.task.train]).std())


CONTEST = Contest(SETTINGS, 60.0)
QUICK = Contest(replace(SETTINGS, train=16, held_out=8, batch=4), 2.0, 4)


def stepper(contest: Contest, name: str, rate: int, seed: int) -> tuple[Any, Step]:
    """A model with fresh weights, and what takes step i of its training at a share of the learning rate."""
    lr, matrix_lr = RATES[rate]
    task = contest.task
    if name in PEERS:
        peer = peers.made(name, contest.equation, contest.spread, seed)
        return peer, stepping(peer, peers.optimiser_of(peer, lr, matrix_lr), task, seed)
    settings = replace(contest.settings, lr=lr, matrix_lr=matrix_lr, weights=seed)
    settings = replace(settings, attention=ATTENTION[name])
    model = model_of(task, settings, contest.equation)
    model.check = False
    made = optimiser_of(settings).make(model)
    return model, stepping(model, made, task, seed)


def prices(contest: Contest, rounds: int, before: dict[str, float]) -> dict[str, float]:
    """CPU seconds of a step of every model; those that came later are measured beside the FNO."""

    def measure(names: list[str]) -> dict[str, float]:
        return seconds_each({name: stepper(contest, name, 0, 0)[1] for name in names}, rounds, 4, warm=2)

    return prices_beside(FNO, MODELS, before, measure)


def run(contest: Contest, name: str, rate: int, seed: int, steps: int) -> dict[str, Any]:
    """Train once, and measure everywhere."""
    torch.set_num_threads(1)
    model, step = stepper(contest, name, rate, seed)
    start = time.process_time()
    for number in range(steps):
        step(number, factor(number, steps))
    used = time.process_time() - start
    task = contest.task
    found: dict[str, Any] = {"validation": float(task.errors(model).mean()), "cpu seconds": used}
    found["parameters"] = sum(p.numel() for p in model.parameters())
    return found | (tested(contest, model) if contest.tests else {})


def tested(contest: Contest, model: Any) -> dict[str, Any]:
    """Mean errors on the test polygons, those of each, and the time of an answer."""
    each = {}
    found: dict[str, Any] = {}
    for size, pairs in contest.test.items():
        each[size] = contest.task.errors(model, pairs).tolist()
        started = time.process_time()
        predict(model, Batch(pairs.inputs[:4], grid=pairs.grid(slice(0, 4))))
        found[f"{size}, ms a mesh"] = 250 * (time.process_time() - started)
    each[CLOUD] = cloud(model, contest.test[f"{4 * contest.settings.nodes} nodes"], contest.settings.nodes)
    for what, errors in each.items():
        found[what] = statistics.mean(errors)
        found[f"{what}, each"] = [round(error, 5) for error in errors]
    return found


def cloud(model: Any, pairs: MeshPairs, count: int) -> list[float]:
    """Errors at random nodes of the fine meshes, crowded to the left, from what is known there alone.

    Nobody has the triangles: a point stands for the fine nodes that lie nearest to it, and has their mass.
    """
    generator = torch.Generator().manual_seed(1)
    errors = []
    for i in range(len(pairs)):
        density = torch.exp(-3.0 * pairs.points[i, :, 0])
        rows = torch.multinomial(density, count, generator=generator)
        owner = torch.cdist(pairs.points[i], pairs.points[i, rows]).argmin(1)
        weights = torch.zeros(count).index_add_(0, owner, pairs.weights[i])
        grid = Grid(pairs.points[i, rows][None], weights[None])
        answer = predict(model, Batch(pairs.inputs[i, rows][None], grid=grid))
        errors.append(float(relative(answer, pairs.outputs[i, rows][None], weights)))
    return errors


# --- all runs --------------------------------------------------------------------------------------------------------


def key_of(contest: Contest, name: str, rate: int, seed: int) -> str:
    """The name of a run, with the number of test polygons that it was asked on."""
    asked = f" | {contest.tests} polygons" if contest.tests else ""
    return f"{name} | rate {rate} | seed {seed} | {contest.seconds:g} s{asked}"


def trial_of(contest: Contest) -> Contest:
    """The same data for a fifth of the time, without test polygons: learning rates are chosen there."""
    return replace(contest, seconds=contest.seconds / 5, tests=0)


def chosen_rate(contest: Contest, done: dict[str, Any], name: str) -> int:
    """The learning rate whose trial did better on the validation polygons."""
    trial = trial_of(contest)
    return min(range(len(RATES)), key=lambda rate: done[key_of(trial, name, rate, 0)]["validation"])


def compete(contest: Contest, seeds: int, path: Path, quick: bool, only: list[str], trials_alone: bool) -> None:
    """All runs of some models that are not kept yet: trials of both learning rates, then the seeds."""
    before = kept(path).get("prices", {})
    if not set(only) <= set(before):
        keep(path, "prices", prices(contest, 2 if quick else 8, before))
    cost = kept(path)["prices"]
    print("CPU milliseconds a step: " + ", ".join(f"{k} {1e3 * v:.1f}" for k, v in cost.items()), flush=True)
    trial = trial_of(contest)
    for name in only:
        for rate in range(len(RATES)):
            attempt(trial, path, name, rate, 0, cost[name])
    if trials_alone:
        return
    for seed in range(seeds):
        for name in only:
            attempt(contest, path, name, chosen_rate(contest, kept(path), name), seed, cost[name])


def attempt(contest: Contest, path: Path, name: str, rate: int, seed: int, price: float) -> None:
    """One run, unless it is kept."""
    steps = max(10, round(contest.seconds / price))
    once(path, key_of(contest, name, rate, seed), lambda: run(contest, name, rate, seed, steps) | {"steps": steps})


def finished(contest: Contest, seeds: int, path: Path) -> dict[str, list[dict[str, Any]]]:
    """The runs of each model that has any at its better learning rate, in the order of seeds."""
    done = kept(path)
    trial = trial_of(contest)
    found = {}
    for name in MODELS:
        if any(key_of(trial, name, rate, 0) not in done for rate in range(len(RATES))):
            continue
        rate = chosen_rate(contest, done, name)
        keys = [key_of(contest, name, rate, seed) for seed in range(seeds)]
        runs = [done[key] for key in keys if key in done]
        if runs:
            found[name] = runs
    return found


def table(contest: Contest, seeds: int, path: Path) -> list[Row]:
    """Test errors of each model at its better learning rate, beside the best peer, and the ratio of finer meshes."""
    best = finished(contest, seeds, path)
    own, finer = contest.test
    rows = []
    for what in (own, finer, CLOUD):
        means = {name: statistics.mean(r[what] for r in found) for name, found in best.items()}
        rival = min((name for name in PEERS if name in best), key=means.__getitem__)
        for name, found in best.items():
            values = [r[what] for r in found]
            target, held = "", None
            if name == OURS:
                target, held = f"≤ {means[rival]:.4f} (best peer)", means[name] <= means[rival]
            seeds_of = f"{len(found)} seed{'s' if len(found) > 1 else ''}"
            rows.append(Row(f"{what}: {name}", means[name], min(values), max(values), "", target, held, seeds_of))
        each = {name: [r[f"{what}, each"] for r in best[name]] for name in (OURS, rival)}
        rows.append(paired(f"{what}: {rival} less {OURS}, polygon by polygon", each[OURS], each[rival]))
    for name, found in best.items():
        each = [r[finer] / r[own] for r in found]
        mean = statistics.mean(each)
        target, held = ("≤ 1.15", mean <= 1.15) if name == OURS else ("", None)
        rows.append(Row(f"{finer} / {own}: {name}", mean, min(each), max(each), "×", target, held))
    for name, found in best.items():
        each = [r[f"{finer}, ms a mesh"] / r[f"{own}, ms a mesh"] for r in found]
        rows.append(Row(f"time at {finer} / {own}: {name}", statistics.median(each), min(each), max(each), "×"))
    return rows


def draw(contest: Contest, path: Path, target: Path) -> None:
    """Train ours as in its first run at the chosen rate, and draw its answers on test polygons."""
    done = kept(path)
    rate = chosen_rate(contest, done, OURS)
    steps = done[key_of(contest, OURS, rate, 0)]["steps"]
    model, step = stepper(contest, OURS, rate, 0)
    for number in range(steps):
        step(number, factor(number, steps))
    print(f"picture: {draw_meshes(model, contest.test[f'{contest.settings.nodes} nodes'], target)}")


def main() -> None:
    """Measure prices, run what is missing, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trials", action="store_true", help="choose learning rates, and stop there")
    parser.add_argument("--tables", action="store_true", help="write the table of what there is, without a run")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=CONTEST.seconds, help="of a run: CPU time")
    parser.add_argument("--equation", choices=EQUATIONS, default=POISSON.name)
    given = parser.parse_args()
    equation = EQUATIONS[given.equation]
    contest = replace(QUICK if given.quick else replace(CONTEST, seconds=given.seconds), equation=equation)
    seeds = 1 if given.quick else given.seeds
    path = RESULTS / f"{NAMES[equation]}-{'quick' if given.quick else 'runs'}.jsonl"
    if given.picture is not None:
        draw(contest, path, given.picture)
        return
    if not given.tables:
        compete(contest, seeds, path, given.quick, given.only, given.trials)
    runs = finished(contest, seeds, path)
    if len(runs.get(OURS, ())) < seeds or not set(runs) & set(PEERS):
        return
    rows = table(contest, seeds, path)
    for row in rows:
        print(f"{row.name:<60} {row.shown:<28} {row.target:<24} {row.verdict}")
    if given.quick:
        path.unlink()
        return
    facts: dict[str, Any] = {"seconds": contest.seconds, "seeds": seeds}
    facts |= {"data": {f"{pairs.nodes} nodes": pairs.sha256 for pairs in contest.task.train}, "runs": told(kept(path))}
    print(f"\nwritten: {write(NAMES[equation], rows, environment=environment(), **facts)}")


if __name__ == "__main__":
    main()
