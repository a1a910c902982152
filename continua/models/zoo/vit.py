"""ViT: images cut into patches."""

from typing import NamedTuple

from continua.axes import Axes, Discretisation
from continua.fields import Parametrisation, counted
from continua.models.build import discrete_axes, pre_norm
from continua.models.patches import Patches, Pixels
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.models.zoo.heads import counted_and_named
from continua.operators import GELU, Attention, LayerNorm, Learned, Parts, Pointwise
from continua.settings import NonNegative, Size, checked


@checked
def vit(
    pixels: Pixels = Pixels(),  # noqa: B008  (frozen)
    *,
    d: Size = 768,
    heads: Size = 12,
    depth: Size = 12,
    m: Size | None = None,
    eps: NonNegative = 1e-12,
    labels: Size | tuple[str, ...] | None = None,
    qkv_bias: bool = True,
) -> Transformer:
    """ViT (Dosovitskiy et al. 2021): patches and a class token, pre-norm; ``labels`` add its classifier.

    >>> model = vit(Pixels(8, 8, patch=(4, 4)), d=16, heads=2, depth=2, labels=3)
    >>> import torch
    >>> model(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 3])
    """
    parts = image_parts(pixels, d=d, heads=heads, depth=depth, m=m or 4 * d, eps=eps, qkv_bias=qkv_bias)
    is_head = labels is not None
    count, names = (None, ()) if labels is None else counted_and_named(labels)
    before = (LayerNorm(parts.fixed, eps),)
    readout = Readout(parts.fixed, count, before=before, bias=is_head, first=is_head, labels=names)
    return Transformer(parts.axes, parts.native, parts.embed, parts.block, readout)


class ImageParts(NamedTuple):
    """What models of images share: all but the readout."""

    axes: Axes
    native: Discretisation
    fixed: Parametrisation
    embed: Patches
    block: Parts


def image_parts(
    pixels: Pixels, *, d: int, heads: int, depth: int, m: int, eps: float, qkv_bias: bool, extra: int = 0
) -> ImageParts:
    """Patches behind a class token and ``extra`` more, positions, pre-norm blocks."""
    axes, native = discrete_axes(d, heads, m, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    attention = Attention(weights, bias=("q", "k", "v", "o") if qkv_bias else ("o",))
    block = pre_norm((attention, Pointwise(weights, GELU())), lambda: LayerNorm(weights, eps))
    embed = Patches(fixed, pixels, Learned(fixed, 1 + extra + pixels.count), extra=extra)
    return ImageParts(axes, native, fixed, embed, block)
