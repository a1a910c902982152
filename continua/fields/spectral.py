"""Spectral bases: few smooth functions, orthonormal in the mean over the axis where the name allows it."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch

from continua.axes import Axis
from continua.config import register
from continua.fields.basis import bspline, unit_coordinate
from continua.settings import Degree, Size
from continua.typing import Float, Tensor


class Equal(NamedTuple):
    """Nodes start + j/period, j = 0, …, nodes−1, in the unit coordinate of an axis."""

    start: float
    period: int
    nodes: int


def equal_nodes(axis: Axis, nodes: Float[Tensor, "n 1"]) -> Equal | None:
    """How the nodes are spaced, if they are equal parts of the axis."""
    u = unit_coordinate(axis, nodes.double())
    width = float(u[-1] - u[0])
    if len(u) < 2 or not width > 0:
        return None
    found = Equal(float(u[0]), round((len(u) - 1) / width), len(u))
    wanted = found.start + torch.arange(found.nodes, dtype=u.dtype, device=u.device) / max(found.period, 1)
    return found if bool(((u - wanted).abs() < 1e-12).all()) else None


def inverse_fft(mean: Tensor, waves: Tensor, at: Equal, length: int) -> Tensor:
    """mean + √2 Re Σ_k waves_k exp(2πik (start·period + j)/length), k = 1, 2, …, along the first dimension."""
    k = torch.arange(1, len(waves) + 1, dtype=torch.float64, device=waves.device)
    turn = torch.polar(torch.full_like(k, math.sqrt(0.5)), 2 * math.pi * k * (at.start * at.period / length))
    waves = waves * turn.to(waves.dtype).view(-1, *[1] * (waves.dim() - 1))
    values = torch.fft.irfft(torch.cat([mean.to(waves.dtype), waves]), n=length, dim=0, norm="forward")
    while len(values) < at.nodes:  # the end of a circle is its start
        values = torch.cat([values, values[: at.nodes - len(values)]])
    return values[: at.nodes]


class Spectral:
    """What the spectral bases share: no grid on which they are cardinal, unit mean square of each function."""

    size: int

    @property
    def spread(self) -> float:
        """Orthonormal functions add their mean squares."""
        return float(self.size)

    def native_key(self, axis: Axis) -> int | None:
        """No grid makes the matrix the identity."""
        return None


class Ordered(Spectral):
    """Orthonormal functions, coarse ones first."""

    def first(self, count: int) -> "Ordered":
        """The same kind of basis with fewer functions."""
        return replace(self, size=count)  # type: ignore[type-var]


@register
@dataclass(frozen=True)
class Fourier(Ordered):
    """1, √2 cos 2πkx, √2 sin 2πkx, …: band-limited functions on a circle. ``size`` is best odd."""

    size: Size
    fft_from: ClassVar[int] = 512  # measured on one core: below, the dense product is faster

    def matrix(self, axis: Axis, nodes: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b n size"]:
        """Cosines and sines in turn."""
        k = torch.arange(1, self.size // 2 + 1, dtype=nodes.dtype, device=nodes.device)
        waves = 2 * math.pi * k * unit_coordinate(axis, nodes)[..., None]
        pairs = torch.stack([waves.cos(), waves.sin()], -1).flatten(-2) * math.sqrt(2)
        return torch.cat([torch.ones_like(nodes), pairs], -1)[..., : self.size]

    def equal(self, axis: Axis, nodes: Float[Tensor, "n 1"]) -> "Equal | None":
        """Equal nodes that can tell all waves apart: two nodes a period and more."""
        found = equal_nodes(axis, nodes)
        return found if found is not None and 2 * (self.size // 2) < found.period else None

    def by_fft(self, values: Tensor, position: int, at: "Equal") -> Tensor:
        """The values at equal nodes: one inverse FFT of c_0, (cosine − i sine)/√2."""
        line = values.movedim(position, 0)
        sine = line[2::2] if self.size % 2 else torch.cat([line[2::2], torch.zeros_like(line[:1])])
        return inverse_fft(line[:1], torch.complex(line[1::2], -sine), at, at.period).movedim(0, position)


@register
@dataclass(frozen=True)
class Cosine(Ordered):
    """1, √2 cos πkx: smooth functions on an interval with zero slope at its ends."""

    size: Size
    fft_from: ClassVar[int] = 2048  # measured, as above; the transform is twice as long

    def matrix(self, axis: Axis, nodes: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b n size"]:
        """Half waves."""
        k = torch.arange(self.size, dtype=nodes.dtype, device=nodes.device)
        scale = torch.where(k == 0, torch.ones_like(k), math.sqrt(2))  # two bare numbers would be float32
        return (math.pi * k * unit_coordinate(axis, nodes)[..., None]).cos() * scale

    def equal(self, axis: Axis, nodes: Float[Tensor, "n 1"]) -> "Equal | None":
        """Equal nodes that can tell all half waves apart."""
        found = equal_nodes(axis, nodes)
        return found if found is not None and self.size <= found.period else None

    def by_fft(self, values: Tensor, position: int, at: "Equal") -> Tensor:
        """The values at equal nodes: half waves are waves of twice the period."""
        line = values.movedim(position, 0)
        waves = line[1:].to(torch.complex64 if line.dtype == torch.float32 else torch.complex128)
        return inverse_fft(line[:1], waves, at, 2 * at.period).movedim(0, position)


@register
@dataclass(frozen=True)
class Legendre(Ordered):
    """√(2k+1) P_k(2x−1): polynomials on an interval."""

    size: Size

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

    size: Size
    degree: Degree = 3

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
