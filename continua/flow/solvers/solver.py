"""What a solver is, and what some solvers can do besides stepping: each capability is a protocol."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from continua.flow.vectorfield import VectorField
from continua.typing import Args


@runtime_checkable
class Solver(Protocol):
    """One step of size dz. ``order`` is the power of dz in the global error.

    Steps must be written with ``axpy``, so that they also run on plain numbers: the engine learns by such a dry run
    at which depths each part will be read. A solver may carry more than the state (a reversible one carries a pair):
    ``begin`` makes what it carries, ``show`` reads the state out of it.
    """

    @property
    def order(self) -> int:
        """The power of dz in the global error."""
        ...

    def begin(self, field: VectorField, z: float, x: Any, args: Args) -> Any:
        """Return what is carried from step to step, at the start."""
        ...

    def show(self, carried: Any) -> Any:
        """Return the state."""
        ...

    def step(self, field: VectorField, z: float, dz: float, x: Any, args: Args) -> Any:
        """Return what is carried at z + dz."""
        ...


class OneStep:
    """Solvers that carry the state alone."""

    def begin(self, field: VectorField, z: float, x: Any, args: Args) -> Any:
        """The state itself."""
        return x

    def show(self, carried: Any) -> Any:
        """The state itself."""
        return carried


class Wrapper:
    """Solvers that take their steps with another one, ``inner``."""

    inner: Any


# --- capabilities ----------------------------------------------------------------------------------------------------


class Attempt(NamedTuple):
    """A step that may be rejected: the new state, an estimate of its error, the slopes for dense output."""

    x: Any
    error: Any
    last: Any  # f(z + dz, x) where the method has it: the next step's first slope
    slopes: list[Any]


@runtime_checkable
class Embedded(Protocol):
    """Estimates the error of its own step. Where ``estimates`` is false, steps are measured by doubling."""

    @property
    def estimates(self) -> bool:
        """Whether there is an estimate: a wrapper has one where its inner solver has."""
        ...

    def attempt(self, field: VectorField, z: float, dz: float, x: Any, args: Args, first: Any = None) -> Attempt:
        """Take the step and estimate its error; ``first`` is f(z, x) if it is known already."""
        ...

    def middle(self, dz: float, x: Any, slopes: list[Any]) -> Any:
        """x(z + dz/2) of order 4 from the slopes of an attempt, or ``None`` for a method that has no such formula."""
        ...


@runtime_checkable
class OnManifold(Protocol):
    """Moves along another field than the given one, so that the state stays where it belongs."""

    def velocity(self, field: VectorField) -> VectorField:
        """The field that the steps follow."""
        ...

    def tangent(self, x: Any, v: Any) -> Any:
        """The part of a slope at x that the steps follow."""
        ...


@runtime_checkable
class ReversibleMethod(Protocol):
    """A solver whose step can be undone by arithmetic, without an equation to solve."""

    def undo(self, field: VectorField, z: float, dz: float, carried: Any, args: Args) -> Any:
        """Return what was carried at z from what is carried at z + dz, evaluating the field where ``step`` did.

        The evaluations come in the order that ``forward_order`` sorts into that of ``step``.
        """
        ...

    def forward_order(self, seen: list[Any]) -> list[Any]:
        """Sort what the evaluations of ``undo`` left into the order of ``step``."""
        ...


@runtime_checkable
class LaggingMethod(ReversibleMethod, Protocol):
    """A reversible solver that carries its last slope: ``undo`` evaluates what the step *before* evaluated."""

    def again(self, field: VectorField, z: float, carried: Any, args: Args) -> Any:
        """Evaluate once more what the step that ended at z evaluated."""
        ...


def has_estimate(solver: Any) -> bool:
    """Whether a solver estimates the error of its own step."""
    return isinstance(solver, Embedded) and solver.estimates


def velocity_of(solver: Any, field: VectorField) -> VectorField:
    """The field that the steps of a solver follow: the given one, or what a solver on a manifold makes of it."""
    if isinstance(solver, OnManifold):
        return solver.velocity(field)
    return velocity_of(solver.inner, field) if isinstance(solver, Wrapper) else field
