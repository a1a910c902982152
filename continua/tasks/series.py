"""Irregular series as tokens, and classifying them."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from continua.config import register
from continua.data.augmentation import Change, drawn
from continua.data.generation import generator_for
from continua.data.ragged import Ragged
from continua.errors import ConfigError
from continua.models import Batch
from continua.tasks.task import Example, Score, divergence
from continua.typing import Tensor


@register
@dataclass(frozen=True)
class Scale:
    """How series become numbers near one: (value − mean)/spread by channel, stamps in ``unit``s.

    ``periods`` (of the original clock) add the sine and cosine of the time of day, year … to every point. Answers of
    another scale than the series have their own means and spreads (``answers``). Stamps are counted from the first of
    each series, or, where they share a clock, from its time ``origin``.
    """

    mean: tuple[float, ...]
    spread: tuple[float, ...]
    unit: float = 1.0
    periods: tuple[float, ...] = ()
    answers: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    origin: float | None = None

    @classmethod
    def of(cls, series: Ragged, unit: float | None = None, periods: tuple[float, ...] = ()) -> "Scale":
        """Measure them on training data."""
        series.check_channels()
        moments = [_moments(v[seen]) for v, seen in zip(series.values.unbind(-1), series.seen.unbind(-1), strict=True)]
        mean, spread = (tuple(found) for found in zip(*moments, strict=True))
        return cls(mean, spread, series.spacing if unit is None else unit, periods)

    def answering(self, targets: Tensor) -> "Scale":
        """The same for answers [n, q, c] of a scale of their own; channels without answers keep that of the series."""
        own = zip(self.mean, self.spread, strict=True)
        known = [v[~v.isnan()] for v in targets.unbind(-1)]
        moments = [_moments(v) if len(v) else usual for v, usual in zip(known, own, strict=True)]
        mean, spread = (tuple(found) for found in zip(*moments, strict=True))
        return replace(self, answers=(mean, spread))

    @property
    def channels(self) -> int:
        """How many values a point has."""
        return len(self.mean)

    @property
    def features(self) -> int:
        """How many numbers a point is told by: values; with several channels, flags and ages too; waves of periods."""
        return self.channels * (1 if self.channels == 1 else 3) + 2 * len(self.periods)

    def to_standard(self, values: Tensor) -> Tensor:
        """(value − mean)/spread."""
        return (values - values.new_tensor(self.mean)) / values.new_tensor(self.spread)

    def to_answer(self, values: Tensor) -> Tensor:
        """Values in the standard units of answers, channels last."""
        mean, spread = self.answers or (self.mean, self.spread)
        return (values - values.new_tensor(mean)) / values.new_tensor(spread)

    def from_answer(self, standard: Tensor) -> Tensor:
        """Answers in their own units, channels last."""
        mean, spread = self.answers or (self.mean, self.spread)
        return standard * standard.new_tensor(spread) + standard.new_tensor(mean)

    def waves(self, clock: Tensor) -> list[Tensor]:
        """Sines and cosines of the periods at times of the original clock (in double precision, then rounded)."""
        angles = [2 * torch.pi * clock / period for period in self.periods]
        return [wave[..., None].float() for angle in angles for wave in (angle.sin(), angle.cos())]

    def told(self, series: Ragged) -> Batch:
        """The points of each series as tokens: features [n, t, features], stamps in units, absent ones flagged."""
        seen = series.seen
        values = (self.to_standard(series.values) * seen).float()
        parts = [values]
        if self.channels > 1:
            parts += [seen.float(), _ages(series.times, seen, self.unit)]
        parts += self.waves(series.times + series.start[:, None])
        times = series.times if self.origin is None else series.times + (series.start - self.origin)[:, None]
        return Batch(torch.cat(parts, -1), times=times / self.unit, observed=series.present)


def _moments(values: Tensor) -> tuple[float, float]:
    """Mean and spread; what never changes has spread one."""
    spread = float(values.std(correction=0))
    return float(values.mean()), spread if spread > 1e-12 * float(values.abs().max()) else 1.0


def _ages(times: Tensor, seen: Tensor, unit: float) -> Tensor:
    """log(1 + time since each channel was last seen, in units), counted from the first point where it never was."""
    stamps = times[..., None].expand(seen.shape)
    last = torch.where(seen, stamps, times[:, :1, None]).cummax(1).values
    return ((stamps - last).clamp_min(0) / unit).log1p().float()  # padding may carry any stamp


@dataclass(frozen=True)
class Classes:
    """Series with a class each; ``held`` are those that are measured and not trained on (all, if none are)."""

    series: Ragged
    labels: Tensor
    scale: Scale
    batch: int = 64
    change: Change = Change()  # noqa: RUF009  (frozen)
    held: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.series) != len(self.labels):
            got = f"{len(self.labels)} labels"
            remedy = "Give one label for each series."
            raise ConfigError(f"{len(self.series)} series need as many labels", got=got, remedy=remedy)

    def example(self, seed: int, step: int) -> Example:
        """Random series of the training part, changed."""
        generator = generator_for("series", seed, step)
        rows = drawn(len(self.series), self.held, self.batch, generator)
        return Example(self.scale.told(self.change(self.series.rows(rows), generator)), self.labels[rows])

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        """The sum of −log p of the right classes."""
        return cross_entropy(answer.float() if answer.dtype.itemsize < 4 else answer, example.target, reduction="sum")

    def imitation(self, answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
        """Σ KL(teacher ‖ answer)."""
        return divergence(answer, teacher).sum()

    @torch.no_grad()
    def measured(self, model: Any, times: int) -> float:
        """The mean loss of the held-out series, each changed so many ``times`` as training series are."""
        rows = self._measured_rows
        loss = 0.0
        for time in range(times):
            generator = generator_for("changed", time)
            for part in rows.split(256):
                changed = self.change(self.series.rows(part), generator)
                example = Example(self.scale.told(changed), self.labels[part])
                loss += float(self.loss(model(example.batch), example))
        return loss / (times * len(rows))

    @property
    def _measured_rows(self) -> Tensor:
        return torch.arange(min(len(self.series), 256)) if self.held is None else self.held

    @torch.no_grad()
    def evaluate(self, model: Any) -> Score:
        """Mean loss and accuracy of the held-out series."""
        rows = self._measured_rows
        loss = 0.0
        right = 0
        for part in rows.split(256):
            example = Example(self.scale.told(self.series.rows(part)), self.labels[part])
            answer = model(example.batch)
            loss += float(self.loss(answer, example))
            right += int((answer.argmax(-1) == example.target).sum())
        return Score({"loss": loss / len(rows), "accuracy": right / len(rows)})
