"""What an operator is: weight fields that are read once on the grids, then a pure function of (z, x, args)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from continua.axes import Grid, Grids
from continua.config import register
from continua.flow.vectorfield import Bound, Reading
from continua.operators.cache import Cache
from continua.operators.weights import Weights
from continua.typing import Args, Callable, Tensor


@dataclass(frozen=True)
class Recorded:
    """Attention weights α_h(t, s) (times the measure of s: rows sum to one) of one operator at one depth."""

    operator: "Operator"
    z: float
    weights: Tensor


Note = Callable[[float, str, Tensor], None]  # takes a depth, the letters of some inputs, and these


@dataclass(frozen=True)
class InputsSeen:
    """Inputs of one operator at one depth, [tokens that are there, inputs].

    ``letters`` are "d" for the state that it reads, "m" or "he" for what goes into its output map.
    """

    operator: "Operator"
    z: float
    letters: str
    values: Tensor


@dataclass(frozen=True)
class Context:
    """What an operator may look at besides the state.

    ``state`` and ``grid`` are another field with its own nodes (encoder output, memory, second modality); ``values``
    is read in its place where values differ from keys (a memory bank of both).
    ``pairs`` restricts or biases self-attention, ``cross_pairs`` attention to ``state``: boolean (True = allowed) or
    floating point (added to the scores), broadcastable to [b, h, t, s]. ``cache`` serves generation; ``record``
    collects the attention weights of every evaluation. ``late`` asks for weights over depth to be read block by block
    during the solve, where they are not stored anyway. ``generator`` draws dropout. ``inputs`` is shown the state
    that every operator reads and what goes into its output map: hidden coordinates, outputs of heads.
    """

    state: Tensor | None = None
    grid: Grid | None = None
    pairs: Tensor | None = None
    cross_pairs: Tensor | None = None
    cache: Cache | None = None
    record: list[Recorded] | None = None
    values: Tensor | None = None
    late: bool = False
    generator: torch.Generator | None = None
    inputs: Callable[[InputsSeen], None] | None = None

    def noting(self, operator: "Operator", t: Grid | None) -> Note | None:
        """What shows ``inputs`` those of one operator, for the tokens of ``t`` that are there."""
        show = self.inputs
        if show is None:
            return None

        def note(z: float, letters: str, values: Tensor) -> None:
            there = values.flatten(0, 1) if t is None or not t.has_gaps else values[t.observed.expand(values.shape[:2])]
            show(InputsSeen(operator, z, letters, there.detach()))

        return note


class Operator(nn.Module):
    """A map of fields. ``bind`` reads the weights on the grids; the function it returns holds no tensor of its own.

    Binding has two halves: ``read`` samples the weight fields, which depends on widths and depths alone, and ``place``
    puts what was read beside the tokens of a call. Whoever holds weights that do not change keeps the first half.
    Every tensor that is differentiated through is a leaf of ``args``. ``grids.z`` holds the depths at which the
    function may be called; without them, or with ``context.late``, what ``bind`` returns is first to be read at some
    (``Bound.read``).
    """

    is_flow: ClassVar[bool] = True

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Return (f, args) with f(z, x, args)."""
        context = Context() if context is None else context
        return self.place(self.read(grids, context.late), grids, context)

    def read(self, grids: Grids, late: bool = False) -> Any:
        """Sample the weight fields; those over depth ``late``, where that saves memory."""
        return None

    def place(self, read: Any, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Return (f, args) for weights that were read, beside the tokens of ``grids`` and ``context``."""
        raise NotImplementedError

    def __add__(self, other: "Operator | Parts") -> "Parts":
        return Parts((self,)) + other


@register
class Parts(nn.Module):
    """An ordered sum of operators: flows and projections, as splitting solvers take them."""

    def __init__(self, parts: tuple[Operator, ...]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    @property
    def kinds(self) -> tuple[bool, ...]:
        """For each part, whether it is a flow."""
        return tuple(part.is_flow for part in self)

    def __iter__(self) -> Any:
        return iter(self.parts)

    def __add__(self, other: "Operator | Parts") -> "Parts":
        return Parts((*self.parts, *other.parts) if isinstance(other, Parts) else (*self.parts, other))


@dataclass(frozen=True)
class Operands:
    """What the function of an operator is called with: its weights, and in subclasses whatever else it looks at."""

    weights: Weights


O = TypeVar("O", bound=Operands)


def read_late(reading: Reading | None) -> Reading | None:
    """A reading of weights as one of the operands that hold them."""
    if reading is None:
        return None
    make = reading.make

    def into(depths: Sequence[float], args: O) -> O:
        return replace(args, weights=make(depths, args.weights))

    return Reading(into, reading.bytes)


def local(z: float, args: O) -> O:
    """The part of the operands that a function looks at in depth ``z``."""
    return replace(args, weights=args.weights.only(z))


@dataclass(frozen=True)
class Both:
    """The operands of one function behind another."""

    norm: Args
    inner: Args


@dataclass(frozen=True)
class TwoBound:
    """Two bound functions that are evaluated together."""

    norm: Bound
    inner: Bound

    def read(self, depths: Sequence[float], args: Both) -> Both:
        """Read what either still has to read."""
        norm = args.norm if self.norm.read is None else self.norm.read(depths, args.norm)
        inner = args.inner if self.inner.read is None else self.inner.read(depths, args.inner)
        return Both(norm, inner)

    def local(self, z: float, args: Both) -> Both:
        """What both look at in one depth."""
        norm = args.norm if self.norm.local is None else self.norm.local(z, args.norm)
        inner = args.inner if self.inner.local is None else self.inner.local(z, args.inner)
        return Both(norm, inner)


@dataclass(frozen=True)
class Composed(TwoBound):
    """inner(z, norm(z, x))."""

    def __call__(self, z: float, x: Tensor, args: Both) -> Tensor:
        """Evaluate both."""
        return self.inner.f(z, self.norm.f(z, x, args.norm), args.inner)


@dataclass(frozen=True)
class Added(TwoBound):
    """norm(z, x) + inner(z, x): both read the same state."""

    def __call__(self, z: float, x: Tensor, args: Both) -> Tensor:
        """Evaluate both."""
        return self.norm.f(z, x, args.norm) + self.inner.f(z, x, args.inner)


def together(kind: type[TwoBound], first: tuple[Bound, Args], second: tuple[Bound, Args]) -> tuple[Bound, Args]:
    """Two operators that were placed as one function."""
    f: Any = kind(first[0], second[0])
    unread = [own.read for own in (first[0], second[0]) if isinstance(own.read, Reading)]
    reading = Reading(f.read, sum(one.bytes for one in unread)) if unread else None
    return Bound(f, reading, f.local), Both(first[1], second[1])


@register
class PreNorm(Operator):
    """A[N(x)]: normalise inside the branch. Discrete case: the pre-norm residual branch."""

    def __init__(self, norm: Operator, inner: Operator) -> None:
        super().__init__()
        self.norm = norm
        self.inner = inner

    def read(self, grids: Grids, late: bool = False) -> tuple[Any, Any]:
        """The weights of both."""
        return self.norm.read(grids, late), self.inner.read(grids, late)

    def place(self, read: tuple[Any, Any], grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Compose the two bound functions."""
        return together(Composed, self.norm.place(read[0], grids, context), self.inner.place(read[1], grids, context))


@register
class Chain(PreNorm):
    """second(first(x)): one operator behind another, as one branch. Discrete case: ``nn.Sequential``."""

    def __init__(self, first: Operator, second: Operator) -> None:
        super().__init__(first, second)


@register
class Beside(Operator):
    """first(x) + second(x): two operators side by side, as one branch.

    Discrete case: attention and feed-forward map behind one norm (GPT-J, Falcon).
    """

    def __init__(self, first: Operator, second: Operator) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def read(self, grids: Grids, late: bool = False) -> tuple[Any, Any]:
        """The weights of both."""
        return self.first.read(grids, late), self.second.read(grids, late)

    def place(self, read: tuple[Any, Any], grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Add the two bound functions."""
        return together(Added, self.first.place(read[0], grids, context), self.second.place(read[1], grids, context))


@dataclass(frozen=True)
class Started:
    """x before a depth, inner(z, x) from there on."""

    inner: Bound
    start: float

    def __call__(self, z: float, x: Tensor, args: Args) -> Tensor:
        """Choose by depth, a plain number; a hair below the start is the start."""
        return x if z < self.start - 1e-9 else self.inner.f(z, x, args)


@register
class FromDepth(Operator):
    """x before depth ``start``, inner(x) from there on. Discrete case: first layers without a norm (ModernBERT)."""

    def __init__(self, inner: Operator, start: float) -> None:
        super().__init__()
        self.inner = inner
        self.start = start

    def read(self, grids: Grids, late: bool = False) -> Any:
        """The weights of the inner operator."""
        return self.inner.read(grids, late)

    def place(self, read: Any, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """The inner function, from its depth on."""
        inner, inner_args = self.inner.place(read, grids, context)
        return Bound(Started(inner, self.start), inner.read, inner.local), inner_args


@dataclass(frozen=True)
class Skipped:
    """γx + inner(z, x)."""

    inner: Bound
    gamma: float

    def __call__(self, z: float, x: Tensor, args: Args) -> Tensor:
        """Add γx."""
        return torch.add(self.inner.f(z, x, args), x, alpha=self.gamma)


@register
class Skip(Operator):
    """γx + inner(x): the skip factor of the flow. γ < 0 damps; γ = −1 with a unit Euler step drops the residual."""

    def __init__(self, inner: Operator, gamma: float) -> None:
        super().__init__()
        self.inner = inner
        self.gamma = gamma

    def read(self, grids: Grids, late: bool = False) -> Any:
        """The weights of the inner field."""
        return self.inner.read(grids, late)

    def place(self, read: Any, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Add γx to the inner field."""
        inner, inner_args = self.inner.place(read, grids, context)
        return Bound(Skipped(inner, self.gamma), inner.read, inner.local), inner_args
