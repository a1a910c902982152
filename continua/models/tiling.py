"""A domain cut into cells, and polynomials in each cell: fitted to values anywhere, evaluated anywhere."""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from continua import constants
from continua.axes import Axis, Circle, Grid, Interval, Midpoint, Product, ProductRule, factors, grid_on, mass_of
from continua.checks import looking
from continua.config import register
from continua.constants import constant_result
from continua.errors import ConfigError, GridError
from continua.settings import Degree
from continua.typing import Float, Tensor

OUTSIDE = 4.0  # a coordinate beyond every window
SLACK = 1e-6  # of a cell: coordinates computed in single precision may miss the boundary by so much


@register
@dataclass(frozen=True)
class Tiling:
    """A lattice of ``counts`` cells on an interval, a circle or a product of these, and polynomials in each cell.

    The polynomials are all products of Legendre polynomials up to ``degree`` in each direction, orthonormal for the
    uniform probability on the cell. What a cell sees is its window: the cell, and beyond it, with weights that fall
    to zero, ``reach`` times its width. ``ridge`` > 0 keeps the fit finite where points are few.

    >>> Tiling(Product((Interval(), Circle())), counts=(4, 6), degree=2).size
    9
    """

    axis: Axis
    counts: tuple[int, ...]
    degree: Degree = 1
    reach: float = 0.0
    ridge: float = 1e-3

    def __post_init__(self) -> None:
        if not isinstance(self.axis, Interval | Circle | Product):
            remedy = "Use t=Interval(), t=Circle() or a Product of these."
            raise ConfigError("cells tile intervals, circles and their products", got=self.axis, remedy=remedy)
        if len(self.counts) != self.axis.dim or min(self.counts) < 1:
            remedy = f"Give {self.axis.dim} whole numbers above zero."
            raise ConfigError("each direction needs its number of cells", got=self.counts, remedy=remedy)
        if self.degree < 0 or not 0 <= self.reach <= 1 or not self.ridge > 0:
            got, remedy = f"{self.degree}, {self.reach:g}, {self.ridge:g}", "Use degree ≥ 0, 0 ≤ reach ≤ 1, ridge > 0."
            raise ConfigError("a cell has polynomials, a window and a ridge", got=got, remedy=remedy)

    @property
    def lines(self) -> tuple[Interval | Circle, ...]:
        """The factors of the domain."""
        return factors(self.axis)

    @property
    def count(self) -> int:
        """The number of cells."""
        return math.prod(self.counts)

    @property
    def size(self) -> int:
        """The number of polynomials of a cell."""
        return (self.degree + 1) ** len(self.counts)

    @cached_property
    def grid(self) -> Grid:
        """The centres of the cells, each with the mass of its cell: the token grid."""
        rules = tuple(Midpoint(n) for n in self.counts)
        return grid_on(self.axis, ProductRule(rules) if isinstance(self.axis, Product) else rules[0])

    def grid_like(self, like: Tensor) -> Grid:
        """The same on the device of ``like``."""
        return self.grid.to(like)

    def pixels(self, shape: tuple[int, ...]) -> Grid:
        """The centres of so many pixels in each direction: where an image or a volume is sampled."""
        return Tiling(self.axis, shape).grid

    def locate(self, nodes: Float[Tensor, "*b n k"]) -> Float[Tensor, "*b n k"]:
        """Coordinates in units of cells, from 0 to ``counts``. Points outside the domain are refused."""
        nodes = nodes.double()
        start, length, count = self._numbers(nodes)
        where = (nodes - start) / length * count
        closed = ~self._periodic(nodes)
        outside = closed & ~((where >= -SLACK) & (where <= count + SLACK)) | ~torch.isfinite(where)
        if looking() and bool(outside.any()):
            first = nodes[outside.any(-1)][0].tolist()
            remedy = f"Rescale the points to {self._domain()}, or enlarge the axis."
            raise GridError("points must lie in the domain", got=[round(x, 6) for x in first], remedy=remedy)
        return torch.where(closed, torch.minimum(where.clamp_min(0.0), count), where % count)

    def _numbers(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        starts = tuple(line.start for line in self.lines)
        lengths = tuple(line.length for line in self.lines)
        return _row(starts, like), _row(lengths, like), _row(self.counts, like)

    def _periodic(self, like: Tensor) -> Tensor:
        """Which directions are circles."""
        return constants.numbers(tuple(float(line.periodic) for line in self.lines), like.device, torch.float32) > 0

    def _domain(self) -> str:
        ends = (f"a circle of length {x.length:g}" if x.periodic else f"[{x.start:g}, {x.start + x.length:g}]"
                for x in self.lines)  # fmt: skip
        return " × ".join(ends)

    def near(self, where: Tensor, offsets: tuple[int, ...], own: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The cell ``offsets`` away from the cell ``own`` of each point: number, coordinates in it, and if it is one.

        In its own cell a point has coordinates in [−1, 1].
        """
        away = own + _row(offsets, own)
        local = 2 * (where - away) - 1
        counts = _row(self.counts, own)
        periodic = self._periodic(own)
        inside = (periodic | ((away >= 0) & (away < counts))).all(-1)
        wrapped = torch.where(periodic, away % counts, away.clamp_min(0).minimum(counts - 1))
        strides = _row(tuple(math.prod(self.counts[i + 1 :]) for i in range(len(self.counts))), own)
        return (wrapped * strides).sum(-1), local, inside

    def polynomials(self, local: Float[Tensor, "*b n k"], degree: int | None = None) -> Float[Tensor, "*b n p"]:
        """All products of Legendre polynomials, the last direction fastest."""
        lines = legendre(local, self.degree if degree is None else degree)  # [*b, n, k, j]
        made = lines[..., 0, :]
        for i in range(1, lines.shape[-2]):
            made = (made[..., :, None] * lines[..., i, None, :]).flatten(-2)
        return made

    def moments(self, grid: Grid, values: Float[Tensor, "b n c"]) -> Float[Tensor, "b m q"]:
        """Coefficients of the fitted polynomials of each cell, channel by channel, and the observed share of the cell.

        The fit minimises ∫_window |u − Σ_p a_p φ_p|² dμ + ridge · Σ_p λ_p a_p² with λ_p = (1 + degrees of p)², against
        the measure of the grid, so it is linear in the values. The share is the measure of the nodes in the cell over
        that of the cell, at most one. A cell without points has share zero, and zeros where its window is empty too.
        """
        flat, weights, values, parts = _flat(grid, values)  # one list of nodes, whether shared or of each sample
        exact = torch.promote_types(values.dtype, torch.float32)
        where = self.locate(flat)
        first = (where.floor().long()).clamp_min(0).minimum(_row(self.counts, where).long() - 1)
        weights = weights.double() / (mass_of(self.axis) / self.count)
        total = parts * self.count
        sample = torch.arange(parts, device=flat.device).repeat_interleave(len(flat) // parts) * self.count
        ours, *_ = self.near(where, (0,) * self.axis.dim, first)
        share = _summed(weights.mT[:, None], ours + sample, total)[:, 0]  # [m, s]
        measure: Any = 0.0
        right: Any = 0.0
        for chosen, cell, local in self._windows(where, first):
            cell, w = cell + sample[chosen], weights[:, chosen] * self._fall(local)
            wide = self.polynomials(local, 2 * self.degree)
            measure = measure + _summed(wide[:, :, None] * w.mT[:, None], cell, total)  # [m, r, s]
            seen = values[:, chosen].to(exact) * w[..., None].to(exact)  # [s', n, c]
            basis = self.polynomials(local).to(exact)
            right = right + _summed(basis[:, :, None] * seen.movedim(0, 1).flatten(1)[:, None], cell, total)
        inverse = self._inverse(measure.movedim(-1, 0))  # [s, m, p, p]
        right = right.unflatten(-1, (len(values), -1)).movedim(-2, 0)  # [s', m, p, c]
        fitted = (inverse.to(exact) @ right).mT.flatten(2)  # [s', m, c p]
        share = share.mT[..., None].clamp_max(1.0).to(exact).expand(len(fitted), -1, 1)
        return torch.cat([fitted, share], -1).reshape(-1, self.count, fitted.shape[-1] + 1).to(values)

    def _windows(self, where: Tensor, own: Tensor) -> Iterator[tuple[Any, Tensor, Tensor]]:
        """Which nodes, seen by which cells, at which coordinates: each node is seen by at most 3^k."""
        steps = (0, -1, 1) if self.reach else (0,)
        for offsets in itertools.product(steps, repeat=self.axis.dim):
            cell, local, inside = self.near(where, offsets, own)
            inside = inside & (local.abs() < 1 + 2 * self.reach).all(-1) if any(offsets) else inside
            if torch.compiler.is_compiling():  # which ones depends on values: all are taken, the others weigh nothing
                yield slice(None), cell, torch.where(inside[..., None], local, OUTSIDE)
                continue
            chosen = inside.nonzero()[:, 0]
            if len(chosen):
                yield chosen, cell[chosen], local[chosen]

    def _fall(self, local: Float[Tensor, "n k"]) -> Float[Tensor, "n"]:
        """One in the cell, then cos² down to zero at the end of the window."""
        if not self.reach:
            return (local.abs() < OUTSIDE).all(-1).to(local.dtype)
        beyond = ((local.abs() - 1) / (2 * self.reach)).clamp(0.0, 1.0)
        return (beyond * (math.pi / 2)).cos().square().prod(-1)

    def _inverse(self, measure: Float[Tensor, "s m r"]) -> Float[Tensor, "s m p p"]:
        """(G + ridge λ)⁻¹, where G_pq = ∫ φ_p φ_q dμ follows from the moments of the measure up to twice the degree."""
        shape = (-1, self.size * self.size)
        products = constants.numbers(_products(self.degree, self.axis.dim), measure.device, measure.dtype).view(shape)
        gram = (measure @ products).unflatten(-1, (self.size, self.size))
        degrees = [sum(each) for each in itertools.product(range(self.degree + 1), repeat=self.axis.dim)]
        prior = _row(tuple(self.ridge * (1.0 + degree) ** 2 for degree in degrees), measure)
        return torch.cholesky_inverse(torch.linalg.cholesky(gram + prior.diag()))

    def evaluate(
        self, nodes: Float[Tensor, "*b n k"], coefficients: Float[Tensor, "b m o p"], blend: bool = True
    ) -> Float[Tensor, "b n o"]:
        """Σ_j h_j(t) Σ_p a_jp φ_p(t) over the cells j whose centres surround t; h_j are hat functions that add to one.

        Continuous in t. Without ``blend`` only the polynomial of the own cell is read, with jumps between cells.
        """
        where, b = self.locate(nodes), len(coefficients)
        counts = _row(self.counts, where).long()
        low = (where - 0.5).floor().long() if blend else where.floor().long().clamp_min(0).minimum(counts - 1)
        answer: Any = 0.0
        for offsets in itertools.product((0, 1) if blend else (0,), repeat=self.axis.dim):
            cell, local, inside = self.near(where, offsets, low)
            basis = self.polynomials(local)
            if blend:  # at the rim a missing neighbour leaves its part to the one that is there
                present = self._present(low, offsets)
                basis = basis * self._hats(local, present).where(inside, 0.0)[..., None]
            basis = basis.to(coefficients)
            if cell.dim() == 1:
                answer = answer + torch.einsum("bnop,np->bno", coefficients.index_select(1, cell), basis)
            else:
                index = cell + torch.arange(b, device=cell.device)[:, None] * self.count
                taken = coefficients.flatten(0, 1).index_select(0, index.flatten()).unflatten(0, (b, -1))
                answer = answer + torch.einsum("bnop,bnp->bno", taken, basis)
        return answer

    def _present(self, low: Tensor, offsets: tuple[int, ...]) -> Tensor:
        """Per direction, whether the other one of the two cells around a point exists."""
        other = low + 1 - _row(offsets, low)
        periodic = self._periodic(low)
        return periodic | ((other >= 0) & (other < _row(self.counts, low)))

    @staticmethod
    def _hats(local: Tensor, other: Tensor) -> Tensor:
        """Π (1 − |local|/2), and one in a direction where there is no other cell."""
        return torch.where(other, (1 - local.abs() / 2).clamp_min(0.0), 1.0).prod(-1)


def _row(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Plain numbers on the device and in the dtype of ``like``."""
    return constants.numbers(tuple(values), like.device, like.dtype)


def legendre(x: Tensor, degree: int) -> Tensor:
    """√(2j+1) P_j(x) for j ≤ degree, in a new last dimension: orthonormal for the uniform probability on [−1, 1]."""
    made = [torch.ones_like(x), x]
    for j in range(1, degree):
        made.append(((2 * j + 1) * x * made[-1] - j * made[-2]) / (j + 1))
    return torch.stack([(2 * j + 1) ** 0.5 * one for j, one in enumerate(made[: degree + 1])], -1)


@constant_result
@functools.lru_cache(maxsize=32)
def _products(degree: int, dim: int) -> tuple[float, ...]:
    """The coefficients of φ_p φ_q in polynomials up to twice the degree, [r, p·q], by a Gauss rule that is exact."""
    with constants.outside_modes():
        return tuple(_product_matrix(degree, dim).flatten().tolist())


def _product_matrix(degree: int, dim: int) -> Tensor:
    x, w = np.polynomial.legendre.leggauss(2 * degree + 1)
    nodes, weights = torch.from_numpy(x), torch.from_numpy(w / 2)
    few, many = legendre(nodes, degree), legendre(nodes, 2 * degree)
    line = torch.einsum("n,np,nq,nr->rpq", weights, few, few, many)
    made = line
    for _ in range(dim - 1):
        made = torch.einsum("rpq,suv->rspuqv", made, line).flatten(4, 5).flatten(2, 3).flatten(0, 1)
    return made.flatten(1)


def _summed(source: Float[Tensor, "n r s"], cell: Tensor, count: int) -> Float[Tensor, "m r s"]:
    """Add up what the nodes of each cell carry."""
    return source.new_zeros(count, *source.shape[1:]).index_add(0, cell, source)


def _flat(grid: Grid, values: Float[Tensor, "b n c"]) -> tuple[Tensor, Tensor, Tensor, int]:
    """Nodes [n, k], weights [s, n], values [s', n, c] and how many samples lie in one list, one behind the other.

    Samples that have the same nodes stay apart (s' = b); samples with nodes of their own are laid into one list.
    """
    b, n = values.shape[:2]
    nodes, weights = grid.nodes, grid.weights
    values = torch.where((weights > 0)[..., None], values, 0.0)  # whatever was written where a node is absent
    if nodes.dim() == 2 or len(nodes) == 1:
        return nodes.reshape(n, -1), weights.reshape(-1, n), values, 1
    return nodes.reshape(b * n, -1), weights.expand(b, n).reshape(1, -1), values.reshape(1, b * n, -1), b


def settled(grid: Grid, tiling: Tiling) -> Grid:
    """The grid with absent nodes, which may carry any stamp, at the start of the domain."""
    present, nodes = grid.weights > 0, grid.nodes
    if present.dim() == 2 and nodes.dim() == 2:
        present = present.any(0)
    elif present.dim() == 2 and len(nodes) == 1:
        present = present.any(0, keepdim=True)
    start = _row(tuple(line.start for line in tiling.lines), nodes)
    if nodes.shape[-1] != len(start):
        remedy = f"Give points of shape [n, {len(start)}] or [b, n, {len(start)}]."
        raise GridError(f"the domain has dimension {len(start)}", got=f"nodes {list(nodes.shape)}", remedy=remedy)
    return replace(grid, nodes=torch.where(present[..., None], nodes, start))
