"""Running costs ∫ R(z, X, dX/dz) dz, integrated with the state."""

from dataclasses import dataclass, replace
from typing import Any

from continua.flow.solvers.reversible import ReversibleSolver
from continua.flow.solvers.splitting import LieTrotter, Strang
from continua.flow.state import axpy, scaled
from continua.flow.vectorfield import Cost, Costed
from continua.typing import Args, Tensor


@dataclass(frozen=True)
class Chord:
    """A solver that takes a field part by part has no velocity of the whole: the cost is that of each step's chord.

    c' = c + dz R(z + dz/2, (x + x')/2, (x' − x)/dz), order 2. Discrete case: kinetic energy is Σ ‖x_{l+1} − x_l‖².
    """

    solver: Any
    cost: Cost

    @property
    def order(self) -> int:
        """That of the solver, 2 at most."""
        return min(int(self.solver.order), 2)

    def begin(self, field: Any, z: float, x: Any, args: Args) -> Any:
        """Begin beside a cost of zero."""
        return self.solver.begin(field, z, x[0], args), x[1]

    def show(self, carried: Any) -> Any:
        """State and cost."""
        return self.solver.show(carried[0]), carried[1]

    def step(self, field: Any, z: float, dz: float, x: Any, args: Args) -> Any:
        """Step, then pay for the chord."""
        after = self.solver.step(field, z, dz, x[0], args)
        start, end = self.solver.show(x[0]), self.solver.show(after)
        chord = axpy(end, -1.0, start)
        if not isinstance(end, Tensor | tuple):
            return after, x[1]
        # a cost that differentiates the velocity needs the state it came from
        where = start if getattr(self.cost, "twice", False) else axpy(start, 0.5, chord)
        paid = self.cost(z + dz / 2, where, scaled(1 / dz, chord), args)
        return after, axpy(x[1], dz, paid)


def costed(field: Any, solver: Any, cost: Cost) -> tuple[Any, Any]:
    """Field and solver of the state with its cost: beside the stages, or by chords where the parts are split."""
    if not splits(solver):
        tangent = getattr(solver, "tangent", None)  # of a solver that moves along another field than the given one
        paid = cost if tangent is None else lambda z, x, v, args: cost(z, x, tangent(x, v), args)
        return Costed(field, paid), solver
    if isinstance(solver, ReversibleSolver):
        return field, replace(solver, inner=Chord(solver.inner, cost))
    return field, Chord(solver, cost)


def splits(solver: Any) -> bool:
    """Whether a solver takes the parts of a field one by one."""
    return splitting_of(solver) is not None


def splitting_of(solver: Any) -> LieTrotter | Strang | None:
    """The splitting inside a solver, if there is one."""
    if solver is None or isinstance(solver, LieTrotter | Strang):
        return solver
    return splitting_of(getattr(solver, "inner", None))


def plain(solver: Any) -> Any:
    """The solver of the state alone."""
    wrapped = getattr(solver, "solver", None)  # of a chord rule or a clipped adjoint
    if wrapped is not None:
        return plain(wrapped)
    if isinstance(solver, ReversibleSolver) and isinstance(solver.inner, Chord):
        return replace(solver, inner=solver.inner.solver)
    return solver
