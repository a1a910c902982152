"""Operators on their own: continuous axes with every weight uneven, and a way to apply what ``bind`` returns."""

from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from continua.axes import Axes, Axis, Circle, Counting, Depths, Grid, Grids, Interval, Points, Times, grid_on
from continua.fields import ByBasis, Cosine, Fourier, Legendre, counted
from continua.operators import Context, Operator
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


def uneven_grids(d: int = 6, h: int = 3, e: int = 4, m: int = 7, t: int = 5) -> Grids:
    """A grid for every letter, tokens of two samples at their own stamps."""
    grids = {k: uneven_grid(UNEVEN_AXES[k], n, seed=ord(k)) for k, n in {"d": d, "h": h, "e": e, "m": m}.items()}
    times = Grid(random(2, t, 1, low=0.0).cumsum(1), random(2, t, seed=1, low=0.2))
    return Grids(**grids, t=times, z=Depths(DEPTHS))


def counted_grids(t: int = 5) -> Grids:
    """Every point of every axis, weight one."""
    grids = {k: grid_on(COUNTED_AXES[k], Counting(COUNTED_AXES[k].n)) for k in "dhem"}
    tokens = grid_on(Points(t), Counting(t))
    return Grids(**grids, t=tokens, z=Depths(DEPTHS))


def rows(count: int) -> Grid:
    """The grid of a table's counted rows."""
    return grid_on(Points(count), Counting(count))


def leaves(tree: Any, path: str = "") -> dict[str, Tensor]:
    """The tensors of a pytree of dicts, sequences and dataclasses, each with the way to it: ``.1.inner.weights…``."""
    if isinstance(tree, Tensor):
        return {path: tree}
    branches: dict[Any, Any] = {}
    if isinstance(tree, dict):
        branches = tree
    elif isinstance(tree, list | tuple):
        branches = dict(enumerate(tree))
    elif is_dataclass(tree):
        branches = {field.name: getattr(tree, field.name) for field in fields(tree)}
    found: dict[str, Tensor] = {}
    for step, branch in branches.items():
        found |= leaves(branch, f"{path}.{step}")
    return found


def apply(operator: Operator, grids: Grids, x: Tensor, z: float = DEPTHS[1], **context: object) -> Tensor:
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
