"""Maps between functions on a domain: convolution by waves for what is far, attention for what depends on content."""

from continua.axes import (
    Axis,
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
from continua.models.latent import AskedReadout, Latent, edged, resolved
from continua.models.transformer import Transformer
from continua.models.zoo.meshes import LatentAttention
from continua.operators import (
    GELU,
    Attention,
    Chain,
    Gates,
    LayerNorm,
    Operator,
    Parts,
    Pointwise,
    PreNorm,
    Slices,
    SpectralConvolution,
    WaveBias,
)
from continua.settings import Count, Positive, Size, checked

STRETCH = 1.25  # the period of the convolution on an interval: what leaves at one end hardly comes in at the other


@checked
def function_map(
    axis: Axis,
    nodes: int | Rule,
    *,
    channels: Size = 1,
    out: Size = 1,
    at: Discretisation = at(d=64, h=4, m=64, z=4),  # noqa: B008  (frozen)
    modes: Count | tuple[Count, ...] = 17,
    attention: bool | LatentAttention = True,
    tokens: Size = 32,
    sharp: bool = False,
    smooth: bool = False,
    input_modes: Count | tuple[Count, ...] | None = None,
    input_mean: float = 0.0,
    input_spread: Positive = 1.0,
    output_spread: Positive = 1.0,
) -> Transformer:
    """A map from functions on ``axis`` with ``channels`` values to functions there with ``out`` values.

    The state lives on a latent grid, that of a rule or with ``nodes`` along each direction; functions are observed and
    answered at any points (``Latent``). The field of one step is W₂φ(W₁φ(κ∗x + Wx)), a convolution by ``modes`` waves
    inside a pointwise map, and with ``attention`` also attention whose scores carry a bias of displacement, or a
    cheaper one through ``tokens`` latent ones (``LatentAttention``). On a circle it knows of no origin: a shifted
    input has a shifted answer. Inputs are read as (value − ``input_mean``) / ``input_spread``, answers are multiplied
    by ``output_spread``; ``sharp`` inputs have jumps (see ``Latent``), ``smooth`` answers are themselves read between
    the nodes (see ``AskedReadout``). ``input_modes`` waves are read of an input, those the latent grid tells apart
    unless told: fewer where it is finer than the grid of the training, more where inputs are rougher than it.
    Weights are free at each native step and constant between.

    >>> from continua.axes import Circle
    >>> model = function_map(Circle(), 16, at=at(d=8, h=2, m=8, z=2), modes=4)
    >>> import torch
    >>> model(torch.zeros(1, 16, 1)).shape
    torch.Size([1, 16, 1])
    """
    if isinstance(axis, Points | Times):
        raise ConfigError(
            "functions live on a continuous domain", got=axis, remedy="Use Circle(), Interval(), Product."
        )
    chosen, native = continuous_axes(at, t=axis)
    depth = native.z.steps if isinstance(native.z, Fixed) else 4
    weights = ByBasis(chosen, {**smooth_bases(chosen, native, depth), "z": Nodal(LeftEnd(depth))})
    fixed = weights.autonomous()
    rule = default_rule(axis, nodes**axis.dim) if isinstance(nodes, int) else nodes
    seen = Observations(fixed, channels + len(edged(axis)), scale=(input_mean, input_spread))
    embed = Latent(seen, fixed, rule, _resolved(axis, rule) if input_modes is None else input_modes, sharp)
    block = Parts(tuple(branches(weights, modes, attention, depth, tokens)))
    readout = AskedReadout(fixed, rule, out, before=(Pointwise(fixed),), scale=output_spread, smooth=smooth)
    return Transformer(chosen, native, embed, block, readout)


def _resolved(axis: Axis, rule: Rule) -> tuple[int, ...]:
    """How many waves the latent grid tells apart: of double period along intervals."""
    pairs = zip(factors(axis), factor_rules(rule), strict=True)
    return tuple(resolved(factor, each.n) for factor, each in pairs)


def branches(
    weights: Parametrisation,
    modes: int | tuple[int, ...],
    attention: bool | LatentAttention,
    depth: int,
    tokens: int = 32,
) -> list[Operator]:
    """The flows of one step."""
    gain = depth**-0.5
    far = SpectralConvolution(weights, modes, phi=GELU(), stretch=STRETCH)
    made: list[Operator] = [Chain(far, Pointwise(weights, gain=gain))]
    if attention is LatentAttention.SLICES:
        made.append(Slices(weights, tokens, gain=gain))
    elif attention is LatentAttention.GATES:
        made.append(Gates(weights, tokens, gain=gain))
    elif attention is True:
        near = Attention(weights, position=WaveBias(weights))
        made.append(PreNorm(LayerNorm(weights), near))
    return made
