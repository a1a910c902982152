"""Files on disk against training: does the loader keep up? Run by ``benchmarks/scale.py --only loader``.

Tokens (nodes of fields) that one thread reads from token (field) files in a CPU second, over those that a step of
training takes in one; the model of texts has the size of ``continua demo`` and is trained at that size alone, which is
its quickest step.
"""

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import Row, cpu_seconds, interleaved, ratio, row

from continua.data import Characters, built, built_fields, python_source
from continua.recipes import Bundle, build

FASTER = 10
LOADED = 20  # examples in a row


def training_of(bundle: Bundle) -> Callable[[], None]:
    """A step of training: forward, backward and optimiser, on one example."""
    example = bundle.task.example(0, 0)
    optimisers = bundle.optimiser.make(bundle.model)

    def work() -> None:
        optimisers.zero_grad()
        (bundle.task.loss(bundle.model(example.batch), example) / example.count).backward()
        optimisers.step(1.0)

    return work


def keeps_up(name: str, bundle: Bundle) -> Row:
    """How much faster examples are read than they are learned from."""
    step = iter(range(10**9))
    train = training_of(bundle)

    def load() -> None:
        for _ in range(LOADED):
            bundle.task.example(0, next(step))

    cases = {"train": lambda: cpu_seconds(train), "load": lambda: cpu_seconds(load) / LOADED}
    seen = interleaved(cases, rounds=9, warmup=2)
    got = ratio(seen["train"], seen["load"])
    per_second = bundle.task.example(0, 0).target.shape[:2].numel() / statistics.median(seen["load"])
    note = f"{per_second:,.0f} a CPU second"
    return row(name, got, target=f"≥ {FASTER}", held=got.median >= FASTER, note=note)


def loader() -> list[Row]:
    """Texts and fields from disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = python_source()
        whole = corpus.train + corpus.validation
        (folder / "text.txt").write_text(whole, encoding="utf-8")
        built([folder / "text.txt"], folder / "tokens", Characters.of(whole), unit_bytes=2**21)
        texts = build("text", {"text": str(folder / "tokens"), "discrete": True})
        waves = torch.randn(64, 21, 256, 1, generator=torch.Generator().manual_seed(0)).numpy()
        np.save(folder / "waves.npy", waves)
        built_fields([folder / "waves.npy"], folder / "fields", ("circle",), unit_bytes=2**20)
        fields = build("fields", {"folder": str(folder / "fields")})
        return [
            keeps_up("loader tokens/s / training tokens/s of the demo model", texts),
            keeps_up("loader nodes/s / training nodes/s of fields on 256 nodes", fields),
        ]
