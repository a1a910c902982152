"""Spherical harmonics on S²: between values on a grid, values at any points, and coefficients."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from continua import constants
from continua.errors import ConfigError, ShapeError
from continua.typing import Tensor

MOST = 256  # the table of a grid has about degree³ numbers
AT_ONCE = 2**21  # numbers in one block of the table at scattered points


@dataclass(frozen=True)
class Harmonics:
    """f(x) = Σ_{l ≤ L} Σ_{|m| ≤ l} a_lm Y_lm(x) on the unit sphere of R³, orthonormal against the area.

    Real functions only, so a_{l,−m} = (−1)^m conj(a_lm), and coefficients are complex tensors [..., l, m], m ≥ 0, with
    zeros where m > l. The grid is Gauss–Legendre in cos θ times equally spaced in longitude; ``latitudes`` of them
    integrate products of total degree 2·latitudes − 1 exactly (default L + 1: two fields of degree L).

    >>> y = Harmonics(4)
    >>> a = y.analyse(y.points[..., 2])              # z = √(4π/3) Y_10
    >>> round(float(a[1, 0].real) ** 2 * 3 / (4 * math.pi), 12)
    1.0
    """

    degree: int
    latitudes: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.degree <= MOST:
            remedy = f"Use 0 to {MOST}; 4·√β + 8 resolves attention with temperature β."
            raise ConfigError("harmonics need a degree", got=self.degree, remedy=remedy)
        least = self.degree + 1
        if self.latitudes == 0:
            object.__setattr__(self, "latitudes", least)
        if self.latitudes < least:
            got = f"{self.latitudes} for degree {self.degree}"
            raise ConfigError("too few latitudes to tell the modes apart", got=got, remedy=f"Use at least {least}.")

    @property
    def longitudes(self) -> int:
        """Twice the latitudes: as exact along a circle as across."""
        return 2 * self.latitudes

    @property
    def points(self) -> Tensor:
        """The nodes x: [latitude, longitude, 3]."""
        z = _latitudes(self.latitudes)[0]
        phi = torch.arange(self.longitudes, dtype=torch.float64) * (2 * math.pi / self.longitudes)
        s = (1 - z * z).sqrt()[:, None]
        return torch.stack([s * phi.cos(), s * phi.sin(), z[:, None].expand(-1, len(phi))], -1)

    @property
    def weights(self) -> Tensor:
        """The area of each node: [latitude, longitude], 4π together."""
        w = _latitudes(self.latitudes)[1] * (2 * math.pi / self.longitudes)
        return w[:, None].expand(-1, self.longitudes)

    @property
    def laplacian(self) -> Tensor:
        """−l(l+1), what Δ multiplies a_lm by: [l, 1]."""
        degrees = torch.arange(self.degree + 1, dtype=torch.float64)[:, None]
        return -degrees * (degrees + 1)

    def analyse(self, values: Tensor) -> Tensor:
        """a_lm = ∫ f conj(Y_lm), from values [..., latitude, longitude] on the grid."""
        if values.shape[-2:] != (self.latitudes, self.longitudes):
            remedy = f"Evaluate the function at .points: [{self.latitudes}, {self.longitudes}]."
            raise ShapeError("values must lie on the grid", got=list(values.shape), remedy=remedy)
        table = _grid_table(self.degree, self.latitudes).to(values)
        around = torch.fft.rfft(values, dim=-1)[..., : self.degree + 1] * (2 * math.pi / self.longitudes)
        weighted = around * _latitudes(self.latitudes)[1].to(values)[:, None]
        return torch.complex(*(torch.einsum("jlm,...jm->...lm", table, part) for part in _parts(weighted)))

    def synthesise(self, coefficients: Tensor) -> Tensor:
        """f on the grid, [..., latitude, longitude]."""
        table = _grid_table(self.degree, self.latitudes).to(coefficients.real)
        around = torch.complex(
            *(torch.einsum("jlm,...lm->...jm", table, part) for part in _parts(self._fitting(coefficients)))
        )
        return torch.fft.irfft(around, n=self.longitudes, dim=-1) * self.longitudes

    def evaluate(self, coefficients: Tensor, x: Tensor) -> Tensor:
        """f at the points x [n, 3] of the sphere: [..., n]. In blocks, so that memory is O(n)."""
        twice = _twice(self._fitting(coefficients))
        parts = [_real_product(table, twice) for table, _ in self._blocks(x)]
        return torch.cat(parts, -1)

    def moments(self, x: Tensor, weights: Tensor) -> Tensor:
        """Σ_i w_i conj(Y_lm(x_i)), the coefficients of the measure Σ_i w_i δ(x_i); weights [..., n]."""
        if weights.shape[-1:] != x.shape[:1]:
            got = f"{list(weights.shape)} for {len(x)} points"
            raise ShapeError("every point needs one weight", got=got, remedy="Give weights of shape [..., n].")
        total: Tensor | float = 0.0
        for table, own in self._blocks(x):
            w = weights[..., own]
            total = total + torch.complex(
                torch.einsum("...n,nlm->...lm", w, table.real), -torch.einsum("...n,nlm->...lm", w, table.imag)
            )
        return torch.as_tensor(total)

    def _fitting(self, coefficients: Tensor) -> Tensor:
        size = self.degree + 1
        if coefficients.shape[-2:] != (size, size) or not coefficients.is_complex():
            got = f"{list(coefficients.shape)} of {coefficients.dtype}"
            remedy = f"Give complex numbers [..., {size}, {size}], as analyse returns them."
            raise ShapeError("coefficients are a_lm with m ≥ 0", got=got, remedy=remedy)
        return coefficients

    def _blocks(self, x: Tensor) -> Iterator[tuple[Tensor, slice]]:
        """Y_lm at blocks of points, [block, l, m], with where they stand."""
        if x.dim() != 2 or x.shape[-1] != 3:
            raise ShapeError("points of S² are vectors of R³", got=list(x.shape), remedy="Give x of shape [n, 3].")
        step = max(1, AT_ONCE // (self.degree + 1) ** 2)
        for start in range(0, len(x), step):
            own = slice(start, min(start + step, len(x)))
            yield harmonics_at(x[own], self.degree), own


def harmonics_at(x: Tensor, degree: int) -> Tensor:
    """Y_lm(x) = Q_lm(z) (x + iy)^m for x [n, 3] on the sphere: complex [n, l, m], m ≥ 0 (Condon–Shortley phase).

    Q_lm = P̄_lm / sin^m θ is a polynomial in z, so nothing is singular at the poles, and gradients by x are those of a
    smooth function of R³.
    """
    lift = torch.complex(x[:, 0], x[:, 1])
    powers = [torch.ones_like(lift)]
    for _ in range(degree):
        powers.append(powers[-1] * lift)
    return _polynomials(x[:, 2], degree) * torch.stack(powers, -1)[:, None]


def _polynomials(z: Tensor, degree: int) -> Tensor:
    """Q_lm(z), normalised: [n, l, m]; by the three-term recurrence in l, for all m at once.

    Q_lm = a_lm (z Q_{l−1,m} − b_lm Q_{l−2,m}), a² = (4l²−1)/(l²−m²), b² = ((l−1)²−m²)/(4(l−1)²−1).
    """
    size = degree + 1
    m = torch.arange(size, dtype=z.dtype, device=z.device)
    factors = torch.ones_like(m)
    factors[1:] = -((2 * m[1:] + 1) / (2 * m[1:])).sqrt()
    start = factors.cumprod(0) / math.sqrt(4 * math.pi)  # Q_mm
    rows = [torch.cat([start[:1], start.new_zeros(degree)]).expand(len(z), -1)]
    before = torch.zeros_like(rows[0])
    for l in range(1, size):
        below = m < l
        a = torch.where(below, ((4 * l * l - 1) / (l * l - m * m)).abs().sqrt(), 0.0)
        b = torch.where(m < l - 1, (((l - 1) ** 2 - m * m) / (4 * (l - 1) ** 2 - 1)).abs().sqrt(), 0.0)
        row = a * (z[:, None] * rows[-1] - b * before) + torch.where(m == l, start, 0.0)
        before = rows[-1]
        rows.append(row)
    return torch.stack(rows, -2)


@constants.bounded(16)
def _latitudes(count: int) -> tuple[Tensor, Tensor]:
    """Gauss–Legendre nodes z = cos θ and weights; two more Newton steps win back the last digits of the nodes."""
    z = torch.from_numpy(np.polynomial.legendre.leggauss(count)[0])
    for _ in range(2):
        value, slope = _legendre(z, count)
        z = z - value / slope
    return z, 2 / ((1 - z * z) * _legendre(z, count)[1] ** 2)


def _legendre(z: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """P_n and P_n′."""
    before = torch.ones_like(z)
    value = z
    for l in range(2, n + 1):
        before, value = value, ((2 * l - 1) * z * value - (l - 1) * before) / l
    return value, n * (before - z * value) / (1 - z * z)


@constants.bounded(4)
def _grid_table(degree: int, latitudes: int) -> Tensor:
    """P̄_lm(z_j) on the grid: [latitude, l, m]."""
    z = _latitudes(latitudes)[0]
    m = torch.arange(degree + 1, dtype=torch.float64)
    return _polynomials(z, degree) * ((1 - z * z).sqrt()[:, None] ** m)[:, None]


def _parts(z: Tensor) -> tuple[Tensor, Tensor]:
    return z.real, z.imag


def _twice(coefficients: Tensor) -> Tensor:
    """Both ±m of a real function at once: the columns m > 0 count double."""
    factor = torch.full((coefficients.shape[-1],), 2.0, dtype=coefficients.real.dtype, device=coefficients.device)
    factor[0] = 1.0
    return coefficients * factor


def _real_product(table: Tensor, coefficients: Tensor) -> Tensor:
    """Re Σ_lm a_lm Y_lm for each point: [..., n]."""
    real = torch.einsum("...lm,nlm->...n", coefficients.real, table.real)
    return real - torch.einsum("...lm,nlm->...n", coefficients.imag, table.imag)
