"""A discretisation: one rule for each axis and a way to step in depth."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Protocol, runtime_checkable

from torch.utils import _pytree as pytree

from continua.axes.axis import WIDTHS, Axes, Axis, Points
from continua.axes.grids import Grids
from continua.axes.rules import Counting, Nested, Profile, Rule, default_rule, grid_on
from continua.axes.sharded import Sharded
from continua.config import register
from continua.errors import ConfigError, GridError, nearest
from continua.settings import MAX_STEPS, Range, Size, Takes
from continua.settings.checks import scalar
from continua.typing import Letter, Tensor


@runtime_checkable
class Stepping(Protocol):
    """How depth is walked, such as ``Fixed(6)`` or ``Adaptive()``; ``solver`` None means the model's own."""

    @property
    def solver(self) -> Any:
        """The one-step method."""
        ...


@register
@dataclass(frozen=True)
class Discretisation:
    """What turns a continuous model into arithmetic: rules for t, d, h, e, m and how to step in z.

    ``None`` means "as the model was made" (for t: "as the data come"); a whole number means the axis' default rule.
    Discrete case: ``Counting`` on every axis and L unit Lie–Trotter–Euler steps.
    """

    t: Rule | Sharded | Size | None = None
    d: Rule | Size | None = None
    h: Rule | Size | None = None
    e: Rule | Size | None = None
    m: Rule | Size | None = None
    z: Annotated[Any, Takes(Stepping | Annotated[int, Range(1, MAX_STEPS)] | None)] = None

    def replace(self, **changes: Any) -> "Discretisation":
        """Return a copy with some axes changed."""
        _known(changes)
        return replace(self, **changes)

    def over(self, native: "Discretisation", axes: Axes) -> "Discretisation":
        """Fill what is open from ``native``. ``d`` alone scales ``m`` in proportion and leaves ``e`` and ``h``."""
        settled: dict[Letter, Any] = {}
        for letter in ("t", *WIDTHS):
            wish = getattr(self, letter)
            if isinstance(wish, Sharded):
                settled[letter] = _sharded(axes[letter], native.t, wish)
                continue
            wish = getattr(native, letter) if wish is None else wish
            settled[letter] = _usual(axes[letter], getattr(native, letter), wish) if isinstance(wish, int) else wish
            if isinstance(wish, Profile):
                settled[letter] = _ordered(letter, wish, getattr(native, letter))
        if self.d is not None and self.m is None:
            scaled = round(native.m.n * settled["d"].n / native.d.n)  # type: ignore[union-attr]
            settled["m"] = native.m if settled["d"] == native.d else _usual(axes.m, native.m, max(1, scaled))
        return Discretisation(**settled, z=native.z if self.z is None else self.z)

    def native_on(self, axes: Axes) -> "Discretisation":
        """The same as the native one of a model, which leaves no width open, nor the depth."""
        missing = [letter for letter in (*WIDTHS, "z") if getattr(self, letter) is None]
        if missing:
            remedy = "Name them: at(d=8, h=2, e=4, m=32, z=2)."
            raise GridError("a model is made on every axis", got=f"nothing for {', '.join(missing)}", remedy=remedy)
        return self.over(self, axes)

    def grids(self, axes: Axes, like: Tensor | None = None) -> Grids:
        """Return the grids of the width axes, on the device of ``like``."""
        d, h, e, m = (grid_on(axes[letter], _rule(self, letter), like) for letter in WIDTHS)
        return Grids(d=d, h=h, e=e, m=m)

    @property
    def is_discrete(self) -> bool:
        """Whether every width is counted point by point (then the model is an ordinary Transformer)."""
        return all(isinstance(getattr(self, letter), Counting) for letter in WIDTHS)

    def describe(self, axes: Axes) -> str:
        """Return one readable line for each axis."""
        lines = [f"t  {'as the data come' if self.t is None else self.t}  on {axes.t}"]
        for letter in WIDTHS:
            rule, axis = _rule(self, letter), axes[letter]
            grid = grid_on(axis, rule)
            weight = f"weight {grid.weights[0].item():g} each" if grid.is_uniform else "unequal weights"
            name = "Points" if isinstance(axis, Points) else type(axis).__name__
            lines.append(f"{letter}  {rule.n} nodes ({type(rule).__name__} on {name}, {weight})")
        lines.append(f"z  {self.z} on [{axes.z.start:g}, {axes.z.end:g}]")
        return "\n".join(lines)

    def __str__(self) -> str:
        said = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) is not None]
        short = [f"{name}={_short(value)}" for name, value in said]
        return f"at({', '.join(short)})"


def at(**sizes: Any) -> Discretisation:
    """Return a discretisation by sizes or rules; what is not named stays native.

    >>> print(at(d=64, h=2, z=3))
    at(d=64, h=2, z=3)
    """
    _known(sizes)
    sizes = {
        letter: _profile(size) if isinstance(size, tuple | list) else scalar(size) for letter, size in sizes.items()
    }
    for letter, size in sizes.items():
        if isinstance(size, bool | float | str | complex | bytes):
            remedy = f"Write at({letter}=64), or an object such as Midpoint(64)."
            raise GridError(f"{letter} takes a whole number or a rule", got=repr(size), remedy=remedy)
        if isinstance(size, int) and size < 1:
            raise GridError(f"{letter} needs at least one node", got=size, remedy=f"Write at({letter}=n) with n ≥ 1.")
    return _interned(Discretisation(**sizes))


@functools.lru_cache(maxsize=512)
def _interned(discretisation: Discretisation) -> Discretisation:
    """One object for equal discretisations: a compiled model knows them by identity, and ``at`` is called anew."""
    return discretisation


def _usual(axis: Axis, native: Any, n: int) -> Rule:
    """What a bare number means: nested nodes where the native ones are, else the axis' own rule."""
    return native.resized(n) if isinstance(native, Nested) else default_rule(axis, n)


def _sharded(axis: Axis, native: Any, wish: Sharded) -> Sharded:
    """The same parts, their tokens laid out by a rule where one is named."""
    rule = native if wish.rule is None else wish.rule
    return replace(wish, rule=_usual(axis, native, rule) if isinstance(rule, int) else rule)


def _profile(sizes: Sequence[Any]) -> Profile:
    """A size for each step."""
    whole = tuple(scalar(size) for size in sizes)
    return Profile(max(whole, default=1), sizes=whole)


def _ordered(letter: Letter, wish: Profile, native: Any) -> Profile:
    """A profile whose nodes come in the native order."""
    if letter != "m":
        remedy = f"Write at({letter}=64), one size for all steps."
        raise GridError("a profile is one of m, the hidden width", got=f"one of {letter}", remedy=remedy)
    return replace(wish, first=native.first) if isinstance(native, Nested) else wish


def _known(sizes: dict[str, Any]) -> None:
    letters = [f.name for f in fields(Discretisation)]
    for letter in sizes:
        if letter not in letters:
            raise ConfigError(
                "a discretisation has the axes t, d, h, e, m, z", got=letter, remedy=nearest(letter, letters)
            )


def _rule(discretisation: Discretisation, letter: Letter) -> Rule:
    rule = getattr(discretisation, letter)
    if rule is None or isinstance(rule, int):
        raise GridError(
            f"{letter} has no rule yet", got=rule, remedy="Use model.at(...), which fills in the native ones."
        )
    return rule


def _short(value: Any) -> str:
    if isinstance(value, Counting):
        return str(value.n)
    if isinstance(value, Profile):
        return f"Profile{value.sizes}"
    if isinstance(value, Rule) and not isinstance(value, int):
        return f"{type(value).__name__}({value.n})"
    return str(value)


pytree.register_constant(Discretisation)  # of torch.export: a grid is no input, it is what a program is made for
