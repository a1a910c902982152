"""Bases: functions of one axis. A field is a tensor of coefficients and one basis for each of its axes."""

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from continua import memory
from continua.axes import Axis, Circle, Interval, Points, Times
from continua.errors import GridError
from continua.typing import Float, Tensor


@runtime_checkable
class Basis(Protocol):
    """B_1, …, B_size on one axis.

    ``native_key(axis)`` names the grid on which the matrix is the identity (``None``: there is none), so that binding
    on it returns the stored coefficients themselves. ``spread`` is E[Σ_k B_k²] for initial scales: the mean square of
    a function with unit-variance coefficients.
    """

    @property
    def size(self) -> int:
        """How many functions."""
        ...

    @property
    def spread(self) -> float:
        """Mean square of a function whose coefficients are independent with variance one."""
        ...

    def native_key(self, axis: Axis) -> int | None:
        """Key of the grid where the basis is cardinal."""
        ...

    def matrix(self, axis: Axis, nodes: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b n size"]:
        """Return B_k(nodes_i)."""
        ...


@runtime_checkable
class Truncatable(Protocol):
    """A basis in order, coarse functions before fine ones: fields grow by functions that are added behind the others.

    Coefficients that are padded with zeros are those of the same function: nothing is lost, and nothing changes.
    """

    def first(self, count: int) -> Basis:
        """The basis of the first ``count`` functions, which are the same ones."""
        ...


def require_weight(*shape: int) -> None:
    """Refuse a weight that does not fit into memory, before it is drawn."""
    if torch.get_default_device().type != "meta":
        need = math.prod(shape) * torch.get_default_dtype().itemsize
        memory.require(need, f"a weight of shape {list(shape)}", "Choose smaller sizes.")


def unit_coordinate(axis: Axis, nodes: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b n"]:
    """Return the nodes of a 1-D axis moved to [0, 1] (Points: 0…n−1 over n−1)."""
    x = nodes[..., 0]
    if isinstance(axis, Interval | Circle):
        return (x - axis.start) / axis.length
    if isinstance(axis, Points) and axis.n is not None:
        return x / max(axis.n - 1, 1)
    if isinstance(axis, Times) and axis.start is not None and axis.end is not None:
        return (x - axis.start) / (axis.end - axis.start)
    raise GridError(
        "a basis needs an axis with two ends", got=axis, remedy="Use Interval(a, b), Circle() or Points(n)."
    )


def bspline(x: Float[Tensor, "*n"], knots: Float[Tensor, "q"], degree: int) -> Float[Tensor, "*n size"]:
    """B-spline basis by the Cox–de Boor triangle; outside the knots the end pieces go on as polynomials."""
    size = knots.numel() - degree - 1
    cell = torch.searchsorted(knots[degree : size + 1].contiguous(), x.detach().contiguous(), right=True) - 1 + degree
    cell = cell.clamp(degree, size - 1)
    column = torch.arange(degree + 1, device=x.device)
    local = [torch.ones_like(x)]  # the non-zero functions of degree p on each cell, p = 0 … degree
    for p in range(1, degree + 1):
        grown = [torch.zeros_like(x) for _ in range(p + 1)]
        for j in range(p):
            right, left = knots[cell + j + 1], knots[cell + j + 1 - p]
            part = local[j] / (right - left)
            grown[j] = grown[j] + (right - x) * part
            grown[j + 1] = grown[j + 1] + (x - left) * part
        local = grown
    index = cell[..., None] - degree + column
    out = torch.zeros(*x.shape, size, dtype=x.dtype, device=x.device)
    return out.scatter(-1, index, torch.stack(local, -1))


def precisely(read: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Read a field in the precision of its parameters also under autocast: weights are made before they are used."""

    @functools.wraps(read)
    def reading(field: nn.Module, *given: Any, **grids: Any) -> Tensor:
        if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            return read(field, *given, **grids)
        with torch.autocast(next(field.parameters()).device.type, enabled=False):
            return read(field, *given, **grids)

    return reading
