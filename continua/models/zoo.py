"""Known models as plain functions. Each returns the same ``Transformer`` (or two); none has forward code of its own."""

from dataclasses import dataclass, replace

from continua.axes import Points
from continua.fields import counted
from continua.models.build import discrete_axes, post_norm, pre_norm
from continua.models.embed import Tokens
from continua.models.encoder_decoder import EncoderDecoder
from continua.models.factored import Narrowed, Widened
from continua.models.patches import Patches, Pixels
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.models.zoo_more import cross_modal, forecaster, gat
from continua.operators import (
    GELU,
    Activation,
    Apply,
    Attention,
    Causal,
    Integral,
    LayerNorm,
    Learned,
    Pointwise,
    RelativeBias,
    ReLU,
    RMSNorm,
    Rotary,
    SiLU,
    Softmax,
)


def gpt2(
    vocab: int = 50257,
    d: int = 768,
    heads: int = 12,
    depth: int = 12,
    context: int = 1024,
    m: int | None = None,
    eps: float = 1e-5,
) -> Transformer:
    """GPT-2 (Radford et al. 2019): causal, pre-norm, learned positions, tied head.

    >>> model = gpt2(vocab=64, d=16, heads=2, depth=2, context=8)
    >>> import torch
    >>> model(torch.zeros(1, 8, dtype=torch.long)).shape
    torch.Size([1, 8, 64])
    """
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    block = pre_norm(
        (Attention(weights, mask=Causal()), Pointwise(weights, GELU(tanh=True))), lambda: LayerNorm(weights, eps)
    )
    readout = Readout(fixed, vocab, before=(LayerNorm(fixed, eps),), tied=True)
    return Transformer(axes, native, Tokens(fixed, vocab, Learned(fixed, context)), block, readout)


def bert(
    vocab: int = 30522,
    d: int = 768,
    heads: int = 12,
    depth: int = 12,
    context: int = 512,
    m: int | None = None,
    eps: float = 1e-12,
    masked_lm: bool = False,
) -> Transformer:
    """BERT (Devlin et al. 2019): two-sided, post-norm, token types; ``masked_lm`` adds its prediction head."""
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    block = post_norm((Attention(weights), Pointwise(weights, GELU())), lambda: LayerNorm(weights, eps))
    embed = Tokens(fixed, vocab, Learned(fixed, context), types=2, norm=LayerNorm(fixed, eps), pad=0)
    readout = None
    if masked_lm:
        transform = (Integral(fixed), Apply(GELU()), LayerNorm(fixed, eps))
        readout = Readout(fixed, vocab, before=transform, tied=True, bias=True)
    return Transformer(axes, native, embed, block, readout)


@dataclass(frozen=True)
class T5Style:
    """What differs among models called T5: gate, head, and the buckets of the relative bias.

    ``gated`` is a tanh-GELU gate in place of ReLU; ``tied`` takes the head from the token table; ``scaled`` multiplies
    the head's input by d^(−½).
    """

    gated: bool = False
    tied: bool = True
    scaled: bool = True
    buckets: int = 32
    reach: float = 128.0
    eps: float = 1e-6


T5_10 = T5Style()
T5_11 = T5Style(gated=True, tied=False, scaled=False)


def t5(
    vocab: int = 32128,
    d: int = 512,
    heads: int = 8,
    depth: int | tuple[int, int] = 6,
    m: int | None = None,
    e: int = 64,
    style: T5Style = T5_10,
) -> EncoderDecoder:
    """T5 (Raffel et al. 2020): unscaled scores, a relative bias for all layers of a stack, RMS pre-norm, no biases.

    ``depth`` is that of both stacks, or (encoder, decoder); both look words up in one table. ``style=T5_11`` is v1.1.

    >>> model = t5(vocab=32, d=8, heads=2, depth=2, e=3, style=T5_11)
    >>> import torch
    >>> from continua.models.batch import Batch
    >>> ids = torch.zeros(1, 5, dtype=torch.long)
    >>> model(Batch(ids, source=Batch(ids[:, :3]))).shape
    torch.Size([1, 5, 32])
    """
    first, second = (depth, depth) if isinstance(depth, int) else depth
    encoder = _t5_stack(vocab, (d, heads, m or 4 * d, first, e), style, decodes=False)
    decoder = _t5_stack(vocab, (d, heads, m or 4 * d, second, e), style, decodes=True)
    return EncoderDecoder(encoder, decoder, shared=True)


def _t5_stack(vocab: int, sizes: tuple[int, int, int, int, int], style: T5Style, decodes: bool) -> Transformer:
    """One side of T5: sizes are d, heads, m, depth, e."""
    axes, native = discrete_axes(*sizes)
    weights = counted(axes, sizes[3])
    fixed = weights.autonomous()
    bias = RelativeBias(fixed, style.buckets, style.reach, causal=decodes)
    unscaled = Softmax(temperature=1.0)
    own = Attention(weights, Causal() if decodes else None, bias, unscaled, bias=())
    across = (Attention(weights, kernel=unscaled, bias=(), cross=True),) if decodes else ()
    feed = Pointwise(weights, GELU(tanh=True) if style.gated else ReLU(), gated=style.gated, bias=False)
    block = pre_norm((own, *across, feed), lambda: RMSNorm(weights, style.eps))
    before = (RMSNorm(fixed, style.eps),)
    scale = sizes[0] ** -0.5 if style.scaled else 1.0
    readout = Readout(fixed, vocab, before, style.tied, scale=scale) if decodes else Readout(fixed, before=before)
    return Transformer(axes, native, Tokens(fixed, vocab, std=1.0), block, readout)


@dataclass(frozen=True)
class LlamaStyle:
    """What differs among models built like Llama: the base of the rotations, eps, head, biases, padding.

    ``bias`` gives attention its four biases; looking up the token ``pad`` sends no gradient to its row.
    """

    base: float = 10000.0
    eps: float = 1e-6
    tied: bool = False
    bias: bool = False
    pad: int | None = None


def llama(
    vocab: int = 32000,
    d: int = 4096,
    heads: int = 32,
    depth: int = 32,
    m: int = 11008,
    groups: int | None = None,
    e: int | None = None,
    style: LlamaStyle = LlamaStyle(),  # noqa: B008  (frozen)
) -> Transformer:
    """Llama (Touvron et al. 2023): causal, RMS pre-norm, rotary positions, SwiGLU; ``groups`` heads of keys and values.

    >>> model = llama(vocab=32, d=8, heads=4, depth=2, m=12, groups=2)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    axes, native = discrete_axes(d, heads, m, depth, e)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    attention = Attention(
        weights,
        mask=Causal(),
        position=Rotary(style.base),
        groups=None if groups == heads else groups,
        bias=("q", "k", "v", "o") if style.bias else (),
    )
    feed = Pointwise(weights, SiLU(), gated=True, bias=False)
    block = pre_norm((attention, feed), lambda: RMSNorm(weights, style.eps))
    readout = Readout(fixed, vocab, before=(RMSNorm(fixed, style.eps),), tied=style.tied)
    return Transformer(axes, native, Tokens(fixed, vocab, pad=style.pad), block, readout)


def vit(
    pixels: Pixels = Pixels(),  # noqa: B008  (frozen)
    d: int = 768,
    heads: int = 12,
    depth: int = 12,
    m: int | None = None,
    eps: float = 1e-12,
    labels: int | None = None,
    qkv_bias: bool = True,
) -> Transformer:
    """ViT (Dosovitskiy et al. 2021): patches and a class token, pre-norm; ``labels`` adds its classifier.

    >>> model = vit(Pixels(8, 8, patch=(4, 4)), d=16, heads=2, depth=2, labels=3)
    >>> import torch
    >>> model(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 3])
    """
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    attention = Attention(weights, bias=("q", "k", "v", "o") if qkv_bias else ("o",))
    block = pre_norm((attention, Pointwise(weights, GELU())), lambda: LayerNorm(weights, eps))
    embed = Patches(fixed, pixels, Learned(fixed, 1 + pixels.count))
    readout = Readout(fixed, labels, before=(LayerNorm(fixed, eps),), bias=bool(labels), first=bool(labels))
    return Transformer(axes, native, embed, block, readout)


def albert(
    table: tuple[int, int] = (30000, 128),
    d: int = 768,
    heads: int = 12,
    depth: int = 12,
    context: int = 512,
    m: int | None = None,
    phi: Activation = GELU(tanh=True),  # noqa: B008  (frozen)
    masked_lm: bool = False,
) -> Transformer:
    """ALBERT (Lan et al. 2020): one field that does not change along z, followed in ``depth`` unit steps; post-norm.

    ``table`` is the number of words and the width of their table; a linear map leads from there to d.
    """
    vocab, width = table
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    weights, narrow, eps = counted(axes), counted(replace(axes, d=Points(width))), 1e-12
    block = post_norm((Attention(weights), Pointwise(weights, phi)), lambda: LayerNorm(weights, eps))
    words = Tokens(narrow, vocab, Learned(narrow, context), types=2, norm=LayerNorm(narrow, eps), pad=0)
    readout = None
    if masked_lm:
        transform = (Apply(phi), LayerNorm(narrow, eps))
        readout = Narrowed(weights, Readout(narrow, vocab, before=transform, tied=True, bias=True), width)
    return Transformer(axes, native, Widened(weights, words, width), block, readout)


continuous = Transformer.continuous

__all__ = ["albert", "bert", "continuous", "cross_modal", "forecaster", "gat", "gpt2", "llama", "t5", "vit"]
