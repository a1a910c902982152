"""Qwen2: Llama with biases of queries, keys and values."""

from continua.models.transformer import Transformer
from continua.models.zoo.llama import LlamaStyle, llama
from continua.settings import Size, checked


@checked
def qwen2(
    vocab: Size = 151936,
    *,
    d: Size = 896,
    heads: Size = 14,
    depth: Size = 24,
    m: Size = 4864,
    groups: Size | None = 2,
    e: Size | None = None,
    style: LlamaStyle = LlamaStyle(base=1e6, tied=True, bias=("q", "k", "v")),  # noqa: B008  (frozen)
) -> Transformer:
    """Qwen2 (Yang et al. 2024): Llama with biases of queries, keys and values, and windows in some layers if asked.

    >>> model = qwen2(vocab=32, d=8, heads=4, depth=2, m=12, groups=2)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    return llama(vocab, d=d, heads=heads, depth=depth, m=m, groups=groups, e=e, style=style)
