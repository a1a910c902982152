"""GPT-2: a causal language model."""

from continua.fields import counted
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import Tokens
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import GELU, Attention, Causal, LayerNorm, Learned, Pointwise
from continua.settings import NonNegative, Size, checked


@checked
def gpt2(
    vocab: Size = 50257,
    *,
    d: Size = 768,
    heads: Size = 12,
    depth: Size = 12,
    context: Size = 1024,
    m: Size | None = None,
    eps: NonNegative = 1e-5,
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
