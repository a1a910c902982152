"""ALBERT: one layer, applied again and again."""

from dataclasses import replace

from continua.axes import Points
from continua.fields import counted
from continua.models.build import discrete_axes, post_norm
from continua.models.embed import Tokens
from continua.models.factored import Narrowed, Widened
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.models.zoo.heads import encoder_head, narrow_words
from continua.operators import GELU, Activation, Attention, LayerNorm, Learned, Pointwise
from continua.settings import Size, checked

EPS = 1e-12


@checked
def albert(
    vocab: Size = 30000,
    *,
    table_width: Size = 128,
    d: Size = 768,
    heads: Size = 12,
    depth: Size = 12,
    context: Size = 512,
    m: Size | None = None,
    phi: Activation = GELU(tanh=True),  # noqa: B008  (frozen)
    masked_lm: bool = False,
    labels: Size | tuple[str, ...] | None = None,
    each: bool = False,
) -> Transformer:
    """ALBERT (Lan et al. 2020): one field that does not change along z, followed in ``depth`` unit steps; post-norm.

    Words are looked up in a table of ``table_width``; a linear map leads from there to d. ``labels`` add a classifier
    of the text behind a pooler; with ``each``, one of every token.

    >>> model = albert(vocab=9, table_width=4, d=8, heads=2, depth=3, context=8)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 8])
    """
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    weights = counted(axes)
    narrow = counted(replace(axes, d=Points(table_width)))
    block = post_norm((Attention(weights), Pointwise(weights, phi)), lambda: LayerNorm(weights, EPS))
    words = Tokens(narrow, vocab, Learned(narrow, context), types=2, norm=LayerNorm(narrow, EPS), pad=0)
    readout: Readout | Narrowed | None = encoder_head(
        weights, vocab, phi=phi, eps=EPS, masked_lm=False, labels=labels, each=each
    )
    if masked_lm:
        readout = narrow_words(weights, narrow, vocab, table_width, phi=phi, eps=EPS)
    return Transformer(axes, native, Widened(weights, words, table_width), block, readout)
