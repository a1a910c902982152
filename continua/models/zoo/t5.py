"""T5: an encoder and a decoder with relative positions."""

from dataclasses import dataclass

from continua.fields import counted
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import Tokens
from continua.models.encoder_decoder import EncoderDecoder
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import GELU, Attention, Causal, Pointwise, RelativeBias, ReLU, RMSNorm, Softmax
from continua.settings import NonNegative, Positive, Size, checked


@checked
@dataclass(frozen=True)
class T5Style:
    """What differs among models called T5: gate, head, and the buckets of the relative bias.

    ``gated`` is a tanh-GELU gate in place of ReLU; ``tied`` takes the head from the token table; ``scaled`` multiplies
    the head's input by d^(−½).
    """

    gated: bool = False
    tied: bool = True
    scaled: bool = True
    buckets: Size = 32
    reach: Positive = 128.0
    eps: NonNegative = 1e-6


T5_10 = T5Style()
T5_11 = T5Style(gated=True, tied=False, scaled=False)


@checked
def t5(
    vocab: Size = 32128,
    *,
    d: Size = 512,
    heads: Size = 8,
    depth: Size = 6,
    decoder_depth: Size | None = None,
    m: Size | None = None,
    e: Size = 64,
    style: T5Style = T5_10,
) -> EncoderDecoder:
    """T5 (Raffel et al. 2020): unscaled scores, a relative bias for all layers of a stack, RMS pre-norm, no biases.

    ``depth`` is that of the encoder, and of the decoder unless ``decoder_depth`` is given; both look words up in one
    table. ``style=T5_11`` is v1.1.

    >>> model = t5(vocab=32, d=8, heads=2, depth=2, e=3, style=T5_11)
    >>> import torch
    >>> from continua.models.batch import Batch
    >>> ids = torch.zeros(1, 5, dtype=torch.long)
    >>> model(Batch(ids, source=Batch(ids[:, :3]))).shape
    torch.Size([1, 5, 32])
    """
    decoder_depth = depth if decoder_depth is None else decoder_depth
    m = m or 4 * d
    encoder = _stack(vocab, d=d, heads=heads, depth=depth, m=m, e=e, style=style, decodes=False)
    decoder = _stack(vocab, d=d, heads=heads, depth=decoder_depth, m=m, e=e, style=style, decodes=True)
    return EncoderDecoder(encoder, decoder, shared=True)


def _stack(vocab: int, *, d: int, heads: int, depth: int, m: int, e: int, style: T5Style, decodes: bool) -> Transformer:
    """One side of T5."""
    axes, native = discrete_axes(d, heads, m, depth, e)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    bias = RelativeBias(fixed, style.buckets, style.reach, causal=decodes)
    unscaled = Softmax(temperature=1.0)
    own = Attention(weights, Causal() if decodes else None, bias, unscaled, bias=())
    across = (Attention(weights, kernel=unscaled, bias=(), cross=True),) if decodes else ()
    feed = Pointwise(weights, GELU(tanh=True) if style.gated else ReLU(), gated=style.gated, bias=False)
    block = pre_norm((own, *across, feed), lambda: RMSNorm(weights, style.eps))
    before = (RMSNorm(fixed, style.eps),)
    scale = d**-0.5 if style.scaled else 1.0
    readout = Readout(fixed, vocab, before, style.tied, scale=scale) if decodes else Readout(fixed, before=before)
    return Transformer(axes, native, Tokens(fixed, vocab, std=1.0), block, readout)
