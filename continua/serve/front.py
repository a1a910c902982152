"""The table of sizes: what a token costs at each, and which one a deadline allows (SlackFit, Khare et al. 2025)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from continua.axes import Discretisation


@dataclass(frozen=True)
class SizeCost:
    """One size: what it is called, its held-out loss where one was measured, and seconds of its passes.

    ``step`` holds seconds of one token for each of ``batches`` samples at once, ``reading`` those of one prompt token.
    """

    name: str
    at: Discretisation
    loss: float | None
    batches: tuple[int, ...]
    step: tuple[float, ...]
    reading: float

    def seconds(self, samples: int) -> float:
        """One token of so many samples: on the line between those that were measured."""
        return _between(samples, self.batches, self.step)

    def whole(self, prompt: int, tokens: int, samples: int = 1) -> float:
        """A whole text among so many others."""
        return prompt * self.reading + tokens * self.seconds(samples)


@dataclass(frozen=True)
class Front:
    """Sizes from the best to the quickest; the first is the native one."""

    sizes: tuple[SizeCost, ...]

    def __getitem__(self, name: str) -> SizeCost:
        return next(size for size in self.sizes if size.name == name)

    def __contains__(self, name: str) -> bool:
        return any(size.name == name for size in self.sizes)

    @property
    def native(self) -> SizeCost:
        """The size that the model was made for."""
        return self.sizes[0]

    @property
    def fastest(self) -> SizeCost:
        """The size with the shortest step of a full batch."""
        return min(self.sizes, key=lambda size: size.step[-1])

    def quickest(self, samples: int) -> SizeCost:
        """The size with the shortest step of so many samples."""
        return min(self.sizes, key=lambda size: size.seconds(samples))


def front_of(sizes: Sequence[SizeCost]) -> Front:
    """The native size (the first) and those that nothing quicker beats, the best first."""
    native, *others = sizes
    kept = [native]
    for size in sorted(others, key=lambda each: (math.inf if each.loss is None else each.loss, -each.step[0])):
        if size.step[-1] < kept[-1].step[-1]:
            kept.append(size)
    return Front(tuple(kept))


def _between(x: float, known: Sequence[int], values: Sequence[float]) -> float:
    """Linear between what was measured, and beyond the last in proportion."""
    if x >= known[-1]:
        return values[-1] * x / known[-1]
    for left, right, low, high in zip(known, known[1:], values, values[1:], strict=False):
        if left <= x <= right:
            return low + (high - low) * (x - left) / (right - left)
    return values[0]
