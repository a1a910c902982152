"""Mixtral: Mistral with a mixture of experts."""

from continua.models.transformer import Transformer
from continua.models.zoo.llama import LlamaStyle, Mixture, llama
from continua.settings import Size, checked


@checked
def mixtral(
    vocab: Size = 32000,
    *,
    d: Size = 4096,
    heads: Size = 32,
    depth: Size = 32,
    m: Size = 14336,
    groups: Size | None = 8,
    e: Size | None = None,
    style: LlamaStyle = LlamaStyle(base=1e6, eps=1e-5, experts=Mixture()),  # noqa: B008  (frozen)
) -> Transformer:
    """Mixtral (Jiang et al. 2024): Llama with ``style.experts`` feed-forward maps in each layer, two for each token.

    >>> model = mixtral(vocab=32, d=8, heads=4, depth=2, m=12, groups=2)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    return llama(vocab, d=d, heads=heads, depth=depth, m=m, groups=groups, e=e, style=style)
