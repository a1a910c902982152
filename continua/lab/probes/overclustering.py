"""What clustering too far costs: the last layers applied again and again, until tokens forget the classes too."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from continua.axes import Discretisation
from continua.errors import ConfigError
from continua.lab.probes.separation import RIDGE, Level, Pool, Samples, accuracy, follow, mean_token
from continua.lab.probes.stack import Stack, evaluating, opened
from continua.models import View
from continua.tasks import Example
from continua.typing import Tensor


@dataclass(frozen=True)
class Overclustered:
    """Samples after the last ``layers`` layers were applied ``0, 1, 2, …`` more times: one level for each."""

    layers: int
    levels: tuple[Level, ...]
    chance: float

    def rows(self) -> list[dict[str, Any]]:
        """The table: one line for each repeat."""
        return [{"repeats": i, **asdict(level)} for i, level in enumerate(self.levels)]

    def lost(self) -> dict[str, float]:
        """What the model's own end had and the last repeat has not, for each number (above zero: it is gone)."""
        before = asdict(self.levels[0])
        after = asdict(self.levels[-1])
        return {name: before[name] - after[name] for name in before if name != "z" and before[name] is not None}


@torch.no_grad()
def overclustered(
    model: nn.Module | View,
    example: Example,
    repeats: int = 8,
    *,
    layers: int = 1,
    at: Discretisation | None = None,
    pool: Pool = mean_token,
    ridge: float = RIDGE,
) -> Overclustered:
    """Apply the last ``layers`` layers up to ``repeats`` more times, and measure what is lost of the classes.

    ``layers=model.native.z.steps`` runs the whole depth again and again.
    """
    seen = follow(model, example, at, pool, ridge)
    stack = opened(seen.model, seen.t, seen.at)
    if not 1 <= layers <= len(stack.steps):
        remedy = f"Give 1 to {len(stack.steps)}."
        raise ConfigError("some of the last layers are repeated", got=layers, remedy=remedy)
    if repeats < 1:
        raise ConfigError("layers are repeated at least once", got=repeats, remedy="Give repeats=8.")
    if example.batch.pairs is not None:
        remedy = "Leave pairs out, or forbid them with a mask of the model."
        raise ConfigError("repeated layers see every token", got="pairs in the batch", remedy=remedy)
    like = next(seen.model.parameters())
    root = stack.root
    x = seen.states[-1].to(like) / root.to(like)
    end = seen.depths[-1]
    levels = [seen.level(seen.states[-1], end, seen.answers)]
    for again in range(1, repeats + 1):
        for z, dz in stack.steps[-layers:]:
            x = stack.advance(z, dz, x)
        said = _said(seen, stack, x)
        length = sum(dz for _, dz in stack.steps[-layers:])
        levels.append(seen.level((x * root.to(like)).double().cpu(), end + again * length, said))
    return Overclustered(layers, tuple(levels), 1.0 / int(seen.labels.unique().numel()))


def _said(seen: Samples, stack: Stack, x: Tensor) -> float | None:
    """The accuracy of the model's own readout on these states."""
    with evaluating(seen.model):
        answer = stack.answer(x)
    return None if answer is None else accuracy(answer, seen.labels)
