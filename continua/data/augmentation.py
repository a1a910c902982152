"""What training series go through at random: thinning, gaps, trends, stretching, rolling."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from continua.data.ragged import Ragged
from continua.errors import ConfigError
from continua.settings import NonNegative, checked
from continua.typing import Tensor

Draw = Callable[..., Tensor]


@checked
@dataclass(frozen=True)
class Change:
    """What training series go through, at random; every share is of one series.

    ``thin``: up to this share of points is hidden; ``gap``: up to this share in one stretch instead (half of the
    times). ``trend``: a straight line of up to this many standard deviations is added; ``stretch``: values are
    multiplied by 1 ± this; ``wrap``: the values are rolled around by up to this share of their number.
    """

    thin: NonNegative = 0.0
    gap: NonNegative = 0.0
    trend: NonNegative = 0.0
    stretch: NonNegative = 0.0
    wrap: NonNegative = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.thin < 1 and 0 <= self.gap < 1):
            raise ConfigError("a share of points is hidden, not all", got=(self.thin, self.gap), remedy="Use thin=0.5.")

    def __call__(self, series: Ragged, generator: torch.Generator) -> Ragged:
        """The changed series; each keeps a point."""
        count, length = series.times.shape

        draw = drawing(generator)
        values = series.values
        seen = series.seen
        if self.wrap:
            points = series.present.sum(-1)[:, None]
            moves = ((2 * draw(count, 1) - 1) * self.wrap * points).long()
            index = (torch.arange(length) - moves) % points
            index = torch.where(series.present, index, torch.arange(length))[..., None].expand(values.shape)
            values = values.gather(1, index)
            seen = seen.gather(1, index)
        if self.stretch:
            values = values * (1 + self.stretch * (2 * draw(count, 1, 1) - 1))
        if self.trend:
            line = 2 * series.times / series.end.clamp_min(1e-12)[:, None] - 1
            spread = values[seen].std(correction=0)
            values = values + self.trend * spread * (2 * draw(count, 1, 1) - 1) * line[..., None]
        made = Ragged(series.times, values * seen, seen, series.start)
        return made if not (self.thin or self.gap) else made.keep(self._kept(made, draw))

    def _kept(self, series: Ragged, draw: Draw) -> Tensor:
        """Which points stay: all but some at random, or all but one stretch of them."""
        count = len(series)
        by_gap = torch.zeros(count, 1, dtype=torch.bool) if not self.gap else torch.ones(count, 1, dtype=torch.bool)
        if self.thin and self.gap:
            by_gap = draw(count, 1) < 0.5
        number = series.present.sum(-1, keepdim=True)
        most = torch.where(by_gap, self.gap, self.thin)
        many = (draw(count, 1) * most * number).long().clamp_max(number - 1)
        return series.present & ~torch.where(by_gap, stretch(series, many, draw), scattered(series, many, draw))


def drawing(generator: torch.Generator) -> Draw:
    """Uniform numbers of a shape."""
    return lambda *shape: torch.rand(shape, generator=generator, dtype=torch.float64)


def scattered(series: Ragged, many: Tensor, draw: Draw) -> Tensor:
    """So many points [n, 1] of each series, anywhere."""
    rank = draw(*series.times.shape).masked_fill(~series.present, 2.0).argsort(-1).argsort(-1)
    return rank < many


def stretch(series: Ragged, many: Tensor, draw: Draw) -> Tensor:
    """So many points of each series in a row, from a random one on."""
    room = series.present.sum(-1, keepdim=True) - many
    first = (draw(len(series), 1) * (room + 1)).long().clamp_max(room)
    place = torch.arange(series.times.shape[1])
    return (place >= first) & (place < first + many)


def ending(series: Ragged, many: Tensor) -> Tensor:
    """The last so many points of each series."""
    number = series.present.sum(-1, keepdim=True)
    place = torch.arange(series.times.shape[1])
    return (place >= number - many) & (place < number)


def drawn(count: int, held: Tensor | None, batch: int, generator: torch.Generator) -> Tensor:
    """Rows of the training part, none twice while they last."""
    rows = torch.arange(count)
    if held is not None:
        rows = rows[~torch.isin(rows, held)]
    if batch >= len(rows):
        return rows
    return rows[torch.randperm(len(rows), generator=generator)[:batch]]
