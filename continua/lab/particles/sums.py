"""Sums over all tokens, Σ_j w_j exp(β⟨y_i, x_j⟩) x_j and its mean: by pairs, fused, by Fourier series, by harmonics.

``y`` are the queries, ``x`` the sources, ``weights`` theirs (sum one; None: 1/n each). Every way gives what ``Dense``
gives in float64, to round-off; ``fits`` says where it is allowed, and ``chosen`` takes the cheapest that fits. Series
know the sphere alone: their gradients are right along it.
"""

import functools
import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch.nn import functional

from continua.errors import ConfigError
from continua.lab.particles.bessel import log_means
from continua.typing import Tensor

BLOCK = 1 << 22  # scores in memory at once
ROUND_OFF = 1e-9  # a series is allowed where what it loses stays below this
OVERFLOW = 650.0
FAINT = 41.5  # e^−41.5 = 1e-18
SHARPEST = 1e8  # a series of a larger |β| has so many modes that pairs are cheaper


class Query(NamedTuple):
    """Who asks whom: y [..., n, d] of norm at most ``most``, x [..., n, d], weights [..., n] or None, β, causality."""

    y: Tensor
    x: Tensor
    weights: Tensor | None
    beta: float
    causal: bool
    norm: float | None  # of every y, where the queries are a scaled rotation of the sources
    least: float  # a lower bound of ⟨y_i, x_i⟩ β / (|β| norm): how well a token sees itself

    def loss(self, modes: int) -> float:
        """What a series loses, relative to its sum: round-off · n · e^{|β|(1 − cos)}, since tokens see themselves."""
        smallest = 1 / self.x.shape[-2] if self.weights is None else float(self.weights.detach().min())
        exponent = abs(self.beta) * (self.norm or 0.0) * (1 - self.least)
        if smallest <= 0 or exponent > 40:
            return math.inf
        return 1e-16 * math.sqrt(modes) * math.exp(exponent) / smallest


@runtime_checkable
class Sums(Protocol):
    """A way to sum."""

    def fits(self, asked: Query) -> bool:
        """Whether the result equals that of ``Dense``."""

    def mean(self, asked: Query) -> Tensor:
        """Σ_j w_j e^{β⟨y_i,x_j⟩} x_j / Σ_j w_j e^{β⟨y_i,x_j⟩}."""

    def total(self, asked: Query) -> Tensor:
        """Σ_j w_j e^{β⟨y_i,x_j⟩} x_j; causal sums are divided by the weight of the tokens seen."""


@dataclass(frozen=True)
class Dense:
    """All pairs, in blocks of rows: the reference."""

    def fits(self, asked: Query) -> bool:
        """Always."""
        return True

    def mean(self, asked: Query) -> Tensor:
        """A softmax."""
        return by_rows(asked, lambda scores: torch.softmax(scores, -1))

    def total(self, asked: Query) -> Tensor:
        """A sum of exponentials."""
        small_enough(asked)
        return _seen(asked, by_rows(asked, torch.exp))


@dataclass(frozen=True)
class Fused:
    """All pairs by fused attention: linear memory. A key of known weight beside the tokens tells the normaliser."""

    def fits(self, asked: Query) -> bool:
        """Always."""
        return True

    def mean(self, asked: Query) -> Tensor:
        """One call."""
        logs = log_weights(asked)
        q = asked.beta * asked.y
        k = asked.x
        if logs is not None:
            q = _beside(q, torch.ones_like(logs))
            k = _beside(k, logs)
        return _attend(q, k, asked.x, asked.causal)

    def total(self, asked: Query) -> Tensor:
        """The known key has the score c and value (0, 1): Σ_j w_j e^{s_j} x_j = e^c · (sum of values) / (its share)."""
        small_enough(asked)
        n, d = asked.x.shape[-2:]
        logs = log_weights(asked)
        logs = torch.full_like(asked.x[..., 0], -math.log(n)) if logs is None else logs
        c = abs(asked.beta) * float(asked.y.detach().norm(dim=-1).max())
        first = torch.zeros_like(asked.x[..., :1, :])
        known = torch.full_like(logs[..., :1], c)
        q = _beside(torch.cat([first, asked.beta * asked.y], -2), torch.ones_like(torch.cat([known, logs], -1)))
        k = _beside(torch.cat([first, asked.x], -2), torch.cat([known, logs], -1))
        v = _beside(torch.cat([first, asked.x], -2), torch.cat([torch.ones_like(known), torch.zeros_like(logs)], -1))
        got = _attend(q, k, v, asked.causal)[..., 1:, :]
        return _seen(asked, got[..., :d] / got[..., d:] * math.exp(c))


@dataclass(frozen=True)
class ByFourier:
    """On the circle: e^{β cos φ} = Σ_k I_k(β) e^{ikφ}, so tokens meet through their moments. Linear in n.

    With ``finufft`` installed, many tokens times many modes go through its non-uniform FFT.
    """

    block: int = 2048

    def fits(self, asked: Query) -> bool:
        """Rotated queries of a circle that see themselves well enough."""
        circle = asked.x.shape[-1] == 2 and asked.norm is not None and not asked.causal
        return circle and asked.loss(2 * _count(asked)) < ROUND_OFF

    def mean(self, asked: Query) -> Tensor:
        """The ratio of two trigonometric polynomials."""
        top, bottom = self._sums(asked)
        return (top / bottom[..., None]).to(asked.x.dtype)

    def total(self, asked: Query) -> Tensor:
        """A trigonometric polynomial at the angle of the query."""
        small_enough(asked)
        top, _ = self._sums(asked)
        return (top * math.exp(abs(asked.beta) * (asked.norm or 0.0))).to(asked.x.dtype)

    def _sums(self, asked: Query) -> tuple[Tensor, Tensor]:
        """Σ w e^s x and Σ w e^s, both times e^{−|β|·norm}."""
        kernel = modes(asked.beta * (asked.norm or 0.0), 2, asked.x)
        points = _complex(asked.x)
        queries = _complex(asked.y / (asked.norm or 1.0))
        w = asked.weights.double() if asked.weights is not None else torch.full_like(points.real, 1 / points.shape[-1])
        moments = self._moments(points, w, len(kernel))  # Σ_j w_j e^{ikθ_j}, k = 0 … K
        low = torch.cat([moments[..., 1:2].conj(), moments[..., :-2]], -1)  # k − 1
        high = moments[..., 1:]  # k + 1
        kernel = kernel[:-1]
        double = torch.cat([kernel[:1], 2 * kernel[1:]])
        # Σ_j w_j e^{β cos(φ − θ_j)} {1, cos θ_j, sin θ_j}, each the real part of a series in e^{−ikφ}
        rows = torch.stack([double * moments[..., :-1], double * (high + low) / 2, double * (high - low) / 2j], -1)
        found = self._series(queries, rows)
        return found[..., 1:], found[..., 0]

    def _moments(self, points: Tensor, w: Tensor, count: int) -> Tensor:
        if self._library(points, count):
            import finufft

            found = finufft.nufft1d1(points.angle().numpy(), (w + 0j).numpy(), 2 * count - 1, eps=1e-14, isign=1)
            return torch.from_numpy(found)[count - 1 :].to(points)
        block = self._block(points)
        parts = [
            (powers(part, count) * ww[..., None]).sum(-2)
            for part, ww in zip(points.split(block, -1), w.split(block, -1), strict=True)
        ]
        return torch.stack(parts).sum(0)

    def _series(self, queries: Tensor, rows: Tensor) -> Tensor:
        count = rows.shape[-2]
        if self._library(queries, count):
            import finufft

            full = torch.zeros(rows.shape[-1], 2 * count - 1, dtype=rows.dtype)
            full[:, count - 1 :] = rows.T
            found = finufft.nufft1d2(queries.angle().numpy(), full.numpy(), eps=1e-14, isign=-1)
            return torch.from_numpy(found.real.copy()).T.to(queries.real)
        parts = [(powers(part.conj(), count) @ rows).real for part in queries.split(self._block(queries), -1)]
        return torch.cat(parts, -2)

    def _block(self, points: Tensor) -> int:
        """Fewer tokens at a time where many runs go side by side: the powers of a block should stay in the cache."""
        return max(64, self.block // math.prod(points.shape[:-1]))

    @staticmethod
    def _library(points: Tensor, count: int) -> bool:
        large = points.ndim == 1 and points.shape[-1] * count > 1 << 22
        return large and points.device.type == "cpu" and not points.requires_grad and has_finufft()


@dataclass(frozen=True)
class ByHarmonics:
    """On S²: e^{β⟨y,x⟩} = 4π Σ_l i_l(β) Σ_m Y_lm(y) Y_lm(x), so tokens meet through their moments. Linear in n."""

    block: int = 2048

    def fits(self, asked: Query) -> bool:
        """Rotated queries of S² that see themselves well enough."""
        ball = asked.x.shape[-1] == 3 and asked.norm is not None and not asked.causal
        return ball and asked.loss(_count(asked) ** 2) < ROUND_OFF

    def mean(self, asked: Query) -> Tensor:
        """The ratio of two harmonic series."""
        found = self._sums(asked)
        return (found[..., 1:] / found[..., :1]).to(asked.x.dtype)

    def total(self, asked: Query) -> Tensor:
        """A harmonic series at the query."""
        small_enough(asked)
        found = self._sums(asked)[..., 1:] * math.exp(abs(asked.beta) * (asked.norm or 0.0))
        return found.to(asked.x.dtype)

    def _sums(self, asked: Query) -> Tensor:
        kernel = modes(asked.beta * (asked.norm or 0.0), 3, asked.x)
        x = asked.x.double()
        y = asked.y.double() / (asked.norm or 1.0)
        w = asked.weights.double() if asked.weights is not None else torch.full_like(x[..., 0], 1 / x.shape[-2])
        carried = torch.cat([torch.ones_like(w)[..., None], x], -1) * w[..., None]
        degree = len(kernel) - 1
        each = torch.cat([kernel[l].expand(2 * l + 1) for l in range(degree + 1)]) * (4 * math.pi)
        parts = [
            real_harmonics(part, degree) @ own
            for part, own in zip(x.split(self.block, -2), carried.split(self.block, -2), strict=True)
        ]
        moments = torch.stack(parts).sum(0) * each[:, None]
        return torch.cat([real_harmonics(part, degree).mT @ moments for part in y.split(self.block, -2)], -2)


def chosen(asked: Query) -> Sums:
    """The cheapest way that fits, by size and shape."""
    n, d = asked.x.shape[-2:]
    if d == 2 and n >= 8 * _count(asked) and ByFourier().fits(asked):
        return ByFourier()
    if d == 3 and n >= 4 * _count(asked) ** 2 and ByHarmonics().fits(asked):
        return ByHarmonics()
    return Fused() if n > 256 else Dense()


def modes(beta: float, d: int, like: Tensor) -> Tensor:
    """e^{−|β|} c_l, c_l = Γ(d/2)(2/β)^ν I_{l+ν}(β): I_l on the circle, i_l on S², down to 1e-18 of the first."""
    return torch.tensor(_modes(beta, d), dtype=torch.float64, device=like.device)


@functools.lru_cache(maxsize=256)
def _modes(beta: float, d: int) -> tuple[float, ...]:
    logs = log_means(abs(beta), d, int(math.sqrt(120 * abs(beta)) + 60)) - abs(beta)
    kept = max(4, int((logs > logs[0] - FAINT).sum()) + 1)
    return tuple(math.copysign(1.0, beta) ** l * value for l, value in enumerate(logs[:kept].exp().tolist()))


def powers(e: Tensor, count: int) -> Tensor:
    """1, e, e², …: ``count`` of them along a new last dimension, by doubling."""
    found = torch.ones_like(e)[..., None]
    step = e[..., None]
    while found.shape[-1] < count:
        found = torch.cat([found, found * step], -1)
        step = step * step
    return found[..., :count]


def real_harmonics(x: Tensor, degree: int) -> Tensor:
    """Orthonormal real spherical harmonics up to a degree at unit vectors [..., n, 3]: [..., (degree + 1)², n].

    In the order l = 0 … degree, m = −l … l. The associated Legendre functions are made without their factor sin^m θ,
    which the powers of x + iy carry: no angles, no singularity at the poles.
    """
    z = x[..., None, :, 2]
    turns = powers(torch.complex(x[..., 0], x[..., 1]), degree + 1).mT
    even = turns.real.contiguous()
    odd = (math.sqrt(2) * turns.imag)[..., 1:, :].flip(-2)
    even = torch.cat([even[..., :1, :], math.sqrt(2) * even[..., 1:, :]], -2)
    rows = []
    before = None
    last = torch.full_like(z, math.sqrt(1 / (4 * math.pi)))
    for l in range(degree + 1):
        if l:
            last, before = _next_row(z, last, before, l), last
        rows += [last[..., 1:, :].flip(-2) * odd[..., degree - l :, :], last * even[..., : l + 1, :]]
    return torch.cat(rows, -2)


def _next_row(z: Tensor, last: Tensor, before: Tensor | None, l: int) -> Tensor:
    """P_l^m / sin^m θ for m = 0 … l from the two degrees below, normalised."""
    m = torch.arange(l, dtype=z.dtype, device=z.device)[:, None]
    a = ((4.0 * l * l - 1) / (l * l - m * m)).sqrt()
    parts = [a * z * last]
    if before is not None:
        own = m[:-1]
        b = (((l - 1.0) ** 2 - own * own) / (4 * (l - 1.0) ** 2 - 1)).sqrt()
        parts = [torch.addcmul(parts[0][..., :-1, :], a[:-1] * b, before, value=-1), parts[0][..., -1:, :]]
    return torch.cat([*parts, last[..., -1:, :] * math.sqrt((2 * l + 1) / (2 * l))], -2)


def by_rows(asked: Query, share: Callable[[Tensor], Tensor], values: Tensor | None = None) -> Tensor:
    """share(scores) @ values, a block of rows at a time."""
    n = asked.x.shape[-2]
    logs = log_weights(asked)
    logs = torch.full_like(asked.x[..., 0], -math.log(n)) if logs is None else logs
    values = asked.x if values is None else values
    rows = max(1, BLOCK // (n * max(1, asked.x[..., 0, 0].numel())))
    found = []
    for start in range(0, n, rows):
        scores = asked.beta * (asked.y[..., start : start + rows, :] @ asked.x.mT) + logs[..., None, :]
        if asked.causal:
            own = torch.arange(start, start + scores.shape[-2], device=scores.device)
            later = torch.arange(n, device=scores.device) > own[:, None]
            scores = scores.masked_fill(later, -math.inf)
        found.append(share(scores) @ values)
    return torch.cat(found, -2)


def log_weights(asked: Query) -> Tensor | None:
    """log w; a token of weight zero is never seen (and its gradient is zero, not NaN)."""
    w = asked.weights
    if w is None:
        return None
    return torch.where(w > 0, w.clamp_min(torch.finfo(w.dtype).tiny).log(), -1e30)


def small_enough(asked: Query) -> None:
    """Refuse sums that overflow."""
    most = abs(asked.beta) * float(asked.y.detach().norm(dim=-1).max())
    if most > OVERFLOW:
        remedy = "Use SelfAttention, whose sums are normalised, or a smaller beta."
        raise ConfigError("sums that are not normalised grow as e^β", got=f"β|y| = {most:.4g}", remedy=remedy)


def has_finufft() -> bool:
    """Whether the extra ``fast`` is there."""
    return importlib.util.find_spec("finufft") is not None


def _count(asked: Query) -> int:
    """How many modes the series has; those of a very sharp one are not counted."""
    beta = asked.beta * (asked.norm or 0.0)
    return len(_modes(beta, asked.x.shape[-1])) if abs(beta) <= SHARPEST else sys.maxsize


def _complex(x: Tensor) -> Tensor:
    return torch.complex(x[..., 0].double(), x[..., 1].double())


def _beside(x: Tensor, column: Tensor) -> Tensor:
    return torch.cat([x, column[..., None]], -1)


def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Fused attention wants one width for all, and [batch, head, n, width]."""
    shape = v.shape
    width = k.shape[-1]
    wide: Any = functional.pad(v, (0, width - v.shape[-1]))
    q, k, wide = (t.reshape(-1, 1, *t.shape[-2:]) for t in (q, k, wide))
    found = functional.scaled_dot_product_attention(q, k, wide, is_causal=causal, scale=1.0)
    return found[..., : shape[-1]].reshape(shape)


def _seen(asked: Query, total: Tensor) -> Tensor:
    """A causal sum over the weight of the tokens it may see."""
    if not asked.causal:
        return total
    n = asked.x.shape[-2]
    w = torch.full_like(asked.x[..., 0], 1 / n) if asked.weights is None else asked.weights
    return total / w.cumsum(-1)[..., None]
