"""Phi-3."""

from continua.models.transformer import Transformer
from continua.models.zoo.llama import LlamaStyle, llama
from continua.settings import Size, checked


@checked
def phi3(
    vocab: Size = 32064,
    *,
    d: Size = 3072,
    heads: Size = 32,
    depth: Size = 32,
    m: Size = 8192,
    groups: Size | None = None,
    style: LlamaStyle = LlamaStyle(eps=1e-5, window=2047),  # noqa: B008  (frozen)
) -> Transformer:
    """Phi-3 (Abdin et al. 2024): Llama with a window, and for long texts factors of each rotation (``LongStretch``).

    >>> model = phi3(vocab=32, d=8, heads=4, depth=2, m=12)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    return llama(vocab, d=d, heads=heads, depth=depth, m=m, groups=groups, style=style)
