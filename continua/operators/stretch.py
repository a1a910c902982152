"""Rotations stretched beyond the lengths that a model was trained on: other frequencies for the same pairs."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from continua.config import register
from continua.settings import NonNegative, Positive


@runtime_checkable
class Stretch(Protocol):
    """Which frequencies the pairs of ``Rotary`` turn with, and by what queries and keys are multiplied."""

    @property
    def gain(self) -> float:
        """The factor of turned queries and keys."""
        ...

    def frequencies(self, base: float, width: int) -> tuple[float, ...]:
        """One for each pair of ``width`` coordinates."""
        ...


def plain_frequencies(base: float, width: int) -> tuple[float, ...]:
    """ω_i = base^(−2i/width)."""
    return tuple(base ** (-2 * i / width) for i in range(width // 2))


@register
@dataclass(frozen=True)
class LinearStretch:
    """ω_i / factor: positions are pressed together (Chen et al. 2023)."""

    factor: Positive

    @property
    def gain(self) -> float:
        """One."""
        return 1.0

    def frequencies(self, base: float, width: int) -> tuple[float, ...]:
        """All divided."""
        return tuple(plain / self.factor for plain in plain_frequencies(base, width))


@register
@dataclass(frozen=True)
class DynamicStretch:
    """ω_i · g^(−2i/(width−2)), g = max(1, factor·n/length − factor + 1) for a text of n tokens.

    Up to ``length`` tokens nothing changes. Keys that generation keeps stay as they were turned.
    """

    factor: Positive
    length: Positive

    @property
    def gain(self) -> float:
        """One."""
        return 1.0

    def frequencies(self, base: float, width: int) -> tuple[float, ...]:
        """Those of short texts."""
        return plain_frequencies(base, width)

    def exponents(self, width: int) -> tuple[float, ...]:
        """The powers of g."""
        return tuple(-2 * i / max(width - 2, 1) for i in range(width // 2))


@register
@dataclass(frozen=True)
class Llama3Stretch:
    """Llama 3.1: waves longer than length/low are divided by ``factor``, those shorter than length/high kept.

    Between the two, linearly in the number of waves that ``length`` tokens hold.
    """

    factor: Positive
    low: Positive
    high: Positive
    length: Positive

    @property
    def gain(self) -> float:
        """One."""
        return 1.0

    def frequencies(self, base: float, width: int) -> tuple[float, ...]:
        """Blend by the number of waves."""
        return tuple(self._blended(plain) for plain in plain_frequencies(base, width))

    def _blended(self, plain: float) -> float:
        waves = self.length * plain / (2 * math.pi)
        if waves > self.high:
            return plain
        if waves < self.low:
            return plain / self.factor
        kept = (waves - self.low) / (self.high - self.low) if self.high > self.low else 1.0
        return (1 - kept) * plain / self.factor + kept * plain


@register
@dataclass(frozen=True)
class YarnStretch:
    """YaRN (Peng et al. 2023): pairs that turn often keep ω_i, those that turn rarely get ω_i/factor, a ramp between.

    The ramp lies between the pairs that turn ``fast`` and ``slow`` times in ``length`` tokens, rounded outwards if
    ``whole``.
    """

    factor: Positive
    length: Positive
    fast: Positive = 32.0
    slow: Positive = 1.0
    whole: bool = True
    gain: NonNegative = 1.0

    def frequencies(self, base: float, width: int) -> tuple[float, ...]:
        """Blend along the ramp."""
        start = self._pair(self.fast, base, width)
        end = self._pair(self.slow, base, width)
        if self.whole:
            start = math.floor(start)
            end = math.ceil(end)
        start = max(start, 0)
        end = min(end, width - 1)
        end = end + 0.001 if end == start else end
        made = []
        for i, plain in enumerate(plain_frequencies(base, width)):
            pressed = min(max((i - start) / (end - start), 0.0), 1.0)
            made.append(plain / self.factor * pressed + plain * (1 - pressed))
        return tuple(made)

    def _pair(self, turns: float, base: float, width: int) -> float:
        """Which pair turns so often in ``length`` tokens."""
        return width * math.log(self.length / (turns * 2 * math.pi)) / (2 * math.log(base))


@register
@dataclass(frozen=True)
class LongStretch:
    """LongRoPE (Ding et al. 2024): ω_i / short_i in texts of up to ``length`` tokens, ω_i / long_i in longer ones.

    Both have a factor for each pair; other inner widths read them at the same relative coordinates. Keys that
    generation keeps stay as they were turned.
    """

    short: tuple[Positive, ...]
    long: tuple[Positive, ...]
    length: Positive
    gain: NonNegative = 1.0

    def frequencies(self, base: float, width: int) -> tuple[float, ...]:
        """Those of short texts."""
        return self._divided(self.short, base, width)

    def long_frequencies(self, base: float, width: int) -> tuple[float, ...]:
        """Those of longer texts."""
        return self._divided(self.long, base, width)

    def _divided(self, factors: tuple[float, ...], base: float, width: int) -> tuple[float, ...]:
        pairs = width // 2
        read = [factors[i * len(factors) // pairs] for i in range(pairs)]
        return tuple(plain / factor for plain, factor in zip(plain_frequencies(base, width), read, strict=True))
