"""Learning-rate schedules over examples seen, so that a larger batch walks the same curve."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from continua.config import register
from continua.errors import ConfigError
from continua.settings import Share


@runtime_checkable
class Schedule(Protocol):
    """A factor on the learning rate."""

    def factor(self, seen: int, total: int) -> float:
        """The factor after ``seen`` of ``total`` examples."""
        ...


def _check(warmup: float) -> None:
    if not 0.0 <= warmup < 1.0:
        raise ConfigError("warm-up is a share of the run in [0, 1)", got=warmup, remedy="0.05 is usual.")


@register
@dataclass(frozen=True)
class Constant:
    """Always one."""

    def factor(self, seen: int, total: int) -> float:
        """One."""
        return 1.0


@register
@dataclass(frozen=True)
class CosineDecay:
    """A linear warm-up over the share ``warmup`` of the run, then half a cosine down to ``floor``."""

    warmup: float = 0.05
    floor: Share = 0.1

    def __post_init__(self) -> None:
        _check(self.warmup)

    def factor(self, seen: int, total: int) -> float:
        """The factor after ``seen`` of ``total`` examples."""
        share = seen / max(total, 1)
        if share < self.warmup:
            return share / self.warmup
        ahead = min((share - self.warmup) / (1.0 - self.warmup), 1.0)
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * ahead))


@register
@dataclass(frozen=True)
class InverseSqrt:
    """A linear warm-up over the share ``warmup`` of the run, then √(warm-up / seen) (Vaswani et al. 2017)."""

    warmup: float = 0.05

    def __post_init__(self) -> None:
        _check(self.warmup)

    def factor(self, seen: int, total: int) -> float:
        """The factor after ``seen`` of ``total`` examples."""
        knee = max(self.warmup * total, 1.0)
        return min(seen / knee, math.sqrt(knee / max(seen, 1)))
