"""Tiny things to train: a text of a few thousand characters and models of width 8."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from continua.axes import at
from continua.data.corpus import Corpus, cut
from continua.flow import Fixed, LieTrotter
from continua.models import Transformer
from continua.models.build import continuous_parts
from continua.models.init import Scaled, initialise
from continua.operators import Parts
from continua.operators.dropout import Drop
from continua.optim import AdamW, ByRole
from continua.tasks import Characters, Text

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "one", "dog", "ran", "far", "from", "it"]
FAST = ByRole(AdamW(1e-2))


def tiny_text(count: int = 900) -> str:
    """Words in an order that only looks random."""
    return " ".join(WORDS[(i * i + i // 3) % len(WORDS)] for i in range(count)) + "\n"


def tiny_corpus() -> Corpus:
    return cut("tiny", tiny_text())


def tiny_task(batch: int = 4, limit: int | None = 2) -> Text:
    corpus = tiny_corpus()
    return Text(corpus, Characters.of(corpus.train + corpus.validation), context=8, batch=batch, limit=limit)


def tiny_model(dropout: float = 0.0, solver: Any = None, steps: int = 2, double: bool = False) -> Transformer:
    """Always the same weights."""
    depth = Fixed(steps, solver or LieTrotter())
    parts = continuous_parts(vocab=tiny_task().tokens.size, at=at(d=8, h=2, z=depth))
    if dropout:
        parts["block"] = Parts(tuple(Drop(part, dropout) for part in parts["block"]))
    model = Transformer(**parts)
    initialise(model, Scaled(), torch.Generator().manual_seed(1))
    return model.double() if double else model


def calibrated(model: Any) -> Any:
    """An elastic model whose calibration says something."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".calibration." in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


def silent(at: Any) -> None:
    """Watches nothing."""


def steps_of(folder: Path) -> list[int]:
    """The steps in a history, notes left out, read with nothing of the library."""
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if "note" not in line]


def timeless(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A history without what no two runs share."""
    return [{k: v for k, v in line.items() if k != "seconds"} for line in history]


def states(folder: Path) -> Iterator[Path]:
    """The checkpoints of a run, the newest first."""
    yield from sorted((folder / "checkpoints").glob("step-*"), reverse=True)
