"""RoBERTa and XLM-RoBERTa: BERT whose positions do not count padding."""

from continua.models.transformer import Transformer
from continua.models.zoo.encoders import EncoderStyle, encoder
from continua.settings import NonNegative, Size, Whole, checked


@checked
def roberta(
    vocab: Size = 50265,
    *,
    d: Size = 768,
    heads: Size = 12,
    depth: Size = 12,
    context: Size = 512,
    m: Size | None = None,
    eps: NonNegative = 1e-5,
    pad: Whole = 1,
    types: Size = 1,
    masked_lm: bool = False,
    labels: Size | tuple[str, ...] | None = None,
    each: bool = False,
) -> Transformer:
    """RoBERTa (Liu et al. 2019): as ``bert``, with positions from ``pad`` + 1 on that count observed tokens alone.

    >>> model = roberta(vocab=32, d=8, heads=2, depth=2, context=8, masked_lm=True)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    return encoder(
        vocab,
        d=d,
        heads=heads,
        depth=depth,
        rows=context + pad + 1,
        m=m or 4 * d,
        style=EncoderStyle(eps, types=types, pad=pad, skip=pad + 1, gapless=True),
        masked_lm=masked_lm,
        labels=labels,
        each=each,
    )
