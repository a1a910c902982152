"""Mistral: Llama with a window."""

from continua.models.transformer import Transformer
from continua.models.zoo.llama import LlamaStyle, llama
from continua.settings import Size, checked


@checked
def mistral(
    vocab: Size = 32000,
    *,
    d: Size = 4096,
    heads: Size = 32,
    depth: Size = 32,
    m: Size = 14336,
    groups: Size | None = 8,
    e: Size | None = None,
    style: LlamaStyle = LlamaStyle(eps=1e-5, window=4096),  # noqa: B008  (frozen)
) -> Transformer:
    """Mistral (Jiang et al. 2023): Llama whose tokens see the last ``style.window`` tokens.

    >>> model = mistral(vocab=32, d=8, heads=4, depth=2, m=12, groups=2)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    return llama(vocab, d=d, heads=heads, depth=depth, m=m, groups=groups, e=e, style=style)
