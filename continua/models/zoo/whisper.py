"""Whisper: speech to text."""

from continua.fields import counted
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import Tokens
from continua.models.encoder_decoder import EncoderDecoder
from continua.models.frames import Frames
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import GELU, Attention, Causal, LayerNorm, Learned, Pointwise
from continua.settings import Size, Whole, checked

BIASED = ("q", "v", "o")  # keys have none


@checked
def whisper(
    vocab: Size = 51865,
    *,
    channels: Size = 80,
    d: Size = 384,
    heads: Size = 6,
    depth: Size = 4,
    m: Size | None = None,
    frames: Size = 1500,
    context: Size = 448,
    decoder_heads: Size | None = None,
    decoder_depth: Size | None = None,
    decoder_m: Size | None = None,
    pad: Whole | None = None,
) -> EncoderDecoder:
    """Whisper (Radford et al. 2023): two convolutions over mel frames, then pre-norm blocks; a tied head.

    The encoder has a table for ``frames`` tokens of two mel frames each (its sines are weights of the file), the
    decoder one for ``context`` words.

    >>> model = whisper(vocab=32, channels=4, d=8, heads=2, depth=2, frames=6, context=8)
    >>> import torch
    >>> from continua.models.batch import Batch
    >>> ids = torch.zeros(1, 5, dtype=torch.long)
    >>> model(Batch(ids, source=Batch(torch.zeros(1, 4, 12)))).shape
    torch.Size([1, 5, 32])
    """
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    w = counted(axes, depth)
    fixed = w.autonomous()
    block = pre_norm((Attention(w, bias=BIASED), Pointwise(w, GELU())), lambda: LayerNorm(w))
    after = Readout(fixed, before=(LayerNorm(fixed),))
    encoder = Transformer(axes, native, Frames(fixed, channels, Learned(fixed, frames)), block, after)
    steps = decoder_depth or depth
    axes, native = discrete_axes(d, decoder_heads or heads, decoder_m or m or 4 * d, steps)
    own = counted(axes, steps)
    still = own.autonomous()
    attentions = (Attention(own, Causal(), bias=BIASED), Attention(own, bias=BIASED, cross=True))
    parts = pre_norm((*attentions, Pointwise(own, GELU())), lambda: LayerNorm(own))
    words = Tokens(still, vocab, Learned(still, context), pad=pad)
    readout = Readout(still, vocab, before=(LayerNorm(still),), tied=True)
    return EncoderDecoder(encoder, Transformer(axes, native, words, parts, readout))
