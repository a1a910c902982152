"""ELECTRA: BERT that learned to tell replaced words."""

from continua.models.transformer import Transformer
from continua.models.zoo.encoders import EncoderStyle, encoder
from continua.operators import GELU
from continua.settings import NonNegative, Size, checked


@checked
def electra(
    vocab: Size = 30522,
    *,
    table_width: Size = 128,
    d: Size = 256,
    heads: Size = 4,
    depth: Size = 12,
    context: Size = 512,
    m: Size | None = None,
    eps: NonNegative = 1e-12,
    masked_lm: bool = False,
    labels: Size | tuple[str, ...] | None = None,
    each: bool = False,
) -> Transformer:
    """ELECTRA (Clark et al. 2020): as ``bert``, with words of ``table_width`` led to d.

    Its classifier pools by a GELU. With ``masked_lm`` it is the generator, which answers with words.

    >>> model = electra(vocab=32, table_width=4, d=8, heads=2, depth=2, context=8, labels=2)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 2])
    """
    width = None if table_width == d else table_width
    return encoder(
        vocab,
        d=d,
        heads=heads,
        depth=depth,
        rows=context,
        m=m or 4 * d,
        style=EncoderStyle(eps, pooled_by=GELU(), table_width=width),
        masked_lm=masked_lm,
        labels=labels,
        each=each,
    )
