"""What BERT and its kin share: two-sided post-norm blocks over a normalised sum of tables."""

from dataclasses import dataclass, replace

from continua.axes import Points
from continua.fields import counted
from continua.models.build import discrete_axes, post_norm
from continua.models.embed import Tokens
from continua.models.factored import Narrowed, Widened
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.models.zoo.heads import encoder_head, narrow_words
from continua.operators import GELU, Activation, Attention, LayerNorm, Learned, Pointwise, Tanh


@dataclass(frozen=True)
class EncoderStyle:
    """What differs among them: norms, φ, token types, the padding token, and how its head pools.

    Position 0 reads row ``skip`` of the table; with ``gapless`` padding does not count. Words of a ``table_width``
    other than d are led there by a linear map.
    """

    eps: float = 1e-12
    phi: Activation = GELU()  # noqa: RUF009  (frozen)
    types: int = 2
    pad: int | None = 0
    skip: int = 0
    gapless: bool = False
    pooled_by: Activation = Tanh()  # noqa: RUF009  (frozen)
    table_width: int | None = None


def encoder(
    vocab: int,
    *,
    d: int,
    heads: int,
    depth: int,
    rows: int,
    m: int,
    style: EncoderStyle,
    masked_lm: bool,
    labels: int | tuple[str, ...] | None,
    each: bool,
) -> Transformer:
    """An encoder with ``rows`` positions in its table, and one head or none."""
    axes, native = discrete_axes(d, heads, m, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    block = post_norm((Attention(weights), Pointwise(weights, style.phi)), lambda: LayerNorm(weights, style.eps))
    width = style.table_width
    narrow = fixed if width is None else counted(replace(axes, d=Points(width)))
    words = Tokens(
        narrow,
        vocab,
        Learned(narrow, rows, skip=style.skip, gapless=style.gapless),
        types=style.types,
        norm=LayerNorm(narrow, style.eps),
        pad=style.pad,
    )
    embed = words if width is None else Widened(fixed, words, width)
    readout: Readout | Narrowed | None = encoder_head(
        fixed,
        vocab,
        phi=style.phi,
        eps=style.eps,
        masked_lm=masked_lm and width is None,
        labels=labels,
        each=each,
        pooled_by=style.pooled_by,
    )
    if masked_lm and width is not None:
        readout = narrow_words(fixed, narrow, vocab, width, phi=style.phi, eps=style.eps)
    return Transformer(axes, native, embed, block, readout)
