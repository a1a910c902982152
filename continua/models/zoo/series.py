"""Models of irregular series: a flow of convolution, attention and feed-forward maps in real time."""

from dataclasses import dataclass

from continua.axes import Axes, Discretisation, LeftEnd, Times, at
from continua.fields import ByBasis, Nodal, Parametrisation
from continua.flow import Fixed, LieTrotter
from continua.models.build import continuous_axes, pre_norm, smooth_bases
from continua.models.embed import Embedding, Observations
from continua.models.encoder_decoder import EncoderDecoder
from continua.models.local_stem import LocalStem
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import ALiBi, Attention, Convolution, LayerNorm, Operator, Parts, Pointwise, Sinusoidal
from continua.settings import Positive, Size, Whole, checked

LONGEST = 1000.0  # wave lengths of the position reach from 2π units to 2π times this


@dataclass(frozen=True)
class _Weights:
    """The axes of one model, and weights that are free at each native step and constant between."""

    axes: Axes
    native: Discretisation
    moving: Parametrisation

    @classmethod
    def of(cls, d: int, heads: int, depth: int, m: int | None) -> "_Weights":
        wish = at(d=d, h=heads, m=m or 3 * d, z=Fixed(depth, LieTrotter()))
        axes, native = continuous_axes(wish, t=Times())
        bases = {**smooth_bases(axes, native, 1), "z": Nodal(LeftEnd(depth))}
        return cls(axes, native, ByBasis(axes, bases))

    @property
    def fixed(self) -> Parametrisation:
        return self.moving.autonomous()

    def flow(self, *branches: Operator) -> Parts:
        return pre_norm((*branches, Pointwise(self.moving)), lambda: LayerNorm(self.moving))

    def looks(self, radii: tuple[float, ...], degree: int) -> tuple[Operator, Operator]:
        """Convolution in real time, then attention that prefers what is near: scores −slope·|t − s|."""
        return Convolution(self.moving, radii, degree), Attention(self.moving, position=ALiBi(self.axes))


@checked
def series_classifier(
    features: Size,
    classes: Size,
    *,
    d: Size = 32,
    heads: Size = 4,
    depth: Size = 3,
    m: Size | None = None,
    radii: tuple[Positive, ...] = (1.0, 2.0),
    degree: Whole = 2,
    position: bool = True,
    stem: tuple[Size, ...] = (),
) -> Transformer:
    """Series of ``features`` a point in, one logit for each class out: the mean of the field over time.

    ``m`` is 3d unless given. ``radii`` of the convolution are in units of time, ``degree`` is that of its polynomials;
    ``position`` tells the model the time of a point, without it only distances count. ``stem`` are the strides of a
    ``LocalStem``: its local kernels of relative time make one token of Π strides units of time, and take the place of
    the convolution.

    >>> import torch
    >>> from continua.models.batch import Batch
    >>> model = series_classifier(features=2, classes=3, d=8, heads=2, depth=1)
    >>> model(Batch(torch.zeros(1, 4, 2), times=torch.tensor([[0.0, 1.0, 2.5, 3.0]]))).shape
    torch.Size([1, 3])
    """
    made = _Weights.of(d, heads, depth, m)
    told = Sinusoidal(made.axes, LONGEST) if position else None
    embed: Embedding = LocalStem(made.fixed, features, stem, told) if stem else Observations(made.fixed, features, told)
    readout = Readout(made.fixed, classes, before=(LayerNorm(made.fixed),), pool=True, bias=True)
    looks = made.looks(radii, degree)
    return Transformer(made.axes, made.native, embed, made.flow(*(looks[1:] if stem else looks)), readout)


@checked
def series_forecaster(
    features: Size,
    question_features: Size,
    out: Size,
    *,
    d: Size = 32,
    heads: Size = 4,
    depth: Size = 2,
    m: Size | None = None,
    radii: tuple[Positive, ...] = (1.0, 2.0),
    degree: Whole = 2,
    position: bool = True,
) -> EncoderDecoder:
    """A history of ``features`` a point and questions of ``question_features`` in, ``out`` numbers a question out.

    The rest is as in ``series_classifier``. Questions always know their time.
    """
    made = _Weights.of(d, heads, depth, m)
    final = Readout(made.fixed, before=(LayerNorm(made.fixed),))
    history = Observations(made.fixed, features, Sinusoidal(made.axes, LONGEST) if position else None)
    encoder = Transformer(made.axes, made.native, history, made.flow(*made.looks(radii, degree)), final)
    answer = Readout(made.fixed, out, before=(LayerNorm(made.fixed),), bias=True)
    asked = Observations(made.fixed, question_features, Sinusoidal(made.axes, LONGEST))
    cross = Attention(made.moving, position=ALiBi(made.axes), cross=True)
    decoder = Transformer(made.axes, made.native, asked, made.flow(cross), answer)
    return EncoderDecoder(encoder, decoder)
