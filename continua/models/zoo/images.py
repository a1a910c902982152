"""Images as functions on the square, read through function patches."""

from continua.axes import Interval, LeftEnd, Product, at
from continua.errors import ConfigError
from continua.fields import ByBasis, Nodal
from continua.flow import Fixed, LieTrotter
from continua.models.build import continuous_axes, pre_norm, smooth_bases
from continua.models.cells import Cells
from continua.models.embed import Embedding
from continua.models.image_stem import ImageStem
from continua.models.readout import Readout
from continua.models.tiling import Tiling
from continua.models.transformer import Transformer
from continua.operators import Attention, LayerNorm, Pointwise, WaveBias
from continua.settings import NonNegative, Size, Whole, checked

SQUARE = Product((Interval(), Interval()))  # rows run along the first coordinate, columns along the second
WAVES = 3  # of the bias of displacement, in each direction


@checked
def image_classifier(
    classes: Size,
    *,
    channels: Size = 1,
    cells: Size = 2,
    degree: Whole = 3,
    reach: NonNegative = 0.0,
    ridge: NonNegative = 1e-2,
    d: Size = 64,
    heads: Size = 4,
    depth: Size = 3,
    side: Size = 8,
    stem: tuple[Size, ...] = (),
    windows: tuple[NonNegative, ...] = (1.0, 0.0),
    prior: NonNegative = 0.0,
) -> Transformer:
    """Function patches, a flow of attention and feed-forward, the mean over the square.

    ``cells`` in each direction, polynomials up to ``degree``, windows of ``reach`` and a ``ridge`` (see ``Tiling``);
    attention has a bias of displacement then.
    With a ``stem``, strides of local kernels, the image is read at ``side`` × ``side`` nodes instead, gaps are filled
    by means of these ``windows`` and ``prior``, and tokens are what the kernels make of it (see ``ImageStem``).

    >>> import torch
    >>> model = image_classifier(classes=3, d=8, heads=2, depth=1)
    >>> model(torch.zeros(1, 1, 8, 8)).shape, model(torch.zeros(1, 1, 12, 12)).shape
    (torch.Size([1, 3]), torch.Size([1, 3]))
    """
    if cells < 1 or classes < 2:
        got = f"{cells} and {classes}"
        remedy = "Use cells ≥ 1 and two classes or more."
        raise ConfigError("a classifier needs cells and classes", got=got, remedy=remedy)
    axes, native = continuous_axes(at(d=d, h=heads, z=Fixed(depth, LieTrotter())), t=SQUARE)
    weights = ByBasis(axes, {**smooth_bases(axes, native, 1), "z": Nodal(LeftEnd(depth))})
    fixed = weights.autonomous()
    tiling = Tiling(SQUARE, (cells, cells), degree, reach, ridge)
    look = Attention(weights, position=None if stem else WaveBias(fixed, WAVES))  # tokens of a stem have places
    block = pre_norm((look, Pointwise(weights)), lambda: LayerNorm(weights))
    readout = Readout(fixed, classes, before=(LayerNorm(fixed),), pool=True, bias=True)
    embed: Embedding = Cells(fixed, tiling, channels)
    if stem:
        embed = ImageStem(fixed, side, channels, stem, windows=windows, prior=prior, norm=LayerNorm(fixed))
    return Transformer(axes, native, embed, block, readout)
