"""Explicit Runge–Kutta methods: a method is a table of numbers and a docstring."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from continua.config import register
from continua.flow.solvers.solver import Attempt, OneStep
from continua.flow.state import Terms, axpy, combine, terms, total
from continua.flow.vectorfield import VectorField, project
from continua.typing import Args


@dataclass(frozen=True)
class Tableau:
    """Butcher's table without its first row: x_i = x + dz Σ_j a_ij k_j, k_i = f(z + c_i dz, x_i).

    ``error`` holds b − b̂ over the stages and, last, f(z + dz, x(z + dz)); ``middle`` the weights of x(z + dz/2) over
    the same slopes, of order 4, for dense output.
    """

    c: tuple[float, ...]
    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    error: tuple[float, ...] | None = None
    middle: tuple[float, ...] | None = None
    later: tuple[tuple[float, Terms], ...] = field(init=False, repr=False, compare=False)  # the stages behind the first
    sum: Terms = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        stages = tuple((c, terms(row)) for c, row in zip(self.c, self.a, strict=True))
        object.__setattr__(self, "later", stages[1:])
        object.__setattr__(self, "sum", terms(self.b))


class RungeKutta(OneStep):
    """Steps with a tableau. Projections of the field are applied once, after the full step, at its end."""

    tableau: ClassVar[Tableau]

    def __str__(self) -> str:
        return type(self).__name__

    @property
    def estimates(self) -> bool:
        """Whether the method is a pair."""
        return self.tableau.error is not None

    def step(self, field: VectorField, z: float, dz: float, x: Any, args: Args) -> Any:
        """Return x + dz Σ b_i k_i, projected if the field has projections."""
        table = self.tableau
        slopes = [field(z, x, args)]
        for c, row in table.later:
            slopes.append(field(z + c * dz, combine(x, dz, row, slopes), args))
        return project(field, z + dz, combine(x, dz, table.sum, slopes), args)

    def attempt(self, field: VectorField, z: float, dz: float, x: Any, args: Args, first: Any = None) -> Attempt:
        """Take the step and estimate its error; ``first`` is f(z, x) if it is known already."""
        table = self.tableau
        slopes = [field(z, x, args) if first is None else first]
        for c, row in table.later:
            slopes.append(field(z + c * dz, combine(x, dz, row, slopes), args))
        moved = combine(x, dz, table.sum, slopes)
        last = field(z + dz, moved, args)
        slopes.append(last)
        error = total(dz, table.error or (), slopes)
        landed = project(field, z + dz, moved, args)
        return Attempt(landed, error, last if landed is moved else None, slopes)

    def middle(self, dz: float, x: Any, slopes: list[Any]) -> Any:
        """x(z + dz/2), where the tableau has a row for it."""
        weights = self.tableau.middle
        return None if weights is None else axpy(x, 1.0, total(dz, weights, slopes))


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


@register
@dataclass(frozen=True)
class Bosh3(RungeKutta):
    """Bogacki and Shampine's pair (1989), order 3 with an estimate of order 2, three evaluations a step."""

    order: ClassVar[int] = 3
    tableau: ClassVar[Tableau] = Tableau(
        c=(0.0, 1 / 2, 3 / 4),
        a=((), (1 / 2,), (0.0, 3 / 4)),
        b=(2 / 9, 1 / 3, 4 / 9),
        error=(2 / 9 - 7 / 24, 1 / 3 - 1 / 4, 4 / 9 - 1 / 3, -1 / 8),
    )


@register
@dataclass(frozen=True)
class Dopri5(RungeKutta):
    """Dormand and Prince's pair (1980), "RK45": order 5 with an estimate of order 4, six evaluations a step."""

    order: ClassVar[int] = 5
    tableau: ClassVar[Tableau] = Tableau(
        c=(0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0),
        a=(
            (),
            (1 / 5,),
            (3 / 40, 9 / 40),
            (44 / 45, -56 / 15, 32 / 9),
            (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
            (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        ),
        b=(35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
        error=(71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
        middle=(
            6025192743 / 30085553152 / 2,
            0.0,
            51252292925 / 65400821598 / 2,
            -2691868925 / 45128329728 / 2,
            187940372067 / 1594534317056 / 2,
            -1776094331 / 19743644256 / 2,
            11237099 / 235043384 / 2,
        ),
    )


@register
@dataclass(frozen=True)
class Tsit5(RungeKutta):
    """Tsitouras' pair (2011): order 5 with an estimate of order 4, six evaluations a step, smaller constants."""

    order: ClassVar[int] = 5
    tableau: ClassVar[Tableau] = Tableau(
        c=(0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0),
        a=(
            (),
            (0.161,),
            (-0.008480655492356989, 0.335480655492357),
            (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
            (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
            (5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383),
        ),
        b=(
            0.09646076681806523,
            0.01,
            0.4798896504144996,
            1.379008574103742,
            -3.290069515436081,
            2.324710524099774,
        ),
        error=(
            -0.00178001105222577714,
            -0.0008164344596567469,
            0.007880878010261995,
            -0.1447110071732629,
            0.5823571654525552,
            -0.45808210592918697,
            1 / 66,
        ),
        middle=(
            0.10741235230096871,
            0.01135625,
            0.39560903056045305,
            -0.34475214352593553,
            1.3161853649581645,
            -1.0170608542936508,
            0.03125,
        ),
    )
