"""Maps between functions on a domain: convolution by waves for what is far, attention for what depends on content."""

from typing import Any

from continua.axes import (
    Axis,
    Circle,
    Discretisation,
    LeftEnd,
    Points,
    Rule,
    Times,
    at,
    default_rule,
    factor_rules,
    factors,
)
from continua.errors import ConfigError
from continua.fields import ByBasis, Nodal, Parametrisation
from continua.flow import Fixed
from continua.models.build import continuous_axes, smooth_bases
from continua.models.embed import Observations
from continua.models.latent import AskedReadout, Latent, edged
from continua.operators import (
    GELU,
    Attention,
    Chain,
    LayerNorm,
    Operator,
    Parts,
    Pointwise,
    PreNorm,
    SpectralConvolution,
    WaveBias,
)

Scale = tuple[float, float]
STRETCH = 1.25  # the period of the convolution on an interval: what leaves at one end hardly comes in at the other


def function_parts(
    axis: Axis,
    nodes: int | Rule,
    channels: tuple[int, int] = (1, 1),
    at: Discretisation = at(d=64, h=4, m=64, z=4),  # noqa: B008  (frozen)
    modes: int | tuple[int, ...] = 17,
    attention: bool = True,
    sharp: bool = False,
    scales: tuple[Scale, Scale] = ((0.0, 1.0), (0.0, 1.0)),
) -> dict[str, Any]:
    """The parts of a Transformer from functions on ``axis`` to functions there, ``channels`` = (read, answered).

    The state lives on a latent grid, that of a rule or with ``nodes`` along each direction; functions are observed and
    answered at any points (``Latent``). The field of one step is W₂φ(W₁φ(κ∗x + Wx)), a convolution by ``modes`` waves
    inside a pointwise map, and with ``attention`` also attention whose scores carry a bias of displacement. On a circle
    it knows of no origin: a shifted input has a shifted answer. ``scales`` = (mean, spread) of inputs and outputs;
    ``sharp`` inputs have jumps (see ``Latent``). Weights are free at each native step and constant between.
    """
    if isinstance(axis, Points | Times):
        raise ConfigError(
            "functions live on a continuous domain", got=axis, remedy="Use Circle(), Interval(), Product."
        )
    chosen, native = continuous_axes(at, t=axis)
    depth = native.z.steps if isinstance(native.z, Fixed) else 4
    weights = ByBasis(chosen, {**smooth_bases(chosen, native, depth), "z": Nodal(LeftEnd(depth))})
    fixed, (inputs, outputs) = weights.autonomous(), scales
    rule = default_rule(axis, nodes**axis.dim) if isinstance(nodes, int) else nodes
    seen = Observations(fixed, channels[0] + len(edged(axis)), scale=inputs)
    return {
        "axes": chosen,
        "native": native,
        "embed": Latent(seen, fixed, rule, _resolved(axis, rule), sharp),
        "block": Parts(tuple(branches(weights, modes, attention, depth))),
        "readout": AskedReadout(fixed, rule, channels[1], before=(Pointwise(fixed),), scale=outputs[1]),
    }


def _resolved(axis: Axis, rule: Rule) -> tuple[int, ...]:
    """How many waves the latent grid tells apart: of double period along intervals."""
    pairs = zip(factors(axis), factor_rules(rule), strict=True)
    return tuple(max(1, each.n // 2 if isinstance(factor, Circle) else each.n) for factor, each in pairs)


def branches(weights: Parametrisation, modes: int | tuple[int, ...], attention: bool, depth: int) -> list[Operator]:
    """The flows of one step."""
    far = SpectralConvolution(weights, modes, phi=GELU(), stretch=STRETCH)
    made: list[Operator] = [Chain(far, Pointwise(weights, gain=depth**-0.5))]
    if attention:
        near = Attention(weights, position=WaveBias(weights))
        made.append(PreNorm(LayerNorm(weights), near))
    return made
