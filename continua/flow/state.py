"""Arithmetic of states: a tensor, a tuple of states (several fields, a running cost), or a plain number (dry runs)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, add, is_grad_enabled


def axpy(x: Any, scale: float, k: Any) -> Any:
    """x + scale·k, one kernel a tensor."""
    if isinstance(x, Tensor):
        return add(x, k, alpha=scale)
    if isinstance(x, tuple):
        return tuple(axpy(a, scale, b) for a, b in zip(x, k, strict=True))
    return x + scale * k


def combine(x: Any, dz: float, coefficients: Sequence[float], slopes: Sequence[Any]) -> Any:
    """x + dz Σ c_i k_i, vanishing coefficients left out; without gradients the sum grows in one buffer."""
    moved = x
    for coefficient, slope in zip(coefficients, slopes, strict=True):
        if coefficient != 0.0:
            moved = axpy(moved, dz * coefficient, slope) if moved is x else _grown(moved, dz * coefficient, slope)
    return moved


def _grown(own: Any, scale: float, k: Any) -> Any:
    """own + scale·k where ``own`` belongs to the caller and may be overwritten."""
    if isinstance(own, tuple):
        return tuple(_grown(a, scale, b) for a, b in zip(own, k, strict=True))
    if not isinstance(own, Tensor) or is_grad_enabled() or own.dtype != k.dtype or own.shape != k.shape:
        return axpy(own, scale, k)
    return own.add_(k, alpha=scale)


def total(dz: float, coefficients: Sequence[float], slopes: Sequence[Any]) -> Any:
    """dz Σ c_i k_i."""
    used = [(c, k) for c, k in zip(coefficients, slopes, strict=True) if c != 0.0]
    (first, slope), rest = used[0], used[1:]
    return combine(scaled(dz * first, slope), dz, [c for c, _ in rest], [k for _, k in rest])


def scaled(scale: float, x: Any) -> Any:
    """scale·x."""
    return tuple(scaled(scale, part) for part in x) if isinstance(x, tuple) else scale * x
