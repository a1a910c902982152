"""Running costs ∫ R(z, X, dX/dz) dz, integrated with the state."""

from dataclasses import dataclass, replace
from typing import Any

from continua.flow.solvers.clipping import Clipping
from continua.flow.solvers.reversible import ReversibleSolver
from continua.flow.solvers.solver import OnManifold, Wrapper
from continua.flow.solvers.splitting import splits
from continua.flow.state import axpy, scaled
from continua.flow.vectorfield import Cost, Costed, differentiates
from continua.typing import Args, Tensor


@dataclass(frozen=True)
class Chord(Wrapper):
    """A solver that takes a field part by part has no velocity of the whole: the cost is that of each step's chord.

    c' = c + dz R(z + dz/2, (x + x')/2, (x' − x)/dz), order 2. Discrete case: kinetic energy is Σ ‖x_{l+1} − x_l‖².
    """

    inner: Any
    cost: Cost
    from_start: bool = False  # whether the cost is that of the start of a chord instead of its middle

    @property
    def order(self) -> int:
        """That of the solver, 2 at most."""
        return min(int(self.inner.order), 2)

    def begin(self, field: Any, z: float, x: Any, args: Args) -> Any:
        """Begin beside a cost of zero."""
        return self.inner.begin(field, z, x[0], args), x[1]

    def show(self, carried: Any) -> Any:
        """State and cost."""
        return self.inner.show(carried[0]), carried[1]

    def step(self, field: Any, z: float, dz: float, x: Any, args: Args) -> Any:
        """Step, then pay for the chord."""
        after = self.inner.step(field, z, dz, x[0], args)
        start, end = self.inner.show(x[0]), self.inner.show(after)
        chord = axpy(end, -1.0, start)
        if not isinstance(end, Tensor | tuple):
            return after, x[1]
        where = start if self.from_start else axpy(start, 0.5, chord)
        paid = self.cost(z + dz / 2, where, scaled(1 / dz, chord), args)
        return after, axpy(x[1], dz, paid)


def costed(field: Any, solver: Any, cost: Cost) -> tuple[Any, Any]:
    """Field and solver of the state with its cost: beside the stages, or by chords where the parts are split."""
    if not splits(solver):
        return Costed(field, _along(solver, cost)), solver
    from_start = differentiates(cost)  # it needs the state that the velocity came from
    if isinstance(solver, ReversibleSolver):
        return field, replace(solver, inner=Chord(solver.inner, cost, from_start))
    return field, Chord(solver, cost, from_start)


def _along(solver: Any, cost: Cost) -> Cost:
    """The cost of the velocity that a solver on a manifold follows."""
    if not isinstance(solver, OnManifold):
        return cost
    return lambda z, x, v, args: cost(z, x, solver.tangent(x, v), args)


def plain(solver: Any) -> Any:
    """The solver of the state alone: nothing is paid or clipped."""
    if isinstance(solver, Chord | Clipping):
        return plain(solver.inner)
    if isinstance(solver, ReversibleSolver) and isinstance(solver.inner, Chord):
        return replace(solver, inner=solver.inner.inner)
    return solver
