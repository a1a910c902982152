"""Rules with random nodes, and ``Samples``: weights for the irregular nodes that data bring along."""

import math
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch

from continua.axes.axis import Axis, Circle, Interval, Points, Product, Times, mass_of
from continua.axes.grid import Grid
from continua.axes.rules import Array, radical_inverse
from continua.axes.stamps import as_stamps
from continua.checks import looking, refuse_in_graph
from continua.config import register
from continua.errors import ContinuaError, GridError, install
from continua.settings import Seed, Size
from continua.typing import Bool, Float, Tensor


@register
@dataclass(frozen=True)
class MonteCarlo:
    """n independent uniform nodes, weight 1/n: root-mean-square error O(n^−½)."""

    n: Size
    seed: Seed = 0
    order: ClassVar[float] = 0.5
    halves: ClassVar[bool] = True

    def reference(self, periodic: bool) -> tuple[Array, Array]:
        """Draw from a generator of this seed."""
        draws = torch.rand(self.n, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)
        return np.sort(draws.numpy()), np.full(self.n, 1.0 / self.n)


@register
@dataclass(frozen=True)
class Sobol:
    """n Sobol nodes under Owen's nested uniform scrambling, weight 1/n: root-mean-square error O(n^−3/2) in 1-D.

    For smooth functions and n a power of two (Owen 1997); other n lose the balance of the last cells.
    """

    n: Size
    seed: Seed = 0
    order: ClassVar[float] = 1.5
    halves: ClassVar[bool] = True

    def reference(self, periodic: bool) -> tuple[Array, Array]:
        """Flip each binary digit by a coin that depends on the digits above it; deeper digits are uniform.

        Not torch's SobolEngine: its linear scrambling has the same variance, but heavy tails, so that the mean error
        of a few draws falls faster than n^−3/2 and says nothing (Pan and Owen 2023).
        """
        generator = torch.Generator().manual_seed(self.seed)
        levels = (self.n - 1).bit_length()  # below this level every node is alone in its cell
        cell = (radical_inverse(self.n) * (1 << levels)).astype(np.int64)
        draws = np.zeros(self.n)
        for level in range(levels):
            coins = torch.randint(2, (1 << level,), generator=generator).numpy()
            prefix, digit = cell >> (levels - level), (cell >> (levels - level - 1)) & 1
            draws += (digit ^ coins[prefix]) * 0.5 ** (level + 1)
        draws += torch.rand(self.n, generator=generator, dtype=torch.float64).numpy() * 0.5**levels
        return np.sort(draws), np.full(self.n, 1.0 / self.n)


@register
@dataclass(frozen=True)
class Lattice:
    """n equally spaced nodes with one random shift, weight 1/n: order 1 on an interval, spectral on a circle."""

    n: Size
    seed: Seed = 0
    order: ClassVar[float] = 1.0
    halves: ClassVar[bool] = True

    def reference(self, periodic: bool) -> tuple[Array, Array]:
        """Shift the lattice i/n by one uniform number (Cranley and Patterson 1976)."""
        shift = torch.rand((), generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64).item()
        return np.sort((np.arange(self.n) / self.n + shift) % 1.0), np.full(self.n, 1.0 / self.n)


@register
@dataclass(frozen=True)
class Samples:
    """Weights for given nodes: half-gaps to neighbours and domain ends (1-D), Delaunay-lumped (2-D, 3-D).

    Order 2 in the mean spacing. Equal stamps share their cell. Absent nodes leave their cell to the neighbours.
    Discrete case: integer stamps on ``Points()`` weigh one each.
    """

    order: ClassVar[float] = 2.0

    def on(
        self,
        axis: Axis,
        stamps: Float[Tensor, "*b n"] | Float[Tensor, "*b n k"],
        observed: Tensor | None = None,
        beyond: bool = False,
    ) -> Grid:
        """Return the grid of ``stamps`` on ``axis``; differentiable in the stamps on 1-D axes.

        Stamps outside a closed axis are refused, unless they may lie ``beyond`` its ends (questions about the future):
        the domain then reaches as far as they do.
        """
        stamps = as_stamps(stamps)
        stamps = stamps if stamps.is_floating_point() else stamps.double()
        observed = None if observed is None else _flags(observed)
        nodes = stamps if axis.dim > 1 or (stamps.dim() > 1 and stamps.shape[-1] == 1) else stamps[..., None]
        _check(axis, nodes, observed, beyond)
        if isinstance(axis, Points):
            grid = Grid(nodes, torch.ones_like(nodes[..., 0]), is_counting=True, is_uniform=True, is_unit=True)
            return grid if observed is None else grid.only(observed)
        if axis.dim > 1:
            return _scattered(axis, nodes, observed)
        present = torch.ones_like(nodes[..., 0], dtype=torch.bool) if observed is None else observed
        weights, left = _half_gaps(axis, *torch.broadcast_tensors(nodes[..., 0], present))
        return Grid(nodes, weights, left, has_gaps=observed is not None)


def _flags(observed: Any) -> Tensor:
    """Which stamps are present; a list of flags will do."""
    if not isinstance(observed, Tensor | list | np.ndarray):
        got = type(observed).__name__
        raise GridError("observed is a tensor of flags", got=got, remedy="Give one flag for each stamp.")
    flags = observed if isinstance(observed, Tensor) else torch.as_tensor(np.asarray(observed) != 0)
    return flags if flags.dtype == torch.bool else flags != 0


def _check(axis: Axis, nodes: Tensor, observed: Tensor | None, beyond: bool) -> None:
    if nodes.dim() < 2 or nodes.numel() == 0:
        raise GridError("a sequence needs at least one stamp", got="an empty one", remedy="Drop empty sequences.")
    if nodes.shape[-1] != axis.dim:
        remedy = f"Give stamps of shape [..., n, {axis.dim}]."
        raise GridError(f"the axis has dimension {axis.dim}", got=f"stamps of {tuple(nodes.shape)}", remedy=remedy)
    if observed is not None and (observed.dim() < 1 or observed.shape[-1] != nodes.shape[-2]):
        got = f"{list(observed.shape)} for {list(nodes.shape[:-1])}"
        raise GridError("observed needs the shape of the stamps", got=got, remedy="Give one flag for each stamp.")
    if looking() and observed is not None and not bool(observed.any(-1).all()):
        remedy = "Drop the sequence, or mark at least one token as observed."
        raise GridError("a sequence needs at least one observed token", got="one with none", remedy=remedy)
    if looking() and not bool(torch.isfinite(nodes).all()):
        remedy = "Mark missing points with observed=..., and give them any finite stamp."
        raise GridError("stamps must be finite", got="NaN or infinity", remedy=remedy)
    if looking() and axis.dim == 1 and not beyond:
        _check_inside(axis, nodes.detach()[..., 0], observed)


def _check_inside(axis: Axis, t: Float[Tensor, "*b n"], observed: Bool[Tensor, "*more n"] | None) -> None:
    """Refuse stamps outside a closed axis, and around a circle more than one turn: their cells would be negative."""
    if isinstance(axis, Points):
        return
    lo, hi, period = _ends(axis)
    low = t if observed is None else torch.where(observed, t, torch.inf)
    high = t if observed is None else torch.where(observed, t, -torch.inf)
    first = low.amin(-1)
    last = high.amax(-1)
    ends = [abs(end) for end in (lo, hi, period) if end is not None]
    hair = 4 * torch.finfo(t.dtype).eps * max(ends, default=0.0)  # a stamp and an end may be rounded differently
    if period is not None and bool((last - first > period + hair).any()):
        got = f"stamps that span {float((last - first).max()):g}"
        remedy = f"Take them modulo {period:g}, or use Times()."
        raise GridError(f"a circle of length {period:g} is walked around once", got=got, remedy=remedy)
    if lo is not None and bool((first < lo - hair).any()):
        raise _outside(axis, first.min())
    if hi is not None and bool((last > hi + hair).any()):
        raise _outside(axis, last.max())


def _outside(axis: Axis, worst: Tensor) -> GridError:
    digits = 7 if worst.dtype == torch.float32 else 15
    remedy = "Widen the axis, rescale the stamps, or mark what is outside as absent with observed=…."
    return GridError(f"stamps must lie in the domain {axis}", got=f"{worst.item():.{digits}g}", remedy=remedy)


def _half_gaps(axis: Axis, t: Float[Tensor, "*b n"], present: Bool[Tensor, "*b n"]) -> tuple[Tensor, Tensor]:
    """Weights and left parts of the cells of irregular nodes; no node looks further than its next distinct stamp."""
    lo, hi, period = _ends(axis)
    beyond = t.detach().abs().amax() * 2 + 1  # absent nodes are sorted behind all others
    ordered = torch.where(present, t, beyond).sort(-1).values
    query = t.detach().contiguous()
    first = torch.searchsorted(ordered.detach().contiguous(), query, right=False)
    after = torch.searchsorted(ordered.detach().contiguous(), query, right=True)
    count = present.sum(-1, keepdim=True)
    before_value = ordered.gather(-1, (first - 1).clamp_min(0))
    after_value = ordered.gather(-1, after.clamp_max(t.shape[-1] - 1))
    if period is not None:
        last, start = ordered.gather(-1, (count - 1).clamp_min(0)), ordered[..., :1]
        gap_left = torch.where(first > 0, t - before_value, (t - last + period).clamp_min(0)) / 2
        gap_right = torch.where(after < count, after_value - t, (start - t + period).clamp_min(0)) / 2
    else:
        gap_left = torch.where(first > 0, (t - before_value) / 2, 0.0 * t if lo is None else (t - lo).clamp_min(0))
        gap_right = torch.where(after < count, (after_value - t) / 2, 0.0 * t if hi is None else (hi - t).clamp_min(0))
    share = torch.where(present, 1.0 / (after - first).clamp_min(1).to(t.dtype), 0.0)
    density = _density(axis)
    weights = (gap_left + gap_right) * share * density
    # a lone stamp without domain ends has no cell: give it mass one, so that averages stay averages
    empty = weights.detach().sum(-1, keepdim=True) <= 0
    return torch.where(empty, share, weights), torch.where(empty, share, gap_left * share * density)


def _ends(axis: Axis) -> tuple[float | None, float | None, float | None]:
    if isinstance(axis, Circle):
        return None, None, axis.length
    if isinstance(axis, Interval | Times):
        return axis.start, axis.end, None
    raise GridError("Samples needs a time axis, an interval, a circle or a product", got=axis, remedy="Choose one.")


def _density(axis: Axis) -> float:
    if isinstance(axis, Interval | Circle):
        return mass_of(axis) / axis.length
    return 1.0


def _scattered(axis: Axis, nodes: Float[Tensor, "*b n k"], observed: Tensor | None) -> Grid:
    """Delaunay-lumped weights, sample by sample, on the CPU: made once with the data, never in the forward."""
    if not isinstance(axis, Product):
        raise GridError("scattered points need a Product domain", got=axis, remedy="Write Product((Interval(), …)).")
    if torch.compiler.is_compiling():
        remedy = "Give the model batches that were laid before: model.laid(batch)."
        refuse_in_graph("weights of scattered points are not made inside a graph", "points alone", remedy)
    if observed is not None:
        nodes = nodes.expand(*torch.broadcast_shapes(nodes.shape[:-1], observed.shape), axis.dim)
    flat = nodes.detach().cpu().double().reshape(-1, *nodes.shape[-2:]).numpy()
    if observed is None:
        present = np.ones(flat.shape[:2], dtype=bool)
    else:
        present = observed.expand(nodes.shape[:-1]).reshape(flat.shape[:2]).cpu().numpy()
    weights = np.zeros(flat.shape[:2])
    for row, points, here in zip(weights, flat, present, strict=True):
        # the same point twice shares one cell; in one order, since ties of the triangulation are broken by it
        distinct, whose, count = np.unique(points[here], axis=0, return_inverse=True, return_counts=True)
        whose = whose.reshape(-1)
        row[here] = _lumped(axis, distinct)[whose] / count[whose]
    return Grid(nodes, torch.from_numpy(weights).to(nodes).reshape(nodes.shape[:-1]), has_gaps=observed is not None)


def _lumped(axis: Product, points: Array) -> Array:
    """Each simplex gives its volume in equal parts to its corners.

    Nodes seldom reach the boundary, so a lattice of helper points is laid on it; each hands its share to the nearest
    node (constant extrapolation over a distance h on a strip of width h: still order 2). Circles are unrolled.
    """
    spatial = _scipy_spatial()
    length = np.array([factor.length for factor in axis.factors])
    unit = (points - np.array([factor.start for factor in axis.factors])) / length
    if ((unit < -1e-9) | (unit > 1 + 1e-9)).any():
        raise GridError("points must lie in the domain", got="a point outside it", remedy="Enlarge the Product's axes.")
    closed = [i for i, factor in enumerate(axis.factors) if not factor.periodic]
    shifts = [np.array(s) for s in product(*[(0.0,) if i in closed else (-1.0, 0.0, 1.0) for i in range(axis.dim)])]
    vertices = np.concatenate([unit + shift for shift in shifts])
    parents = np.tile(np.arange(len(unit)), len(shifts))
    helpers = _boundary_lattice(axis.dim, closed, math.ceil(len(unit) ** (1 / axis.dim)))
    if len(helpers):
        distance, nearest_node = spatial.cKDTree(vertices).query(helpers)
        fresh = distance > 1e-9
        vertices = np.concatenate([vertices, helpers[fresh]])
        parents = np.concatenate([parents, parents[nearest_node[fresh]]])
    corners = spatial.Delaunay(vertices, qhull_options="QJ Pp").simplices
    simplex = vertices[corners]
    centre = simplex.mean(1)
    inside = ((centre >= 0) & (centre < 1)).all(1)
    volume = np.abs(np.linalg.det(simplex[:, 1:] - simplex[:, :1])) / math.factorial(axis.dim)
    weights = np.zeros(len(unit))
    np.add.at(weights, parents[corners[inside]], (volume[inside] / (axis.dim + 1))[:, None])
    return weights * mass_of(axis) / weights.sum()


def _boundary_lattice(dim: int, closed: list[int], side: int) -> Array:
    """Points of a lattice on the faces of the unit box; open along periodic directions one period beyond it."""
    lines = [np.linspace(0, 1, side + 1) if i in closed else np.arange(-side, 2 * side + 1) / side for i in range(dim)]
    lattice = np.stack(np.meshgrid(*lines, indexing="ij"), -1).reshape(-1, dim)
    on_face = ((lattice[:, closed] == 0) | (lattice[:, closed] == 1)).any(1)
    return lattice[on_face]


def _scipy_spatial() -> Any:
    try:
        import scipy.spatial as spatial
    except ImportError as missing:
        raise ContinuaError(
            "scattered points in 2-D and 3-D need scipy", remedy=f"Install it: {install('space')}."
        ) from missing
    return spatial
