"""What an operator is: weight fields that are read once on the grids, then a pure function of (z, x, args)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from continua.axes import Grid
from continua.config import register
from continua.flow.vectorfield import Bound, Reading
from continua.operators.cache import Cache
from continua.operators.manual_backward import LeanByGraph, LeanNormed, LeanSkip
from continua.operators.weights import Finish, Grids, Weight, sample
from continua.typing import Args, Tensor


@dataclass(frozen=True)
class Recorded:
    """Attention weights α_h(t, s) (times the measure of s: rows sum to one) of one operator at one depth."""

    operator: "Operator"
    z: float
    weights: Tensor


@dataclass(frozen=True)
class Context:
    """What an operator may look at besides the state.

    ``state`` and ``grid`` are another field with its own nodes (encoder output, memory, second modality); ``values``
    is read in its place where values differ from keys (a memory bank of both).
    ``pairs`` restricts or biases self-attention, ``cross_pairs`` attention to ``state``: boolean (True = allowed) or
    floating point (added to the scores), broadcastable to [b, h, t, s]. ``cache`` serves generation; ``record``
    collects the attention weights of every evaluation. ``late`` asks for weights over depth to be read block by block
    during the solve, where they are not stored anyway. ``generator`` draws dropout. ``memo`` keeps weights that were
    read, for as long as its owner says that they do not change.
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
    memo: dict[int, Any] | None = None


class Operator(nn.Module):
    """A map of fields. ``bind`` reads the weights on the grids; the function it returns holds no tensor of its own.

    Every tensor that is differentiated through is a leaf of ``args``. ``grids["z"]`` holds the depths at which the
    function may be called; without it, or with ``context.late``, what ``bind`` returns is first to be read at some
    (``Bound.read``).
    """

    is_flow: ClassVar[bool] = True

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Return (f, args) with f(z, x, args)."""
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


def remembered(context: Context | None, operator: "Operator", make: Callable[[], Any]) -> Any:
    """Read weights anew, or once for all tokens of a generation, or once for a view that holds them."""
    if context is not None and context.cache is not None:
        return context.cache.weights(operator, make)
    if context is None or context.memo is None:
        return make()
    if id(operator) not in context.memo:
        context.memo[id(operator)] = make()
    return context.memo[id(operator)]


def weights_of(
    operator: "Operator",
    grids: Grids,
    context: Context | None,
    weights: Mapping[str, Weight],
    finish: Finish | None = None,
) -> tuple[dict[str, Any], Reading | None]:
    """Read the weights of an operator, late if the context wishes, once for all tokens of a generation."""
    late = context is not None and context.late
    made: tuple[dict[str, Any], Reading | None] = remembered(
        context, operator, lambda: sample(grids, weights, late, finish)
    )
    return made


@register
class PreNorm(Operator):
    """A[N(x)]: normalise inside the branch. Discrete case: the pre-norm residual branch."""

    def __init__(self, norm: Operator, inner: Operator) -> None:
        super().__init__()
        self.norm, self.inner = norm, inner

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Compose the two bound functions."""
        norm, norm_args = self.norm.bind(grids, context)
        inner, inner_args = self.inner.bind(grids, context)

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            return inner.f(z, norm.f(z, x, args["norm"]), args["inner"])

        def read(depths: Any, args: Args) -> Args:
            own = {"norm": norm, "inner": inner}
            return {k: args[k] if b.read is None else b.read(depths, args[k]) for k, b in own.items()}

        def local(z: float, args: Args) -> Args:
            own = {"norm": norm, "inner": inner}
            return {k: args[k] if b.local is None else b.local(z, args[k]) for k, b in own.items()}

        by_hand = getattr(self.norm, "by_hand", lambda grids: None)(grids) or LeanByGraph(norm)
        lean = None if inner.lean is None else LeanNormed(norm, by_hand, inner.lean)
        unread = [own.read for own in (norm, inner) if own.read is not None]
        reading = Reading(read, sum(getattr(one, "bytes", 0) for one in unread)) if unread else None
        return Bound(f, reading, local, lean), {"norm": norm_args, "inner": inner_args}


@register
class Chain(PreNorm):
    """second(first(x)): one operator behind another, as one branch. Discrete case: ``nn.Sequential``."""

    def __init__(self, first: Operator, second: Operator) -> None:
        super().__init__(first, second)


@register
class Skip(Operator):
    """γx + inner(x): the skip factor of the flow. γ < 0 damps; γ = −1 with a unit Euler step drops the residual."""

    def __init__(self, inner: Operator, gamma: float) -> None:
        super().__init__()
        self.inner, self.gamma = inner, gamma

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Add γx to the inner field."""
        inner, inner_args = self.inner.bind(grids, context)
        gamma = self.gamma

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            return torch.add(inner.f(z, x, args), x, alpha=gamma)

        lean = None if inner.lean is None else LeanSkip(inner.lean, gamma)
        return Bound(f, inner.read, inner.local, lean), inner_args
