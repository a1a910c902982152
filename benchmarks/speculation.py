"""Self-speculation: tokens a second with a small size that writes ahead, over those of the native size alone.

    python benchmarks/speculation.py              # trains the model of benchmarks/large.py where it is not there
    python benchmarks/speculation.py --run RUN    # measures a run that is there
    python benchmarks/speculation.py --quick      # a tiny model: does all of it run?

The model is one of ``continua fit elastic`` (d=256, h=8, z=8, context 256, 450 steps of 8 windows). Greedy, batch 1,
one thread; both sides compiled, CPU time from the first token behind the prompt on, interleaved over prompts of
held-out text; ratios of each round, medians with their 95 % interval. The tokens of both sides are compared.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import Row, environment, ratio, row, write
from large import FOLDER, large_run
from rich.console import Console
from torch import Tensor

from continua.axes import at
from continua.models import Batch, Greedy
from continua.models.draft_choice import overlap
from continua.models.drafts import Asked, Draft, speculation
from continua.models.generate import decoding_step
from continua.models.model import Pass, constant_weight
from continua.models.speculate import Ending, Speculator, speculated
from continua.operators import Cache, Context
from continua.operators.cache import StaticCache
from continua.recipes import start
from continua.recipes.runs import bundle_of
from continua.training import Run
from continua.tree import mapped

QUICK = {"d": 32, "heads": 4, "depth": 4, "context": 64, "batch": 4, "steps": 6, "evaluate_every": 6, "below": 0}
PROMPT = 32
TARGET = 1.5


class Native:
    """The native size alone: the compiled step of ``generate(compile=True)``, made once for all prompts."""

    def __init__(self, model: Any, room: int) -> None:
        self.model = model
        self.room = room
        self.reads = mapped(model.read(model.native), constant_weight)
        self.step: Any = None

    @torch.no_grad()
    def write(self, ids: Tensor, tokens: int) -> tuple[list[int], float]:
        """New tokens, and CPU seconds of all but the first."""
        past = Cache()
        told = Pass(Context(cache=past), reads=self.reads, last=True)
        token = self.model(Batch(ids), self.model.native, told)[:, -1].argmax(-1)
        self._begin(past, ids.shape[1])
        new = [token]
        began = time.process_time()
        for _ in range(tokens - 1):
            token = self.step(token).argmax(-1)
            self.step.cache.place.add_(1)
            new.append(token)
        return torch.cat(new).tolist(), time.process_time() - began

    def _begin(self, past: Cache, count: int) -> None:
        filled = StaticCache(past, self.room)
        if self.step is None:
            self.step = decoding_step(self.model, self.model.native, self.reads, filled)
            return
        for ours, theirs in zip(self.step.cache.buffers, filled.buffers, strict=True):
            for kept, new in zip(ours, theirs, strict=True):
                kept.copy_(new)
        self.step.cache.place.fill_(count)


class Drafted:
    """The same with a draft."""

    def __init__(self, model: Any, ids: Tensor, draft: Draft, tokens: int, compile: bool) -> None:
        end = Ending((), 0, tokens)
        self.asked = Asked(Batch(ids), Greedy(), end, None, compile=compile)
        self.speculator: Speculator = speculation(model, model.native, draft, self.asked)

    def write(self, ids: Tensor, tokens: int) -> tuple[list[int], float]:
        """New tokens, and CPU seconds of all but the first."""
        lengths = torch.full((1,), ids.shape[1])
        stream = speculated(self.speculator, ids, lengths, None, True, self.asked.end)
        new = [int(next(stream))]
        began = time.process_time()
        new.extend(int(token) for token in stream)
        return new, time.process_time() - began


def trained(folder: Path, quick: bool) -> Run:
    """The run in a folder, trained if there is none."""
    if not quick:
        return Run.open(large_run(folder))
    if not (folder / "run.json").is_file():
        start("elastic", QUICK, folder, "cpu")
    return Run.open(folder)


def alpha_of(model: Any, texts: Tensor, where: Any) -> tuple[float, float]:
    """Σ min(p, q) over held-out text, and the share of equal likeliest tokens."""
    with torch.no_grad():
        p = model(texts)
        q = model(texts, where)
    same = (p.argmax(-1) == q.argmax(-1)).double().mean()
    return float(overlap(p.softmax(-1), q.softmax(-1)).mean()), float(same)


def rounds_of(sides: dict[str, Callable[[Tensor], tuple[list[int], float]]], prompts: Tensor, rounds: int) -> Any:
    """Each side in turn on each prompt; times, and whether all wrote the same."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    same = True
    for number in range(rounds + 1):
        for prompt in prompts:
            texts = {}
            for name, side in sides.items() if number % 2 else reversed(sides.items()):
                texts[name], took = side(prompt[None])
                if number:
                    times[name].append(took)
            same = same and all(text == texts["native"] for text in texts.values())
    return times, same


def main() -> None:
    """Train if needed, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ahead", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    run = trained(options.run or (Path("runs/speculation-quick") if options.quick else FOLDER), options.quick)
    model = run.model().eval()
    task = bundle_of(run).task
    native = model.native
    context = task.context
    tokens = context - PROMPT - 1 if not options.quick else 16
    held = task.validation[: (len(task.validation) // context) * context].view(-1, context)
    held = held[torch.linspace(0, len(held) - 1, 16).round().long()]
    prompts = held[:3, :PROMPT] if not options.quick else held[:1, :16]
    half = model.settle(at(d=native.d.n // 2, h=native.h.n // 2, z=native.z.steps // 2))
    alpha, equal = alpha_of(model, held, half)
    count = sum(p.numel() for p in model.parameters())
    console.print(f"{count:,} parameters; half of all: α {alpha:.3f}, equal {equal:.3f}")
    draft = Draft(model, half, options.ahead)
    plain = Native(model, -(-context // 64) * 64)
    compiled = Drafted(model, prompts[:1], draft, tokens, compile=True)
    eager = Drafted(model, prompts[:1], draft, tokens, compile=False)
    sides = {
        "native": lambda ids: plain.write(ids, tokens),
        "compiled": lambda ids: compiled.write(ids, tokens),
        "eager": lambda ids: eager.write(ids, tokens),
    }
    times, same = rounds_of(sides, prompts, options.rounds)
    gain = ratio(times["native"], times["compiled"])
    speculator = compiled.speculator
    kept = speculator.kept / max(1, speculator.proposed)
    note = f"half of all writes {options.ahead} ahead, greedy, batch 1, identical tokens: {same}"
    rows = [
        row("tokens a second with a draft / native alone, both compiled", gain, target=f"≥ {TARGET}",
            held=bool(gain.median >= TARGET and same), note=note),
        row("the same, the draft uncompiled", ratio(times["native"], times["eager"]), note="Python's own time"),
        Row("α of half of all on held-out text", alpha, note="Σ min(p, q)"),
        Row("likeliest tokens that are the same", equal),
        Row("tokens ahead that were kept", kept, note=f"of {speculator.proposed}"),
        Row("native, compiled", 1e3 * sum(times["native"]) / len(times["native"]) / (tokens - 1), unit="ms a token"),
    ]  # fmt: skip
    for each in rows:
        console.print(f"{each.name}: {each.shown} {each.target} {each.verdict} {each.note}")
    if not options.quick:
        steps = run.about["training"]["steps"]
        path = write("speculation", rows, environment=environment(), steps=steps, tokens=tokens, prompts=len(prompts))
        console.print(f"written: {path}")


if __name__ == "__main__":
    main()
