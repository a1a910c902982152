"""DistilBERT: half of BERT's layers, without token types and pooler."""

from continua.models.transformer import Transformer
from continua.models.zoo.encoders import EncoderStyle, encoder
from continua.operators import GELU, Activation, ReLU
from continua.settings import Size, Whole, checked


@checked
def distilbert(
    vocab: Size = 30522,
    *,
    d: Size = 768,
    heads: Size = 12,
    depth: Size = 6,
    context: Size = 512,
    m: Size | None = None,
    phi: Activation = GELU(),  # noqa: B008  (frozen)
    pad: Whole = 0,
    masked_lm: bool = False,
    labels: Size | tuple[str, ...] | None = None,
    each: bool = False,
) -> Transformer:
    """DistilBERT (Sanh et al. 2019): as ``bert`` without token types; its classifier pools by a ReLU.

    >>> model = distilbert(vocab=32, d=8, heads=2, depth=2, context=8, labels=3, each=True)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 3])
    """
    return encoder(
        vocab,
        d=d,
        heads=heads,
        depth=depth,
        rows=context,
        m=m or 4 * d,
        style=EncoderStyle(phi=phi, types=0, pad=pad, pooled_by=ReLU()),
        masked_lm=masked_lm,
        labels=labels,
        each=each,
    )
