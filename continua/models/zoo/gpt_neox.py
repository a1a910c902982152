"""GPT-NeoX and Pythia: causal, with attention and feed-forward map side by side."""

from dataclasses import dataclass, replace

from continua.fields import counted
from continua.flow import Euler, Fixed
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import Tokens
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import GELU, Activation, Attention, Causal, LayerNorm, Pointwise, Rotary, Stretch
from continua.settings import NonNegative, Positive, Share, Size, checked


@checked
@dataclass(frozen=True)
class NeoXStyle:
    """What differs among models built like GPT-NeoX.

    ``parallel`` adds both branches of a layer to the same state; ``share`` is the part of each head that is turned;
    ``bias`` gives attention its biases; looking up the token ``pad`` sends no gradient to its row.
    """

    base: Positive = 10000.0
    share: Share = 0.25
    stretch: Stretch | None = None
    parallel: bool = True
    phi: Activation = GELU()  # noqa: RUF009  (frozen and stateless)
    eps: NonNegative = 1e-5
    tied: bool = False
    bias: bool = True
    pad: int | None = None


@checked
def gpt_neox(
    vocab: Size = 50432,
    *,
    d: Size = 6144,
    heads: Size = 64,
    depth: Size = 44,
    m: Size | None = None,
    style: NeoXStyle = NeoXStyle(),  # noqa: B008  (frozen)
) -> Transformer:
    """GPT-NeoX (Black et al. 2022): LayerNorm before each branch, rotary positions in a part of each head.

    Branches side by side are one Euler step of their sum, where other models take one for each (Lie–Trotter).

    >>> model = gpt_neox(vocab=32, d=16, heads=2, depth=2)
    >>> import torch
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 32])
    """
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    if style.parallel:
        native = replace(native, z=Fixed(depth, Euler()))
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    position = Rotary(style.base, style.stretch, style.share)
    biases = ("q", "k", "v", "o") if style.bias else ()
    attention = Attention(weights, mask=Causal(), position=position, bias=biases)
    block = pre_norm((attention, Pointwise(weights, style.phi)), lambda: LayerNorm(weights, style.eps))
    readout = Readout(fixed, vocab, before=(LayerNorm(fixed, style.eps),), tied=style.tied)
    return Transformer(axes, native, Tokens(fixed, vocab, pad=style.pad), block, readout)
