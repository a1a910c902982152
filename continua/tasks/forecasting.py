"""Answers at times that were not observed, with quantiles: forecasting and interpolation."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import softplus

from continua.data.augmentation import Change, drawing, drawn, ending, scattered, stretch
from continua.data.generation import generator_for
from continua.data.ragged import Ragged
from continua.errors import ConfigError
from continua.models import Batch
from continua.tasks.series import Scale
from continua.tasks.task import Example, Score
from continua.typing import Tensor

FAR = 10.0  # standard deviations


@dataclass(frozen=True)
class Quantiles:
    """The levels that are answered, in rising order.

    A model returns 1 + k numbers for each channel: a gate, the middle quantile, and the steps between neighbours. The
    steps go through a softplus, so that quantiles never cross; σ(gate) says how much of the guess is added (what the
    neighbouring observations say). All zeros are the guess, nearly, with a narrow band around it.
    """

    levels: tuple[float, ...] = (0.1, 0.5, 0.9)

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.levels, self.levels[1:], strict=False))
        if not self.levels or not rising or not self.levels[0] > 0 or not self.levels[-1] < 1:
            raise ConfigError("quantiles rise between 0 and 1", got=self.levels, remedy="Use (0.1, 0.5, 0.9).")

    def read(self, answer: Tensor, guess: Tensor) -> Tensor:
        """Quantiles [b, q, c, k] from what a model answers [b, q, c(1 + k)] beside a guess [b, q, c]."""
        parts = answer.unflatten(-1, (guess.shape[-1], 1 + len(self.levels)))
        gate = parts[..., :1]
        centre = parts[..., 1:2]
        steps = softplus(parts[..., 2:] - 2.0)
        base = torch.sigmoid(gate + 4.0) * guess[..., None].to(parts) + centre
        down = steps[..., : self.middle]
        up = steps[..., self.middle :]
        return torch.cat([base - down.flip(-1).cumsum(-1).flip(-1), base, base + up.cumsum(-1)], -1)

    @property
    def middle(self) -> int:
        """The place of the level nearest to ½."""
        return min(range(len(self.levels)), key=lambda i: abs(self.levels[i] - 0.5))

    def pinball(self, quantiles: Tensor, target: Tensor) -> Tensor:
        """max(p(y − q), (p − 1)(y − q)), averaged over the levels p: zero only where every quantile is right."""
        off = target[..., None] - quantiles
        level = off.new_tensor(self.levels)
        return torch.maximum(level * off, (level - 1) * off).mean(-1)


@dataclass(frozen=True)
class Asked:
    """Questions to series: when [n, q] (from each series' first stamp on) and, where known, what was there [n, q, c].

    A target that is NaN is not counted.
    """

    times: Tensor
    targets: Tensor


def question(scale: Scale, history: Ragged, times: Tensor) -> Batch:
    """The questions as tokens: a guess for each channel, how far its neighbours are, waves of the periods.

    Stamps are counted from the last point of each history, so that a forecast is the same whenever it is made.
    """
    end = history.end[:, None]
    guess, age = _guesses(scale, history, times)
    parts = [guess, age, *scale.waves(times + history.start[:, None])]
    told = scale.told(history)
    stamps = (history.times - end) / scale.unit
    source = Batch(told.values, times=stamps, observed=told.observed)
    return Batch(torch.cat(parts, -1), times=(times - end) / scale.unit, source=source)


def question_features(scale: Scale) -> int:
    """How many numbers a question is told by."""
    return 2 * scale.channels + 2 * len(scale.periods)


def _guesses(scale: Scale, history: Ragged, times: Tensor) -> tuple[Tensor, Tensor]:
    """Straight lines between observed neighbours, the nearest beyond them; and log(1 + time to the nearest)."""
    guesses = []
    ages = []
    for c in range(scale.channels):
        seen = history.seen[..., c]
        gap = times[:, :, None] - history.times[:, None, :]  # [n, q, t]
        before = seen[:, None] & (gap >= 0)
        after = seen[:, None] & (gap < 0)
        back, low = torch.where(before, gap, torch.inf).min(-1)
        ahead, high = torch.where(after, -gap, torch.inf).min(-1)
        v = history.values[..., c]
        left = v.gather(1, low)
        right = v.gather(1, high)
        share = torch.where(before.any(-1) & after.any(-1), back / (back + ahead), 0.0)
        inside = left * (1 - share) + right * share
        value = torch.where(before.any(-1), inside, right)
        nearest = torch.minimum(back, ahead)
        known = torch.isfinite(nearest)
        guesses.append(torch.where(known, value, scale.mean[c]))  # of a channel that was never seen, the mean
        ages.append(torch.where(known, nearest / scale.unit, 1e3).log1p())
    # answers of another scale than their history's make no guess of use, and must not make a huge one
    return scale.to_answer(torch.stack(guesses, -1)).clamp(-FAR, FAR).float(), torch.stack(ages, -1).float()


@dataclass(frozen=True)
class Answers:
    """Histories with questions and their answers: forecasting, where the questions lie behind the history."""

    series: Ragged
    asked: Asked
    scale: Scale
    quantiles: Quantiles = Quantiles()
    batch: int = 64
    change: Change = Change()  # noqa: RUF009
    held: Tensor | None = None

    def example(self, seed: int, step: int) -> Example:
        """Random histories of the training part, thinned, and their questions."""
        generator = generator_for("answers", seed, step)
        rows = drawn(len(self.series), self.held, self.batch, generator)
        return self._of(rows, generator)

    def _of(self, rows: Tensor, generator: torch.Generator | None) -> Example:
        history = self.series.rows(rows)
        times = self.asked.times[rows]
        if generator is not None:
            history = self.change(history, generator)
        return example_of(self.scale, history, times, self.asked.targets[rows])

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        """The sum of the pinball losses of the answers that count."""
        return pinball_of(self.quantiles, answer, example)

    @torch.no_grad()
    def evaluate(self, model: Any) -> Score:
        """Mean pinball loss, and the mean absolute error of the middle quantile, in standard deviations."""
        rows = torch.arange(min(len(self.series), 256)) if self.held is None else self.held
        return measured(self.quantiles, model, (self._of(part, None) for part in rows.split(256)))


@dataclass(frozen=True)
class Filling:
    """Series whose own points are hidden and asked for: interpolation, and forecasting where the end is hidden.

    Each training series is cut to at most ``window`` points in a row; then up to ``share`` of these are hidden, at
    random, in one stretch, or at the end (a third of the times each).
    """

    series: Ragged
    scale: Scale
    quantiles: Quantiles = Quantiles()
    batch: int = 64
    share: float = 0.5
    window: int = 64
    held: Tensor | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError("a share of points is hidden, not all", got=self.share, remedy="Use share=0.5.")
        if self.window < 2 or int(self.series.present.sum(-1).max()) < 2:
            remedy = "Give longer series, or fit(X, y) with answers."
            raise ConfigError("hiding points needs two or more", got="series of one point", remedy=remedy)

    def example(self, seed: int, step: int) -> Example:
        """Random windows with some points hidden, which are the questions."""
        return self._of(generator_for("filling", seed, step), self.batch, self.held)

    def _of(self, generator: torch.Generator, batch: int, held: Tensor | None) -> Example:
        long = self.series.present.sum(-1) > 1  # a single point has nothing to hide
        usable = long.nonzero()[:, 0]
        if held is not None:
            usable = usable[~torch.isin(usable, held)]
        rows = usable[torch.randint(len(usable), (batch,), generator=generator)]
        cut = self._windows(self.series.rows(rows), generator)
        hidden = self._hidden(cut, generator)
        history = cut.keep(~hidden)
        most = int(hidden.sum(-1).max())
        order = hidden.long().argsort(dim=-1, descending=True, stable=True)[:, :most]
        wide = order[..., None].expand(-1, -1, cut.channels)
        asked = cut.seen.gather(1, wide) & hidden.gather(1, order)[..., None]
        targets = torch.where(asked, cut.values.gather(1, wide), torch.nan)
        return example_of(self.scale, history, cut.times.gather(1, order), targets)

    def _windows(self, series: Ragged, generator: torch.Generator) -> Ragged:
        """So many points in a row of each series, from a random one on."""
        number = series.present.sum(-1)
        room = (number - self.window).clamp_min(0)
        first = (torch.rand(len(series), generator=generator) * (room + 1)).long().clamp_max(room)
        place = torch.arange(series.times.shape[1])
        kept = (place >= first[:, None]) & (place < first[:, None] + self.window) & series.present
        cut = series.keep(kept)
        start = cut.times[:, :1]
        return Ragged(cut.times - start, cut.values, cut.seen, cut.start + start[:, 0])

    def _hidden(self, series: Ragged, generator: torch.Generator) -> Tensor:
        """One point at least, at most ``share`` of them, never all."""
        draw = drawing(generator)
        count = len(series)
        number = series.present.sum(-1, keepdim=True)
        many = (1 + draw(count, 1) * self.share * number).long().clamp_max(number - 1)
        kind = torch.randint(3, (count, 1), generator=generator)
        ways = (scattered(series, many, draw), stretch(series, many, draw), ending(series, many))
        hidden = torch.where(kind == 0, ways[0], torch.where(kind == 1, ways[1], ways[2]))
        return hidden & series.present

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        """The sum of the pinball losses of the hidden values."""
        return pinball_of(self.quantiles, answer, example)

    @torch.no_grad()
    def evaluate(self, model: Any) -> Score:
        """Mean pinball loss of one batch of hidden points, the same ones every time."""
        return measured(self.quantiles, model, [self._of(generator_for("held filling"), self.batch, self.held)])


def example_of(scale: Scale, history: Ragged, times: Tensor, targets: Tensor) -> Example:
    """Questions to some histories, with standardised answers; those that are NaN do not count."""
    standard = scale.to_answer(targets)
    return Example(question(scale, history, times), standard.nan_to_num(0.0).float(), ~targets.isnan())


def pinball_of(quantiles: Quantiles, answer: Tensor, example: Example) -> Tensor:
    """The sum of the pinball losses of the answers that count."""
    loss = quantiles.pinball(quantiles.read(answer, _guess_of(example)), example.target)
    return loss.sum() if example.counted is None else (loss * example.counted).sum()


def _guess_of(example: Example) -> Tensor:
    """The first features of a question are a guess for each channel."""
    features: Any = example.batch.values
    guess: Tensor = features[..., : example.target.shape[-1]]
    return guess


def measured(quantiles: Quantiles, model: Any, examples: Iterable[Example]) -> Score:
    """Mean pinball loss and mean absolute error of the middle quantile over some examples."""
    loss = 0.0
    off = 0.0
    count = 0
    for example in examples:
        answer = model(example.batch)
        guess = _guess_of(example)
        counted = example.counted
        loss += float(pinball_of(quantiles, answer, example))
        error = (quantiles.read(answer, guess)[..., quantiles.middle] - example.target).abs()
        off += float((error if counted is None else error * counted).sum())
        count += example.count
    return Score({"loss": loss / max(count, 1), "mae": off / max(count, 1)})
