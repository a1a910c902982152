"""Where the training loss is computed: on the native grid, on another one, or on some that are drawn at every step."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from continua.axes import Discretisation
from continua.config import register
from continua.errors import ConfigError

Drawn = list[tuple[Discretisation, float]]


@runtime_checkable
class Discretisations(Protocol):
    """J of a step is Σ weight · J on the discretisations that are drawn for it."""

    def draw(self, step: int, generator: torch.Generator) -> Drawn:
        """Discretisations and their weights. The generator is a function of (seed, step), equal on all processes."""
        ...


@register
@dataclass(frozen=True)
class Always:
    """The same one at every step; ``Always(at(z=Adaptive(Dopri5(), rtol=1e-4, atol=1e-4)))`` asks for a tolerance."""

    discretisation: Discretisation

    def draw(self, step: int, generator: torch.Generator) -> Drawn:
        """That one, with weight one."""
        return [(self.discretisation, 1.0)]


def discretisations(given: Any) -> Discretisations | None:
    """One discretisation, something that draws them, or None for the native one."""
    if given is None or isinstance(given, Discretisations):
        return given
    if isinstance(given, Discretisation):
        return Always(given)
    remedy = "Write at(z=Adaptive(Dopri5(), rtol=1e-4)), or leave it out for the native one."
    raise ConfigError("at takes a discretisation", got=given, remedy=remedy)
