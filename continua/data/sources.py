"""Random sources: a level and some waves in two or three dimensions."""

import functools
from dataclasses import dataclass
from itertools import product

import numpy as np

from continua.data.mesh_features import STRENGTH
from continua.data.simplices import Numbers


@dataclass(frozen=True, eq=False)
class Source:
    """f(x) = a₀ + Σ_k a_k cos(πk·x + φ_k) for the wave vectors k of ``numbers``: a level and some waves."""

    numbers: Numbers
    level: float
    sizes: Numbers
    phases: Numbers

    @classmethod
    def drawn(cls, draw: np.random.Generator, dimension: int, waves: int) -> "Source":
        """Waves up to a number along each direction, of normal size, smaller the shorter they are."""
        k = wave_numbers(dimension, waves)
        sizes = STRENGTH * draw.normal(size=len(k)) / (1 + (k**2).sum(-1))
        return cls(k, STRENGTH * float(draw.normal()) / 2, sizes, draw.uniform(0, 2 * np.pi, len(k)))

    def __call__(self, points: Numbers) -> Numbers:
        """f at points [..., 2 or 3]."""
        angles = np.pi * points @ self.numbers.T + self.phases
        found: Numbers = self.level + np.cos(angles) @ self.sizes
        return found


@functools.cache
def wave_numbers(dimension: int, waves: int) -> Numbers:
    """Of k and −k the one whose first number that is not zero is above it; without k = 0."""
    along = range(-waves, waves + 1)
    chosen = [k for k in product(along, repeat=dimension) if k > (0,) * dimension]
    found: Numbers = np.asarray(chosen, dtype=np.float64)
    return found
