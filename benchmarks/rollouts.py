"""Roll-outs of a stirred fluid to 50 steps: how long each model stays with the truth, at equal CPU time of training.

    python benchmarks/rollouts.py                     # everything that is not in results/rollouts-runs.jsonl yet
    python benchmarks/rollouts.py --only "conserving Evolution" FNO --seeds 1
    python benchmarks/rollouts.py --quick             # a smoke run

One-step maps (ω, f) ↦ ω one time step later, learned on 32² nodes from flows that a solver on 64² nodes made, with the
same loss (H¹), noise of 1 % on the inputs, clipping, a cosine to zero over the CPU seconds, and two learning rates, of
which the correlation time of eight validation flows chooses with the first seed. FNO and the maps by waves answer with
what is added to the state. The peer: pip install --no-deps neuraloperator==2.0.0 tensorly tensorly-torch opt-einsum
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from common import RESULTS, Row, environment, write
from contests import keep, kept
from torch import nn

from continua.axes import at
from continua.data.navier_stokes import TORUS
from continua.data.store import generated
from continua.data.turbulence import parts_of, resampled, solved
from continua.lab.canvas.rollouts import draw_rollout
from continua.models import Batch, load
from continua.models.zoo import evolution
from continua.recipes.functions import FunctionSettings, model_of, optimiser_of
from continua.tasks.functions import Functions
from continua.tasks.rollouts import bounded, correlation_time, rollout, spectrum_error

KEPT = RESULTS / "rollouts-runs.jsonl"
STORE = RESULTS.parent.parent / ".cache" / "rollouts"
IMAGES = RESULTS.parent.parent / "docs" / "images"
SECONDS = 45.0
NODES, FLOWS, TIMES = 32, 48, 41
CHECKED, TESTED, STEPS = 8, 16, 50
VISCOSITY, DT = 1e-3, 0.2
OURS, FREE, SHORTER = "conserving Evolution", "Evolution", "Evolution, shorter steps"
WAVES, ATTENTION, PEER = "waves", "waves and attention", "FNO"
MODELS = (OURS, FREE, SHORTER, WAVES, ATTENTION, PEER)
RATES = {
    OURS: (1e-2, 2e-2),
    FREE: (1e-2, 2e-2),
    SHORTER: (1e-2,),
    WAVES: (2e-3,),
    ATTENTION: (2e-3,),
    PEER: (1e-3, 3e-3),
}
PARTS = {OURS: 8, FREE: 6, SHORTER: 8}  # steps of Runge and Kutta in a step of the data
LONGER = 6  # steps that ours is asked with once more
SOLVERS = (16, 24, 32)
NOISE = 0.01


@dataclass(frozen=True, eq=False)
class Flows:
    """What is learned from, and flows with their forces: [flows, times, n², 1] and [flows, n², 1]."""

    task: Functions
    paths: torch.Tensor
    forces: torch.Tensor

    def start(self, rows: slice) -> Batch:
        """The first state of some flows, with their force."""
        return Batch(torch.cat([self.paths[rows, 0], self.forces[rows]], -1), grid=self.task.train.grid)

    def truth(self, rows: slice) -> torch.Tensor:
        """[steps, flows, n², 1]."""
        return self.paths[rows, 1:].transpose(0, 1)


def flows() -> Flows:
    """Flows to learn from, eight to choose by and sixteen to measure on: all of them different."""
    seen = generated("turbulence", FLOWS * (TIMES - 1), n=NODES, viscosity=VISCOSITY, dt=DT, times=TIMES, seed=0)
    count = CHECKED + TESTED
    other = generated("turbulence", count * STEPS, n=NODES, viscosity=VISCOSITY, dt=DT, times=STEPS + 1, seed=1)
    inputs, outputs = (part.unflatten(0, (count, STEPS)) for part in other.flat())
    paths = torch.cat([inputs[:, :1, :, :1], outputs], 1)
    return Flows(Functions(seen, other, batch=8, noise=NOISE), paths, inputs[:, 0, :, 1:])


class Residual(nn.Module):
    """ω + s·G(ω, f): G is a network on lattices [b, c, n, n] or a model of functions [b, n², c]."""

    def __init__(self, net: nn.Module, task: Functions, lattice: bool) -> None:
        super().__init__()
        self.net = net
        self.lattice = lattice
        inputs, outputs = task.train.flat()
        self.spreads = inputs.std((0, 1))
        self.change = float((outputs - inputs[..., :1]).std())

    def forward(self, batch: Batch) -> torch.Tensor:
        """One step."""
        values = batch.values / self.spreads
        if self.lattice:
            added = self.net(values.mT.unflatten(-1, (NODES, NODES))).flatten(2).mT
        else:
            added = self.net(replace(batch, values=values))
        return batch.values[..., :1] + self.change * added


def made(name: str, task: Functions, rate: float, seed: int) -> tuple[nn.Module, Any]:
    """A model with fresh weights, and what trains it."""
    torch.manual_seed(seed)
    inputs, _ = task.train.flat()
    if name in PARTS:
        spreads = tuple(float(s) for s in inputs.std((0, 1)))
        options = {"modes": 15, "steps": PARTS[name], "conserving": name == OURS}
        model: Any = evolution(TORUS, task.train.rule, spreads=spreads, **options)
        model.check = False
        return model, Plain(torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0))
    if name == PEER:
        try:
            from neuralop.models import FNO
        except ImportError:
            sys.exit(f"The peer is missing. {__doc__.splitlines()[-2].strip()}")  # type: ignore[union-attr]
        net = FNO(n_modes=(22, 22), in_channels=2, out_channels=1, hidden_channels=32, n_layers=4)
        model = Residual(net, task, lattice=True)
        return model, Plain(torch.optim.AdamW(model.parameters(), rate, weight_decay=1e-4))
    settings = FunctionSettings(d=32, m=64, modes=12, attention=name == ATTENTION, lr=rate, weights=seed)
    net = model_of(task, settings)
    net.embed.inner.scale = (0.0, 1.0)
    net.readout.scale = 1.0
    net.check = False
    return Residual(net, task, lattice=False), optimiser_of(settings).make(net)


@dataclass(frozen=True)
class Plain:
    """An optimiser of torch with a factor for its learning rate, as ours take it."""

    inner: torch.optim.Optimizer

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.inner.zero_grad()

    def step(self, factor: float) -> None:
        """One step at a share of the learning rate."""
        for group in self.inner.param_groups:
            first = group.setdefault("first", group["lr"])
            group["lr"] = first * factor
        self.inner.step()


def train(model: nn.Module, optimiser: Any, task: Functions, seconds: float, seed: int) -> int:
    """Train for so many CPU seconds; an equation takes four steps of time a unit at first, then as many as it has."""
    start = time.process_time()
    step = 0
    while (share := (time.process_time() - start) / seconds) < 1:
        example = task.example(seed, step)
        early = hasattr(model, "embed") and share < 0.4
        answer = model(example.batch, at(z=4)) if early else model(example.batch)
        loss = task.loss(answer, example) / example.count
        optimiser.zero_grad()
        loss.backward()
        size = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if math.isfinite(float(size)):
            optimiser.step(min(1.0, share / 0.03 + 0.01) * 0.5 * (1 + math.cos(math.pi * share)))
        step += 1
    return step


def measured(roll: Callable[[Batch], torch.Tensor], data: Flows, rows: slice) -> dict[str, float]:
    """How long roll-outs stay with the truth, their spectra, and how many stay bounded."""
    start = data.start(rows)
    begin = time.process_time()
    states = roll(start)
    seconds = time.process_time() - begin
    truth = data.truth(rows)
    late = [x[STEPS // 2 :, ..., 0].unflatten(-1, (NODES, NODES)) for x in (states, truth)]
    times = correlation_time(states, truth)
    off = (states[0] - truth[0]).flatten(1).norm(dim=1) / truth[0].flatten(1).norm(dim=1)
    return {
        "correlation time": float(times.mean()),
        "least": float(times.min()),
        "most": float(times.max()),
        "one step": float(off.mean()),
        "spectrum": float(spectrum_error(*late)),
        "bounded": float(bounded(states, truth).double().mean()),
        "milliseconds": 1e3 * seconds / states.shape[1] / STEPS,
    }


def run(name: str, rate: float, seed: int, seconds: float) -> dict[str, Any]:
    """Train once and roll out."""
    torch.set_num_threads(1)
    data = flows()
    model, optimiser = made(name, data.task, rate, seed)
    steps = train(model, optimiser, data.task, seconds, seed)
    model.eval()
    chosen = measured(lambda start: rollout(model, start, STEPS).states, data, slice(0, CHECKED))
    found = measured(lambda start: rollout(model, start, STEPS).states, data, slice(CHECKED, None))
    if name == OURS and seconds == SECONDS:  # the picture is drawn from it
        model.save(STORE / f"{seed}-{rate:g}")
    size = sum(p.numel() for p in model.parameters())
    return {"validation": chosen["correlation time"], **found, "steps": steps, "parameters": size}


def by_solving(n: int) -> Callable[[Batch], torch.Tensor]:
    """The solver of the data on n nodes a side."""

    def roll(start: Batch) -> torch.Tensor:
        fields = start.values.double().mT.unflatten(-1, (NODES, NODES))  # type: ignore[union-attr]
        w, force = (resampled(fields[:, i], n) for i in (0, 1))
        path = solved(w, force, VISCOSITY, DT, STEPS, parts_of(n, DT))
        return resampled(path, NODES).transpose(0, 1).flatten(2)[..., None]

    return roll


def by_solver(n: int) -> dict[str, float]:
    """What the solver does from the same starts."""
    torch.set_num_threads(1)
    return measured(by_solving(n), flows(), slice(CHECKED, None))


# --- what the kept models of ours are asked once more ----------------------------------------------------------------


def asked_again(rate: float, seeds: int) -> dict[str, list[float]]:
    """Roll-outs with longer steps of time than trained with, and how far the learned velocity is from the true one."""
    torch.set_num_threads(1)
    data = flows()
    found: dict[str, list[float]] = {"bounded": [], "correlation time": [], "velocity": []}
    for seed in range(seeds):
        model = load(STORE / f"{seed}-{rate:g}")
        model.check = False
        view = model.at(z=LONGER)
        got = measured(lambda start, view=view: rollout(view, start, STEPS).states, data, slice(CHECKED, None))
        found["bounded"].append(got["bounded"])
        found["correlation time"].append(got["correlation time"])
        found["velocity"].append(velocity_error(model))
    return found


def velocity_error(model: Any) -> float:
    """‖A − A*‖ / ‖A*‖ of the amplitudes of v = A(∂)(ω, f); A* = dt·(∂_y, −∂_x)(−Δ)⁻¹ of ω and nothing of f."""
    learned = model.block.parts[0].velocity.detach()  # [direction, channel, (1, ∂_x, ∂_y) and these by −Δ]
    true = torch.zeros_like(learned)
    size = DT * model.readout.spreads[0]
    true[0, 0, 5] = size
    true[1, 0, 4] = -size
    return float((learned - true).norm() / true.norm())


# --- all runs --------------------------------------------------------------------------------------------------------


def run_key(name: str, rate: float, seed: int, seconds: float) -> str:
    """The name of a run."""
    return f"{name} | rate {rate:g} | seed {seed} | {seconds:g} s"


def chosen_rate(done: dict[str, Any], name: str, seconds: float) -> float | None:
    """The learning rate whose first seed stayed longer with the validation flows."""
    tried = [rate for rate in RATES[name] if run_key(name, rate, 0, seconds) in done]
    if len(tried) < len(RATES[name]):
        return None
    return max(tried, key=lambda rate: done[run_key(name, rate, 0, seconds)]["validation"])


def jobs(only: list[str], seeds: int) -> list[tuple[str, float, int]]:
    """Most important first: all models with one seed, then the other seeds; one seed is enough for an experiment."""
    first = [(name, rate, 0) for name in only for rate in RATES[name]]
    ranked = [name for name in (OURS, PEER, FREE, WAVES, ATTENTION) if name in only]
    return first + [(name, rate, seed) for name in ranked for seed in range(1, seeds) for rate in RATES[name]]


def main() -> None:
    """Run what is missing, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--draw", action="store_true", help="Only write the table of what is kept, and the picture.")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        sys.stdout.write(json.dumps(run(*json.loads(given.job))))
        return
    seconds, seeds = (2.0, 1) if given.quick else (SECONDS, given.seeds)
    path = KEPT.with_name("rollouts-quick.jsonl") if given.quick else KEPT
    for name, rate, seed in [] if given.draw else jobs(given.only, seeds):
        key, done = run_key(name, rate, seed, seconds), kept(path)
        if key in done or (seed and rate != chosen_rate(done, name, seconds)):
            continue
        job = json.dumps([name, rate, seed, seconds])
        ran = subprocess.run([sys.executable, __file__, "--job", job], capture_output=True, text=True, check=False)
        if ran.returncode:
            sys.exit(ran.stderr)
        keep(path, key, json.loads(ran.stdout))
        print(key, ran.stdout, flush=True)
    for n in SOLVERS:
        if f"solver {n}" not in kept(path):
            keep(path, f"solver {n}", by_solver(n))
            print(n, kept(path)[f"solver {n}"], flush=True)
    again = f"{OURS}, asked again"
    rate = chosen_rate(kept(path), OURS, seconds)
    if again not in kept(path) and not given.quick and rate is not None:
        keep(path, again, asked_again(rate, seeds))
    rows = table(kept(path), seeds, seconds)
    if given.quick:
        path.unlink()
    else:
        print(f"picture: {drawn()}")
        print(f"written: {write('rollouts', rows, seconds=SECONDS, environment=environment())}")


def drawn() -> Path:
    """A test flow, rolled out by the kept model of the first seed and by the solver on as many nodes."""
    data = flows()
    row = slice(CHECKED + 4, CHECKED + 5)
    model = load(STORE / f"0-{chosen_rate(kept(KEPT), OURS, SECONDS):g}")
    model.check = False
    states = rollout(model, data.start(row), STEPS).states
    shown, true, other = (
        x[:, 0, :, 0].unflatten(-1, (NODES, NODES))
        for x in (states, data.truth(row), by_solving(NODES)(data.start(row)))
    )
    return draw_rollout(shown, true, IMAGES / "rollouts.png", {"solver on 32² nodes": other})


def found_by(done: dict[str, Any], name: str, seeds: int, seconds: float) -> list[dict[str, float]]:
    """The runs of a model at its better learning rate."""
    rate = chosen_rate(done, name, seconds)
    keys = [] if rate is None else [run_key(name, rate, seed, seconds) for seed in range(seeds)]
    return [done[key] for key in keys if key in done]


def promise(what: str, mean: float, peer: list[float]) -> tuple[str, bool | None]:
    """What ours is held to: longer with the truth than the peer, and no roll-out that leaves all bounds."""
    bound = 1.2 * statistics.mean(peer)
    if what == "correlation time":
        return f"≥ {bound:.1f} (1.2 × FNO)", mean >= bound
    return ("1", mean == 1) if what == "bounded" else ("", None)


def table(done: dict[str, Any], seeds: int, seconds: float) -> list[Row]:
    """A few rows for each model, and the solver on coarser grids."""
    rows = []
    peer = [r["correlation time"] for r in found_by(done, PEER, seeds, seconds)]
    for name in MODELS:
        found = found_by(done, name, seeds, seconds)
        if not found:
            continue
        said = f"{len(found)} seed{'s' if len(found) > 1 else ''}, {round(found[0]['steps'])} steps"
        for what, unit in (("correlation time", "steps"), ("one step", ""), ("spectrum", ""), ("bounded", "")):
            values = [r[what] for r in found]
            if not all(map(math.isfinite, values)):  # some roll-out is not finite: bounded says how many are
                continue
            mean = statistics.mean(values)
            target, held = promise(what, mean, peer) if name == OURS and peer else ("", None)
            rows.append(Row(f"{name}: {what}", mean, min(values), max(values), unit, target, held, note=said))
        rows.append(Row(f"{name}: CPU of a step", found[0]["milliseconds"], unit="ms"))
    for what, values in done.get(f"{OURS}, asked again", {}).items():
        said = (
            "off the true velocity"
            if what == "velocity"
            else f"{what}, {LONGER} steps of time instead of {PARTS[OURS]}"
        )
        rows.append(Row(f"{OURS}: {said}", statistics.mean(values), min(values), max(values)))
    for n in SOLVERS:
        found = done[f"solver {n}"]
        rows.append(Row(f"solver on {n}²: correlation time", found["correlation time"], unit="steps"))
        rows.append(Row(f"solver on {n}²: CPU of a step", found["milliseconds"], unit="ms"))
    return rows


if __name__ == "__main__":
    main()
