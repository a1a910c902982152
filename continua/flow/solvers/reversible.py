"""Reversible solvers: the step before can be computed from the step after, so a backward pass needs no memory."""

from dataclasses import dataclass
from typing import Any, ClassVar

from continua.config import register
from continua.errors import SolveError
from continua.flow.solvers.runge_kutta import RK4
from continua.flow.solvers.solver import Solver, Wrapper
from continua.flow.state import axpy, scaled
from continua.flow.vectorfield import VectorField
from continua.typing import Args


@register
@dataclass(frozen=True)
class ReversibleSolver(Wrapper):
    """Any one-step method made algebraically reversible (McCallum and Foster 2024), of the same order.

    With Ψ_dz(z, x) the increment of the inner method, a pair (y, w) is carried:
    y' = λy + (1−λ)w + Ψ_dz(z, w),  w' = w − Ψ_−dz(z + dz, y'). Twice the evaluations of the inner method. A coupling
    λ < 1 damps the difference of y and w forwards and amplifies it by 1/λ a step backwards.
    """

    inner: Solver = RK4()  # noqa: RUF009  (frozen and stateless)
    coupling: float = 0.999

    def __post_init__(self) -> None:
        if not 0.0 < self.coupling <= 1.0:
            raise SolveError("the coupling λ lies in (0, 1]", got=self.coupling, remedy="0.99 … 0.9999 serve.")

    @property
    def order(self) -> int:
        """That of the inner method."""
        return self.inner.order

    def __str__(self) -> str:
        return f"ReversibleSolver({self.inner})"

    def begin(self, field: VectorField, z: float, x: Any, args: Args) -> Any:
        """Both of the pair start at x."""
        return (x, x)

    def show(self, carried: Any) -> Any:
        """The first of the pair."""
        return carried[0]

    def step(self, field: VectorField, z: float, dz: float, x: Any, args: Args) -> Any:
        """Return the next pair."""
        y, w = x
        forward = axpy(self.inner.step(field, z, dz, w, args), -self.coupling, w)  # Ψ + (1 − λ) w
        y = axpy(forward, self.coupling, y)
        back = self.inner.step(field, z + dz, -dz, y, args)
        return y, axpy(axpy(w, -1.0, back), 1.0, y)

    def undo(self, field: VectorField, z: float, dz: float, carried: Any, args: Args) -> Any:
        """Return the pair before."""
        y, w = carried
        back = self.inner.step(field, z + dz, -dz, y, args)
        w = axpy(axpy(w, 1.0, back), -1.0, y)
        forward = axpy(self.inner.step(field, z, dz, w, args), -self.coupling, w)
        return scaled(1.0 / self.coupling, axpy(y, -1.0, forward)), w

    def forward_order(self, seen: list[Any]) -> list[Any]:
        """``undo`` takes the backward half first."""
        half = len(seen) // 2
        return seen[half:] + seen[:half]


@register
@dataclass(frozen=True)
class ReversibleHeun:
    """Kidger et al. 2021: order 2 with one evaluation a step; carries the state, its shadow and the last slope."""

    order: ClassVar[int] = 2

    def __str__(self) -> str:
        return "ReversibleHeun"

    def begin(self, field: VectorField, z: float, x: Any, args: Args) -> Any:
        """The shadow starts at x."""
        return (x, x, field(z, x, args))

    def show(self, carried: Any) -> Any:
        """The state."""
        return carried[0]

    def step(self, field: VectorField, z: float, dz: float, x: Any, args: Args) -> Any:
        """x̂' = 2x − x̂ + dz v,  v' = f(z + dz, x̂'),  x' = x + dz (v + v')/2."""
        x, shadow, v = x
        shadow = axpy(axpy(scaled(2.0, x), -1.0, shadow), dz, v)
        after = field(z + dz, shadow, args)
        return axpy(axpy(x, dz / 2, v), dz / 2, after), shadow, after

    def undo(self, field: VectorField, z: float, dz: float, carried: Any, args: Args) -> Any:
        """The same formulas with −dz; the evaluation is that of the step before."""
        x, shadow, after = carried
        shadow = axpy(axpy(scaled(2.0, x), -1.0, shadow), -dz, after)
        v = field(z, shadow, args)
        return axpy(axpy(x, -dz / 2, after), -dz / 2, v), shadow, v

    def forward_order(self, seen: list[Any]) -> list[Any]:
        """One evaluation."""
        return seen

    def again(self, field: VectorField, z: float, carried: Any, args: Args) -> Any:
        """Evaluate once more what the step that ended here evaluated."""
        return field(z, carried[1], args)
