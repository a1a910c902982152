"""GPT-2: a causal language model."""

from continua.fields import counted
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import Tokens
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import GELU, Attention, Causal, LayerNorm, Learned, Pointwise


def gpt2(
    vocab: int = 50257,
    *,
    d: int = 768,
    heads: int = 12,
    depth: int = 12,
    context: int = 1024,
    m: int | None = None,
    eps: float = 1e-5,
) -> Transformer:
    """GPT-2 (Radford et al. 2019): causal, pre-norm, learned positions, tied head. ``m`` is 4d unless given.

    >>> model = gpt2(vocab=64, d=16, heads=2, depth=2, context=8)
    >>> import torch
    >>> model(torch.zeros(1, 8, dtype=torch.long)).shape
    torch.Size([1, 8, 64])
    """
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    branches = (Attention(weights, mask=Causal()), Pointwise(weights, GELU(tanh=True)))
    block = pre_norm(branches, lambda: LayerNorm(weights, eps))
    readout = Readout(fixed, vocab, before=(LayerNorm(fixed, eps),), tied=True)
    embed = Tokens(fixed, vocab, Learned(fixed, context))
    return Transformer(axes, native, embed, block, readout)
