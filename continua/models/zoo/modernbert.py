"""ModernBERT: two-sided, with windows in turn with whole texts, rotary positions and gated feed-forward maps."""

from dataclasses import dataclass

from continua.errors import ConfigError
from continua.fields import counted
from continua.models.build import discrete_axes
from continua.models.embed import Tokens
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.models.zoo.heads import counted_and_named
from continua.models.zoo.llama import by_layer
from continua.operators import (
    GELU,
    Apply,
    Attention,
    ByDepth,
    FromDepth,
    Integral,
    LayerNorm,
    Mask,
    Parts,
    Pointwise,
    PreNorm,
    Rotary,
    Window,
)
from continua.settings import NonNegative, Positive, Size, checked


@checked
@dataclass(frozen=True)
class ModernBertStyle:
    """What differs among models built like ModernBERT.

    Layers that are True in ``sliding`` see ``radius`` tokens to either side and have rotations of ``local_base``; all
    but every third, beginning with the second, unless given.
    """

    base: Positive = 160000.0
    local_base: Positive = 10000.0
    radius: Size = 64
    sliding: tuple[bool, ...] | None = None
    eps: NonNegative = 1e-5
    pad: int | None = None
    mean: bool = False


@checked
def modernbert(
    vocab: Size = 50368,
    *,
    d: Size = 768,
    heads: Size = 12,
    depth: Size = 22,
    m: Size = 1152,
    masked_lm: bool = False,
    labels: Size | tuple[str, ...] | None = None,
    each: bool = False,
    style: ModernBertStyle = ModernBertStyle(),  # noqa: B008  (frozen)
) -> Transformer:
    """ModernBERT (Warner et al. 2024): no biases, a norm before each branch but the first; ``masked_lm`` adds words.

    ``labels``, their number or their names, add a classifier of the text, read at the first token or, with
    ``style.mean``, from the mean of all; with ``each``, one of every token.

    >>> model = modernbert(vocab=32, d=8, heads=2, depth=3, m=12, masked_lm=True)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    axes, native = discrete_axes(d, heads, m, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    sliding = tuple(layer % 3 != 0 for layer in range(depth)) if style.sliding is None else style.sliding
    attention = Attention(
        weights,
        mask=_mask(style.radius, sliding, depth),
        position=by_layer(Rotary(style.base), Rotary(style.local_base), sliding, depth),
        bias=(),
    )
    feed = Pointwise(weights, GELU(), gated=True, bias=False)
    first = FromDepth(LayerNorm(weights, style.eps, bias=False), 1.0)
    block = Parts((PreNorm(first, attention), PreNorm(LayerNorm(weights, style.eps, bias=False), feed)))
    embed = Tokens(fixed, vocab, norm=LayerNorm(fixed, style.eps, bias=False), pad=style.pad)
    last = LayerNorm(fixed, style.eps, bias=False)
    if not masked_lm and labels is None:
        return Transformer(axes, native, embed, block, Readout(fixed, before=(last,)))
    transform = (last, Integral(fixed, bias=False), Apply(GELU()), LayerNorm(fixed, style.eps, bias=False))
    if masked_lm:
        readout = Readout(fixed, vocab, before=transform, tied=True, bias=True)
    else:
        count, names = counted_and_named(labels or 2)
        mean = style.mean and not each
        at_first = not style.mean and not each
        behind = 1 if mean else None  # the mean of the states goes through the head
        readout = Readout(fixed, count, transform, bias=True, pool=mean, first=at_first, labels=names, pooled_at=behind)
    return Transformer(axes, native, embed, block, readout)


def _mask(radius: int, sliding: tuple[bool, ...], depth: int) -> Mask | None:
    if len(sliding) != depth:
        remedy = "Say of each layer whether it slides."
        raise ConfigError(f"sliding needs {depth} entries", got=len(sliding), remedy=remedy)
    near = Window(float(radius))
    if all(sliding):
        return near
    return ByDepth(tuple(near if slides else None for slides in sliding)) if any(sliding) else None
