"""Quadrature rules: how an axis becomes a grid. A new rule is one frozen class and one line in ``tests/cases.py``."""

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from continua import constants
from continua.axes.axis import Axis, Interval, Points, Product, Times, mass_of
from continua.axes.grid import Grid
from continua.axes.nodes import Array, Nodes, interned
from continua.config import register
from continua.constants import constant_result
from continua.errors import GridError
from continua.settings import Size, SquareSize
from continua.typing import Tensor


@runtime_checkable
class Rule(Protocol):
    """n nodes in [0, 1] and their weights (sum one), for an interval or, ``periodic``, for a circle.

    ``order`` is p in |error| = O(n^−p) for smooth functions on an interval; ``inf`` is spectral. ``halves`` tells how a
    causal row splits its own cell: in the middle (random nodes) or where the node lies in the cumulated weights.
    """

    def __hash__(self) -> int:
        """Rules are frozen: grids are remembered by them."""
        ...

    @property
    def n(self) -> int:
        """How many nodes."""
        ...

    @property
    def order(self) -> float:
        """The power of 1/n in the error."""
        ...

    @property
    def halves(self) -> bool:
        """Whether a cell is split in its middle."""
        ...

    def reference(self, periodic: bool) -> tuple[Array, Array]:
        """Return nodes and weights on the unit interval or circle."""
        ...


@register
@dataclass(frozen=True)
class Counting:
    """Σ_i f(i): every point of ``Points(n)``, weight one. Discrete case: the plain sum."""

    n: Size
    order: ClassVar[float] = math.inf
    halves: ClassVar[bool] = False

    def reference(self, periodic: bool) -> tuple[Array, Array]:
        """Counting weighs points, so it has no nodes on an interval."""
        raise GridError("Counting fits Points(n) only", got="an interval or circle", remedy="Use Midpoint(n).")


@register
@dataclass(frozen=True)
class Midpoint:
    """(1/n) Σ f((i+½)/n), order 2; spectral on a circle."""

    n: Size
    order: ClassVar[float] = 2.0
    halves: ClassVar[bool] = False

    def reference(self, periodic: bool) -> tuple[Array, Array]:
        """Cell centres, equal weights."""
        return (np.arange(self.n) + 0.5) / self.n, np.full(self.n, 1.0 / self.n)


@register
@dataclass(frozen=True)
class Trapezoid:
    """Nodes i/(n−1), end weights halved, order 2; on a circle nodes i/n, equal weights, spectral."""

    n: Size
    order: ClassVar[float] = 2.0
    halves: ClassVar[bool] = False

    def reference(self, periodic: bool) -> tuple[Array, Array]:
        """Cell ends."""
        if periodic or self.n == 1:
            return np.arange(self.n) / self.n + (0.0 if periodic else 0.5), np.full(self.n, 1.0 / self.n)
        weights = np.full(self.n, 1.0 / (self.n - 1))
        weights[[0, -1]] /= 2
        return np.linspace(0.0, 1.0, self.n), weights


@register
@dataclass(frozen=True)
class LeftEnd:
    """Nodes i/n, weight 1/n, order 1 (spectral on a circle): where the layers of a stack sit on [0, L].

    Discrete case: on ``Interval(0, L)`` with n = L the nodes are the layer numbers 0…L−1.
    """

    n: Size
    order: ClassVar[float] = 1.0
    halves: ClassVar[bool] = True

    def reference(self, periodic: bool) -> tuple[Array, Array]:
        """Cell starts, equal weights."""
        return np.arange(self.n) / self.n, np.full(self.n, 1.0 / self.n)


@register
@dataclass(frozen=True)
class GaussLegendre:
    """Zeros of the Legendre polynomial P_n; exact up to degree 2n−1, spectral."""

    n: SquareSize
    order: ClassVar[float] = math.inf
    halves: ClassVar[bool] = False

    def reference(self, periodic: bool) -> tuple[Array, Array]:
        """Gauss nodes, moved from [−1, 1] to [0, 1]."""
        x, w = np.polynomial.legendre.leggauss(self.n)
        return (x + 1) / 2, w / 2


@register
@dataclass(frozen=True)
class ClenshawCurtis:
    """Chebyshev extrema (1−cos(πi/(n−1)))/2 with weights exact for degree n−1, spectral; nested under n → 2n−1."""

    n: SquareSize
    order: ClassVar[float] = math.inf
    halves: ClassVar[bool] = False

    def reference(self, periodic: bool) -> tuple[Array, Array]:
        """Solve for the weights in the cosine basis: Σ_i w_i cos(kθ_i) = ∫ T_k."""
        if self.n == 1:
            return np.array([0.5]), np.array([1.0])
        theta = np.pi * np.arange(self.n) / (self.n - 1)
        k = np.arange(self.n)
        moments = np.where(k % 2 == 0, 1.0 / (1.0 - k.astype(float) ** 2 + (k == 1)), 0.0)
        return (1 - np.cos(theta)) / 2, np.linalg.solve(np.cos(np.outer(k, theta)), moments * (-1.0) ** k)


@register
@dataclass(frozen=True)
class Nested:
    """The first n of the van der Corput order, equal weights: coarse grids are subsets of fine ones, order 1.

    ``first`` is another order of N equal cells, for example one that data chose: n ≤ N takes the left ends of the
    cells ``first[:n]``, more than that halves cells in the same order.
    On ``Points(N)`` these are n of the N stored indices, each weighing N/n. Discrete case: n = N is ``Counting(N)``.
    """

    n: Size
    first: tuple[int, ...] = field(default=(), repr=False)
    order: ClassVar[float] = 1.0
    halves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.first and sorted(self.first) != list(range(len(self.first))):
            remedy = "Name every number from 0 to N−1 once, the most important first."
            raise GridError("an order of cells names each of them once", got=f"{self.first[:4]}…", remedy=remedy)

    def resized(self, n: int) -> "Nested":
        """The same order, cut elsewhere."""
        return replace(self, n=n)

    def reference(self, periodic: bool) -> tuple[Array, Array]:
        """Radical inverses in base two, or the cells in their order; sorted."""
        weights = np.full(self.n, 1.0 / self.n)
        if not self.first:
            return np.sort(radical_inverse(self.n)), weights
        cells = len(self.first)
        rounds, places = np.divmod(np.arange(self.n), cells)
        within = radical_inverse(int(rounds[-1]) + 1)[rounds]
        return np.sort((np.array(self.first)[places] + within) / cells), weights


@register
@dataclass(frozen=True)
class Profile(Nested):
    """A width that varies with depth: step i has the first ``sizes[i]`` of the nested nodes; n is the widest.

    ``at(m=(768, 512, 256))`` writes one. Discrete case: layers with feed-forward maps of different widths.
    """

    sizes: tuple[Size, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sizes or max(self.sizes) != self.n or min(self.sizes) < 1:
            remedy = "Write at(m=(768, 512, 256)): one size of one node or more for each step."
            raise GridError("a profile has a size for each step", got=self.sizes, remedy=remedy)

    def resized(self, n: int) -> Nested:
        """One size for all steps."""
        return Nested(n, self.first)

    def of_step(self, step: int) -> Nested:
        """The rule of one step."""
        return self.resized(self.sizes[step])


@register
@dataclass(frozen=True)
class ProductRule:
    """One rule for each factor of a ``Product``; n is the product of theirs."""

    factors: tuple[Rule, ...]
    halves: ClassVar[bool] = False

    @property
    def n(self) -> int:
        """Number of nodes of the product grid."""
        return math.prod(rule.n for rule in self.factors)

    @property
    def order(self) -> float:
        """The lowest order among the factors, in the nodes of each factor."""
        return min(rule.order for rule in self.factors)

    def reference(self, periodic: bool) -> tuple[Array, Array]:
        """A product has no single interval to stand on."""
        raise GridError("ProductRule fits a Product only", got="a single axis", remedy="Use one of its factors.")


def factor_rules(rule: Rule) -> tuple[Rule, ...]:
    """The rule of each direction: those of a ``ProductRule``, or the rule itself."""
    return rule.factors if isinstance(rule, ProductRule) else (rule,)


def radical_inverse(n: int) -> Array:
    """Van der Corput sequence 0, ½, ¼, ¾, …: the binary digits of k mirrored at the point."""
    k = np.arange(n)
    value, scale = np.zeros(n), 0.5
    while k.any():
        value += scale * (k % 2)
        k, scale = k // 2, scale / 2
    return value


def default_rule(axis: Axis, n: int) -> Rule:
    """The rule that a bare number of nodes means on ``axis``."""
    if n < 1:
        raise GridError("a grid needs at least one node", got=n, remedy="Ask for a whole number above zero.")
    if isinstance(axis, Points):
        return Counting(n) if axis.n in (None, n) else Nested(n)
    if isinstance(axis, Product):
        side = round(n ** (1 / axis.dim))
        if side**axis.dim != n:
            raise GridError(f"{n} nodes do not fill a box of dimension {axis.dim}", remedy="Write ProductRule((…)).")
        return ProductRule(tuple(default_rule(factor, side) for factor in axis.factors))
    return Trapezoid(n) if axis.periodic else Midpoint(n)


@dataclass(frozen=True, eq=False)
class Quadrature:
    """A rule on an axis as plain numbers: ∫ f dμ ≈ Σ_i weights_i f(nodes_i), and what is known of them."""

    nodes: Nodes
    weights: Array
    left: Array | None = None  # the part of each cell left of its node
    is_counting: bool = False
    lines: "tuple[Quadrature, ...] | None" = None

    def pieces(self, device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
        """The arguments of the same as a ``Grid``."""
        nodes = self.nodes.values
        return (
            constants.tensor(nodes, device, self._width(device, dtype)),
            constants.tensor(self.weights, device, dtype),
            None if self.left is None else constants.tensor(self.left, device, dtype),
            self.is_counting,
            bool(np.ptp(self.weights) == 0),  # is_uniform
            bool((self.weights == 1).all()),  # is_unit
            nodes.shape[1] == 1 and bool((np.diff(nodes[:, 0]) > 0).all()),  # is_ordered
            False,  # has_gaps
            0,  # start
            self.nodes.key,
            None if self.lines is None else tuple(line.pieces(device, dtype) for line in self.lines),
        )

    def _width(self, device: torch.device, dtype: torch.dtype) -> torch.dtype:
        """The dtype of the nodes: on a line far from zero, float32 could not tell them apart."""
        nodes = self.nodes.values
        far = nodes.shape[1] == 1 and np.abs(nodes).max() > FAR * np.ptp(nodes) > 0
        return constants.widest(device) if far else dtype


FAR = 16.0  # lengths of an axis from zero; nearer than that float32 loses four bits of a node
_grids = constants.Cache()
_pieces = constants.Cache()
CPU = torch.device("cpu")


def grid_on(axis: Axis, rule: Rule, like: Tensor | None = None) -> Grid:
    """Return the grid of ``rule`` on ``axis``; nodes never depend on data.

    On the device of ``like`` and in its dtype (float32 at least), or in float64 on the CPU.
    """
    device = CPU if like is None else like.device
    dtype = torch.float64 if like is None else constants.at_least_single(like.dtype)
    if torch.compiler.is_compiling():
        return made_of(pieces_on(axis, rule, device, dtype))
    return _grids.get((axis, rule, device, dtype), lambda: made_of(pieces_on(axis, rule, device, dtype)))


@constant_result
def pieces_on(axis: Axis, rule: Rule, device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
    """The arguments of ``Grid`` as constants of every graph. Not the grid itself: a graph makes its own objects."""
    return _pieces.get((axis, rule, device, dtype), lambda: quadrature(axis, rule).pieces(device, dtype))


def made_of(pieces: tuple[Any, ...]) -> Grid:
    """The grid of ``pieces_on``."""
    lines = pieces[-1]
    return Grid(*pieces[:-1], None if lines is None else tuple(made_of(line) for line in lines))  # type: ignore[call-arg]


@constants.bounded(512)
def quadrature(axis: Axis, rule: Rule) -> Quadrature:
    """Return the nodes and weights of ``rule`` on ``axis`` as plain numbers."""
    if rule.n < 1:
        raise GridError(f"{type(rule).__name__} needs at least one node", got=rule.n, remedy="Use n ≥ 1.")
    if isinstance(axis, Points):
        return _on_points(axis, rule)
    if isinstance(axis, Product):
        return _on_product(axis, rule)
    if isinstance(axis, Times):
        if axis.start is None or axis.end is None:
            raise GridError(
                "Times() has no ends to lay a rule on", got=rule, remedy="Give stamps, or Times(start, end)."
            )
        axis = Interval(axis.start, axis.end)
    with constants.outside_modes():  # some rules draw their nodes
        u, w = rule.reference(axis.periodic)
    left = w / 2 if rule.halves else np.clip(u - (np.cumsum(w) - w), 0.0, w)
    mass = mass_of(axis)
    return Quadrature(interned(axis.start + axis.length * u[:, None]), mass * w, mass * left)


@constant_result
def node_numbers(axis: Axis, rule: Rule) -> tuple[float, ...]:
    """The nodes of a rule on a line as plain numbers."""
    return tuple(quadrature(axis, rule).nodes.values[:, 0].tolist())


def _on_points(axis: Points, rule: Rule) -> Quadrature:
    if not isinstance(rule, Counting | Nested):
        raise GridError("Points has no geometry for this rule", got=rule, remedy="Use Counting(n) or Nested(n).")
    total = axis.n or rule.n
    if rule.n > total or (isinstance(rule, Counting) and rule.n != total):
        remedy = f"Use Nested(n) with n ≤ {total}, or a continuous axis: Interval() or Circle()."
        raise GridError(f"the axis has exactly {total} points", got=f"{rule.n} nodes", remedy=remedy)
    order = rule.first if isinstance(rule, Nested) and len(rule.first) == total else _bit_order(total)
    chosen = np.sort(np.asarray(order)[: rule.n])
    weights = np.full(rule.n, total / rule.n)
    return Quadrature(interned(chosen[:, None].astype(float)), weights, is_counting=rule.n == total)


@constants.bounded(64)
def _bit_order(total: int) -> NDArray[np.int64]:
    """Indices 0…total−1 in van der Corput order: any first part is spread evenly."""
    size = 1 << max(total - 1, 0).bit_length()
    order = (radical_inverse(size) * size).astype(np.int64)
    return order[order < total]


def taken_first(axis: Axis, rule: Nested) -> NDArray[np.int64]:
    """The stored indices of native nested nodes, in the order in which smaller grids take them."""
    if rule.first:
        return np.array(rule.first, dtype=np.int64)
    if isinstance(axis, Points):
        return _bit_order(rule.n)
    return np.argsort(np.argsort(radical_inverse(rule.n)))


def _on_product(axis: Product, rule: Rule) -> Quadrature:
    if not isinstance(rule, ProductRule) or len(rule.factors) != axis.dim:
        remedy = f"Write ProductRule((…)) with {axis.dim} rules, or Samples() for scattered points."
        raise GridError(f"a box of dimension {axis.dim} needs a rule for each factor", got=rule, remedy=remedy)
    lines = tuple(quadrature(f, r) for f, r in zip(axis.factors, rule.factors, strict=True))
    nodes = np.stack(np.meshgrid(*[line.nodes.values[:, 0] for line in lines], indexing="ij"), -1)
    weights = functools.reduce(np.multiply.outer, [line.weights for line in lines]).reshape(-1)
    weights = weights * mass_of(axis) / weights.sum()
    return Quadrature(interned(nodes.reshape(-1, axis.dim)), weights, lines=lines)
