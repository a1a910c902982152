"""Tokens of a real model through depth, small enough for the page: directions along three axes, and their start."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from torch.nn.functional import normalize

from continua.errors import ConfigError
from continua.lab.probes.dynamics import Dynamics, Recording
from continua.typing import Float, Tensor

AXES = 3
DIGITS = 4
MOST_TOKENS = 64


@dataclass(frozen=True)
class Told:
    """One text. ``places`` [depth, n, 3] are the directions of its tokens along the three axes that show most of them.

    ``start`` [n, r] are the directions before the first layer in a basis of their own span, ``axes`` [r, 3] the three
    axes in that basis: particles that begin there stay in that span. ``cosines`` are means over pairs at each depth.
    """

    tokens: tuple[str, ...]
    places: tuple[tuple[tuple[float, ...], ...], ...]
    start: tuple[tuple[float, ...], ...]
    axes: tuple[tuple[float, ...], ...]
    cosines: tuple[float, ...]


@dataclass(frozen=True)
class RealModel:
    """What the page shows of a model: its texts, and for each layer the median β and how well it fits."""

    name: str
    texts: tuple[Told, ...]
    betas: tuple[float, ...]
    fits: tuple[float, ...]
    jumps: tuple[float, ...]

    def save(self, path: Path) -> Path:
        """Write it in one line."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")
        except OSError as problem:
            why = problem.strerror or str(problem)
            raise ConfigError(f"{path} cannot be written", got=why, remedy="Choose another place.") from problem
        return path


def real_model(name: str, seen: Recording, moved: Dynamics, labels: Sequence[Sequence[str]]) -> RealModel:
    """Everything that the page shows, from what was recorded and measured."""
    texts = []
    for text, keep in enumerate(seen.counted):
        states = [normalize(x[text][keep], dim=-1) for x in seen.states]
        names = [label for label, counts in zip(labels[text], keep.tolist(), strict=False) if counts]
        texts.append(_told(states, names))
    return RealModel(
        name,
        tuple(texts),
        betas=tuple(round(median(move.beta), DIGITS) for move in moved.moves),
        fits=tuple(round(median(move.fit), DIGITS) for move in moved.moves),
        jumps=tuple(round(move.jump, DIGITS) for move in moved.moves),
    )


def _told(states: Sequence[Float[Tensor, "n d"]], names: Sequence[str]) -> Told:
    directions = torch.stack([u[:MOST_TOKENS] for u in states])
    flat = directions.flatten(0, 1)
    axes = torch.linalg.svd(flat - flat.mean(0), full_matrices=False).Vh[:AXES].mT
    basis = torch.linalg.qr(directions[0].mT).Q
    pairs = directions @ directions.mT
    count = directions.shape[1]
    cosines = (pairs.sum((-2, -1)) - count) / (count * (count - 1))
    return Told(
        tokens=tuple(names[:MOST_TOKENS]),
        places=tuple(_rows(u) for u in directions @ axes),
        start=_rows(directions[0] @ basis),
        axes=_rows(basis.mT @ axes),
        cosines=tuple(round(value, DIGITS) for value in cosines.tolist()),
    )


def _rows(values: Float[Tensor, "n k"]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(value, DIGITS) for value in row) for row in values.tolist())
