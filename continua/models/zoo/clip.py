"""CLIP: texts and images that learned to be told by each other."""

from dataclasses import dataclass

from continua.axes import Axes, Discretisation
from continua.fields import Parametrisation, counted
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import Tokens
from continua.models.patches import Patches, Pixels
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.models.two_towers import TwoTowers
from continua.operators import Activation, Attention, Causal, LayerNorm, Learned, Mask, Parts, Pointwise, QuickGELU
from continua.settings import NonNegative, Size, Whole, checked

END = 49407  # of a text


@checked
@dataclass(frozen=True)
class ClipSide:
    """The sizes of one tower, its φ and the eps of its norms."""

    d: Size = 512
    heads: Size = 8
    depth: Size = 12
    m: Size = 2048
    phi: Activation = QuickGELU()  # noqa: RUF009  (frozen)
    eps: NonNegative = 1e-5

    def parts(self, mask: Mask | None) -> tuple[Axes, Discretisation, Parametrisation, Parts]:
        """Axes, native sizes, weights behind the layers, and the layers."""
        axes, native = discrete_axes(self.d, self.heads, self.m, self.depth)
        weights = counted(axes, self.depth)
        branches = (Attention(weights, mask=mask), Pointwise(weights, self.phi))
        return axes, native, weights.autonomous(), pre_norm(branches, lambda: LayerNorm(weights, self.eps))


IMAGES = ClipSide(768, 12, 12, 3072)


@checked
def clip_texts(
    vocab: Size = 49408,
    *,
    context: Size = 77,
    out: Size | None = 512,
    end: Whole | None = END,
    side: ClipSide = ClipSide(),  # noqa: B008  (frozen)
) -> Transformer:
    """The texts of CLIP: causal, one vector of ``out`` numbers for each text, read at its first ``end``.

    Without ``end`` at its last token; without ``out`` the answer are the states of all tokens.

    >>> model = clip_texts(vocab=32, context=8, out=4, end=31, side=ClipSide(d=8, heads=2, depth=2, m=16))
    >>> import torch
    >>> model(torch.tensor([[1, 5, 31, 31]])).shape
    torch.Size([1, 4])
    """
    axes, native, fixed, block = side.parts(Causal())
    pooled = out is not None
    embed = Tokens(fixed, vocab, Learned(fixed, context), end=end if pooled else None)
    readout = Readout(fixed, out, before=(LayerNorm(fixed, side.eps),), last=pooled)
    return Transformer(axes, native, embed, block, readout)


@checked
def clip_images(
    pixels: Pixels = Pixels(patch=(32, 32)),  # noqa: B008  (frozen)
    *,
    out: Size | None = 512,
    side: ClipSide = IMAGES,
) -> Transformer:
    """The images of CLIP: patches without a bias, a norm before the first layer, one vector of ``out`` numbers.

    Without ``out`` the answer is the state of the class token, [b, d].

    >>> model = clip_images(Pixels(8, 8, patch=(4, 4)), out=4, side=ClipSide(d=8, heads=2, depth=2, m=16))
    >>> import torch
    >>> model(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 4])
    """
    axes, native, fixed, block = side.parts(None)
    places = Learned(fixed, 1 + pixels.count)
    embed = Patches(fixed, pixels, places, bias=False, norm=LayerNorm(fixed, side.eps))
    readout = Readout(fixed, out, before=(LayerNorm(fixed, side.eps),), first=True)
    return Transformer(axes, native, embed, block, readout)


@checked
def clip(
    vocab: Size = 49408,
    pixels: Pixels = Pixels(patch=(32, 32)),  # noqa: B008  (frozen)
    *,
    out: Size = 512,
    context: Size = 77,
    end: Whole | None = END,
    texts: ClipSide = ClipSide(),  # noqa: B008  (frozen)
    images: ClipSide = IMAGES,
) -> TwoTowers:
    """CLIP (Radford et al. 2021): how well each text fits each image, ``Batch(texts, source=Batch(images))``.

    >>> side = ClipSide(d=8, heads=2, depth=2, m=16)
    >>> model = clip(32, Pixels(8, 8, patch=(4, 4)), out=4, context=8, end=31, texts=side, images=side)
    >>> import torch
    >>> from continua.models import Batch
    >>> model(Batch(torch.tensor([[1, 5, 31]]), source=Batch(torch.zeros(2, 3, 8, 8)))).shape
    torch.Size([1, 2])
    """
    words = clip_texts(vocab, context=context, out=out, end=end, side=texts)
    return TwoTowers(clip_images(pixels, out=out, side=images), words)
