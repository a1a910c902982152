"""SmolLM3."""

from continua.models.transformer import Transformer
from continua.models.zoo.llama import LlamaStyle, llama
from continua.settings import Size, checked

PERIOD = 4  # every fourth layer has no rotations


@checked
def smollm3(
    vocab: Size = 128256,
    *,
    d: Size = 2048,
    heads: Size = 16,
    depth: Size = 36,
    m: Size = 11008,
    groups: Size | None = 4,
    style: LlamaStyle | None = None,
) -> Transformer:
    """SmolLM3 (Bakouch et al. 2025): Llama whose every fourth layer does not know where a token is.

    >>> model = smollm3(vocab=32, d=8, heads=4, depth=4, m=12, groups=2)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    turned = tuple((layer + 1) % PERIOD != 0 for layer in range(depth))
    style = LlamaStyle(base=2e6, tied=True, turned=turned) if style is None else style
    return llama(vocab, d=d, heads=heads, depth=depth, m=m, groups=groups, style=style)
