"""The path through depth, and which of it is kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from continua.config import register
from continua.errors import SolveError


@register
@dataclass(frozen=True)
class SaveAt:
    """What a solve keeps: the final state, or every ``every``-th step as well, the start included."""

    every: int = 0

    def __post_init__(self) -> None:
        if self.every < 0:
            raise SolveError("SaveAt(every=n) counts steps", got=self.every, remedy="Use n ≥ 1, or 0 for the end only.")


@dataclass(frozen=True)
class Trajectory:
    """z ↦ X_z at the kept depths. Discrete case: the list of hidden states."""

    z: tuple[float, ...]
    x: tuple[Any, ...]
    stats: Mapping[str, int] = field(default_factory=dict)
    status: str = "done"

    @property
    def final(self) -> Any:
        """X(Z)."""
        return self.x[-1]
