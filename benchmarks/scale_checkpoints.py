"""Checkpoints of many processes: other numbers of them, and processes that are killed. Part of ``scale.py``."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from common import Row
from rich.console import Console
from safetensors.torch import load_file

from continua.models import zoo
from continua.training import Run
from continua.training.distributed import joined, wrapped
from tests.forked import together
from tests.killed_ranks import Kill, killed
from tests.runs import states
from tests.shards import CHOSEN, kept, laid_out, one_file, written

KILLS = 20
NOTICED = 30.0  # seconds
STEPS = 3


def medium() -> Any:
    """GPT-2's shape; five layers and 61 words divide by neither two nor four."""
    torch.manual_seed(0)
    return zoo.gpt2(vocab=61, d=64, heads=4, depth=5, context=32)


def begun(folder: Path) -> None:
    """Some steps with gradients of a seed, then a checkpoint."""
    with joined() as world:
        model = medium()
        root = torch.nn.Sequential(model)
        wrapped(root, world, sharded=True)
        optimisers = CHOSEN.make(model)
        draw = torch.Generator().manual_seed(1)
        for _ in range(STEPS):
            ids = torch.randint(0, 61, (2, 32), generator=draw)
            root(ids).square().mean().backward()
            optimisers.step(1.0)
            optimisers.zero_grad()
        written(world, model, optimisers, folder)


def gone_on(folder: Path, path: Path) -> None:
    """From a checkpoint to another one."""
    with joined() as world:
        written(world, *laid_out(world, path, medium), folder)


def resumed() -> list[Row]:
    """Numbers of weights and optimisers that differ from what two processes had, on one process and on four."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        two = place / "two"
        four = place / "four"
        two.mkdir()
        four.mkdir()
        together(begun, two, folder=two, count=2)
        wanted = load_file(two / "had.safetensors")
        shards = kept(next(states(two / "again")))
        Run.open(two / "again").gather()
        path = next(states(two / "again"))
        one = one_file(path)
        together(gone_on, four, path, folder=four, count=4)
        stages = {"2 → 1": [shards, one], "2 → 1 → 4": [load_file(four / "had.safetensors")]}
        stages["2 → 1 → 4 → 1"] = [kept(next(states(four / "again")))]
    total = sum(value.numel() for value in wanted.values())
    rows = []
    for stage, found in stages.items():
        other = sum(differing(own, wanted) for own in found)
        note = f"of {total:,} of weights, AdamW and Muon"
        rows.append(
            Row(f"resume {stage} processes: numbers that differ", other, target="0", held=other == 0, note=note)
        )
    return rows


def differing(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> int:
    """How many numbers are not the same, to the bit; all of a tensor that is missing or of another kind."""
    other = 0
    for name in {*found, *wanted}:
        a = found.get(name)
        b = wanted.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            other += max(0 if one is None else one.numel() for one in (a, b))
        else:
            other += int((a != b).sum())
    return other


def kills() -> list[Row]:
    """Runs that end otherwise than one that was left alone, and how long the other process lives on."""
    console = Console(stderr=True)

    def tick(kill: Kill) -> None:
        console.print(kill, markup=False)

    seen = killed(KILLS, seed=0, tick=tick)
    stepping = sum(kill.stepping for kill in seen.kills)
    writing = sum(kill.writing for kill in seen.kills)
    note = f"{seen.runs} runs; {stepping} kills after a step, {writing} while a checkpoint was written"
    longest = max(kill.seconds for kill in seen.kills)
    name = f"a process killed at {len(seen.kills)} random moments"
    held = seen.other == 0 and len(seen.kills) >= KILLS
    return [
        Row(f"{name}: runs that end otherwise", seen.other, target="0", held=held, note=note),
        Row(
            f"{name}: the other ends after, at most",
            longest,
            unit="s",
            target=f"≤ {NOTICED:g}",
            held=longest <= NOTICED,
        ),
    ]
