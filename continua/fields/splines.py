"""Splines in order: polynomials first, then one function for each knot, coarse knots before fine ones."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from continua.axes import Axis, Interval
from continua.config import register
from continua.fields.basis import bspline, unit_coordinate
from continua.fields.spectral import Legendre, Ordered
from continua.settings import Degree, Size
from continua.typing import Float, Tensor

UNIT = Interval()


def dyadic() -> Iterator[float]:
    """1/2, 1/4, 3/4, 1/8, 3/8, …: knots of halved cells, one level behind the other."""
    for level in itertools.count(1):
        for odd in range(1, 2**level, 2):
            yield odd / 2**level


@register
@dataclass(frozen=True)
class NestedSpline(Ordered):
    """Orthonormal splines on an interval: polynomials up to ``degree``, then a function for each knot 1/2, 1/4, 3/4, ….

    The first n functions span all splines on the first n − degree − 1 of these knots, so a knot is inserted by one
    more coefficient that starts at zero. ``BSpline`` spans the same splines where its cells are halved evenly.
    """

    size: Size
    degree: Degree = 3

    def matrix(self, axis: Axis, nodes: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b n size"]:
        """Polynomials and local splines, made orthonormal one after another."""
        x = unit_coordinate(axis, nodes)
        turn = torch.from_numpy(_orthonormal(self.size, self.degree)).to(x)
        return _unordered(x, self.size, self.degree) @ turn


def _unordered(x: Float[Tensor, "*n"], size: int, degree: int) -> Float[Tensor, "*n size"]:
    """The functions before they are made orthonormal: each has all knots before its own, and one more."""
    columns = [Legendre(min(size, degree + 1)).matrix(UNIT, x[..., None])]
    for count in range(1, size - degree):
        inner = list(itertools.islice(dyadic(), count))
        knots = [0.0] * (degree + 1) + sorted(inner) + [1.0] * (degree + 1)
        supports = [knots[i : i + degree + 2] for i in range(count + degree + 1)]
        apart = [abs(sum(own) / len(own) - inner[-1]) for own in supports]
        nearest = apart.index(min(apart))
        columns.append(bspline(x, torch.tensor(knots).to(x), degree)[..., nearest : nearest + 1])
    return torch.cat(columns, -1)


@functools.lru_cache(maxsize=64)
def _orthonormal(size: int, degree: int) -> np.ndarray:
    """The triangular matrix that makes these functions orthonormal in the mean, each by those before it."""
    ends = np.array(sorted({0.0, 1.0, *itertools.islice(dyadic(), max(0, size - degree - 1))}))
    points, weights = np.polynomial.legendre.leggauss(degree + 2)
    widths = np.diff(ends)[:, None]
    x = (ends[:-1, None] + widths * (points + 1) / 2).ravel()
    roots = np.sqrt((widths * weights / 2).ravel())[:, None]
    with torch.device("cpu"):
        values = _unordered(torch.from_numpy(x), size, degree).numpy()
    upper = np.linalg.qr(roots * values, mode="r")
    return np.linalg.inv(upper * np.sign(np.diag(upper))[:, None])
