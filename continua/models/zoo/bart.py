"""BART: an encoder and a decoder, both post-norm."""

from dataclasses import dataclass

from continua.fields import Parametrisation, counted
from continua.models.build import discrete_axes, post_norm, pre_norm
from continua.models.embed import Tokens
from continua.models.encoder_decoder import EncoderDecoder
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import GELU, Activation, Attention, Causal, LayerNorm, Learned, Pointwise, Sinusoidal
from continua.settings import Size, Whole, checked

SKIP = 2  # rows of the position tables that no token reads


@checked
@dataclass(frozen=True)
class BartStyle:
    """What differs among models built like BART: φ, scaled words, the padding token, and what is behind the decoder.

    ``scaled`` multiplies words by √d; ``words`` answers with the token table, ``bias`` adds a bias to that. ``pre``
    puts norms before the branches and one behind all (mBART); ``normed`` normalises words and positions; ``sines`` are
    positions that are not learned (Marian).
    """

    phi: Activation = GELU()  # noqa: RUF009  (frozen)
    scaled: bool = False
    pad: Whole = 1
    words: bool = True
    bias: bool = True
    pre: bool = False
    normed: bool = True
    sines: bool = False


@dataclass(frozen=True)
class _Side:
    heads: int
    depth: int
    m: int
    decodes: bool


@checked
def bart(
    vocab: Size = 50265,
    *,
    d: Size = 1024,
    heads: Size | tuple[Size, Size] = 16,
    depth: Size | tuple[Size, Size] = 12,
    m: Size | tuple[Size, Size] | None = None,
    context: Size = 1024,
    style: BartStyle = BartStyle(),  # noqa: B008  (frozen)
) -> EncoderDecoder:
    """BART (Lewis et al. 2020): post-norm, normalised sums of words and learned positions, one table for all words.

    ``heads``, ``depth`` and ``m`` may differ in encoder and decoder: a pair.

    >>> model = bart(vocab=32, d=8, heads=2, depth=(2, 1), context=8)
    >>> import torch
    >>> from continua.models.batch import Batch
    >>> ids = torch.zeros(1, 5, dtype=torch.long)
    >>> model(Batch(ids, source=Batch(ids[:, :3]))).shape
    torch.Size([1, 5, 32])
    """
    first, second = (
        _stack(vocab, d, context, style, _Side(*sizes, decodes=decodes))
        for sizes, decodes in zip(
            zip(_pair(heads), _pair(depth), _pair(m or 4 * d), strict=True), (False, True), strict=True
        )
    )
    return EncoderDecoder(first, second, shared=True)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _stack(vocab: int, d: int, context: int, style: BartStyle, side: _Side) -> Transformer:
    axes, native = discrete_axes(d, side.heads, side.m, side.depth)
    weights = counted(axes, side.depth)
    fixed = weights.autonomous()
    own = Attention(weights, Causal() if side.decodes else None)
    across = (Attention(weights, cross=True),) if side.decodes else ()
    place = pre_norm if style.pre else post_norm
    block = place((own, *across, Pointwise(weights, style.phi)), lambda: LayerNorm(weights))
    learned = Learned(fixed, context + SKIP, skip=SKIP)
    position = Sinusoidal(axes, halves=True) if style.sines else learned
    scale = d**0.5 if style.scaled else 1.0
    embed = Tokens(fixed, vocab, position, norm=LayerNorm(fixed) if style.normed else None, pad=style.pad, scale=scale)
    return Transformer(axes, native, embed, block, _readout(fixed, vocab, style, side))


def _readout(fixed: Parametrisation, vocab: int, style: BartStyle, side: _Side) -> Readout | None:
    """Words behind the decoder, a norm behind either side of a pre-norm model, or nothing."""
    before = (LayerNorm(fixed),) if style.pre else ()
    if side.decodes and style.words:
        return Readout(fixed, vocab, before=before, tied=True, bias=style.bias)
    return Readout(fixed, before=before) if before else None
