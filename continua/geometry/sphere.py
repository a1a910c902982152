"""The sphere of vectors along the last dimension."""

from continua.typing import Tensor


def tangent(x: Tensor, v: Tensor) -> Tensor:
    """v without its part along x: the projection onto the tangent space of the sphere through x."""
    return v - x * ((x * v).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True))


def retract(x: Tensor, radius: float = 1.0) -> Tensor:
    """The nearest point of the sphere."""
    return x * (radius / x.norm(dim=-1, keepdim=True))
