"""Models of irregular series: a flow of convolution, attention and feed-forward in real time."""

from dataclasses import dataclass

import torch

from continua.axes import LeftEnd, Times, at
from continua.data.augmentation import Change
from continua.errors import ConfigError
from continua.fields import ByBasis, Expansion, Nodal, Parametrisation
from continua.flow import Fixed, LieTrotter
from continua.models import EncoderDecoder, Observations, Readout, Transformer
from continua.models.build import continuous_axes, pre_norm, smooth_bases
from continua.models.init import Scaled, initialise
from continua.models.stem import Convolution
from continua.operators import ALiBi, Attention, Encoding, LayerNorm, Operator, Parts, Pointwise, Sinusoidal
from continua.tasks.forecasting import Quantiles, question_features
from continua.tasks.series import Scale

LONGEST = 1000.0  # wave lengths of the position reach from 2π units to 2π times this


@dataclass(frozen=True)
class SeriesSettings:
    """What seldom needs a change.

    ``batch`` series a step; ``lr`` and ``decay`` are AdamW's; ``hidden`` is the width of the feed-forward map (3d if
    None). ``radii`` of the convolution are in units of time, ``degree`` of its polynomials; ``position`` tells the
    model the time of a point, without it only distances count. ``unit`` is the unit of time (the median distance of
    neighbours if None), ``periods`` are cycles of the clock that matter, in its own unit. ``change`` is what training
    series go through. ``window`` and ``share``: see ``Filling``. ``held_out``: the share that is measured while
    training and not trained on.
    """

    batch: int = 64
    lr: float = 3e-3
    decay: float = 0.05
    hidden: int | None = None
    radii: tuple[float, ...] = (1.0, 2.0)
    degree: int = 2
    position: bool = True
    unit: float | None = None
    periods: tuple[float, ...] = ()
    change: Change = Change()  # noqa: RUF009  (frozen)
    window: int = 64
    share: float = 0.5
    held_out: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ConfigError("a share is held out, not all", got=self.held_out, remedy="Use held_out=0.1.")
        if self.unit is not None and not self.unit > 0:
            raise ConfigError("a unit of time is positive", got=self.unit, remedy="Leave it out to measure it.")


@dataclass(frozen=True)
class Size:
    """The native discretisation: ``d`` numbers a point, ``heads``, and ``depth`` steps."""

    d: int = 32
    heads: int = 4
    depth: int = 3


class _Parts:
    """The weights of one model, and the branches made of them."""

    def __init__(self, size: Size, settings: SeriesSettings) -> None:
        hidden = settings.hidden or 3 * size.d
        wish = at(d=size.d, h=size.heads, m=hidden, z=Fixed(size.depth, LieTrotter()))
        self.settings = settings
        self.axes, self.native = continuous_axes(wish, t=Times())
        bases = {**smooth_bases(self.axes, self.native, 1), "z": Nodal(LeftEnd(size.depth))}
        self.weights: Parametrisation = ByBasis(self.axes, bases)
        self.fixed = self.weights.autonomous()

    @property
    def position(self) -> Encoding | None:
        return Sinusoidal(self.axes, LONGEST) if self.settings.position else None

    def flow(self, *branches: Operator) -> Parts:
        return pre_norm((*branches, Pointwise(self.weights)), lambda: LayerNorm(self.weights))

    def looks(self) -> tuple[Operator, ...]:
        """Convolution in real time, then attention that prefers what is near: scores −slope·|t − s|."""
        near = Convolution(self.weights, self.settings.radii, self.settings.degree)
        return near, Attention(self.weights, position=ALiBi(self.axes))


def classifier(scale: Scale, classes: int, size: Size, settings: SeriesSettings, seed: int = 0) -> Transformer:
    """Series in, one logit for each class out: the mean of the field over time, against its measure."""
    made = _Parts(size, settings)
    embed = Observations(made.fixed, scale.features, made.position)
    readout = Readout(made.fixed, classes, before=(LayerNorm(made.fixed),), pool=True, bias=True)
    model = Transformer(made.axes, made.native, embed, made.flow(*made.looks()), readout)
    initialise(model, Scaled(), torch.Generator().manual_seed(seed))
    return model


def forecaster(
    scale: Scale, quantiles: Quantiles, size: Size, settings: SeriesSettings, seed: int = 0
) -> EncoderDecoder:
    """A history and questions in; for each question and channel a gate, a middle quantile and steps from it out.

    Its head starts at zero: the first answers are the guesses of ``question``.
    """
    made = _Parts(size, settings)
    final = Readout(made.fixed, before=(LayerNorm(made.fixed),))
    history = Observations(made.fixed, scale.features, made.position)
    encoder = Transformer(made.axes, made.native, history, made.flow(*made.looks()), final)
    out = scale.channels * (1 + len(quantiles.levels))
    answer = Readout(made.fixed, out, before=(LayerNorm(made.fixed),), bias=True)
    asked = Observations(made.fixed, question_features(scale), Sinusoidal(made.axes, LONGEST))
    cross = Attention(made.weights, position=ALiBi(made.axes), cross=True)
    decoder = Transformer(made.axes, made.native, asked, made.flow(cross), answer)
    model = EncoderDecoder(encoder, decoder)
    initialise(model, Scaled(), torch.Generator().manual_seed(seed))
    if isinstance(answer.head, Expansion):
        answer.head.reset(0.0, 0.0)
    return model
