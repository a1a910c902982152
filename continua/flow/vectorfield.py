"""Vector fields made of parts: flows, which move the state, and projections, which put it back on a set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from continua.typing import Args, VectorFunction


@dataclass(frozen=True)
class Flow:
    """A part that moves the state: dx/dz = f(z, x, args)."""

    f: VectorFunction

    def __call__(self, z: float, x: Any, args: Args) -> Any:
        """Evaluate the part."""
        return self.f(z, x, args)

    def __add__(self, other: "Flow | Projection | Sum") -> "Sum":
        return Sum((self,)) + other


@dataclass(frozen=True)
class Projection:
    """A part without dz: x ← p(z, x, args). Post-norm is one."""

    f: VectorFunction

    def __call__(self, z: float, x: Any, args: Args) -> Any:
        """Evaluate the part."""
        return self.f(z, x, args)


@dataclass(frozen=True)
class Sum:
    """F(z, x) = Σ flows; the ordered parts stay visible, so that a splitting solver can take them one by one.

    ``args`` is a sequence with one entry for each part, projections included.
    """

    parts: tuple[Flow | Projection, ...]

    def __call__(self, z: float, x: Any, args: Sequence[Args]) -> Any:
        """Add up the flows."""
        total = None
        for part, own in zip(self.parts, args, strict=True):
            if isinstance(part, Flow):
                value = part(z, x, own)
                total = value if total is None else total + value
        return 0.0 * x if total is None else total

    def __add__(self, other: "Flow | Projection | Sum") -> "Sum":
        return Sum(self.parts + (other.parts if isinstance(other, Sum) else (other,)))

    def project(self, z: float, x: Any, args: Sequence[Args]) -> Any:
        """Apply every projection in order."""
        for part, own in zip(self.parts, args, strict=True):
            if isinstance(part, Projection):
                x = part(z, x, own)
        return x


VectorField = VectorFunction | Flow | Sum
