"""OPT: a causal language model with ReLU."""

from dataclasses import dataclass, replace

from continua.axes import Points
from continua.errors import ConfigError
from continua.fields import counted
from continua.models.build import discrete_axes, post_norm, pre_norm
from continua.models.embed import Tokens
from continua.models.factored import Narrowed, Widened
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import Attention, Causal, LayerNorm, Learned, Pointwise, ReLU
from continua.settings import Size, checked

SKIPPED = 2  # rows of the position table that no token reads
EPS = 1e-5


@checked
@dataclass(frozen=True)
class OPTStyle:
    """What differs among the sizes of OPT: where norms stand, and the width of the token table.

    ``pre`` puts norms before the branches and one before the head, otherwise they stand behind the branches (350M);
    ``table_width`` looks words up in a narrower table, with linear maps from there to d and back (350M too);
    looking up the token ``pad`` sends no gradient to its row.
    """

    pre: bool = True
    table_width: Size | None = None
    pad: int | None = 1


@checked
def opt(
    vocab: Size = 50272,
    *,
    d: Size = 768,
    heads: Size = 12,
    depth: Size = 12,
    context: Size = 2048,
    m: Size | None = None,
    style: OPTStyle = OPTStyle(),  # noqa: B008  (frozen)
) -> Transformer:
    """OPT (Zhang et al. 2022): causal, learned positions behind two rows that are never read, ReLU, tied head.

    >>> model = opt(vocab=32, d=16, heads=2, depth=2, context=8)
    >>> import torch
    >>> model(torch.zeros(1, 8, dtype=torch.long)).shape
    torch.Size([1, 8, 32])
    """
    if style.pre and style.table_width is not None:
        got = f"table_width={style.table_width}"
        raise ConfigError("a narrow table comes with pre=False", got=got, remedy="Leave one of the two out.")
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    branches = (Attention(weights, mask=Causal()), Pointwise(weights, ReLU()))
    place = pre_norm if style.pre else post_norm
    block = place(branches, lambda: LayerNorm(weights, EPS))
    position = Learned(fixed, context + SKIPPED, skip=SKIPPED, gapless=True)
    if style.table_width is None:
        before = (LayerNorm(fixed, EPS),) if style.pre else ()
        words = Tokens(fixed, vocab, position, pad=style.pad)
        return Transformer(axes, native, words, block, Readout(fixed, vocab, before=before, tied=True))
    narrow = counted(replace(axes, d=Points(style.table_width)))
    words = Tokens(narrow, vocab, pad=style.pad)
    embed = Widened(fixed, words, style.table_width, bias=False, position=position)
    head = Readout(narrow, vocab, tied=True)
    return Transformer(axes, native, embed, block, Narrowed(fixed, head, style.table_width, bias=False))
