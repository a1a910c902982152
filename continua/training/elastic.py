"""Elastic training: one set of weights for many sizes, the native size teaching the others."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from continua.axes import Discretisation, at
from continua.config import register
from continua.errors import ConfigError

LETTERS = "dhzemt"
WIDTHS = (16, 17, 18, 19, 21, 22, 23, 24, 26, 28, 30, 32)  # of 32; without 20, so that 5/8 tells of sizes never seen


class Lesson(NamedTuple):
    """A size that learns at one step, from one of ``parts`` equal blocks of the batch, or of its first tokens."""

    at: Discretisation
    block: int
    parts: int
    tokens: int | None = None


@register
@dataclass(frozen=True)
class Elastic:
    """J + weight · mean over ``draws`` sizes of (1 − distil) loss + distil KL(native ‖ size), from ``start`` on.

    The native size learns from the data as ever, at every step; until ``start`` (a share of all steps) it is alone.
    Then at each step some sizes are drawn, each sees one of ``parts`` equal blocks of the batch and learns to answer
    as the native size does. ``d``, ``h``, ``z`` are the sizes to draw from (None: see ``over``). Unless they are given
    too, ``e`` stays and ``m`` follows d as ``at`` has it; ``t`` are numbers of tokens, for shorter contexts. A size is
    one axis made smaller, all of them as small as they get, or each at random, in equal shares; with the chance
    ``deep`` it is twice the native steps instead, on half of a block.
    """

    d: tuple[int, ...] | None = None
    h: tuple[int, ...] | None = None
    z: tuple[int, ...] | None = None
    e: tuple[int, ...] | None = None
    m: tuple[int, ...] | None = None
    t: tuple[int, ...] | None = None
    draws: int = 2
    parts: int = 2
    start: float = 0.42
    weight: float = 0.6
    distil: float = 1.0
    deep: float = 0.28

    def __post_init__(self) -> None:
        if self.draws < 1 or self.parts < 1 or not 0 <= self.start <= 1 or not 0 <= self.distil <= 1:
            remedy = "Use draws and parts from 1 on, start and distil between 0 and 1."
            raise ConfigError("this is no elastic training", got=self, remedy=remedy)
        for letter in LETTERS:
            sizes = getattr(self, letter)
            if sizes is not None and (not sizes or min(sizes) < 1):
                raise ConfigError(f"{letter} lists the sizes to draw", got=sizes, remedy=f"Write {letter}=(64, 128).")

    def over(self, model: Any) -> "Sizes":
        """The law for one model: from half of everything to all of it, widths in 32nds (some are left out)."""
        native = model.native
        full = {"d": native.d.n, "h": native.h.n, "z": native.z.steps}
        full |= {k: getattr(native, k).n for k in "em" if getattr(self, k)}
        width = [round(full["d"] * k / 32) for k in WIDTHS]
        usual = {"d": width, **{k: [max(1, full[k] // 2), full[k]] for k in "hz"}}
        chosen = {k: tuple(dict.fromkeys(getattr(self, k) or usual[k])) for k in full}
        return Sizes(full, chosen, self)


@dataclass(frozen=True)
class Sizes:
    """A distribution over sizes of one model."""

    full: Mapping[str, int]
    choices: Mapping[str, tuple[int, ...]]
    law: Elastic

    def draw(self, progress: float, generator: torch.Generator) -> list[Lesson]:
        """What is learned at a step; the generator is a function of (seed, step), equal on all processes."""
        law = self.law
        if progress < law.start:
            return []

        def pick(count: int) -> int:
            return int(torch.randint(count, (1,), generator=generator))

        lessons = []
        for _ in range(law.draws):
            if float(torch.rand(1, generator=generator)) < law.deep:
                sizes, parts = {**self.full, "z": 2 * self.full["z"]}, 2 * law.parts
            else:
                sizes, parts = self._smaller(pick), law.parts
            tokens = law.t[pick(len(law.t))] if law.t else None
            lessons.append(Lesson(at(**sizes), pick(parts), parts, tokens))
        return lessons

    def _smaller(self, pick: Callable[[int], int]) -> dict[str, int]:
        smaller = {k: [n for n in sizes if n < self.full[k]] for k, sizes in self.choices.items()}
        open_axes = [k for k, sizes in smaller.items() if sizes]
        kind = pick(len(open_axes) + 2)
        if kind < len(open_axes):  # one axis, and its smallest size more often
            letter = open_axes[kind]
            own = smaller[letter]
            return {**self.full, letter: own[pick(len(own))] if pick(4) else min(own)}
        if kind == len(open_axes):
            return {k: min(sizes) for k, sizes in self.choices.items()}
        return {k: sizes[pick(len(sizes))] for k, sizes in self.choices.items()}

    def drew(self, sizes: Mapping[str, int]) -> bool:
        """Whether training may have drawn a size."""
        if all(sizes.get(k, n) == (n if k != "z" else 2 * n) for k, n in self.full.items()) and self.law.deep > 0:
            return True
        return all(sizes.get(k, n) in {*self.choices[k], n} for k, n in self.full.items())


def block(rows: int, lesson: Lesson) -> slice:
    """The rows of a lesson. Processes hold every k-th row of a batch: equal blocks of theirs make one of the whole."""
    size = max(1, math.ceil(rows / lesson.parts))
    start = min(lesson.block * size, rows - size)
    return slice(start, start + size)
