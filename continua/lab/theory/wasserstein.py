"""Wasserstein distances: exact on the line and on the circle, by assignment or by slices on spheres."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from continua.errors import ConfigError, ShapeError, install
from continua.typing import Tensor

FINER = 8  # how much finer than its nodes a density is integrated
MASS = 1e-6  # how far from one a total mass may be
GOLDEN = (math.sqrt(5) - 1) / 2
ROUNDS = 72  # golden sections: 0.618^72 < 1e-15
HALVINGS = 60


@dataclass(frozen=True, eq=False)
class Density:
    """ρ at θ_j = 2πj/m, j = 0, …, m − 1, with ∫ρ dθ = 1: a trigonometric polynomial through m values."""

    values: Tensor

    def __post_init__(self) -> None:
        if self.values.dim() != 1 or len(self.values) < 4:
            remedy = "Give one density at m ≥ 4 equally spaced angles."
            raise ShapeError("a density on the circle is a row of values", got=list(self.values.shape), remedy=remedy)
        mass = float(self.values.detach().mean()) * 2 * math.pi
        if not abs(mass - 1) < MASS:
            remedy = "Divide the values by 2π times their mean."
            raise ShapeError("a density has total mass one", got=f"{mass:.6g}", remedy=remedy)

    @classmethod
    def of(cls, values: Tensor) -> "Density":
        """Any values with a positive mean, scaled to mass one."""
        return cls(values / (values.mean(-1, keepdim=True) * 2 * math.pi))

    @property
    def cumulative(self) -> tuple[Tensor, Tensor]:
        """θ and F(θ) = ∫_0^θ ρ at FINER·m + 1 angles from 0 to 2π, integrated mode by mode and made monotone."""
        m = len(self.values)
        k = torch.arange(m // 2 + 1, dtype=self.values.dtype, device=self.values.device)
        modes = torch.fft.rfft(self.values)
        rising = torch.where(k > 0, modes / (1j * k.clamp_min(1)), 0.0)
        if m % 2 == 0:
            rising = torch.cat([rising[:-1], torch.zeros_like(rising[-1:])])  # the last cosine integrates to zero here
        wave = torch.fft.irfft(rising, n=FINER * m) * FINER
        theta = torch.linspace(0, 2 * math.pi, FINER * m + 1, dtype=self.values.dtype, device=self.values.device)
        levels = torch.cat([wave, wave[:1]]) - wave[0] + theta / (2 * math.pi)
        levels = levels.cummax(0).values.clamp(0, 1)
        return theta, torch.cat([levels[:-1], torch.ones_like(levels[:1])])

    def quantiles(self, levels: Tensor) -> Tensor:
        """F^{−1}: the angles in [0, 2π] below which the given parts of the mass lie."""
        theta, cumulative = self.cumulative
        place = torch.searchsorted(cumulative, levels.to(cumulative), right=True).clamp(1, len(theta) - 1)
        low = cumulative[place - 1]
        high = cumulative[place]
        part = ((levels - low) / (high - low).clamp_min(torch.finfo(low.dtype).tiny)).clamp(0, 1)
        return theta[place - 1] + part * (theta[place] - theta[place - 1])

    def sample(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        """Independent angles."""
        like = self.values
        drawn = torch.rand(shape, dtype=like.dtype, generator=generator, device=like.device)
        return self.quantiles(drawn)


class Quantile(NamedTuple):
    """F^{−1}: on (levels_i, levels_{i+1}] it runs in a line from starts_i to ends_i (flat for a point)."""

    levels: Tensor
    starts: Tensor
    ends: Tensor


def line_wasserstein(
    x: Tensor, y: Tensor, p: float = 1.0, x_weights: Tensor | None = None, y_weights: Tensor | None = None
) -> Tensor:
    """W_p = (∫_0^1 |F^{−1} − G^{−1}|^p ds)^{1/p} of weighted points on the line: exact, differentiable in x and y.

    >>> line_wasserstein(torch.tensor([0.0, 1.0]), torch.tensor([5.0, 4.0])).item()
    4.0
    """
    _order(p)
    return _between(_atoms(x, x_weights), _atoms(y, y_weights), p) ** (1 / p)


def circle_wasserstein(
    a: Tensor | Density, b: Tensor | Density, p: float = 1.0, a_weights: Tensor | None = None,
    b_weights: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """W_p on the circle, along arcs, exact for p = 1 and p = 2, of angles (weighted or not) or densities.

    p = 1: min_c ∫ |F − G − c| dθ over the circle, where the best c is the median of F − G.
    p = 2: min_α (∫_0^1 |F^{−1}(s) − G^{−1}(s − α)|² ds)^{1/2}, convex in the cut α (Delon, Salomon, Sobolevski 2010).
    Both minima are found to round-off, and gradients by the angles are those at the best c or α.

    >>> round(circle_wasserstein(torch.tensor([0.1]), torch.tensor([2 * math.pi - 0.1])).item(), 6)
    0.2
    """
    _order(p)
    f = _on_circle(a, a_weights)
    g = _on_circle(b, b_weights)
    return _by_median(f, g) if p == 1.0 else _between(f, _turned(g, _best_cut(f, g, p)), p) ** (1 / p)


def sphere_wasserstein(x: Tensor, y: Tensor, p: float = 1.0) -> Tensor:
    """W_p of two sets of n equally heavy points on S^{d−1}, along great circles: the best of all n! pairings, exactly.

    Needs scipy (Crouse 2016's assignment), O(n³): for a few thousand points. Otherwise use ``sliced_wasserstein``.
    """
    _order(p)
    if x.dim() != 2 or x.shape != y.shape:
        got = f"{list(x.shape)} and {list(y.shape)}"
        remedy = "Use sliced_wasserstein for different numbers of points or weights."
        raise ShapeError("an assignment pairs two equally large sets of points [n, d]", got=got, remedy=remedy)
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        remedy = f"Install it: {install('space')}, or use sliced_wasserstein."
        raise ConfigError("the exact distance on a sphere needs scipy", got="none", remedy=remedy) from error
    half = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") / 2
    costs = (2 * torch.asin(half.clamp(max=1.0))) ** p
    rows, columns = linear_sum_assignment(costs.detach().cpu().numpy())
    return costs[torch.from_numpy(rows), torch.from_numpy(columns)].mean() ** (1 / p)


def sliced_wasserstein(
    x: Tensor, y: Tensor, p: float = 1.0, x_weights: Tensor | None = None, y_weights: Tensor | None = None,
    directions: int = 128, generator: torch.Generator | None = None,
) -> Tensor:  # fmt: skip
    """(mean over directions u of W_p^p(⟨u,x⟩, ⟨u,y⟩))^{1/p} for points [n, d] and [m, d]: O(n log n) a direction.

    Directions are random; with the same generator seed two calls look along the same ones. Smaller than W_p.
    """
    _order(p)
    if x.dim() != 2 or y.dim() != 2 or x.shape[-1] != y.shape[-1]:
        got = f"{list(x.shape)} and {list(y.shape)}"
        raise ShapeError("slices cut points of one space", got=got, remedy="Give [n, d] and [m, d].")
    if directions < 1:
        raise ConfigError("slices need directions", got=directions, remedy="Use directions=128.")
    u = torch.randn(x.shape[-1], directions, dtype=x.dtype, generator=generator).to(x.device)
    u = u / u.norm(dim=0)
    cuts = zip((x @ u).unbind(-1), (y @ u).unbind(-1), strict=True)
    total = sum((_between(_atoms(a, x_weights), _atoms(b, y_weights), p) for a, b in cuts), x.new_zeros(()))
    return (total / directions) ** (1 / p)


# --- quantile functions ---------------------------------------------------------------------------------------------


def _order(p: float) -> None:
    if p not in (1.0, 2.0):
        raise ConfigError("Wasserstein distances are known for p = 1 and p = 2", got=p, remedy="Use p=1.0 or p=2.0.")


def _atoms(x: Tensor, weights: Tensor | None) -> Quantile:
    if x.dim() != 1 or not len(x) or not bool(torch.isfinite(x).all()):
        got = list(x.shape) if x.dim() != 1 or not len(x) else "NaN or infinity"
        raise ShapeError("a measure is a row of finite points", got=got, remedy="Give at least one point, shape [n].")
    if weights is None:
        levels = torch.arange(len(x) + 1, dtype=x.dtype, device=x.device) / len(x)
        points = x.sort().values
        return Quantile(levels, points, points)
    if weights.shape != x.shape or bool((weights < 0).any()) or not abs(float(weights.sum()) - 1) < MASS:
        got = f"{list(weights.shape)} with sum {float(weights.sum()):.6g}"
        raise ShapeError("weights are at least zero and sum to one", got=got, remedy="Divide them by their sum.")
    points, order = x.sort()
    levels = torch.cat([weights.new_zeros(1), weights[order].cumsum(0)])
    return Quantile(levels / levels[-1], points, points)


def _on_circle(measure: Tensor | Density, weights: Tensor | None) -> Quantile:
    if isinstance(measure, Density):
        theta, levels = measure.cumulative
        return Quantile(levels, theta[:-1], theta[1:])
    return _atoms(measure.remainder(2 * math.pi), weights)


@torch.no_grad()
def _best_cut(f: Quantile, g: Quantile, p: float) -> float:
    """The α of the least cost, by golden sections of [−1, 1], at whose ends all mass moves one way round."""
    low = -1.0
    high = 1.0
    inner = [high - GOLDEN * (high - low), low + GOLDEN * (high - low)]
    costs = [float(_between(f, _turned(g, cut), p)) for cut in inner]
    best = min(zip(costs, inner, strict=True))
    for _ in range(ROUNDS):
        left = costs[0] <= costs[1]
        low, high = (low, inner[1]) if left else (inner[0], high)
        cut = high - GOLDEN * (high - low) if left else low + GOLDEN * (high - low)
        cost = float(_between(f, _turned(g, cut), p))
        inner, costs = ([cut, inner[0]], [cost, costs[0]]) if left else ([inner[1], cut], [costs[1], cost])
        best = min(best, (cost, cut))
    return best[1]


def _by_median(f: Quantile, g: Quantile) -> Tensor:
    """min_c ∫_0^{2π} |F − G − c| dθ over the arcs on which F − G runs in a line."""
    ends = f.starts.new_tensor([0.0, 2 * math.pi])
    points = torch.cat([f.starts, g.starts, ends]).sort().values
    arcs = points.diff()
    first, last = ((f_ - g_) for f_, g_ in zip(_climb(f, points), _climb(g, points), strict=True))
    with torch.no_grad():
        below = torch.minimum(first, last)
        above = torch.maximum(first, last)
        low = float(below.min())
        high = float(above.max())
        half = float(arcs.sum()) / 2
        span = (above - below).clamp_min(torch.finfo(arcs.dtype).tiny)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            passed = float((arcs * ((middle - below) / span).clamp(0, 1)).sum())
            low, high = (middle, high) if passed < half else (low, middle)
    return _absolute(first - high, last - high, arcs)


def _climb(f: Quantile, points: Tensor) -> tuple[Tensor, Tensor]:
    """F at both ends of each arc between points, seen from inside."""
    low = points[:-1]
    high = points[1:]
    own = torch.searchsorted(f.starts.detach(), ((low + high) / 2).detach(), right=True) - 1
    at = own.clamp_min(0)
    rise = f.levels[at + 1] - f.levels[at]
    run = f.ends[at] - f.starts[at]
    flat = run <= 0  # a point: all of its mass lies before the arc
    run = torch.where(flat, 1.0, run)
    parts = (torch.where(flat, 1.0, ((x - f.starts[at]) / run).clamp(0, 1)) for x in (low, high))
    before, after = (torch.where(own < 0, 0.0, f.levels[at] + rise * part) for part in parts)
    return before, after


def _turned(g: Quantile, cut: float) -> Quantile:
    """s ↦ G^{−1}(s − cut) on (0, 1], where G^{−1}(s + 1) = G^{−1}(s) + 2π."""
    turns = math.floor(cut)
    rest = cut - turns
    lap = 2 * math.pi
    levels = torch.cat([g.levels[:-1] + (rest - 1), g.levels + rest])
    starts = torch.cat([g.starts - lap, g.starts]) - turns * lap
    ends = torch.cat([g.ends - lap, g.ends]) - turns * lap
    return Quantile(levels, starts, ends)


def _between(f: Quantile, g: Quantile, p: float) -> Tensor:
    """∫_0^1 |F^{−1} − G^{−1}|^p ds, piece by piece."""
    levels = torch.cat([f.levels, g.levels]).detach().clamp(0, 1).sort().values
    low = levels[:-1]
    high = levels[1:]
    from_ = _read(f, low, high)
    to = _read(g, low, high)
    a = from_[0] - to[0]
    b = from_[1] - to[1]
    width = high - low
    if p == 2.0:
        return (width * (a * a + a * b + b * b)).sum() / 3
    return _absolute(a, b, width)


def _absolute(a: Tensor, b: Tensor, width: Tensor) -> Tensor:
    """Σ ∫ |line from a to b| over pieces of these widths."""
    crossing = a * b < 0
    apart = torch.where(crossing, (a - b).abs(), 1.0)
    return (width * torch.where(crossing, (a * a + b * b) / (2 * apart), (a + b).abs() / 2)).sum()


def _read(f: Quantile, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """F^{−1} at both ends of pieces (low, high] that lie inside its own."""
    own = torch.searchsorted(f.levels, (low + high) / 2, right=True).clamp(1, len(f.starts)) - 1
    left = f.levels[own]
    length = (f.levels[own + 1] - f.levels[own]).clamp_min(torch.finfo(low.dtype).tiny)
    rise = f.ends[own] - f.starts[own]
    first = ((low - left) / length).clamp(0, 1)
    last = ((high - left) / length).clamp(0, 1)
    return f.starts[own] + rise * first, f.starts[own] + rise * last
