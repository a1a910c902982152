"""Attention kernels κ(t, s): how queries and keys become scores."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from continua.axes import Axis, mass_of
from continua.config import register


@runtime_checkable
class Kernel(Protocol):
    """A kernel of the form exp(scale·⟨q, k⟩ + bias), normalised over the sources."""

    def scale(self, e: Axis) -> float:
        """τ for the inner axis ``e``."""
        ...


@register
@dataclass(frozen=True)
class Softmax:
    """κ = exp(τ ∫ Q K dμ(e)), τ = mass(e)^(−½) unless ``temperature`` is given (T5: 1).

    Discrete case: scaled dot-product attention.
    """

    temperature: float | None = None

    def scale(self, e: Axis) -> float:
        """mass(e)^(−½): 1/√d_head on counting axes, one on [0, 1] with mass one."""
        return mass_of(e) ** -0.5 if self.temperature is None else self.temperature
