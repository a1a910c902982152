"""mBART and Marian: translators built like BART."""

from continua.models.encoder_decoder import EncoderDecoder
from continua.models.zoo.bart import BartStyle, bart
from continua.operators import SiLU
from continua.settings import Size, checked

MBART = BartStyle(pre=True, scaled=True)
MARIAN = BartStyle(phi=SiLU(), scaled=True, normed=False, sines=True, pad=58100)


@checked
def mbart(
    vocab: Size = 250027,
    *,
    d: Size = 1024,
    heads: Size | tuple[Size, Size] = 16,
    depth: Size | tuple[Size, Size] = 12,
    m: Size | tuple[Size, Size] | None = None,
    context: Size = 1024,
    style: BartStyle = MBART,
) -> EncoderDecoder:
    """mBART (Liu et al. 2020): BART with norms before the branches and one behind all of them.

    >>> model = mbart(vocab=32, d=8, heads=2, depth=(2, 1), context=8)
    >>> import torch
    >>> from continua.models.batch import Batch
    >>> ids = torch.zeros(1, 5, dtype=torch.long)
    >>> model(Batch(ids, source=Batch(ids[:, :3]))).shape
    torch.Size([1, 5, 32])
    """
    return bart(vocab, d=d, heads=heads, depth=depth, m=m, context=context, style=style)


@checked
def marian(
    vocab: Size = 58101,
    *,
    d: Size = 512,
    heads: Size | tuple[Size, Size] = 8,
    depth: Size | tuple[Size, Size] = 6,
    m: Size | tuple[Size, Size] | None = None,
    style: BartStyle = MARIAN,
) -> EncoderDecoder:
    """Marian (Junczys-Dowmunt et al. 2018): BART with sinusoidal positions, and words that are not normalised.

    >>> model = marian(vocab=32, d=8, heads=2, depth=(2, 1), style=BartStyle(sines=True, normed=False, pad=31))
    >>> import torch
    >>> from continua.models.batch import Batch
    >>> ids = torch.zeros(1, 5, dtype=torch.long)
    >>> model(Batch(ids, source=Batch(ids[:, :3]))).shape
    torch.Size([1, 5, 32])
    """
    return bart(vocab, d=d, heads=heads, depth=depth, m=m, style=style)
