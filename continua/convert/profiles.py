"""Widths and steps that vary with depth, chosen by what a model loses: measured, one step at a time."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from continua.errors import ConfigError
from continua.flow import Fixed
from continua.models import Batch
from continua.typing import Tensor

PARTS = 8  # sizes that are tried: eighths of the native one


def best_profile(model: Any, batches: Iterable[Batch | Tensor], share: float, parts: int = PARTS) -> tuple[int, ...]:
    """The hidden widths m(z), one for each step, that lose least with ``share`` of all hidden nodes.

    Each step is narrowed alone to some of ``parts`` equal sizes, and what the answers lose is measured; losses add up
    where they are small, so the best profile for a budget of nodes, which is one of feed-forward FLOPs, is found by
    dynamic programming. ``model.at(m=best_profile(model, batches, 0.5))`` is the view.
    """
    control = model.native.z
    native = model.native.m.n
    if not 0.0 < share <= 1.0 or not isinstance(control, Fixed) or parts < 2 or parts > native:
        got = f"a share of {share:g} in {parts} parts"
        remedy = f"Use a share above 0, up to 1, and 2 to {native} parts."
        raise ConfigError("a profile spends a share of the hidden nodes", got=got, remedy=remedy)
    held = answers(model, batches)
    sizes = [max(1, round(native * part / parts)) for part in range(1, parts + 1)]
    losses = []
    for step in range(control.steps):
        alone = [[native] * step + [size] + [native] * (control.steps - step - 1) for size in sizes[:-1]]
        losses.append([*(loss(model.at(m=tuple(one)), held) for one in alone), 0.0])
    chosen = spent(losses, math.floor(share * parts * control.steps + 1e-9))
    return tuple(sizes[part - 1] for part in chosen)


def spent(losses: Sequence[Sequence[float]], budget: int) -> tuple[int, ...]:
    """How many parts each step gets, one at least, so that Σ losses[step][parts − 1] is least within the budget.

    >>> spent([[4.0, 0.0], [1.0, 0.0], [3.0, 0.0]], budget=5)
    (2, 1, 2)
    """
    if budget < len(losses):
        remedy = f"Spend {len(losses)} parts or more."
        raise ConfigError("every step needs a part of its width", got=f"{budget} parts", remedy=remedy)
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for own in losses:
        grown: dict[int, tuple[float, tuple[int, ...]]] = {}
        for (used, (loss, chosen)), (part, more) in itertools.product(best.items(), enumerate(own, start=1)):
            total = used + part
            if total <= budget and (total not in grown or loss + more < grown[total][0]):
                grown[total] = (loss + more, (*chosen, part))
        best = grown
    return min(best.values())[1]


def best_steps(
    model: Any, batches: Iterable[Batch | Tensor], steps: int, start: Callable[[Fixed], None] | None = None
) -> Fixed:
    """``steps`` steps out of the native ones by joining neighbours: always the pair that loses least, as measured.

    ``model.at(z=best_steps(model, batches, 5))`` is the view. Depth is brittle: a joined pair takes the weights of its
    first layer, over both lengths. ``start`` is called with each way to step before it is measured.
    """
    control = model.native.z
    if not isinstance(control, Fixed) or not 1 <= steps <= control.steps:
        remedy = f"Use 1 to {control.steps} steps."
        raise ConfigError("steps are joined out of the native ones", got=steps, remedy=remedy)
    held = answers(model, batches)
    lengths = (1,) * control.steps
    while len(lengths) > steps:
        joined = [(*lengths[:i], lengths[i] + lengths[i + 1], *lengths[i + 2 :]) for i in range(len(lengths) - 1)]
        lost = {}
        for own in joined:
            if start is not None:
                start(_fixed(own, control))
            lost[own] = loss(model.at(z=_fixed(own, control)), held)
        lengths = min(joined, key=lambda own: lost[own])
    return _fixed(lengths, control)


def _fixed(lengths: tuple[int, ...], native: Fixed) -> Fixed:
    return Fixed(len(lengths), native.solver, lengths=lengths)


def answers(model: Any, batches: Iterable[Batch | Tensor]) -> list[tuple[Batch | Tensor, Tensor]]:
    """Batches, and what the native size answers."""
    with torch.no_grad():
        held = [(batch, model(batch)) for batch in batches]
    if not held:
        remedy = "Give batches of the kind the model will read."
        raise ConfigError("a choice by data needs data", got="none", remedy=remedy)
    return held


def loss(view: Any, held: Sequence[tuple[Batch | Tensor, Tensor]]) -> float:
    """Σ |answer − native answer|² / Σ |native answer|²."""
    ready = view.held()
    lost = sum(float((ready(batch) - native).double().square().sum()) for batch, native in held)
    return lost / sum(float(native.double().square().sum()) for _, native in held)
