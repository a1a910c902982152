"""DINOv2: ViT with a factor of each coordinate behind each branch, and registers."""

from continua.fields import counted
from continua.models.build import discrete_axes
from continua.models.patches import Patches, Pixels
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import (
    GELU,
    Attention,
    Chain,
    LayerNorm,
    LayerScale,
    Learned,
    Operator,
    Parts,
    Pointwise,
    PreNorm,
)
from continua.settings import NonNegative, Size, Whole, checked


@checked
def dinov2(
    pixels: Pixels = Pixels(patch=(14, 14)),  # noqa: B008  (frozen)
    *,
    d: Size = 768,
    heads: Size = 12,
    depth: Size = 12,
    m: Size | None = None,
    eps: NonNegative = 1e-6,
    qkv_bias: bool = True,
    registers: Whole = 0,
) -> Transformer:
    """DINOv2 (Oquab et al. 2023), with ``registers`` as Darcet et al. (2024) have them: learned tokens without a place.

    >>> model = dinov2(Pixels(8, 8, patch=(4, 4)), d=16, heads=2, depth=2, registers=3)
    >>> import torch
    >>> model(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 8, 16])
    """
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()

    def scaled(branch: Operator) -> Operator:
        return Chain(PreNorm(LayerNorm(weights, eps), branch), LayerScale(weights))

    attention = Attention(weights, bias=("q", "k", "v", "o") if qkv_bias else ("o",))
    block = Parts((scaled(attention), scaled(Pointwise(weights, GELU()))))
    embed = Patches(fixed, pixels, Learned(fixed, 1 + pixels.count, unplaced=registers), extra=registers)
    return Transformer(axes, native, embed, block, Readout(fixed, before=(LayerNorm(fixed, eps),)))
