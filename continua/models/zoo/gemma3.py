"""Gemma 3, its text model."""

from continua.models.transformer import Transformer
from continua.models.zoo.gemma2 import Gemma2Style, gemma2
from continua.settings import Size, checked

PERIOD = 6  # every sixth layer sees the whole past


@checked
def gemma3(
    vocab: Size = 262144,
    *,
    d: Size = 1152,
    heads: Size = 4,
    depth: Size = 26,
    m: Size = 6912,
    groups: Size | None = 1,
    e: Size = 256,
    style: Gemma2Style | None = None,
) -> Transformer:
    """Gemma 3 (Gemma Team 2025): Gemma 2 without caps, with a norm of queries and keys, and rotations by layer.

    Five layers with a window and quick rotations come before each one with the whole past and slow ones.

    >>> model = gemma3(vocab=32, d=8, heads=4, depth=2, m=12, e=4)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    usual = Gemma2Style(
        base=1e6,
        local_base=1e4,
        window=512,
        sliding=tuple((layer + 1) % PERIOD != 0 for layer in range(depth)),
        score_cap=None,
        answer_cap=None,
        head_norm=True,
    )
    style = usual if style is None else style
    return gemma2(vocab, d=d, heads=heads, depth=depth, m=m, groups=groups, e=e, style=style)
