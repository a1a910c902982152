"""Axes: sets with a measure. The grid on them is chosen later."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar

from continua.config import register
from continua.errors import GridError
from continua.settings import Allocates, Range
from continua.typing import Letter

TINY = 1e-150  # squares of what is larger, and of its inverse, are numbers
Mass = Annotated[float, Range(low=TINY, high=1 / TINY, remedy="Use mass > 0, for example mass=1.0.")]


@register
@dataclass(frozen=True)
class Points:
    """The finite set {0, …, n−1} with the counting measure; ``n=None`` leaves the number to the data.

    Discrete case: this *is* the discrete case, the index set of an ordinary tensor dimension.
    """

    n: Annotated[int, Allocates()] | None = None
    dim: ClassVar[int] = 1
    periodic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.n is not None and self.n < 1:
            raise GridError("Points needs at least one point", got=self.n, remedy="Write Points(n) with n ≥ 1.")

    @property
    def mass(self) -> float | None:
        """μ(axis): the number of points."""
        return None if self.n is None else float(self.n)


@register
@dataclass(frozen=True)
class Interval:
    """The interval [start, end] with μ = mass · (Lebesgue measure / length).

    ``mass=None`` means: the length for ``t`` and ``z``, the native node count for the widths ``d, h, e, m``, so
    that native nodes weigh one each. ``Interval(mass=1)`` serves refinement studies.
    """

    start: float = 0.0
    end: float = 1.0
    mass: Mass | None = None
    dim: ClassVar[int] = 1
    periodic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.end > self.start:
            raise GridError("an interval needs end > start", got=(self.start, self.end), remedy="Swap the two ends.")
        _check_length(self.end - self.start)

    @property
    def length(self) -> float:
        """``end − start``."""
        return self.end - self.start


@register
@dataclass(frozen=True)
class Circle:
    """The circle R/length with μ = mass · (arc length / length); functions on it are periodic."""

    length: float = 1.0
    mass: Mass | None = None
    start: ClassVar[float] = 0.0
    dim: ClassVar[int] = 1
    periodic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.length > 0:
            raise GridError("a circle needs a positive length", got=self.length, remedy="Write Circle(length=1.0).")
        _check_length(self.length)


@register
@dataclass(frozen=True)
class Times:
    """Real time with Lebesgue measure; the stamps come with the data (rule ``Samples``).

    ``start`` and ``end`` close the domain; without them it reaches from the first stamp to the last.
    """

    start: float | None = None
    end: float | None = None
    mass: ClassVar[None] = None
    dim: ClassVar[int] = 1
    periodic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.start is not None and self.end is not None and not self.end > self.start:
            raise GridError("Times needs end > start", got=(self.start, self.end), remedy="Swap the two ends.")


@register
@dataclass(frozen=True)
class Product:
    """A box: the product of intervals and circles, with the product measure (2-D and 3-D domains)."""

    factors: tuple[Interval | Circle, ...]
    mass: Mass | None = None
    periodic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if len(self.factors) < 2:
            raise GridError("a product needs two or more axes", got=self.factors, remedy="Use the one axis itself.")

    @property
    def dim(self) -> int:
        """The dimension of the box."""
        return len(self.factors)


def _check_length(length: float) -> None:
    if not TINY <= length <= 1 / TINY:
        got = f"a length of {length:g}"
        raise GridError("lengths lie between 1e-150 and 1e150", got=got, remedy="Use another unit.")


Axis = Points | Interval | Circle | Times | Product

ALIASES: dict[Letter, Letter] = {"c": "d", "s": "t", "g": "h"}
WIDTHS: tuple[Letter, ...] = ("d", "h", "e", "m")


@register
@dataclass(frozen=True)
class Axes:
    """The axes of a model, one for each letter. ``c``, ``s`` and ``g`` are second names of ``d``, ``t`` and ``h``."""

    t: Axis
    d: Axis
    h: Axis
    e: Axis
    m: Axis
    z: Interval

    def __getitem__(self, letter: Letter) -> Axis:
        return getattr(self, ALIASES.get(letter, letter))

    def __str__(self) -> str:
        return " · ".join(f"{f.name}: {getattr(self, f.name)}" for f in fields(self))


def with_mass(axis: Axis, native: int) -> Axis:
    """Return a width axis whose mass is settled: what it says, or the native node count."""
    if isinstance(axis, Points):
        return axis if axis.n is not None else Points(native)
    if isinstance(axis, Times):
        raise GridError("Times() serves the token axis only", got=axis, remedy="Use Interval(), Circle() or Points(n).")
    return axis if axis.mass is not None else replace(axis, mass=float(native))


def factors(axis: Axis) -> tuple[Interval | Circle, ...]:
    """The lines whose product a domain is; an interval or circle is its own only one."""
    if isinstance(axis, Product):
        return axis.factors
    if isinstance(axis, Interval | Circle):
        return (axis,)
    raise GridError("functions live on intervals, circles and their products", got=axis, remedy="Choose one of these.")


def mass_of(axis: Axis) -> float:
    """μ(axis) as a number; an interval or circle without a mass weighs its length."""
    if axis.mass is not None:
        return axis.mass
    if isinstance(axis, Interval | Circle):
        return axis.length
    if isinstance(axis, Product):
        total = 1.0
        for factor in axis.factors:
            total *= mass_of(factor)
        return total
    raise GridError("the mass of this axis comes with the data", got=axis, remedy="Give it a size or a mass.")
