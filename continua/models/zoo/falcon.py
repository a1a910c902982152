"""Falcon: causal, with attention and feed-forward map side by side and few heads of keys and values."""

from dataclasses import dataclass, replace

from continua.fields import counted
from continua.flow import Euler, Fixed
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import Tokens
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import (
    GELU,
    Activation,
    ALiBi,
    Attention,
    Beside,
    Causal,
    LayerNorm,
    Parts,
    Pointwise,
    PreNorm,
    Rotary,
    Stretch,
)
from continua.settings import NonNegative, Positive, Size, checked


@checked
@dataclass(frozen=True)
class FalconStyle:
    """What differs among models built like Falcon.

    ``parallel`` adds both branches of a layer to the same state; they read one norm, or each its own with
    ``two_norms`` (40B). ``bias`` gives all maps a bias. ``alibi`` biases scores by distance in place of rotations (RW).
    """

    base: Positive = 10000.0
    stretch: Stretch | None = None
    parallel: bool = True
    two_norms: bool = False
    phi: Activation = GELU()  # noqa: RUF009  (frozen and stateless)
    eps: NonNegative = 1e-5
    tied: bool = True
    bias: bool = False
    alibi: bool = False


@checked
def falcon(
    vocab: Size = 65024,
    *,
    d: Size = 4544,
    heads: Size = 71,
    depth: Size = 32,
    m: Size | None = None,
    groups: Size | None = 1,
    style: FalconStyle = FalconStyle(),  # noqa: B008  (frozen)
) -> Transformer:
    """Falcon (Almazrouei et al. 2023): multi-query attention (``groups`` heads of keys and values), no biases.

    >>> model = falcon(vocab=32, d=16, heads=4, depth=2)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    turned = Rotary(style.base, style.stretch)
    attention = Attention(
        weights,
        mask=Causal(),
        position=ALiBi(axes, as_powers=True, tempered=True) if style.alibi else turned,
        groups=None if groups == heads else groups,
        bias=("q", "k", "v", "o") if style.bias else (),
    )
    feed = Pointwise(weights, style.phi, bias=style.bias)
    if style.parallel and not style.two_norms:
        block = Parts((PreNorm(LayerNorm(weights, style.eps), Beside(attention, feed)),))
    else:
        block = pre_norm((attention, feed), lambda: LayerNorm(weights, style.eps))
    if style.parallel and style.two_norms:
        native = replace(native, z=Fixed(depth, Euler()))
    readout = Readout(fixed, vocab, before=(LayerNorm(fixed, style.eps),), tied=style.tied)
    return Transformer(axes, native, Tokens(fixed, vocab), block, readout)
