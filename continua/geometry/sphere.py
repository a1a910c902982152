"""The sphere of vectors along the last dimension: tangents, geodesics and what moves along them."""

import torch

from continua.typing import Tensor


def tangent(x: Tensor, v: Tensor) -> Tensor:
    """v without its part along x: the projection onto the tangent space of the sphere through x."""
    return v - x * ((x * v).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True))


def retract(x: Tensor, radius: float = 1.0) -> Tensor:
    """The nearest point of the sphere."""
    return x * (radius / x.norm(dim=-1, keepdim=True))


def distance(x: Tensor, y: Tensor) -> Tensor:
    """The angle between unit vectors, 2 atan2(|x − y|, |x + y|): exact to round-off for close and for opposite ones."""
    return 2 * torch.atan2((x - y).norm(dim=-1), (x + y).norm(dim=-1))


def exp(x: Tensor, v: Tensor) -> Tensor:
    """cos|v| x + sin|v| v/|v|: where the geodesic from x with velocity v is after unit time."""
    length = v.norm(dim=-1, keepdim=True)
    return torch.cos(length) * x + torch.sinc(length / torch.pi) * v


def log(x: Tensor, y: Tensor) -> Tensor:
    """The tangent vector at x whose ``exp`` is y; its length is their distance. Opposite points have none: NaN."""
    along = tangent(x, y - x)
    length = along.norm(dim=-1, keepdim=True)
    angle = distance(x, y)[..., None]
    known = torch.where(length > 0, along * (angle / length.clamp_min(torch.finfo(x.dtype).tiny)), 0.0)
    return torch.where((length == 0) & (angle > 1), torch.nan, known)


def transport(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    """v − ⟨y, v⟩/(1 + ⟨x, y⟩) (x + y): a tangent vector at x, carried along the geodesic to y."""
    share = (y * v).sum(-1, keepdim=True) / (1 + (x * y).sum(-1, keepdim=True))
    return v - share * (x + y)


def geodesic(x: Tensor, y: Tensor, s: Tensor | float) -> Tensor:
    """The point at the share s of the shortest way from x to y."""
    return exp(x, s * log(x, y))


def uniform(
    shape: tuple[int, ...], generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Points drawn uniformly; the last of ``shape`` is the dimension of the space around the sphere."""
    drawn = torch.randn(shape, generator=generator, dtype=dtype, device=generator.device if generator else None)
    return retract(drawn)
