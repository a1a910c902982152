"""What an operator is: weight fields that are read once on the grids, then a pure function of (z, x, args)."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from continua.axes import Grid, grid_key
from continua.config import register
from continua.errors import SolveError
from continua.fields import Field
from continua.operators.cache import Cache
from continua.typing import Args, Letter, Tensor, VectorFunction

Grids = Mapping[Letter, Grid]


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
    collects the attention weights of every evaluation.
    """

    state: Tensor | None = None
    grid: Grid | None = None
    pairs: Tensor | None = None
    cross_pairs: Tensor | None = None
    cache: Cache | None = None
    record: list[Recorded] | None = None
    values: Tensor | None = None


class Operator(nn.Module):
    """A map of fields. ``bind`` reads the weights on the grids; the function it returns holds no tensor of its own.

    Every tensor that is differentiated through is a leaf of ``args``. ``grids["z"]`` holds the depths at which the
    function may be called.
    """

    is_flow: ClassVar[bool] = True

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[VectorFunction, Args]:
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


@functools.lru_cache(maxsize=512)
def depth_grid(depths: tuple[float, ...]) -> Grid:
    """Return the grid of the depths at which a part is read."""
    nodes = np.array(depths, dtype=np.float64)[:, None]
    return Grid(torch.from_numpy(nodes), torch.ones(len(depths), dtype=torch.float64), key=grid_key(nodes))


def read(field: Field | None, grids: Grids, over: str = "") -> Tensor | None:
    """Return the values of ``field`` on the grids, times the quadrature weights of the letters ``over``.

    Folding the weights here makes every later integral a plain matrix product. Where they are one (native nodes),
    the stored tensor itself is returned.
    """
    if field is None:
        return None
    values = field.on(**{letter: grids[letter] for letter in field.letters})
    for letter in over:
        if not grids[letter].is_unit:
            place = len(field.letters) - 1 - field.letters.index(letter)
            values = values * grids[letter].weights.to(values).reshape(-1, *[1] * place)
    return values


def remembered(context: Context | None, operator: "Operator", make: Callable[[], Any]) -> Any:
    """Read weights anew, or once for all tokens of a generation."""
    return make() if context is None or context.cache is None else context.cache.weights(operator, make)


def by_depth(grids: Grids, sampled: Mapping[str, tuple[Field | None, Tensor | None]]) -> dict[str, Any]:
    """Sort sampled weights into those of every depth and those of each depth.

    ``unbind`` instead of indexing: its backward is one stack, where each index would fill a whole tensor with zeros.
    """
    fixed: dict[str, Tensor] = {}
    depths: list[float] = grids["z"].nodes[:, 0].tolist()
    layers: dict[float, dict[str, Tensor]] = {z: {} for z in depths}
    for name, (field, values) in sampled.items():
        if field is None or values is None:
            continue
        if "z" not in field.letters:
            fixed[name] = values
            continue
        for z, layer in zip(depths, values.unbind(0), strict=True):
            layers[z][name] = layer
    return {"fixed": fixed, "depth": layers}


def at_depth(weights: Mapping[str, Any], z: float) -> dict[str, Tensor]:
    """Return the weights that apply at depth ``z``."""
    layer = weights["depth"].get(z)
    if layer is None:
        known = ", ".join(f"{d:g}" for d in list(weights["depth"])[:4])
        raise SolveError(
            "the weights were not read at this depth",
            got=f"z={z!r} (read at {known}, …)",
            remedy="Bind with this depth.",
        )
    return {**weights["fixed"], **layer} if weights["fixed"] else layer


@register
class PreNorm(Operator):
    """A[N(x)]: normalise inside the branch. Discrete case: the pre-norm residual branch."""

    def __init__(self, norm: Operator, inner: Operator) -> None:
        super().__init__()
        self.norm, self.inner = norm, inner

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[VectorFunction, Args]:
        """Compose the two bound functions."""
        norm, norm_args = self.norm.bind(grids, context)
        inner, inner_args = self.inner.bind(grids, context)

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            return inner(z, norm(z, x, args["norm"]), args["inner"])

        return f, {"norm": norm_args, "inner": inner_args}


@register
class Skip(Operator):
    """γx + inner(x): the skip factor of the flow. γ < 0 damps; γ = −1 with a unit Euler step drops the residual."""

    def __init__(self, inner: Operator, gamma: float) -> None:
        super().__init__()
        self.inner, self.gamma = inner, gamma

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[VectorFunction, Args]:
        """Add γx to the inner field."""
        inner, inner_args = self.inner.bind(grids, context)
        gamma = self.gamma

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            return torch.add(inner(z, x, args), x, alpha=gamma)

        return f, inner_args
