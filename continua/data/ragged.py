"""Series of unequal length with stamps and missing values, made clean once and laid out for batches."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from continua.axes import as_stamps
from continua.errors import GridError, ShapeError
from continua.typing import Tensor

JUMP = 1e6  # a gap this many times the usual one is no gap but another unit
Array = np.ndarray


@dataclass(frozen=True)
class Ragged:
    """n series, padded: stamps [n, t] (from the first of each on), values [n, t, c], and which of these were seen.

    ``start`` [n] is the first stamp of each series in its own clock. Missing values and padding are written as zero.
    A point is ``present`` where at least one channel was seen.
    """

    times: Tensor
    values: Tensor
    seen: Tensor
    start: Tensor

    @classmethod
    def of(cls, series: Any, times: Any = None) -> "Ragged":
        """Read an array [n, t] or [n, t, c] or a sequence of arrays [t] or [t, c], NaN where a value is missing.

        ``times`` are stamps for all series [t], for each [n, t], or a sequence of arrays; without them points are
        counted. Unsorted stamps are sorted, points that share a stamp are merged, points without any value dropped.
        """
        values = [_values(one, i) for i, one in enumerate(series)]
        if not values:
            raise ShapeError("a set of series needs at least one", got="none", remedy="Give one series or more.")
        widths = sorted({one.shape[1] for one in values})
        if len(widths) > 1:
            remedy = "Give every series the same channels, NaN where one was not measured."
            raise ShapeError("all series need the same channels", got=f"{widths[0]} and {widths[-1]}", remedy=remedy)
        stamps = _stamps(times, values)
        cleaned = [_clean(t, v, i) for i, (t, v) in enumerate(zip(stamps, values, strict=True))]
        if sum(one[2] for one in cleaned):
            merged = sum(one[2] for one in cleaned)
            message = f"{merged} stamps came twice with different values in one channel; their means were taken."
            warnings.warn(message, stacklevel=2)
        _check_units([t for t, _, _ in cleaned])
        return cls._padded([(t, v) for t, v, _ in cleaned], widths[0])

    @classmethod
    def _padded(cls, series: Sequence[tuple[Array, Array]], channels: int) -> "Ragged":
        count = len(series)
        longest = max(len(t) for t, _ in series)
        times = np.zeros((count, longest))
        values = np.full((count, longest, channels), np.nan)
        for i, (t, v) in enumerate(series):
            times[i, : len(t)] = t - t[0]
            values[i, : len(t)] = v
            times[i, len(t) :] = t[-1] - t[0]  # padding carries a stamp of its series: any finite one would do
        seen = np.isfinite(values)
        filled = torch.from_numpy(np.where(seen, values, 0.0))
        start = torch.tensor([float(t[0]) for t, _ in series], dtype=torch.float64)
        return cls(torch.from_numpy(times), filled, torch.from_numpy(seen), start)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def channels(self) -> int:
        """How many values a point has."""
        return self.values.shape[-1]

    @property
    def present(self) -> Tensor:
        """Which points are there at all [n, t]."""
        return self.seen.any(-1)

    @property
    def end(self) -> Tensor:
        """The last stamp of each series, counted from its first [n]."""
        return torch.where(self.present, self.times, -torch.inf).amax(-1)

    @property
    def spacing(self) -> float:
        """The median time between neighbouring points; one if no series has two."""
        gaps = self.times.diff(dim=-1)[self.present[:, 1:]]
        return float(gaps.median()) if len(gaps) else 1.0

    def rows(self, chosen: Tensor) -> "Ragged":
        """Some of the series, without the columns that none of them fills."""
        used = int(self.present[chosen].sum(-1).max())
        return Ragged(
            self.times[chosen, :used], self.values[chosen, :used], self.seen[chosen, :used], self.start[chosen]
        )

    def keep(self, kept: Tensor) -> "Ragged":
        """The same series with only the flagged points [n, t] or values [n, t, c]; each must keep one.

        Stamps stay counted from where they were, and points that are left close ranks.
        """
        seen = self.seen & (kept if kept.dim() == 3 else kept[..., None])
        there = seen.any(-1)
        if not bool(there.any(-1).all()):
            raise GridError("a series needs at least one point", got="one with none", remedy="Keep a point of each.")
        order = there.long().argsort(dim=-1, descending=True, stable=True)[:, : int(there.sum(-1).max())]
        wide = order[..., None].expand(-1, -1, self.channels)
        picked = seen.gather(1, wide)
        values = self.values.gather(1, wide) * picked
        times = self.times.gather(1, order)
        left = picked.any(-1)
        last = torch.where(left, times, -torch.inf).amax(-1, keepdim=True)
        return Ragged(torch.where(left, times, last), values, picked, self.start)

    def check_channels(self) -> None:
        """Refuse a channel that was never seen."""
        for i, seen in enumerate(self.seen.flatten(0, 1).any(0).tolist()):
            if not seen:
                remedy = "Drop the channel, or give data where it was measured."
                raise ShapeError("every channel needs an observed value", got=f"channel {i} without any", remedy=remedy)


def _values(one: Any, i: int) -> Array:
    """One series as [t, c] floats; anything infinite is refused."""
    try:
        found = np.asarray(one, dtype=np.float64)
    except (TypeError, ValueError) as wrong:
        raise ShapeError("series are made of numbers", got=f"{wrong} in series {i}", remedy="Drop text.") from wrong
    found = found[:, None] if found.ndim == 1 else found
    if found.ndim != 2 or not found.shape[1]:
        remedy = "Give each series as [t] or [t, channels]."
        raise ShapeError("a series is a list of points", got=f"shape {list(found.shape)} of series {i}", remedy=remedy)
    if np.isinf(found).any():
        remedy = "Write NaN where a value is missing."
        raise ShapeError("values are finite or NaN", got=f"infinity in series {i}", remedy=remedy)
    return found


def _stamps(times: Any, values: Sequence[Array]) -> list[Array]:
    """The stamps of every series; counted if there are none, shared if there is one row."""
    if times is None:
        return [np.arange(len(v), dtype=np.float64) for v in values]
    first = times[0] if len(times) else times
    if np.ndim(first) == 0:
        times = [times] * len(values)
    if len(times) != len(values):
        remedy = "Give one array of stamps for each series, or one for all."
        raise ShapeError(f"{len(values)} series need as many stamps", got=f"{len(times)} arrays", remedy=remedy)
    made = [_floats(t) for t in times]
    for i, (t, v) in enumerate(zip(made, values, strict=True)):
        if t.shape != (len(v),):
            got = f"stamps {list(t.shape)} for {len(v)} points in series {i}"
            remedy = "Give one stamp for each point."
            raise ShapeError("every point needs a stamp", got=got, remedy=remedy)
    return made


def _floats(stamps: Any) -> Array:
    """Stamps as numbers; dates count seconds."""
    made: Array = as_stamps(stamps).detach().cpu().double().numpy()
    return made


def _clean(t: Array, v: Array, i: int) -> tuple[Array, Array, int]:
    """Sorted, merged stamps with their values, and how many merged points disagreed."""
    there = np.isfinite(v).any(1)
    if np.isnan(t[there]).any() or np.isinf(t[there]).any():
        remedy = "Drop the points whose time is not known."
        raise GridError("stamps must be finite", got=f"NaN or infinity in series {i}", remedy=remedy)
    t = t[there]
    v = v[there]
    if not len(t):
        remedy = "Drop empty series."
        raise ShapeError("a series needs at least one observed value", got=f"none in series {i}", remedy=remedy)
    order = np.argsort(t, kind="stable")
    t = t[order]
    v = v[order]
    stamps, group = np.unique(t, return_inverse=True)
    if len(stamps) == len(t):
        return t, v, 0
    return _merged(stamps, group, v)


def _merged(stamps: Array, group: Array, v: Array) -> tuple[Array, Array, int]:
    """The mean of the values that share a stamp, channel by channel."""
    seen = np.isfinite(v)
    total = np.zeros((len(stamps), v.shape[1]))
    count = np.zeros((len(stamps), v.shape[1]))
    low = np.full(total.shape, np.inf)
    high = np.full(total.shape, -np.inf)
    np.add.at(total, group, np.where(seen, v, 0.0))
    np.add.at(count, group, seen)
    np.minimum.at(low, group, np.where(seen, v, np.inf))
    np.maximum.at(high, group, np.where(seen, v, -np.inf))
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return stamps, mean, int((high > low).any(1).sum())


def _check_units(stamps: Sequence[Array]) -> None:
    """Refuse stamps that change their unit on the way or from one series to another."""
    usual = []
    for i, t in enumerate(stamps):
        gaps = np.diff(t)
        if len(gaps):
            usual.append(float(np.median(gaps)))
        if len(gaps) > 1 and gaps.max() > JUMP * np.median(gaps):
            got = f"a jump of {gaps.max():.3g} among steps of {np.median(gaps):.3g} in series {i}"
            raise GridError("stamps need one unit", got=got, remedy="Convert all stamps to the same unit.")
    if usual and max(usual) > JUMP * min(usual):
        got = f"steps of {min(usual):.3g} and of {max(usual):.3g}"
        raise GridError("all series need one unit of time", got=got, remedy="Convert all stamps to the same unit.")
