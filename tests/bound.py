"""Operators on their own: continuous axes with every weight uneven, and a way to apply what ``bind`` returns."""

import torch
from torch import Tensor

from continua.axes import Axes, Axis, Circle, Counting, Grid, Interval, Points, Times, grid_on
from continua.fields import ByBasis, Cosine, Fourier, Legendre, counted
from continua.operators import Context, Operator, depth_grid
from tests.measure import random

DEPTHS = (0.25, 1.5)
UNEVEN_AXES = Axes(
    t=Times(),
    d=Interval(mass=3.0),
    h=Interval(0.0, 2.0, mass=2.5),
    e=Circle(mass=5.0),
    m=Interval(mass=4.0),
    z=Interval(0.0, 2.0),
)
UNEVEN = ByBasis(UNEVEN_AXES, {"z": Legendre(2), "d": Legendre(4), "h": Legendre(3), "e": Fourier(3), "m": Cosine(4)})

COUNTED_AXES = Axes(t=Points(), d=Points(8), h=Points(4), e=Points(2), m=Points(12), z=Interval(0.0, 2.0))
COUNTED = counted(COUNTED_AXES)  # autonomous: one set of weights


def uneven_grid(axis: Axis, n: int, seed: int = 0) -> Grid:
    """Random nodes with random weights: nothing is uniform, so nothing can be forgotten."""
    length = 1.0 if isinstance(axis, Times) else axis.length
    nodes = (axis.start or 0.0) + length * random(n, 1, seed=seed, low=0.0).sort(0).values
    return Grid(nodes, random(n, seed=seed + 1, low=0.2))


def uneven_grids(d: int = 6, h: int = 3, e: int = 4, m: int = 7, t: int = 5) -> dict[str, Grid]:
    """A grid for every letter, tokens of two samples at their own stamps."""
    grids = {k: uneven_grid(UNEVEN_AXES[k], n, seed=ord(k)) for k, n in {"d": d, "h": h, "e": e, "m": m}.items()}
    times = Grid(random(2, t, 1, low=0.0).cumsum(1), random(2, t, seed=1, low=0.2))
    return {**grids, "c": grids["d"], "t": times, "z": depth_grid(DEPTHS)}


def counted_grids(t: int = 5) -> dict[str, Grid]:
    """Every point of every axis, weight one."""
    grids = {k: grid_on(COUNTED_AXES[k], Counting(COUNTED_AXES[k].n)) for k in "dhem"}
    tokens = grid_on(Points(t), Counting(t))
    return {**grids, "c": grids["d"], "t": tokens, "z": depth_grid(DEPTHS)}


def apply(operator: Operator, grids: dict[str, Grid], x: Tensor, z: float = DEPTHS[1], **context: object) -> Tensor:
    """Bind and call once."""
    f, args = operator.bind(grids, Context(**context) if context else None)
    return f(z, x, args)


def double(operator: Operator) -> Operator:
    """The operator in float64, every parameter drawn anew."""
    operator.double()
    with torch.no_grad():
        for i, parameter in enumerate(operator.parameters()):
            parameter.copy_(0.2 * random(*parameter.shape, seed=100 + i))
    return operator
