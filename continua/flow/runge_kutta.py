"""Explicit Runge–Kutta methods: a method is a table of numbers and a docstring."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, add

from continua.config import register
from continua.flow.vectorfield import Sum, VectorField
from continua.typing import Args


@runtime_checkable
class Solver(Protocol):
    """One step of size dz. ``order`` is the power of dz in the global error.

    Steps must be written with ``axpy``, so that they also run on plain numbers: ``flow.depths`` learns by such a dry
    run at which depths each part will be read.
    """

    @property
    def order(self) -> int:
        """The power of dz in the global error."""
        ...

    def step(self, field: VectorField, z: float, dz: float, x: Any, args: Args) -> Any:
        """Return x(z + dz)."""
        ...


def axpy(x: Any, scale: float, k: Any) -> Any:
    """x + scale·k in one kernel."""
    return add(x, k, alpha=scale) if isinstance(x, Tensor) else x + scale * k


@dataclass(frozen=True)
class Tableau:
    """Butcher's table without its first row: x_i = x + dz Σ_j a_ij k_j, k_i = f(z + c_i dz, x_i)."""

    c: tuple[float, ...]
    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]


class RungeKutta:
    """Steps with a tableau. Projections of the field are applied once, after the full step, at its end."""

    tableau: ClassVar[Tableau]

    def __str__(self) -> str:
        return type(self).__name__

    def step(self, field: VectorField, z: float, dz: float, x: Any, args: Args) -> Any:
        """Return x + dz Σ b_i k_i, projected if the field has projections."""
        slopes: list[Any] = []
        for c, row in zip(self.tableau.c, self.tableau.a, strict=True):
            slopes.append(field(z + c * dz, _combine(x, dz, row, slopes), args))
        moved = _combine(x, dz, self.tableau.b, slopes)
        return field.project(z + dz, moved, args) if isinstance(field, Sum) else moved


def _combine(x: Any, dz: float, coefficients: tuple[float, ...], slopes: list[Any]) -> Any:
    for coefficient, slope in zip(coefficients, slopes, strict=True):
        if coefficient != 0.0:
            x = axpy(x, dz * coefficient, slope)
    return x


@register
@dataclass(frozen=True)
class Euler(RungeKutta):
    """x + dz f(z, x), order 1. Discrete case: with dz = 1 on a sum of branches it is the *parallel* block."""

    order: ClassVar[int] = 1
    tableau: ClassVar[Tableau] = Tableau(c=(0.0,), a=((),), b=(1.0,))


@register
@dataclass(frozen=True)
class ExplicitMidpoint(RungeKutta):
    """x + dz f(z + dz/2, x + dz/2 f(z, x)), order 2."""

    order: ClassVar[int] = 2
    tableau: ClassVar[Tableau] = Tableau(c=(0.0, 0.5), a=((), (0.5,)), b=(0.0, 1.0))


@register
@dataclass(frozen=True)
class Heun(RungeKutta):
    """The mean of the slopes at both ends, order 2."""

    order: ClassVar[int] = 2
    tableau: ClassVar[Tableau] = Tableau(c=(0.0, 1.0), a=((), (1.0,)), b=(0.5, 0.5))


@register
@dataclass(frozen=True)
class RK4(RungeKutta):
    """The classical method of Kutta (1901), order 4."""

    order: ClassVar[int] = 4
    tableau: ClassVar[Tableau] = Tableau(
        c=(0.0, 0.5, 0.5, 1.0),
        a=((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)),
        b=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
    )
