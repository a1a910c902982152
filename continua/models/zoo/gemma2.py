"""Gemma 2: norms on both sides of each branch, windows in turn with the whole past."""

from dataclasses import dataclass

from continua.fields import counted
from continua.models.build import discrete_axes
from continua.models.embed import Tokens
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.models.zoo.llama import by_layer, windowed
from continua.operators import (
    GELU,
    Attention,
    Capped,
    Chain,
    HeadNorm,
    Operator,
    Parts,
    Pointwise,
    PreNorm,
    RMSNorm,
    Rotary,
    Softmax,
    Stretch,
)
from continua.settings import NonNegative, Positive, Size, checked


@checked
@dataclass(frozen=True)
class Gemma2Style:
    """What differs among models built like Gemma 2.

    Scores are ⟨q, k⟩·``query_scale``^(−½) within ±``score_cap``, answers within ±``answer_cap``. ``window`` holds in
    the layers that are True in ``sliding``: every second one, beginning with the first, unless given. Those have
    rotations of ``local_base`` if that is given, and queries and keys a norm with ``head_norm`` (Gemma 3).
    """

    base: Positive = 10000.0
    stretch: Stretch | None = None
    eps: NonNegative = 1e-6
    tied: bool = True
    bias: bool = False
    pad: int | None = 0
    window: Size | None = 4096
    sliding: tuple[bool, ...] | None = None
    query_scale: Positive = 256.0
    score_cap: Positive | None = 50.0
    answer_cap: Positive | None = 30.0
    local_base: Positive | None = None
    head_norm: bool = False


@checked
def gemma2(
    vocab: Size = 256000,
    *,
    d: Size = 2304,
    heads: Size = 8,
    depth: Size = 26,
    m: Size = 9216,
    groups: Size | None = 4,
    e: Size = 256,
    style: Gemma2Style = Gemma2Style(),  # noqa: B008  (frozen)
) -> Transformer:
    """Gemma 2 (Gemma Team 2024): embeddings times √d, RMS norms before and behind each branch, GELU gates.

    >>> model = gemma2(vocab=32, d=8, heads=4, depth=2, m=12, groups=2, e=4)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    axes, native = discrete_axes(d, heads, m, depth, e)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    sliding = tuple(layer % 2 == 0 for layer in range(depth)) if style.sliding is None else style.sliding
    tau = style.query_scale**-0.5
    whole = Rotary(style.base, style.stretch)
    attention = Attention(
        weights,
        mask=windowed(style.window, sliding, depth),
        position=whole if style.local_base is None else by_layer(whole, Rotary(style.local_base), sliding, depth),
        kernel=Softmax(tau) if style.score_cap is None else Capped(style.score_cap, tau),
        groups=None if groups == heads else groups,
        bias=("q", "k", "v", "o") if style.bias else (),
        norm=HeadNorm(weights, style.eps, around_one=True) if style.head_norm else None,
    )
    feed = Pointwise(weights, GELU(tanh=True), gated=True, bias=False)

    def between(branch: Operator) -> Operator:
        before = RMSNorm(weights, style.eps, around_one=True)
        behind = RMSNorm(weights, style.eps, around_one=True)
        return Chain(PreNorm(before, branch), behind)

    last = RMSNorm(fixed, style.eps, around_one=True)
    readout = Readout(fixed, vocab, before=(last,), tied=style.tied, cap=style.answer_cap)
    embed = Tokens(fixed, vocab, pad=style.pad, scale=d**0.5)
    return Transformer(axes, native, embed, Parts((between(attention), between(feed))), readout)
