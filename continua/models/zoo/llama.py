"""Llama: a causal language model with rotary positions and gated feed-forward maps."""

from dataclasses import dataclass

from continua.fields import counted
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import Tokens
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import Attention, Causal, Pointwise, RMSNorm, Rotary, SiLU
from continua.settings import NonNegative, Positive, Size, checked


@checked
@dataclass(frozen=True)
class LlamaStyle:
    """What differs among models built like Llama: the base of the rotations, eps, head, biases, padding.

    ``bias`` gives attention its four biases; looking up the token ``pad`` sends no gradient to its row.
    """

    base: Positive = 10000.0
    eps: NonNegative = 1e-6
    tied: bool = False
    bias: bool = False
    pad: int | None = None


@checked
def llama(
    vocab: Size = 32000,
    *,
    d: Size = 4096,
    heads: Size = 32,
    depth: Size = 32,
    m: Size = 11008,
    groups: Size | None = None,
    e: Size | None = None,
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
