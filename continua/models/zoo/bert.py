"""BERT: an encoder of two-sided attention."""

from continua.models.transformer import Transformer
from continua.models.zoo.encoders import EncoderStyle, encoder
from continua.settings import NonNegative, Size, checked


@checked
def bert(
    vocab: Size = 30522,
    *,
    d: Size = 768,
    heads: Size = 12,
    depth: Size = 12,
    context: Size = 512,
    m: Size | None = None,
    eps: NonNegative = 1e-12,
    masked_lm: bool = False,
    labels: Size | tuple[str, ...] | None = None,
    each: bool = False,
) -> Transformer:
    """BERT (Devlin et al. 2019): two-sided, post-norm, token types; ``masked_lm`` adds its prediction head.

    ``labels``, their number or their names, add a classifier of the text behind a pooler; with ``each``, one of every
    token.

    >>> model = bert(vocab=32, d=8, heads=2, depth=2, context=8, labels=("no", "yes"))
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 2])
    """
    return encoder(
        vocab,
        d=d,
        heads=heads,
        depth=depth,
        rows=context,
        m=m or 4 * d,
        style=EncoderStyle(eps),
        masked_lm=masked_lm,
        labels=labels,
        each=each,
    )
