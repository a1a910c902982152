"""Vector fields made of parts: flows, which move the state, and projections, which put it back on a set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from continua.errors import SolveError
from continua.flow.state import axpy, scaled
from continua.typing import Args, Tensor, VectorFunction

Cost = Callable[[float, Any, Any, Args], Tensor]  # R(z, x, velocity, args), one number a sample
Gradients = Sequence[tuple[Tensor, Tensor]]  # pairs of a leaf of args and its gradient


@runtime_checkable
class DifferentiatingCost(Protocol):
    """A running cost that may take derivatives of the field itself: where ``twice``, it needs graphs on the way."""

    @property
    def twice(self) -> bool:
        """Whether it takes derivatives."""
        ...

    def __call__(self, z: float, x: Any, velocity: Any, args: Args) -> Tensor:
        """R(z, x, velocity, args)."""
        ...


def differentiates(cost: Cost | None) -> bool:
    """Whether a running cost takes derivatives itself."""
    return isinstance(cost, DifferentiatingCost) and cost.twice


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
        """The weights of these depths."""
        return self.make(depths, args)


@dataclass(frozen=True)
class Bound:
    """f(z, x, args) with what the engine may ask of it besides its value.

    ``read(depths, args)`` makes the weights of these depths: ``f`` may then be called there with what it returns. It
    is given where weights vary over depth and are not read yet. ``local(z, args)`` is the part of ``args`` that
    ``f(z, ·)`` looks at. ``lean`` is the same function with a backward written by hand. ``quiet`` says that no random
    numbers are drawn while it is evaluated (dropout masks are in ``args``), so that it may be evaluated once more.
    """

    f: VectorFunction
    read: Callable[[Sequence[float], Args], Args] | None = None
    local: Callable[[float, Args], Args] | None = None
    lean: HandWritten | None = None
    quiet: bool = True

    def __call__(self, z: float, x: Any, args: Args) -> Any:
        """f(z, x, args)."""
        return self.f(z, x, args)

    @staticmethod
    def of(f: VectorFunction) -> "Bound":
        """The same function; one of which nothing is known has nothing to read and may be random."""
        return f if isinstance(f, Bound) else Bound(Shaped(f), quiet=False)

    @property
    def bytes(self) -> int:
        """What the weights of one depth take that are still to be read, where it is known."""
        return self.read.bytes if isinstance(self.read, Reading) else 0


@dataclass(frozen=True)
class Shaped:
    """A function of which nothing is known, whose values must have the shape of the state: one number for each."""

    f: VectorFunction

    def __call__(self, z: float, x: Any, args: Args) -> Any:
        """f(z, x, args); a value that would be broadcast, or is larger, is refused."""
        value = self.f(z, x, args)
        _check_shape(x, value)
        return value


def _check_shape(x: Any, value: Any) -> None:
    if isinstance(x, tuple) and isinstance(value, tuple) and len(x) == len(value):
        for one, own in zip(x, value, strict=True):
            _check_shape(one, own)
    elif isinstance(x, Tensor) and isinstance(value, Tensor) and x.shape == value.shape:
        return
    elif isinstance(x, tuple | Tensor):
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        wanted = f"the shape {list(x.shape)}" if isinstance(x, Tensor) else f"the {len(x)} entries"
        remedy = "Return one number for each number of the state: value.expand(x.shape), or value.sum(…)."
        raise SolveError(f"the field needs {wanted} of the state", got=got, remedy=remedy)


@dataclass(frozen=True)
class Flow:
    """A part that moves the state: dx/dz = f(z, x, args)."""

    f: VectorFunction
    bound: Bound = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", Bound.of(self.f))

    def __call__(self, z: float, x: Any, args: Args) -> Any:
        """f(z, x, args)."""
        return self.bound.f(z, x, args)

    def __add__(self, other: "Flow | Projection | Sum") -> "Sum":
        return Sum((self,)) + other


@dataclass(frozen=True)
class Projection:
    """A part without dz: x ← p(z, x, args). Post-norm is one."""

    f: VectorFunction
    bound: Bound = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", Bound.of(self.f))

    def __call__(self, z: float, x: Any, args: Args) -> Any:
        """p(z, x, args)."""
        return self.bound.f(z, x, args)


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
                value = part.bound.f(z, x, own)
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


def bounds_of(field: VectorField) -> tuple[Bound, ...]:
    """The functions of the parts; a field that is no sum is one part."""
    base = base_of(field)
    if isinstance(base, Sum):
        return tuple(part.bound for part in base.parts)
    return (base.bound if isinstance(base, Flow) else Bound.of(base),)


def kinds_of(field: VectorField) -> tuple[bool, ...] | None:
    """For each part whether it is a flow; ``None`` for a field that is not made of parts."""
    base = base_of(field)
    return tuple(isinstance(part, Flow) for part in base.parts) if isinstance(base, Sum) else None


def read_at(field: VectorField, depths: Sequence[Sequence[float]], args: Args) -> Args:
    """Make the weights of each part at its depths, where they vary and are not read yet."""
    is_sum = isinstance(base_of(field), Sum)
    made = []
    for part, own, where in zip(bounds_of(field), args if is_sum else (args,), depths, strict=True):
        made.append(own if part.read is None else part.read(where, own))
    return made if is_sum else made[0]


def bytes_a_depth(field: VectorField) -> int:
    """What the weights of one depth take that are still to be read."""
    return sum(part.bytes for part in bounds_of(field))


def is_read(field: VectorField) -> bool:
    """Whether every weight is there already."""
    return all(part.read is None for part in bounds_of(field))


def is_quiet(field: VectorField) -> bool:
    """Whether no evaluation draws random numbers: they all come from ``args``."""
    return all(part.quiet for part in bounds_of(field))
