"""Which sizes of a model learn at a step."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from continua.axes import Discretisation, at
from continua.config import register
from continua.errors import ConfigError
from continua.flow import Fixed
from continua.settings import Share, SomeShare

ALL = "a"  # beside axes in a mix: all of them as small as they get
RANDOM = "r"  # each at random
WIDTHS = (16, 17, 18, 19, 21, 22, 23, 24, 26, 28, 30, 32)  # of 32; without 20, so that 5/8 tells of sizes never seen


class Lesson(NamedTuple):
    """A size that learns at one step, from one of ``parts`` equal blocks of the batch, or of its first tokens."""

    at: Discretisation
    block: int
    parts: int
    tokens: int | None = None


@runtime_checkable
class LessonPlan(Protocol):
    """The lessons of one model."""

    def draw(self, progress: float, generator: torch.Generator) -> list[Lesson]:
        """What is learned at a step, ``progress`` being its share of the run.

        The generator is a function of (seed, step), equal on all processes, and nothing else may be random.
        """
        ...

    def drew(self, sizes: Mapping[str, Any]) -> bool:
        """Whether training may have drawn a size: numbers by letter, for steps that are joined their lengths."""
        ...


@runtime_checkable
class SizeLaw(Protocol):
    """Says which sizes are lessons; frozen and registered, so that a run remembers it."""

    def over(self, model: Any) -> LessonPlan:
        """The law for one model."""
        ...


def native_sizes(model: Any) -> dict[str, int]:
    """Width, heads and steps of a model, whose steps are to be known."""
    native = model.native
    if not isinstance(native.z, Fixed):
        remedy = "Make the model with fixed steps: at(z=6)."
        raise ConfigError("sizes are numbers of steps", got=native.z, remedy=remedy)
    return {"d": native.d.n, "h": native.h.n, "z": native.z.steps}


@register
@dataclass(frozen=True)
class SmallerSizes:
    """``draws`` sizes a step from ``start`` on (a share of all steps), each on one of ``parts`` blocks of the batch.

    ``d``, ``h``, ``z`` are the sizes to draw from; None is half of heads and steps, and widths from half to all in
    32nds (some are left out). Unless they are given too, ``e`` stays and ``m`` follows d as ``at`` has it; ``t`` are
    numbers of tokens, for shorter contexts. A size is one axis made smaller, all of them as small as they get, or each
    at random, in equal shares, or by ``mix``: letters of axes, a for all and r for random, of which one that stands
    twice is drawn twice as often. With the chance ``deep`` it is twice the native steps instead, on half of a block,
    and with the chance ``joined`` neighbouring steps are joined, all in pairs or each by a coin, now and then of a size
    that is smaller besides. The second joined with the third alone (``never_joined``) is never drawn, so that it tells
    of joinings never seen. With the chance ``quarters`` a step has one more lesson, of a size below half: a quarter of
    everything, or axes at a quarter, half and all at random. ``often`` is the share of the steps that have lessons.
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
    deep: Share = 0.0
    joined: Share = 0.0
    quarters: Share = 0.0
    mix: str = ""
    often: SomeShare = 1.0

    def __post_init__(self) -> None:
        if self.draws < 1 or self.parts < 1 or not 0 <= self.start <= 1:
            remedy = "Use draws and parts from 1 on, and start between 0 and 1."
            raise ConfigError("this is no law of sizes", got=self, remedy=remedy)
        known = {*"dhz"} | {k for k, sizes in self._named.items() if sizes} | {ALL, RANDOM}
        if not set(self.mix) <= known:
            remedy = "Write letters of axes that are drawn, a for all and r for random: mix='ddhzar'."
            raise ConfigError("mix says how often sizes of a kind are drawn", got=self.mix, remedy=remedy)
        for letter, sizes in {**self._named, "t": self.t}.items():
            if sizes is not None and (not sizes or min(sizes) < 1):
                raise ConfigError(f"{letter} lists the sizes to draw", got=sizes, remedy=f"Write {letter}=(64, 128).")

    @property
    def _named(self) -> dict[str, tuple[int, ...] | None]:
        return {"d": self.d, "h": self.h, "z": self.z, "e": self.e, "m": self.m}

    def over(self, model: Any) -> "Sizes":
        """The law for one model: its native sizes are all of it."""
        native = model.native
        full = native_sizes(model)
        full |= {"e": native.e.n} if self.e else {}
        full |= {"m": native.m.n} if self.m else {}
        usual = {
            "d": [round(full["d"] * k / 32) for k in WIDTHS],
            "h": [max(1, full["h"] // 2), full["h"]],
            "z": [max(1, full["z"] // 2), full["z"]],
        }
        chosen = {k: tuple(dict.fromkeys(self._named[k] or usual[k])) for k in full}
        return Sizes(full, chosen, self)


@dataclass(frozen=True)
class Sizes:
    """A distribution over sizes of one model."""

    full: Mapping[str, int]
    choices: Mapping[str, tuple[int, ...]]
    law: SmallerSizes

    def draw(self, progress: float, generator: torch.Generator) -> list[Lesson]:
        """What is learned at a step."""
        law = self.law
        if progress < law.start:
            return []

        def pick(count: int) -> int:
            return int(torch.randint(count, (1,), generator=generator))

        lessons = []
        taught = law.often == 1 or float(torch.rand(1, generator=generator)) < law.often
        for _ in range(law.draws if taught else 0):
            chance = float(torch.rand(1, generator=generator))
            sizes: dict[str, Any]
            parts = law.parts
            if chance < law.deep:
                sizes = {**self.full, "z": 2 * self.full["z"]}
                parts = 2 * law.parts
            elif chance < law.deep + law.joined and self.full["z"] > 2:
                others = self._smaller(pick) if pick(5) < 2 else self.full
                sizes = {**others, "z": self._joining(pick)}
            else:
                sizes = self._smaller(pick)
            tokens = law.t[pick(len(law.t))] if law.t else None
            lessons.append(Lesson(at(**sizes), pick(parts), parts, tokens))
        if law.quarters > 0 and float(torch.rand(1, generator=generator)) < law.quarters:
            lessons.append(Lesson(at(**self._below_half(pick)), pick(law.parts), law.parts))
        return lessons

    def _joining(self, pick: Callable[[int], int]) -> Fixed:
        """Lengths of steps, out of native ones: every pair is joined, or each neighbour by a coin."""
        native = self.full["z"]
        if pick(5) < 2 and native % 2 == 0:
            return Fixed(native // 2, lengths=(2,) * (native // 2))
        while True:
            lengths = [1]
            for _ in range(native - 1):
                if pick(5) < 2:
                    lengths[-1] += 1
                else:
                    lengths.append(1)
            if len(lengths) < native and tuple(lengths) != never_joined(native):
                return Fixed(len(lengths), lengths=tuple(lengths))

    def _smaller(self, pick: Callable[[int], int]) -> dict[str, int]:
        smaller = {k: [n for n in sizes if n < self.full[k]] for k, sizes in self.choices.items()}
        open_axes = [k for k, sizes in smaller.items() if sizes]
        kinds = [k for k in self.law.mix or [*open_axes, ALL, RANDOM] if k in {*open_axes, ALL, RANDOM}]
        kind = kinds[pick(len(kinds))] if kinds else ALL
        if kind in open_axes:  # one axis, and its smallest size more often
            own = smaller[kind]
            return {**self.full, kind: own[pick(len(own))] if pick(4) else min(own)}
        if kind == ALL:
            return {k: min(sizes) for k, sizes in self.choices.items()}
        return {k: sizes[pick(len(sizes))] for k, sizes in self.choices.items()}

    def _below_half(self, pick: Callable[[int], int]) -> dict[str, int]:
        """Some axis at a quarter; width, heads and steps that are not drawn stay."""
        shares = {k: sorted({max(1, n // 4), max(1, n // 2), n}) for k, n in self.full.items() if k in "dhz"}
        if pick(3) == 0:
            return {k: sizes[0] for k, sizes in shares.items()}
        letter = "dhz"[pick(3)]
        return {k: sizes[0 if k == letter else pick(len(sizes))] for k, sizes in shares.items()}

    def drew(self, sizes: Mapping[str, Any]) -> bool:
        """Whether training may have drawn a size: numbers by letter, for steps that are joined their lengths.

        Where m is left out it follows d; e, h, d and z are the native ones then.
        """
        given = {**sizes, "m": self._following(sizes)} if "m" in self.full and "m" not in sizes else sizes
        if any(k not in self.full for k in given):  # an axis that is never drawn
            return False
        full = {k: given.get(k, n) for k, n in self.full.items()}
        if full == {**self.full, "z": 2 * self.full["z"]} and self.law.deep > 0:
            return True
        if isinstance(full["z"], tuple):
            return self._drew_joining(full)
        known = {k: {*self.choices[k], n} for k, n in self.full.items()}
        if self.law.quarters > 0:
            known |= {k: known[k] | {max(1, self.full[k] // 4), max(1, self.full[k] // 2)} for k in "dhz"}
        if self.law.joined > 0:
            known["z"] |= set(range(1, self.full["z"]))
        return all(full[k] in known[k] for k in full)

    def _drew_joining(self, sizes: Mapping[str, Any]) -> bool:
        """Lengths of native steps, where these are joined at all."""
        native = self.full["z"]
        lengths = sizes["z"]
        drawn = 2 < native == sum(lengths) and len(lengths) < native and lengths != never_joined(native)
        return (
            drawn
            and self.law.joined > 0
            and all(sizes[k] in {*self.choices[k], n} for k, n in self.full.items() if k != "z")
        )

    def _following(self, sizes: Mapping[str, Any]) -> int:
        """The hidden width that ``at`` gives to a width."""
        return max(1, round(self.full["m"] * sizes.get("d", self.full["d"]) / self.full["d"]))


def never_joined(steps: int) -> tuple[int, ...]:
    """The joining of so many steps that is never a lesson: the second and the third alone."""
    return (1, 2, *(1 for _ in range(steps - 3)))


def block(rows: int, lesson: Lesson) -> slice:
    """The rows of a lesson. Processes hold every k-th row of a batch: equal blocks of theirs make one of the whole."""
    size = max(1, math.ceil(rows / lesson.parts))
    start = min(lesson.block * size, rows - size)
    return slice(start, start + size)
