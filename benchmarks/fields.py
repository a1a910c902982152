"""Operator learning beside neuraloperator's FNO, at equal CPU time, on uniform, warped, holed and scattered grids.

    python benchmarks/fields.py                        # everything that is not in results/fields-runs.jsonl yet
    python benchmarks/fields.py --only burgers --seeds 1
    python benchmarks/fields.py --quick                # a smoke run

Every run has the CPU seconds of its task: what a step costs is measured first, all models in interleaved rounds of one
process, and the number of steps follows from it, so a busy machine favours nobody. Peer and ours get the same loss
(H¹), a cosine to zero and two learning rates, of which the validation functions choose with the first seed; then there
are three seeds. Off its grid the peer gets cubic interpolation (or, where inputs jump, that of the nearest points) to
two or three lattices, of which the best counts. Finished runs are kept.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fields_peers as peers
import torch
from common import RESULTS, Row, environment, interleaved, write
from contests import keep, kept

from continua.axes import Circle, Samples
from continua.data import neuraloperator_files as packaged
from continua.data.pairs import Pairs
from continua.data.store import generated
from continua.models import Batch
from continua.recipes.functions import (
    SCHEDULE,
    BurgersSettings,
    DarcySettings,
    FunctionSettings,
    model_of,
    optimiser_of,
    stride_of,
)
from continua.tasks.functions import Functions, predict, relative, scattered
from continua.training import fit
from tools.packages import NEURALOPERATOR, fetch

KEPT = RESULTS / "fields-runs.jsonl"
RATES = (0, 1)  # two learning rates each
PEER_RATES = (1e-3, 3e-3)
OUR_RATES = ((1e-3, 6e-3), (2e-3, 6e-3))  # of AdamW and of Muon
MODELS = OURS, PEER, PEER_MUON = "Continua", "FNO", "FNO with Muon"


@dataclass(frozen=True)
class Contest:
    """A task: its data, the budget in CPU seconds, and the sizes of both sides."""

    name: str
    generator: str
    settings: FunctionSettings
    seconds: float
    test: int
    peer_modes: int
    peer_width: int
    sides: tuple[int, ...]

    def data(self) -> tuple[Functions, Pairs]:
        """The task with its validation functions, and the test functions on the fine grid."""
        s = self.settings
        whole = generated(self.generator, s.train + s.held_out + self.test, None, None, n=s.fine, seed=s.draws)
        coarse = whole.every(stride_of(whole, s.nodes))
        seen, chosen = coarse.part(slice(0, s.train)), coarse.part(slice(s.train, s.train + s.held_out))
        return Functions(seen, chosen, s.batch, s.order), whole.part(slice(s.train + s.held_out, None))

    def grids(self, fine: Pairs) -> dict[str, Pairs]:
        """The test functions on uniform grids, by name."""
        return {f"{side} uniform": fine.every(stride_of(fine, side)) for side in self.sides}


@dataclass(frozen=True)
class Packaged(Contest):
    """The files inside the package of neuraloperator 0.3.0: learned on 16², asked on 32² too."""

    def data(self) -> tuple[Functions, Pairs]:
        """The first 900 of its training functions, the other 100, and its test functions."""
        train, _, fine = packaged.darcy(fetch(NEURALOPERATOR))
        s = self.settings
        return Functions(train.part(slice(0, s.train)), train.part(slice(s.train, None)), s.batch, s.order), fine

    def grids(self, fine: Pairs) -> dict[str, Pairs]:
        """Its own two files."""
        return {"16 uniform": packaged.darcy(fetch(NEURALOPERATOR))[1], "32 uniform": fine}


SMALL = DarcySettings(train=900, held_out=100, nodes=16, d=48, modes=6)
CONTESTS = {
    "burgers": Contest(
        "burgers", "burgers", BurgersSettings(held_out=128), 110.0, 200, 17, 64, (64, 128, 256, 512, 1024)
    ),
    "darcy": Contest("darcy", "darcy", DarcySettings(held_out=100), 240.0, 100, 12, 32, (29, 36, 71, 141)),
    "packaged darcy": Packaged("packaged darcy", "", SMALL, 43.0, 50, 9, 32, (16, 32)),
}


# --- one run ---------------------------------------------------------------------------------------------------------


def ours(contest: Contest, task: Functions, rate: int, seed: int) -> tuple[Any, FunctionSettings]:
    """Our model with fresh weights, and its settings."""
    lr, matrix_lr = OUR_RATES[rate]
    settings = replace(contest.settings, lr=lr, matrix_lr=matrix_lr, weights=seed)
    return model_of(task, settings), settings


def step_of(contest: Contest, task: Functions, name: str) -> Any:
    """A function that takes one training step, for its price."""
    if name in (PEER, PEER_MUON):
        model = peers.OnLattice(peers.fno(task, contest.peer_modes, contest.peer_width, 0), task)
        return lambda: peers.train(model, task, 1, 1e-3, 0, name == PEER_MUON)
    model, settings = ours(contest, task, 0, 0)
    made = optimiser_of(settings).make(model)

    def step() -> None:
        example = task.example(0, 0)
        made.zero_grad()
        (task.loss(model(example.batch), example) / example.count).backward()
        made.step(0.1)

    return step


def prices(contest: Contest, rounds: int) -> dict[str, float]:
    """CPU seconds of a step of every model, in interleaved rounds of five steps."""
    torch.set_num_threads(1)
    task, _ = contest.data()
    steps = {name: step_of(contest, task, name) for name in MODELS}

    def five(name: str) -> float:
        start = time.process_time()
        for _ in range(5):
            steps[name]()
        return (time.process_time() - start) / 5

    seen = interleaved({name: lambda name=name: five(name) for name in MODELS}, rounds, 2)
    return {name: statistics.median(values) for name, values in seen.items()}


def run(contest: Contest, name: str, rate: int, seed: int, steps: int) -> dict[str, Any]:
    """Train once, and measure everywhere."""
    torch.set_num_threads(1)
    task, fine = contest.data()
    if name in (PEER, PEER_MUON):
        model: Any = peers.OnLattice(peers.fno(task, contest.peer_modes, contest.peer_width, seed), task)
        peers.train(model, task, steps, PEER_RATES[rate], seed, name == PEER_MUON)
    else:
        model, settings = ours(contest, task, rate, seed)
        quiet = {"evaluate_every": 10**9, "save_every": 10**9, "clip": None, "watch": lambda at: None}
        fit(model, task, optimiser=optimiser_of(settings), schedule=SCHEDULE, steps=steps, seed=seed, **quiet)
    found = {"validation": float(task.errors(model).mean())}
    for grid, pairs in contest.grids(fine).items():
        found[grid] = float(task.errors(model, pairs).mean())
    for cloud, draws in clouds(fine).items() if contest.generator else ():
        found[cloud] = statistics.mean(off_grid(contest, model, fine, points) for points in draws)
    return found


# --- grids -----------------------------------------------------------------------------------------------------------


def clouds(fine: Pairs) -> dict[str, list[torch.Tensor]]:
    """Irregular grids by name, some draws of each."""
    draw = torch.Generator().manual_seed(1)
    if fine.axis.dim > 1:
        flat = fine.points.reshape(-1, fine.axis.dim)
        return {"1,000 random points": [flat[torch.randperm(len(flat), generator=draw)[:1000]] for _ in range(3)]}
    u = torch.arange(64, dtype=torch.float64) / 64
    warped = u + 0.75 / (2 * torch.pi) * torch.sin(2 * torch.pi * u)  # spacings from 1.75/64 to 0.25/64: seven to one
    holed = [(u + shift) % 1.0 for shift in torch.rand(3, generator=draw, dtype=torch.float64)]
    return {
        "warped 7:1": [warped[:, None]],
        "256 random points": [torch.rand(256, 1, generator=draw, dtype=torch.float64) for _ in range(3)],
        "a hole of 10 %": [x[u < 0.9].sort().values[:, None] for x in holed],
        "40 scattered points": [torch.rand(40, 1, generator=draw, dtype=torch.float64) for _ in range(5)],
    }


def off_grid(contest: Contest, model: Any, fine: Pairs, points: torch.Tensor) -> float:
    """Mean relative L² error at the points, from the values there alone, against their measure."""
    inputs, outputs, grid = scattered(fine, points)
    weights = Samples().on(fine.axis, points if fine.axis.dim > 1 else points[:, 0]).weights.float()
    if isinstance(model, peers.OnLattice):
        ways = [(64, False), (256, False)] if isinstance(fine.axis, Circle) else [(29, False), (29, True), (36, True)]
        answers = [peers.off_grid(model, inputs, points, *way) for way in ways]
        return min(float(relative(answer, outputs, weights).mean()) for answer in answers)
    return float(relative(predict(model, Batch(inputs, grid=grid)), outputs, weights).mean())


# --- all runs --------------------------------------------------------------------------------------------------------


def main() -> None:
    """Measure prices, run what is missing, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(CONTESTS), default=list(CONTESTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the CPU seconds: for trying things out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        contest, name, rate, seed, steps = json.loads(given.job)
        sys.stdout.write(json.dumps(run(CONTESTS[contest], name, rate, seed, steps)))
        return
    share, seeds = (0.02, 1) if given.quick else (given.share, given.seeds)
    path = KEPT.with_name("fields-quick.jsonl") if given.quick else KEPT
    for each in given.only:
        compete(CONTESTS[each], seeds, share, path)
    rows = [row for each in CONTESTS.values() for row in table(each, seeds, share, path)]
    if given.quick:
        path.unlink()
    else:
        print(f"\nwritten: {write('fields', rows, environment=environment())}")


def compete(contest: Contest, seeds: int, share: float, path: Path) -> None:
    """All runs of a task that are not kept yet."""
    done = kept(path)
    key = f"{contest.name} prices"
    if key not in done:
        keep(path, key, prices(contest, 20))
        done = kept(path)
    cost = done[key]
    print(f"{contest.name}: CPU milliseconds a step: " + ", ".join(f"{k} {1e3 * v:.1f}" for k, v in cost.items()))
    jobs = [(name, rate, seed) for seed in range(seeds) for name in MODELS for rate in RATES]
    for number, (name, rate, seed) in enumerate(jobs, 1):
        key, done = run_key(contest, name, rate, seed, share), kept(path)
        if key in done or (seed and rate != chosen_rate(done, contest, name, share)):
            continue
        steps = max(10, round(share * contest.seconds / cost[name]))
        job = json.dumps([contest.name, name, rate, seed, steps])
        start = time.monotonic()
        made = subprocess.run([sys.executable, __file__, "--job", job], capture_output=True, text=True, check=False)
        if made.returncode:
            sys.exit(made.stderr)
        found = json.loads(made.stdout) | {"steps": steps}
        keep(path, key, found)
        first = list(found.items())[:2]
        said = ", ".join(f"{k} {v:.4f}" for k, v in first)
        print(f"{number}/{len(jobs)}  {key}: {said}  {steps} steps, {time.monotonic() - start:.0f} s", flush=True)


def run_key(contest: Contest, name: str, rate: int, seed: int, share: float) -> str:
    """The name of a run."""
    return f"{contest.name} | {name} | rate {rate} | seed {seed} | {share:g}"


def chosen_rate(done: dict[str, Any], contest: Contest, name: str, share: float) -> int:
    """The learning rate whose first seed did better on the validation functions."""
    return min(RATES, key=lambda rate: done[run_key(contest, name, rate, 0, share)]["validation"])


def table(contest: Contest, seeds: int, share: float, path: Path) -> list[Row]:
    """Test errors of each model at its better learning rate, beside the best peer."""
    done, best = kept(path), {}
    for name in MODELS:
        if all(run_key(contest, name, rate, 0, share) in done for rate in RATES):
            rate = chosen_rate(done, contest, name, share)
            found = [done.get(run_key(contest, name, rate, seed, share)) for seed in range(seeds)]
            if all(found):
                best[name] = found
    if not {OURS, PEER, PEER_MUON} <= set(best):
        return []
    rows = []
    for grid in [k for k in best[OURS][0] if k not in ("validation", "steps")]:
        for name, found in best.items():
            values = [r[grid] for r in found]
            mean = statistics.mean(values)
            rival = min(statistics.mean(r[grid] for r in best[other]) for other in (PEER, PEER_MUON))
            target, held = (f"≤ {rival:.4f} (FNO)", mean <= rival) if name == OURS else ("", None)
            rows.append(Row(f"{contest.name}, {grid}: {name}", mean, min(values), max(values), "", target, held))
    return rows + ratios(contest, best)


def ratios(contest: Contest, best: dict[str, list[dict[str, float]]]) -> list[Row]:
    """Errors off the training grid over those on it, seed by seed: of finer grids the worst, and of clouds in 2-D."""
    own, rows = f"{contest.sides[0]} uniform", []
    finer = [f"{side} uniform" for side in contest.sides[1:]]
    asked = (
        [(f"worst of {', '.join(map(str, contest.sides[1:]))} nodes", finer, 1.02)] if contest.name == "burgers" else []
    )
    asked += [(cloud, [cloud], 1.15) for cloud in best[OURS][0] if cloud.startswith("1,000")]
    for what, grids, bound in asked:
        for name, found in best.items():
            each = [max(r[grid] for grid in grids) / r[own] for r in found]
            mean = statistics.mean(each)
            target, held = (f"≤ {bound}", mean <= bound) if name == OURS else ("", None)
            said = f"{contest.name}, {what} / {own}: {name}"
            rows.append(Row(said, mean, min(each), max(each), "×", target, held))
    return rows


if __name__ == "__main__":
    main()
