"""More known models as plain functions: graphs, time series, two modalities."""

from continua.axes import Axis, Discretisation, Times, at
from continua.errors import ConfigError
from continua.fields import ByBasis, counted
from continua.models.build import continuous_axes, discrete_axes, pre_norm, smooth_bases
from continua.models.embed import Observations, Queries, Tokens
from continua.models.encoder_decoder import EncoderDecoder
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import (
    ELU,
    Additive,
    Apply,
    Attention,
    Causal,
    LayerNorm,
    Learned,
    Neighbours,
    Operator,
    Parts,
    Pointwise,
    Project,
    Sinusoidal,
    Skip,
)
from continua.typing import Tensor


def gat(
    channels: int,
    out: int | None = None,
    d: int = 64,
    heads: int = 8,
    depth: int = 2,
    edges: Tensor | Neighbours | None = None,
    slope: float = 0.2,
) -> Transformer:
    """A graph attention network (Veličković et al. 2018): additive scores over neighbours, no residual, ELU.

    The graph comes with each batch, ``Batch(features, pairs=adjacency)`` with True where t looks at s, or is one for
    all: ``edges`` [2, m], a row of sources and a row of targets (every node then sees itself too). γ = −1 with a unit
    Euler step drops the residual; the ELU after each layer is a projection.

    >>> import torch
    >>> model = gat(channels=3, out=2, d=8, heads=2, edges=torch.tensor([[0, 1, 2], [1, 2, 3]]))
    >>> model(torch.zeros(1, 4, 3)).shape
    torch.Size([1, 4, 2])
    """
    axes, native = discrete_axes(d, heads, 4 * d, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    mask = Neighbours.of(edges) if isinstance(edges, Tensor) else edges
    attention = Attention(weights, mask=mask, kernel=Additive(slope), bias=("o",))
    block = Parts((Skip(attention, gamma=-1.0), Project(Apply(ELU()))))
    return Transformer(axes, native, Observations(fixed, channels), block, Readout(fixed, out))


def forecaster(
    channels: int = 1,
    out: int | None = None,
    at: Discretisation = at(d=64, h=4, z=2),  # noqa: B008  (frozen)
    self_attention: bool = False,
    base: float = 10000.0,
    **axes: Axis,
) -> EncoderDecoder:
    """A forecaster on continuous axes: values at the times of a history in, values at the times of a question out.

    ``Batch(times=asked, source=Batch(values, times=stamps, observed=flags))``. The history is integrated against
    Lebesgue measure, so its stamps may be irregular, with gaps, and as dense as one likes. Without
    ``self_attention`` the questions do not see each other. Wave lengths of time reach from 2π to 2π·base: choose a
    unit in which neighbouring stamps are about one apart.
    """
    named = {"t": Times(), **axes}
    chosen, native = continuous_axes(at, **named)
    weights = ByBasis(chosen, smooth_bases(chosen, native, min(native.z.steps, 6)))
    fixed = weights.autonomous()

    def flow(*branches: Operator) -> Parts:
        return pre_norm((*branches, Pointwise(weights)), lambda: LayerNorm(weights))

    final = Readout(fixed, before=(LayerNorm(fixed),))
    history = Observations(fixed, channels, Sinusoidal(chosen, base))
    encoder = Transformer(chosen, native, history, flow(Attention(weights)), final)
    looks = ([Attention(weights)] if self_attention else []) + [Attention(weights, cross=True)]
    answer = Readout(fixed, channels if out is None else out, before=(LayerNorm(fixed),))
    asked = Queries(fixed, Sinusoidal(chosen, base))
    return EncoderDecoder(encoder, Transformer(chosen, native, asked, flow(*looks), answer))


def cross_modal(
    vocab: int,
    channels: int,
    d: int = 256,
    heads: int = 4,
    depth: int = 4,
    context: int = 512,
    observations: int = 256,
    m: int | None = None,
) -> EncoderDecoder:
    """Text that looks at something else: ``Batch(tokens, source=Batch(observations [b, s, channels]))``.

    An encoder lifts the observations (image patches, audio frames, sensors); a causal decoder of words attends to
    itself and then to them. ``observations`` and ``context`` are the lengths of the two position tables.
    """
    if observations < 1 or context < 1:
        raise ConfigError("position tables need rows", got=min(observations, context), remedy="Give lengths ≥ 1.")
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()

    def flow(*branches: Operator) -> Parts:
        return pre_norm((*branches, Pointwise(weights)), lambda: LayerNorm(weights))

    seen = Observations(fixed, channels, Learned(fixed, observations))
    encoder = Transformer(axes, native, seen, flow(Attention(weights)), Readout(fixed, before=(LayerNorm(fixed),)))
    words = Tokens(fixed, vocab, Learned(fixed, context))
    looks = (Attention(weights, mask=Causal()), Attention(weights, cross=True))
    readout = Readout(fixed, vocab, before=(LayerNorm(fixed),), tied=True)
    return EncoderDecoder(encoder, Transformer(axes, native, words, flow(*looks), readout))
