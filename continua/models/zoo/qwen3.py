"""Qwen3: Llama that normalises queries and keys in each head."""

from continua.models.transformer import Transformer
from continua.models.zoo.llama import LlamaStyle, llama
from continua.settings import Size, checked


@checked
def qwen3(
    vocab: Size = 151936,
    *,
    d: Size = 1024,
    heads: Size = 16,
    depth: Size = 28,
    m: Size = 3072,
    groups: Size | None = 8,
    e: Size | None = 128,
    style: LlamaStyle = LlamaStyle(base=1e6, tied=True, head_norm=True),  # noqa: B008  (frozen)
) -> Transformer:
    """Qwen3 (Yang et al. 2025): Llama that normalises queries and keys in each head.

    >>> model = qwen3(vocab=32, d=8, heads=4, depth=2, m=12, groups=2, e=2)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    return llama(vocab, d=d, heads=heads, depth=depth, m=m, groups=groups, e=e, style=style)
