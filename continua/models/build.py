"""Building blocks of models: where norms go, and how a continuous model is put together."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch

from continua import memory
from continua.axes import (
    Axes,
    Axis,
    Circle,
    Counting,
    Discretisation,
    Interval,
    Points,
    Rule,
    at,
    default_rule,
    with_mass,
)
from continua.errors import ConfigError, nearest
from continua.fields import Basis, ByBasis, Cubic, Legendre, Nodal, Trigonometric
from continua.flow import Fixed, LieTrotter
from continua.models.embed import Observations, Tokens
from continua.models.readout import Readout
from continua.operators import (
    Attention,
    Causal,
    LayerNorm,
    Learned,
    Mask,
    Operator,
    Parts,
    Pointwise,
    PreNorm,
    Project,
    Skip,
)
from continua.typing import Letter


def pre_norm(branches: tuple[Operator, ...], norm: Callable[[], Operator]) -> Parts:
    """A[N(x)] for each branch."""
    return Parts(tuple(PreNorm(norm(), branch) for branch in branches))


def post_norm(branches: tuple[Operator, ...], norm: Callable[[], Operator]) -> Parts:
    """Each branch, then the projection x ← N(x)."""
    return Parts(tuple(part for branch in branches for part in (branch, Project(norm()))))


def discrete_axes(d: int, heads: int, m: int, depth: int, e: int | None = None) -> tuple[Axes, Discretisation]:
    """Counting axes and unit steps: where the standard Transformer lives. ``e`` is d/heads unless given."""
    if heads < 1 or (e is None and d % heads):
        raise ConfigError(f"a width of {d} does not divide into heads", got=heads, remedy=f"Choose a divisor of {d}.")
    e = d // heads if e is None else e
    axes = Axes(t=Points(), d=Points(d), h=Points(heads), e=Points(e), m=Points(m), z=Interval(0.0, float(depth)))
    native = Discretisation(
        d=Counting(d), h=Counting(heads), e=Counting(e), m=Counting(m), z=Fixed(depth, LieTrotter())
    )
    return axes, native


def smooth_bases(axes: Axes, native: Discretisation, depth_modes: int) -> dict[Letter, Basis]:
    """Nodal values with smooth reading along the widths, few smooth functions along depth.

    Circles are read by Fourier resampling, intervals by cubic splines, points one by one.
    """
    bases: dict[Letter, Basis] = {"z": Legendre(depth_modes)}
    for letter in "dhem":
        axis, rule = axes[letter], getattr(native, letter)
        if isinstance(axis, Points):
            bases[letter] = Nodal(Counting(rule.n))
        else:
            bases[letter] = Nodal(rule, Trigonometric() if isinstance(axis, Circle) else Cubic())
    return bases


def continuous_parts(
    vocab: int | None = None,
    channels: int | None = None,
    at: Discretisation = at(d=128, h=4, z=6),  # noqa: B008  (frozen)
    mask: Mask | None = None,
    bases: Mapping[Letter, Basis] | None = None,
    gamma: float = 0.0,
    context: int = 1024,
    **axes: Axis,
) -> dict[str, Any]:
    """The parts of a Transformer whose axes are continuous: nothing here is a layer count, only a native grid.

    ``vocab`` makes a language model (causal unless ``mask`` says otherwise, tied head); ``channels`` a map between
    fields with that many values at each node of ``t``. ``at`` is the native discretisation; e defaults to d/h, m to 4d.
    ``bases`` replaces the basis of some letters, for example ``{"z": BSpline(6)}``. ``gamma`` is the skip factor γ; a
    language model has learned positions for ``context`` tokens.
    ``axes`` names the axes (``t=Times(), d=Circle(), h=Interval(), …``); see ``continuous_axes`` for their defaults.
    """
    if (vocab is None) == (channels is None):
        raise ConfigError("a model reads tokens or observations", got="both or none", remedy="Give vocab or channels.")
    chosen, native = continuous_axes(at, **axes)
    weights = ByBasis(chosen, {**smooth_bases(chosen, native, min(native.z.steps, 6)), **(bases or {})})
    _refuse_too_large(weights)
    fixed = weights.autonomous()
    if vocab is not None:
        mask = Causal() if mask is None else mask
        embed: Tokens | Observations = Tokens(fixed, vocab, Learned(fixed, context))
        readout = Readout(fixed, vocab, before=(LayerNorm(fixed),), tied=True)
    else:
        embed = Observations(fixed, channels or 1)
        readout = Readout(fixed, channels, before=(LayerNorm(fixed),))
    block = pre_norm((Attention(weights, mask=mask), Pointwise(weights)), lambda: LayerNorm(weights))
    if gamma:
        first, *rest = block
        block = Parts((Skip(first, gamma), *rest))
    return {"axes": chosen, "native": native, "embed": embed, "block": block, "readout": readout}


def _refuse_too_large(weights: ByBasis) -> None:
    """Say at once what the largest weights would say after the tables were drawn."""
    for letters in ("zhed", "zmd"):
        shape = [int(weights.rank(letter)) for letter in letters]
        need = math.prod(shape) * torch.get_default_dtype().itemsize
        memory.require(need, f"a weight of shape {shape}", "Choose smaller sizes.")


def continuous_axes(at: Discretisation, **axes: Axis) -> tuple[Axes, Discretisation]:
    """Settle axes, masses and rules for the native grid ``at``.

    Defaults: tokens are counted, d and m are circles, h and e intervals, each with native nodes that weigh one; depth
    is as long as its native number of steps, so that these have length one.
    """
    known = [field.name for field in fields(Axes)]
    for letter in axes:
        if letter not in known:
            raise ConfigError("a model has the axes t, d, h, e, m, z", got=letter, remedy=nearest(letter, known))
    if at.d is None or at.h is None or at.z is None:
        raise ConfigError("the native grid needs d, h and z", got=str(at), remedy="Write at(d=128, h=4, z=6).")
    width, heads = _size(at.d), _size(at.h)
    if at.e is None and width % heads:
        raise ConfigError(f"a width of {width} does not divide into heads", got=heads, remedy="Give at(e=…) too.")
    if not isinstance(at.z, int | Fixed):
        remedy = "Write at(z=6), and ask for other steps at the call: model.at(z=Adaptive(rtol=1e-4))."
        raise ConfigError("the native grid counts its steps", got=at.z, remedy=remedy)
    depth = Fixed(at.z, LieTrotter()) if isinstance(at.z, int) else at.z
    depth = depth if depth.solver is not None else replace(depth, solver=LieTrotter())
    inner = width // heads if at.e is None else _size(at.e)
    hidden = 4 * width if at.m is None else _size(at.m)
    depth_axis = axes.get("z", Interval(0.0, float(depth.steps)))
    if not isinstance(depth_axis, Interval):
        raise ConfigError("depth is an interval", got=depth_axis, remedy="Write z=Interval(0, length).")
    settled = Axes(
        t=axes.get("t", Points()),
        d=with_mass(axes.get("d", Circle()), width),
        h=with_mass(axes.get("h", Interval()), heads),
        e=with_mass(axes.get("e", Interval()), inner),
        m=with_mass(axes.get("m", Circle()), hidden),
        z=depth_axis,
    )
    sizes = {"d": at.d, "h": at.h, "e": at.e or inner, "m": at.m or hidden}
    rules = {k: default_rule(settled[k], v) if isinstance(v, int) else v for k, v in sizes.items()}
    return settled, Discretisation(t=at.t, **rules, z=depth)


def _size(wish: Rule | int) -> int:
    return wish if isinstance(wish, int) else wish.n
