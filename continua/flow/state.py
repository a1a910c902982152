"""Arithmetic of states: a tensor, a tuple of states (several fields, a running cost), or a plain number (dry runs)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, add, is_grad_enabled

Terms = tuple[tuple[int, float], ...]  # the place of a slope and its coefficient


def axpy(x: Any, scale: float, k: Any) -> Any:
    """x + scale·k, one kernel a tensor."""
    if isinstance(x, Tensor):
        return add(x, k, alpha=scale)
    if isinstance(x, tuple):
        return tuple(axpy(a, scale, b) for a, b in zip(x, k, strict=True))
    return x + scale * k


def terms(coefficients: Sequence[float]) -> Terms:
    """The coefficients that do not vanish, each with its place."""
    return tuple((i, c) for i, c in enumerate(coefficients) if c != 0.0)


def combine(x: Any, dz: float, coefficients: Terms, slopes: Sequence[Any]) -> Any:
    """x + dz Σ c_i k_i; without gradients the sum of tensors grows in one buffer."""
    if isinstance(x, tuple):
        return tuple(combine(part, dz, coefficients, own) for part, *own in zip(x, *slopes, strict=True))
    moved = x
    if not isinstance(x, Tensor):
        for i, coefficient in coefficients:
            moved = moved + dz * coefficient * slopes[i]
        return moved
    records = is_grad_enabled()
    for i, coefficient in coefficients:
        k = slopes[i]
        if records or moved is x or moved.dtype is not k.dtype or moved.shape != k.shape:
            moved = add(moved, k, alpha=dz * coefficient)
        else:
            moved.add_(k, alpha=dz * coefficient)
    return moved


def total(dz: float, coefficients: Sequence[float], slopes: Sequence[Any]) -> Any:
    """dz Σ c_i k_i."""
    (i, first), *rest = terms(coefficients)
    return combine(scaled(dz * first, slopes[i]), dz, tuple(rest), slopes)


def scaled(scale: float, x: Any) -> Any:
    """scale·x."""
    return tuple(scaled(scale, part) for part in x) if isinstance(x, tuple) else scale * x
