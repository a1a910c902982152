"""DeiT: a ViT with a second learned token that listened to a teacher."""

from continua.models.patches import Pixels
from continua.models.readout import Averaged, Readout
from continua.models.transformer import Transformer
from continua.models.zoo.heads import counted_and_named
from continua.models.zoo.vit import image_parts
from continua.operators import LayerNorm
from continua.settings import NonNegative, Size, checked


@checked
def deit(
    pixels: Pixels = Pixels(),  # noqa: B008  (frozen)
    *,
    d: Size = 768,
    heads: Size = 12,
    depth: Size = 12,
    m: Size | None = None,
    eps: NonNegative = 1e-12,
    labels: Size | tuple[str, ...] | None = None,
    distilled: bool = True,
    qkv_bias: bool = True,
) -> Transformer:
    """DeiT (Touvron et al. 2021): as ``vit`` with a distillation token behind the class token.

    ``labels`` add the mean of two classifiers, one of each of these tokens; without ``distilled``, that of the class
    token alone.

    >>> model = deit(Pixels(8, 8, patch=(4, 4)), d=16, heads=2, depth=2, labels=3)
    >>> import torch
    >>> model(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 3])
    """
    parts = image_parts(pixels, d=d, heads=heads, depth=depth, m=m or 4 * d, eps=eps, qkv_bias=qkv_bias, extra=1)
    before = (LayerNorm(parts.fixed, eps),)
    readout: Readout | Averaged = Readout(parts.fixed, before=before)
    if labels is not None:
        count, names = counted_and_named(labels)
        if distilled:
            readout = Averaged(parts.fixed, count, before=before, labels=names)
        else:
            readout = Readout(parts.fixed, count, before=before, bias=True, first=True, labels=names)
    return Transformer(parts.axes, parts.native, parts.embed, parts.block, readout)
