"""Diffusion in random solids: ours beside Transolver and FLARE, learned at 2,000 points, asked at 32,768; time over n.

    python benchmarks/solids.py               # everything that is not in results/solids-runs.jsonl yet
    python benchmarks/solids.py --only time   # how time grows with the points
    python benchmarks/solids.py --picture FILE.png   # train ours once more, ask at few points of fine meshes, draw
    python benchmarks/solids.py --quick       # a smoke run

Training points are random nodes of meshes of 6,000 nodes; test solids are other ones, at as many points and at 32,768
nodes of meshes of that size. The rest is as in ``polygons.py``, whose rates, optimiser and schedule these runs have.
"""

import argparse
import os
import resource
import statistics
import sys
import time
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import polygons_peers as peers
import torch
from common import RESULTS, Row, environment, interleaved, write
from contests import Step, factor, keep, kept, once, seconds_each, stepping
from polygons import OURS, RATES

from continua.axes import Grid
from continua.data.mesh_features import DIFFUSION
from continua.data.mesh_pairs import MeshPairs
from continua.data.mesh_store import generated_meshes
from continua.lab.canvas.solids import draw_solids
from continua.models import Batch
from continua.operators import waves
from continua.recipes.meshes import TEST, DiffusionSettings, model_of, optimiser_of, seed_of, solids_of
from continua.tasks.functions import predict, relative
from continua.tasks.meshes import OnMeshes

PEERS = ("Transolver", "FLARE")
MODELS = (OURS, *PEERS)
SIZES = (4096, 8192, 16_384, 32_768, 65_536)
TIME = "time"
AT_ONCE = "Continua, waves at all points in one matrix"  # how it was: the same numbers, for the time alone
TIMED = (*MODELS, AT_ONCE)
RATE = {OURS: 1, "Transolver": 0, "FLARE": 1}  # those that polygons.py chose


@dataclass(frozen=True)
class Contest:
    """The data of all runs, and the CPU seconds of each."""

    settings: DiffusionSettings
    seconds: float
    tests: int

    @cached_property
    def task(self) -> OnMeshes:
        """The training solids, and the validation ones."""
        return solids_of(self.settings)

    @cached_property
    def test(self) -> dict[str, MeshPairs]:
        """Test solids at few and at many points."""
        s = self.settings
        seed = seed_of(s, TEST)
        sizes = {f"{n} points": n for n in (s.points, s.finer)}
        return {name: generated_meshes(self.tests, n, seed, equation=DIFFUSION) for name, n in sizes.items()}


CONTEST = Contest(DiffusionSettings(), 60.0, 8)
QUICK = Contest(DiffusionSettings(train=4, held_out=2, points=1000, finer=6000), 1.0, 1)


def stepper(contest: Contest, name: str, seed: int) -> tuple[Any, Step]:
    """A model with fresh weights, and what takes step i of its training at a share of the learning rate."""
    lr, matrix_lr = RATES[RATE[name]]
    task = contest.task
    if name in PEERS:
        spread = float(task.train[0].outputs.std())
        peer = peers.made(name, DIFFUSION, spread, seed)
        return peer, stepping(peer, peers.optimiser_of(peer, lr, matrix_lr), task, seed)
    settings = replace(contest.settings, lr=lr, matrix_lr=matrix_lr, weights=seed)
    model = model_of(task, settings, DIFFUSION)
    model.check = False
    made = optimiser_of(settings).make(model)
    return model, stepping(model, made, task, seed)


def prices(contest: Contest) -> dict[str, float]:
    """CPU seconds of a step of every model."""
    return seconds_each({name: stepper(contest, name, 0)[1] for name in MODELS}, 4, 2)


def run(contest: Contest, name: str, seed: int, steps: int) -> dict[str, float]:
    """Train once, and measure at few and at many points."""
    model, step = stepper(contest, name, seed)
    start = time.process_time()
    for number in range(steps):
        step(number, factor(number, steps))
    found = {"cpu seconds": time.process_time() - start, "validation": float(contest.task.errors(model).mean())}
    for size, pairs in contest.test.items():
        each = [float(contest.task.errors(model, pairs.part(slice(i, i + 1)))[0]) for i in range(len(pairs))]
        found[size] = statistics.mean(each)
    return found | {"steps": steps}


def draw(contest: Contest, path: Path, target: Path) -> None:
    """Train ours as in its first run, and draw its answers in test solids at many points."""
    steps = kept(path)[key_of(contest, OURS, 0)]["steps"]
    model, step = stepper(contest, OURS, 0)
    for number in range(steps):
        step(number, factor(number, steps))
    few, many = contest.test
    print(f"{few}, drawn from those of {many}: {thinned(model, contest.test[many], contest.settings.points):.4f}")
    drawn = draw_solids(model, contest.settings.finer, seed_of(contest.settings, TEST), target)
    print(f"picture: {drawn.path}")


def thinned(model: Any, pairs: MeshPairs, count: int) -> float:
    """The mean error at random nodes of fine meshes, each with the mass of all nodes that lie nearest to it."""
    generator = torch.Generator().manual_seed(1)
    errors = []
    for i in range(len(pairs)):
        rows = torch.randperm(pairs.nodes, generator=generator)[:count]
        owner = torch.cdist(pairs.points[i], pairs.points[i, rows]).argmin(1)
        weights = torch.zeros(count).index_add_(0, owner, pairs.weights[i])
        grid = Grid(pairs.points[i, rows][None], weights[None])
        answer = predict(model, Batch(pairs.inputs[i, rows][None], grid=grid))
        errors.append(float(relative(answer, pairs.outputs[i, rows][None], weights)))
    return statistics.mean(errors)


def times(contest: Contest, sizes: tuple[int, ...], rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """CPU seconds to answer one solid at more and more points, in interleaved rounds of one process, and how many
    pages of memory the system was asked for."""
    generator = torch.Generator().manual_seed(0)
    models = {name: stepper(contest, name, 0)[0] for name in MODELS} | {AT_ONCE: stepper(contest, OURS, 0)[0]}
    pages: dict[tuple[str, int], list[int]] = {(name, n): [] for name in TIMED for n in sizes}

    def asked(name: str, n: int) -> float:
        points = torch.rand(1, n, 3, generator=generator)
        values = torch.randn(1, n, DIFFUSION.channels, generator=generator)
        batch = Batch(values, grid=Grid(points, torch.full((1, n), 1 / n)))
        with mock.patch.object(waves, "BLOCK", 2 * n if name == AT_ONCE else waves.BLOCK):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            start = time.process_time()
            predict(models[name], batch)
            seconds = time.process_time() - start
        pages[name, n].append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        return seconds

    work = {(name, n): lambda name=name, n=n: asked(name, n) for name, n in pages}
    seen = interleaved(work, rounds, 1)
    both = {"seconds": seen, "pages": {key: found[1:] for key, found in pages.items()}}
    return {
        what: {name: {str(n): statistics.median(found[name, n]) for n in sizes} for name in TIMED}
        for what, found in both.items()
    }


def compete(contest: Contest, seeds: int, path: Path, only: list[str]) -> None:
    """Prices, runs and times that are not kept yet."""
    torch.set_num_threads(1)
    if "prices" not in kept(path):
        keep(path, "prices", prices(contest))
    cost = kept(path)["prices"]
    print("CPU milliseconds a step: " + ", ".join(f"{k} {1e3 * v:.1f}" for k, v in cost.items()), flush=True)
    for seed in range(seeds):
        for name in MODELS:
            if name not in only:
                continue
            steps = max(10, round(contest.seconds / cost[name]))
            once(path, key_of(contest, name, seed), partial(run, contest, name, seed, steps))
    if TIME in only and TIME not in kept(path):
        keep(path, TIME, times(contest, SIZES[:2] if contest is QUICK else SIZES, 5))


def key_of(contest: Contest, name: str, seed: int) -> str:
    """The name of a run."""
    return f"{name} | seed {seed} | {contest.seconds:g} s"


def table(contest: Contest, seeds: int, path: Path) -> list[Row]:
    """Errors at few and many points beside the best peer, and how time grows from size to size."""
    done = kept(path)
    keys = {name: [key_of(contest, name, seed) for seed in range(seeds)] for name in MODELS}
    runs = {name: [done[key] for key in every if key in done] for name, every in keys.items()}
    runs = {name: found for name, found in runs.items() if found}
    few, many = contest.test
    rows = []
    for what in (few, many):
        rival = min(statistics.mean(r[what] for r in runs[name]) for name in PEERS if name in runs)
        for name, found in runs.items():
            values = [r[what] for r in found]
            mean = statistics.mean(values)
            target, held = (f"≤ {rival:.4f} (best peer)", mean <= rival) if name == OURS else ("", None)
            seeds_of = f"{len(found)} seed{'s' if len(found) > 1 else ''}"
            rows.append(Row(f"{what}: {name}", mean, min(values), max(values), "", target, held, seeds_of))
    for name, found in runs.items():
        each = [r[many] / r[few] for r in found]
        rows.append(Row(f"{many} / {few}: {name}", statistics.mean(each), min(each), max(each), "×"))
    return rows + [growth(name, seen, done[TIME]["pages"][name]) for name, seen in done[TIME]["seconds"].items()]


def growth(name: str, seconds: dict[str, float], pages: dict[str, float]) -> Row:
    """How much more time a point takes among many than among few, and the pages that many ask for."""
    few, *_, many = sorted(seconds, key=int)
    grown = seconds[many] / seconds[few] / (int(many) / int(few))
    target, held = ("≤ 1.25 (linear: 1)", grown <= 1.25) if name == OURS else ("", None)
    each = 1e6 * seconds[many] / int(many)
    note = f"{each:.1f} µs a point of many, and {pages[many] / int(many):.2f} pages of memory"
    said = f"time a point at {many} / at {few} points: {name}"
    return Row(said, grown, grown, grown, "×", target, held, note)


def main() -> None:
    """Run what is missing, and write the table when ours and a peer are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", choices=(*MODELS, TIME), default=[*MODELS, TIME])
    parser.add_argument("--seconds", type=float, default=CONTEST.seconds, help="of a run: CPU time")
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    contest = QUICK if given.quick else CONTEST
    if not given.quick and given.seconds != CONTEST.seconds:
        contest = replace(CONTEST, seconds=given.seconds)
    path = RESULTS / f"solids-{'quick' if given.quick else 'runs'}.jsonl"
    if given.picture is not None:
        draw(contest, path, given.picture)
        return
    compete(contest, given.seeds, path, given.only)
    done = kept(path)
    if TIME not in done or not all(key_of(contest, name, 0) in done for name in (OURS, PEERS[0])):
        return
    rows = table(contest, given.seeds, path)
    for row in rows:
        print(f"{row.name:<60} {row.shown:<28} {row.target:<24} {row.verdict}")
    if given.quick:
        path.unlink()
        return
    facts = {"seconds": contest.seconds, "seeds": given.seeds, "data": contest.task.train[0].sha256, "runs": done}
    print(f"\nwritten: {write('solids', rows, environment=environment(), **facts)}")


if __name__ == "__main__":
    main()
