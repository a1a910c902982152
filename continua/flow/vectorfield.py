"""Vector fields made of parts: flows, which move the state, and projections, which put it back on a set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from continua.flow.state import axpy, scaled
from continua.typing import Args, Tensor, VectorFunction

Cost = Callable[[float, Any, Any, Args], Tensor]  # R(z, x, velocity, args), one number a sample
Gradients = Sequence[tuple[Tensor, Tensor]]  # pairs of a leaf of args and its gradient


@runtime_checkable
class HandWritten(Protocol):
    """A field evaluation with a backward written by hand, which keeps only what the matrix products need."""

    uses_x: bool  # whether ``finish`` looks at x again

    def prepare(self, z: float, x: Any, args: Args) -> Any:
        """Compute what the backward needs besides x and args."""
        ...

    def finish(self, z: float, x: Any, kept: Any, args: Args) -> Any:
        """Return f(z, x, args) from what was prepared."""
        ...

    def pull(self, z: float, x: Any, kept: Any, args: Args, g: Any) -> tuple[Any, Gradients]:
        """Return the gradients of ⟨g, f⟩ by x and by the leaves of args that need one."""
        ...


@dataclass(frozen=True)
class Reading:
    """Makes the weights of some depths from ``args``; ``bytes`` is what the weights of one depth take."""

    make: Callable[[Sequence[float], Args], Args]
    bytes: int = 0

    def __call__(self, depths: Sequence[float], args: Args) -> Args:
        """Make them."""
        return self.make(depths, args)


@dataclass(frozen=True)
class Bound:
    """f(z, x, args) with what the engine may ask of it besides its value.

    ``read(depths, args)`` makes the weights of these depths: ``f`` may then be called there with what it returns. It
    is given where weights vary over depth and are not read yet. ``local(z, args)`` is the part of ``args`` that
    ``f(z, ·)`` looks at. ``lean`` is the same function with a backward written by hand.
    """

    f: VectorFunction
    read: Callable[[Sequence[float], Args], Args] | None = None
    local: Callable[[float, Args], Args] | None = None
    lean: HandWritten | None = None

    def __call__(self, z: float, x: Any, args: Args) -> Any:
        """Evaluate."""
        return self.f(z, x, args)


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
                total = value if total is None else axpy(total, 1.0, value)
        return scaled(0.0, x) if total is None else total

    def __add__(self, other: "Flow | Projection | Sum") -> "Sum":
        return Sum(self.parts + (other.parts if isinstance(other, Sum) else (other,)))

    def project(self, z: float, x: Any, args: Sequence[Args]) -> Any:
        """Apply every projection in order."""
        for part, own in zip(self.parts, args, strict=True):
            if isinstance(part, Projection):
                x = part(z, x, own)
        return x


@dataclass(frozen=True)
class Costed:
    """The field of the pair (x, c) with dc/dz = R(z, x, F(z, x))."""

    base: VectorFunction | Flow | Sum
    cost: Cost

    def __call__(self, z: float, x: Any, args: Args) -> Any:
        """The slopes of state and cost."""
        velocity = self.base(z, x[0], args)
        return velocity, self.cost(z, x[0], velocity, args)


VectorField = VectorFunction | Flow | Sum | Costed


def base_of(field: VectorField) -> VectorFunction | Flow | Sum:
    """The field of the state alone."""
    return field.base if isinstance(field, Costed) else field


def project(field: VectorField, z: float, x: Any, args: Args) -> Any:
    """Apply the projections of a field that has some."""
    if isinstance(field, Costed):
        moved = project(field.base, z, x[0], args)
        return x if moved is x[0] else (moved, x[1])
    if not isinstance(field, Sum) or all(isinstance(part, Flow) for part in field.parts):
        return x
    return field.project(z, x, args)


def parts_of(field: VectorField, args: Args) -> list[tuple[Flow | Projection, Args]]:
    """The parts of a field with their arguments; a field that is no sum is one flow."""
    base = base_of(field)
    if isinstance(base, Sum):
        return list(zip(base.parts, args, strict=True))
    return [(base if isinstance(base, Flow) else Flow(base), args)]


def kinds_of(field: VectorField) -> tuple[bool, ...] | None:
    """For each part whether it is a flow; ``None`` for a field that is not made of parts."""
    base = base_of(field)
    return tuple(isinstance(part, Flow) for part in base.parts) if isinstance(base, Sum) else None


def read_at(field: VectorField, depths: Sequence[Sequence[float]], args: Args) -> Args:
    """Make the weights of each part at its depths, where they vary and are not read yet."""
    made = []
    for (part, own), where in zip(parts_of(field, args), depths, strict=True):
        reader = getattr(part.f, "read", None)
        made.append(own if reader is None else reader(where, own))
    return made if isinstance(base_of(field), Sum) else made[0]


def bytes_a_depth(field: VectorField) -> int:
    """What the weights of one depth take that are still to be read."""
    base = base_of(field)
    parts = base.parts if isinstance(base, Sum) else (base if isinstance(base, Flow) else Flow(base),)
    return sum(getattr(getattr(part.f, "read", None), "bytes", 0) for part in parts)


def is_read(field: VectorField) -> bool:
    """Whether every weight is there already."""
    base = base_of(field)
    parts = base.parts if isinstance(base, Sum) else (base if isinstance(base, Flow) else Flow(base),)
    return all(getattr(part.f, "read", None) is None for part in parts)
