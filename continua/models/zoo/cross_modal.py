"""Words that look at another modality."""

from continua.errors import ConfigError
from continua.fields import counted
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import Observations, Tokens
from continua.models.encoder_decoder import EncoderDecoder
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import Attention, Causal, LayerNorm, Learned, Operator, Parts, Pointwise
from continua.settings import Size, checked


@checked
def cross_modal(
    vocab: Size,
    channels: Size,
    *,
    d: Size = 256,
    heads: Size = 4,
    depth: Size = 4,
    context: Size = 512,
    observations: Size = 256,
    m: Size | None = None,
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
