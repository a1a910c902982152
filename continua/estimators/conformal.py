"""Quantiles that cover what they promise: moved by what held-out answers say (Romano, Patterson, Candès 2019).

Each level is moved by a number of the local spread, so that the share of answers below it is the level itself. The
spread is the distance of the outermost quantiles, or one standard deviation where there is a single level. For held-out
answers that are exchangeable with those to come the outermost quantiles then cover at least what they promise, whatever
the model has learned.
"""

import math

import numpy as np
from numpy.typing import NDArray

from continua.errors import ConfigError

Values = NDArray[np.float64]


def fewest(levels: tuple[float, ...]) -> int:
    """How many answers are needed: with fewer, nothing bounds the outermost levels.

    >>> fewest((0.1, 0.5, 0.9))
    9
    """
    rare = min(levels[0], 1 - levels[-1])
    return math.ceil(round(1 / rare - 1, 9))


def shifts(found: Values, truth: Values, levels: tuple[float, ...]) -> Values:
    """By how many spreads each level is moved [channels, levels].

    ``found`` are standardised quantiles [n, q, channels, levels], ``truth`` the answers [n, q, channels], NaN where
    unknown. A channel without answers is left as it is.
    """
    apart = (truth[..., None] - found) / _spread(found)
    made = np.zeros(found.shape[2:])
    for channel in range(found.shape[2]):
        known = np.sort(apart[np.isfinite(truth[..., channel]), channel], axis=0)
        if len(known) == 0:
            continue
        if len(known) < fewest(levels):
            remedy = f"Give {fewest(levels)} or more, or levels nearer to one half."
            raise ConfigError("the outermost quantiles need more held-out answers", got=len(known), remedy=remedy)
        made[channel] = [known[_place(len(known), level), k] for k, level in enumerate(levels)]
    return made


def moved(found: Values, shift: Values) -> Values:
    """Quantiles moved by so many spreads; they never cross."""
    made: Values = np.maximum.accumulate(found + _spread(found) * shift, axis=-1)
    return made


def _spread(found: Values) -> Values:
    """The distance of the outermost quantiles; one where there is a single level."""
    if found.shape[-1] == 1:
        return np.ones_like(found)
    spread: Values = found[..., -1:] - found[..., :1]
    return spread


def _place(count: int, level: float) -> int:
    """Which of ``count`` sorted scores: outwards of the level, so that no more than promised is left out."""
    rank = (count + 1) * level
    outwards = math.floor(round(rank, 9)) if level < 0.5 else math.ceil(round(rank, 9))
    return min(max(outwards, 1), count) - 1
