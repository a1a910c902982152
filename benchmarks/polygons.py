"""Poisson's equation on random polygons with holes, never two alike: ours with and without attention beside peers.

    python benchmarks/polygons.py                      # everything that is not in results/polygons-runs.jsonl yet
    python benchmarks/polygons.py --only FLARE         # one model; the table is written when all are there
    python benchmarks/polygons.py --picture FILE.png   # train ours once more and draw what it answers
    python benchmarks/polygons.py --quick              # a smoke run

Every run has the same CPU seconds: what a step costs is measured first, all models in interleaved rounds of one
process, and the number of steps follows from it. All have the same data, batches, loss (relative L² against the lumped
mass), optimiser (Muon for matrices, AdamW for the rest), cosine to zero and two learning rates, of which the validation
polygons choose with the first seed; then there are three seeds. Test polygons are other ones: in meshes of a size
between those of training, in meshes four times finer, and as clouds of points without a mesh. Finished runs are kept.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import polygons_peers as peers
import torch
from common import RESULTS, Row, environment, interleaved, write

from continua.axes import Grid
from continua.data.mesh_store import generated_meshes
from continua.data.poisson import MeshPairs
from continua.lab.canvas.meshes import draw_meshes
from continua.models import Batch
from continua.models.zoo import LatentAttention
from continua.recipes.meshes import TEST, PoissonSettings, model_of, optimiser_of, seed_of, task_of
from continua.tasks.functions import predict, relative
from continua.tasks.meshes import OnMeshes

KEPT = RESULTS / "polygons-runs.jsonl"
OURS = "Continua"
SLICED = "Continua with slices"
ATTENTION = {OURS: LatentAttention.NONE, SLICED: LatentAttention.SLICES}
PEERS = ("Transolver", "FLARE", "FNO on a grid", "DeepONet")
MODELS = (OURS, SLICED, *PEERS)
RATES = ((1e-3, 4e-3), (3e-3, 1.2e-2))  # of AdamW and of Muon
SETTINGS = PoissonSettings()
TESTS = 40


@dataclass(frozen=True)
class Contest:
    """The data of all runs, and the CPU seconds of each."""

    settings: PoissonSettings
    seconds: float
    tests: int = TESTS

    @cached_property
    def task(self) -> OnMeshes:
        """The training meshes, and the validation polygons."""
        s = self.settings
        return task_of(s)

    @cached_property
    def test(self) -> dict[str, MeshPairs]:
        """Test polygons in meshes of two sizes."""
        s = self.settings
        sizes = {f"{s.nodes} nodes": s.nodes, f"{4 * s.nodes} nodes": 4 * s.nodes}
        return {name: generated_meshes(self.tests, n, seed_of(s, TEST)) for name, n in sizes.items()}

    @property
    def spread(self) -> float:
        """Of the answers."""
        return float(torch.cat([pairs.outputs.flatten() for pairs in self.task.train]).std())


CONTEST = Contest(SETTINGS, 60.0)
QUICK = Contest(replace(SETTINGS, train=16, held_out=8, batch=4), 2.0, 4)


def stepper(contest: Contest, name: str, rate: int, seed: int) -> tuple[Any, Callable[[int, float], None]]:
    """A model with fresh weights, and what takes step i of its training at a share of the learning rate."""
    lr, matrix_lr = RATES[rate]
    task = contest.task
    if name in PEERS:
        peer = peers.made(name, contest.spread, seed)
        trained = peers.Trained(peer, lr, matrix_lr)
        return peer, lambda step, factor: trained.step(task, seed, step, factor)
    settings = replace(contest.settings, lr=lr, matrix_lr=matrix_lr, weights=seed)
    settings = replace(settings, attention=ATTENTION[name])
    model = model_of(task, settings)
    model.check = False
    made = optimiser_of(settings).make(model)

    def step(number: int, factor: float) -> None:
        example = task.example(seed, number)
        made.zero_grad()
        (task.loss(model(example.batch), example) / example.count).backward()
        made.step(factor)

    return model, step


def prices(contest: Contest, rounds: int) -> dict[str, float]:
    """CPU seconds of a step of every model, in interleaved rounds of four steps."""
    torch.set_num_threads(1)
    steps = {name: stepper(contest, name, 0, 0)[1] for name in MODELS}

    def four(name: str) -> float:
        start = time.process_time()
        for number in range(4):
            steps[name](number, 0.1)
        return (time.process_time() - start) / 4

    seen = interleaved({name: lambda name=name: four(name) for name in MODELS}, rounds, 2)
    return {name: statistics.median(values) for name, values in seen.items()}


def run(contest: Contest, name: str, rate: int, seed: int, steps: int) -> dict[str, Any]:
    """Train once, and measure everywhere."""
    torch.set_num_threads(1)
    model, step = stepper(contest, name, rate, seed)
    start = time.process_time()
    for number in range(steps):
        step(number, peers.factor(number, steps))
    used = time.process_time() - start
    task = contest.task
    found = {"validation": float(task.errors(model).mean()), "cpu seconds": used}
    for size, pairs in contest.test.items():
        found[size] = float(task.errors(model, pairs).mean())
        started = time.process_time()
        predict(model, Batch(pairs.inputs[:4], grid=pairs.grid(slice(0, 4))))
        found[f"{size}, ms a mesh"] = 250 * (time.process_time() - started)
    finer = contest.test[f"{4 * contest.settings.nodes} nodes"]
    found["cloud of points"] = cloud(model, finer, contest.settings.nodes)
    found["parameters"] = sum(p.numel() for p in model.parameters())
    return found


def cloud(model: Any, pairs: MeshPairs, count: int) -> float:
    """Mean error at random nodes of the fine meshes, crowded to the left, from what is known there alone.

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
    return statistics.mean(errors)


# --- all runs --------------------------------------------------------------------------------------------------------


def kept(path: Path) -> dict[str, Any]:
    """Finished runs by their key."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {line["key"]: line["found"] for line in map(json.loads, lines)}


def keep(path: Path, key: str, found: Any) -> None:
    """Write one down."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": key, "found": found}, ensure_ascii=False) + "\n")


def key_of(contest: Contest, name: str, rate: int, seed: int) -> str:
    """The name of a run."""
    return f"{name} | rate {rate} | seed {seed} | {contest.seconds:g} s"


def chosen_rate(contest: Contest, done: dict[str, Any], name: str) -> int:
    """The learning rate whose first seed did better on the validation polygons."""
    return min(range(len(RATES)), key=lambda rate: done[key_of(contest, name, rate, 0)]["validation"])


def compete(contest: Contest, seeds: int, path: Path, quick: bool, only: list[str]) -> None:
    """All runs of some models that are not kept yet."""
    done = kept(path)
    if "prices" not in done:
        keep(path, "prices", prices(contest, 2 if quick else 8))
        done = kept(path)
    cost = done["prices"]
    print("CPU milliseconds a step: " + ", ".join(f"{k} {1e3 * v:.1f}" for k, v in cost.items()), flush=True)
    jobs = [(name, rate, seed) for seed in range(seeds) for name in only for rate in range(len(RATES))]
    for number, (name, rate, seed) in enumerate(jobs, 1):
        key = key_of(contest, name, rate, seed)
        done = kept(path)
        if key in done or (seed and rate != chosen_rate(contest, done, name)):
            continue
        steps = max(10, round(contest.seconds / cost[name]))
        start = time.monotonic()
        found = run(contest, name, rate, seed, steps) | {"steps": steps}
        keep(path, key, found)
        said = ", ".join(f"{k} {v:.4f}" for k, v in list(found.items())[:3])
        print(f"{number}/{len(jobs)}  {key}: {said}  {steps} steps, {time.monotonic() - start:.0f} s", flush=True)


def is_complete(contest: Contest, seeds: int, path: Path) -> bool:
    """Whether every model has all its runs."""
    done = kept(path)
    if any(key_of(contest, name, rate, 0) not in done for name in MODELS for rate in range(len(RATES))):
        return False
    chosen = {name: chosen_rate(contest, done, name) for name in MODELS}
    return all(key_of(contest, name, rate, seed) in done for name, rate in chosen.items() for seed in range(seeds))


def table(contest: Contest, seeds: int, path: Path) -> list[Row]:
    """Test errors of each model at its better learning rate, beside the best peer, and the ratio of finer meshes."""
    done = kept(path)
    best = {}
    for name in MODELS:
        rate = chosen_rate(contest, done, name)
        best[name] = [done[key_of(contest, name, rate, seed)] for seed in range(seeds)]
    own, finer = contest.test
    rows = []
    for what in (own, finer, "cloud of points"):
        rival = min(statistics.mean(r[what] for r in best[name]) for name in PEERS)
        for name, found in best.items():
            values = [r[what] for r in found]
            mean = statistics.mean(values)
            target, held = (f"≤ {rival:.4f} (best peer)", mean <= rival) if name == OURS else ("", None)
            rows.append(Row(f"{what}: {name}", mean, min(values), max(values), "", target, held))
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
        step(number, peers.factor(number, steps))
    print(f"picture: {draw_meshes(model, contest.test[f'{contest.settings.nodes} nodes'], target)}")


def main() -> None:
    """Measure prices, run what is missing, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=CONTEST.seconds, help="of a run: CPU time")
    given = parser.parse_args()
    contest = QUICK if given.quick else replace(CONTEST, seconds=given.seconds)
    seeds = 1 if given.quick else given.seeds
    path = KEPT.with_name("polygons-quick.jsonl") if given.quick else KEPT
    if given.picture is not None:
        draw(contest, path, given.picture)
        return
    compete(contest, seeds, path, given.quick, given.only)
    if not is_complete(contest, seeds, path):
        return
    rows = table(contest, seeds, path)
    for row in rows:
        print(f"{row.name:<60} {row.shown:<28} {row.target:<24} {row.verdict}")
    if given.quick:
        path.unlink()
        return
    facts: dict[str, Any] = {"seconds": contest.seconds, "seeds": seeds}
    facts |= {"data": {f"{pairs.nodes} nodes": pairs.sha256 for pairs in contest.task.train}, "runs": kept(path)}
    print(f"\nwritten: {write('polygons', rows, environment=environment(), **facts)}")


if __name__ == "__main__":
    main()
