"""Llama and models built like it: causal, with rotary positions and gated feed-forward maps."""

from dataclasses import dataclass

from continua.errors import ConfigError
from continua.fields import counted
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import Tokens
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import (
    Attention,
    Beside,
    ByDepth,
    Causal,
    Experts,
    HeadNorm,
    Mask,
    Operator,
    Pointwise,
    Position,
    PositionByDepth,
    RMSNorm,
    Rotary,
    SharedExpert,
    SiLU,
    Stretch,
    Window,
)
from continua.settings import NonNegative, Positive, Share, Size, Whole, checked

ALL_BIASES = ("q", "k", "v", "o")


@checked
@dataclass(frozen=True)
class Mixture:
    """``count`` experts in place of each feed-forward map, ``top`` of them for a token (``operators.Experts``).

    With ``shared`` every token has one more, as wide as so many of them (``operators.SharedExpert``).
    """

    count: Size = 8
    top: Size = 2
    normalised: bool = True
    shared: Whole = 0


@checked
@dataclass(frozen=True)
class LlamaStyle:
    """What differs among models built like Llama: the base of the rotations, eps, head, biases, padding, windows.

    ``bias`` gives attention its four biases, or those of the maps that are named (Qwen2: q, k, v); looking up the token
    ``pad`` sends no gradient to its row. ``window`` lets a token see so many tokens, its own included (Mistral), in all
    layers or in those that are True in ``sliding``. ``head_norm`` normalises queries and keys in each head (Qwen3).
    ``stretch`` is that of the rotations, ``share`` the part of the inner coordinates that they turn; ``turned`` says of
    each layer whether it has rotations at all (SmolLM3). ``experts`` puts a mixture in place of feed-forward maps.
    """

    base: Positive = 10000.0
    eps: NonNegative = 1e-6
    tied: bool = False
    bias: bool | tuple[str, ...] = False
    pad: int | None = None
    window: Size | None = None
    sliding: tuple[bool, ...] | None = None
    head_norm: bool = False
    stretch: Stretch | None = None
    share: Share = 1.0
    turned: tuple[bool, ...] | None = None
    experts: Mixture | None = None

    @property
    def biases(self) -> tuple[str, ...]:
        """The maps of attention that have one."""
        if isinstance(self.bias, tuple):
            return self.bias
        return ALL_BIASES if self.bias else ()


def windowed(window: int | None, sliding: tuple[bool, ...] | None, depth: int) -> Mask:
    """The causal mask of all layers, with a window of so many tokens in all of them or in the ``sliding`` ones."""
    if sliding is not None and len(sliding) != depth:
        remedy = "Say of each layer whether it slides."
        raise ConfigError(f"sliding needs {depth} entries", got=len(sliding), remedy=remedy)
    if window is None or (sliding is not None and not any(sliding)):
        return Causal()
    near = Causal() & Window(float(window - 1))
    if sliding is None or all(sliding):
        return near
    return ByDepth(tuple(near if slides else Causal() for slides in sliding))


def by_layer(first: Position, second: Position, is_second: tuple[bool, ...] | None, depth: int) -> Position:
    """The ``first`` position in all layers but those that are True in ``is_second``."""
    if is_second is not None and len(is_second) != depth:
        remedy = "Say of each layer which position it has."
        raise ConfigError(f"positions need {depth} entries", got=len(is_second), remedy=remedy)
    if is_second is None or not any(is_second):
        return first
    return second if all(is_second) else PositionByDepth((first, second), tuple(int(other) for other in is_second))


@checked
def llama(
    vocab: Size = 32000,
    *,
    d: Size = 4096,
    heads: Size = 32,
    depth: Size = 32,
    m: Size = 11008,
    groups: Size | None = None,
    e: Size | None = None,
    style: LlamaStyle = LlamaStyle(),  # noqa: B008  (frozen)
) -> Transformer:
    """Llama (Touvron et al. 2023): causal, RMS pre-norm, rotary positions, SwiGLU; ``groups`` heads of keys and values.

    >>> model = llama(vocab=32, d=8, heads=4, depth=2, m=12, groups=2)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    axes, native = discrete_axes(d, heads, m, depth, e)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    still = None if style.turned is None else tuple(not turned for turned in style.turned)
    attention = Attention(
        weights,
        mask=windowed(style.window, style.sliding, depth),
        position=by_layer(Rotary(style.base, style.stretch, style.share), Position(), still, depth),
        groups=None if groups == heads else groups,
        bias=style.biases,
        norm=HeadNorm(weights, style.eps) if style.head_norm else None,
    )
    feed: Operator = Pointwise(weights, SiLU(), gated=True, bias=False)
    if style.experts is not None:
        mixture = style.experts
        feed = Experts(weights, mixture.count, mixture.top, SiLU(), mixture.normalised)
        feed = Beside(feed, SharedExpert(weights, mixture.shared)) if mixture.shared else feed
    block = pre_norm((attention, feed), lambda: RMSNorm(weights, style.eps))
    readout = Readout(fixed, vocab, before=(RMSNorm(fixed, style.eps),), tied=style.tied)
    return Transformer(axes, native, Tokens(fixed, vocab, pad=style.pad), block, readout)
