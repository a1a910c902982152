"""Spectral bases: few smooth functions, orthonormal in the mean over the axis where the name allows it."""

import math
from dataclasses import dataclass

import torch

from continua.axes import Axis
from continua.config import register
from continua.fields.basis import bspline, unit_coordinate
from continua.typing import Float, Tensor


class Spectral:
    """What the spectral bases share: no grid on which they are cardinal, unit mean square of each function."""

    size: int

    @property
    def spread(self) -> float:
        """Orthonormal functions add their mean squares."""
        return float(self.size)

    def native_key(self, axis: Axis) -> bytes | None:
        """No grid makes the matrix the identity."""
        return None


@register
@dataclass(frozen=True)
class Fourier(Spectral):
    """1, √2 cos 2πkx, √2 sin 2πkx, …: band-limited functions on a circle. ``size`` is best odd."""

    size: int

    def matrix(self, axis: Axis, nodes: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b n size"]:
        """Cosines and sines in turn."""
        k = torch.arange(1, self.size // 2 + 1, dtype=nodes.dtype, device=nodes.device)
        waves = 2 * math.pi * k * unit_coordinate(axis, nodes)[..., None]
        pairs = torch.stack([waves.cos(), waves.sin()], -1).flatten(-2) * math.sqrt(2)
        return torch.cat([torch.ones_like(nodes), pairs], -1)[..., : self.size]


@register
@dataclass(frozen=True)
class Cosine(Spectral):
    """1, √2 cos πkx: smooth functions on an interval with zero slope at its ends."""

    size: int

    def matrix(self, axis: Axis, nodes: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b n size"]:
        """Half waves."""
        k = torch.arange(self.size, dtype=nodes.dtype, device=nodes.device)
        scale = torch.where(k == 0, torch.ones_like(k), math.sqrt(2))  # two bare numbers would be float32
        return (math.pi * k * unit_coordinate(axis, nodes)[..., None]).cos() * scale


@register
@dataclass(frozen=True)
class Legendre(Spectral):
    """√(2k+1) P_k(2x−1): polynomials on an interval."""

    size: int

    def matrix(self, axis: Axis, nodes: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b n size"]:
        """Three-term recurrence."""
        x = 2 * unit_coordinate(axis, nodes) - 1
        p = [torch.ones_like(x), x]
        for k in range(1, self.size - 1):
            p.append(((2 * k + 1) * x * p[k] - k * p[k - 1]) / (k + 1))
        return torch.stack([math.sqrt(2 * k + 1) * p[k] for k in range(self.size)], -1)


@register
@dataclass(frozen=True)
class BSpline(Spectral):
    """B-splines on equal cells of an interval: local, smooth up to derivative degree−1, a partition of unity."""

    size: int
    degree: int = 3

    @property
    def spread(self) -> float:
        """At any point about (degree+1)/2 functions share the sum one."""
        return min(1.0, 2.0 / (self.degree + 1))

    def matrix(self, axis: Axis, nodes: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b n size"]:
        """Open uniform knots."""
        degree = min(self.degree, self.size - 1)
        line = torch.linspace(0, 1, self.size - degree + 1, dtype=nodes.dtype, device=nodes.device)
        knots = torch.cat([line[:1].expand(degree), line, line[-1:].expand(degree)])
        return bspline(unit_coordinate(axis, nodes), knots, degree)
