"""The settings of estimators of series, and their models with fresh weights."""

from dataclasses import dataclass

import torch

from continua.data.augmentation import Change
from continua.errors import ConfigError
from continua.fields import Expansion
from continua.models import EncoderDecoder, Readout, Scaled, Transformer, initialise, zoo
from continua.settings import Count, NonNegative, Positive, Share, Whole, checked
from continua.tasks.forecasting import Quantiles, question_features
from continua.tasks.series import Scale


@checked
@dataclass(frozen=True)
class SeriesSettings:
    """What seldom needs a change.

    ``batch`` series a step; ``lr`` and ``decay`` are AdamW's; ``hidden`` is the width of the feed-forward map (3d if
    None). ``radii`` of the convolution are in units of time, ``degree`` of its polynomials; ``position`` tells the
    model the time of a point, without it only distances count; None lets a classifier try both on parts of the series
    that are held out. ``stem`` are the strides of local kernels that make fewer tokens of a series before a classifier
    looks at it as a whole (see ``LocalStem``; ``(2, 2, 2)``: a token for eight units of time); without them every point
    is a token, None tries both. ``clock`` counts stamps from the first one of all training series, not from that of
    each: for classifiers of series that share a clock. ``unit`` is the unit of time (the median distance of
    neighbours if None), ``periods`` are cycles of the clock that matter, in its own unit. ``change`` is what training
    series go through. ``window`` and ``share``: see ``Filling``. ``held_out``: the share that is measured while
    training and not trained on.
    """

    batch: Count = 64
    lr: NonNegative = 3e-3
    decay: NonNegative = 0.05
    hidden: Count | None = None
    radii: tuple[Positive, ...] = (1.0, 2.0)
    degree: Whole = 2
    position: bool | None = True
    stem: tuple[Count, ...] | None = ()
    clock: bool = False
    unit: float | None = None
    periods: tuple[Positive, ...] = ()
    change: Change = Change()  # noqa: RUF009  (frozen)
    window: Count = 64
    share: Share = 0.5
    held_out: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ConfigError("a share is held out, not all", got=self.held_out, remedy="Use held_out=0.1.")
        if self.unit is not None and not self.unit > 0:
            raise ConfigError("a unit of time is positive", got=self.unit, remedy="Leave it out to measure it.")


@checked
@dataclass(frozen=True)
class Size:
    """The native discretisation: ``d`` numbers a point, ``heads``, and ``depth`` steps."""

    d: Count = 32
    heads: Count = 4
    depth: Count = 3


def classifier(scale: Scale, classes: int, size: Size, settings: SeriesSettings, seed: int = 0) -> Transformer:
    """The classifier of series on this scale, with fresh weights."""
    model = zoo.series_classifier(
        scale.features,
        classes,
        d=size.d,
        heads=size.heads,
        depth=size.depth,
        m=settings.hidden,
        radii=settings.radii,
        degree=settings.degree,
        position=settings.position is not False,
        stem=settings.stem or (),
    )
    initialise(model, Scaled(), torch.Generator().manual_seed(seed))
    return model


def forecaster(
    scale: Scale, quantiles: Quantiles, size: Size, settings: SeriesSettings, seed: int = 0
) -> EncoderDecoder:
    """A history and questions in; for each question and channel a gate, a middle quantile and steps from it out.

    Its head starts at zero: the first answers are the guesses of ``question``.
    """
    model = zoo.series_forecaster(
        scale.features,
        question_features(scale),
        scale.channels * (1 + len(quantiles.levels)),
        d=size.d,
        heads=size.heads,
        depth=size.depth,
        m=settings.hidden,
        radii=settings.radii,
        degree=settings.degree,
        position=settings.position is not False,
    )
    initialise(model, Scaled(), torch.Generator().manual_seed(seed))
    if isinstance(model.decoder.readout, Readout) and isinstance(model.decoder.readout.head, Expansion):
        model.decoder.readout.head.reset(0.0, 0.0)
    return model
