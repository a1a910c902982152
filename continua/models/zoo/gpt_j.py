"""GPT-J: causal, with attention and feed-forward map side by side behind one norm."""

from dataclasses import dataclass

from continua.fields import counted
from continua.models.build import discrete_axes
from continua.models.embed import Tokens
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import (
    GELU,
    Activation,
    Attention,
    Beside,
    Causal,
    LayerNorm,
    Parts,
    Pointwise,
    PreNorm,
    Rotary,
)
from continua.settings import NonNegative, Share, Size, checked


@checked
@dataclass(frozen=True)
class GPTJStyle:
    """What differs among models built like GPT-J: the part of each head that is turned, φ, eps, a tied head."""

    share: Share = 0.25
    phi: Activation = GELU(tanh=True)  # noqa: RUF009  (frozen and stateless)
    eps: NonNegative = 1e-5
    tied: bool = False


@checked
def gpt_j(
    vocab: Size = 50400,
    *,
    d: Size = 4096,
    heads: Size = 16,
    depth: Size = 28,
    m: Size | None = None,
    style: GPTJStyle = GPTJStyle(),  # noqa: B008  (frozen)
) -> Transformer:
    """GPT-J (Wang & Komatsuzaki 2021): both branches of a layer read one norm; rotations in a part of each head.

    >>> model = gpt_j(vocab=32, d=16, heads=2, depth=2)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    attention = Attention(weights, mask=Causal(), position=Rotary(share=style.share), bias=())
    both = PreNorm(LayerNorm(weights, style.eps), Beside(attention, Pointwise(weights, style.phi)))
    last = LayerNorm(fixed, style.eps)
    readout = Readout(fixed, vocab, before=(last,), bias=True, tied=style.tied)
    return Transformer(axes, native, Tokens(fixed, vocab), Parts((both,)), readout)
