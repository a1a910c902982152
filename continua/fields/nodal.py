"""Nodal bases: one number for each node, and a way to read between nodes."""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch

from continua import constants
from continua.axes import Axis, Circle, Points, Rule, node_numbers, quadrature
from continua.config import register
from continua.errors import GridError
from continua.fields.basis import bspline
from continua.typing import Float, Tensor


@runtime_checkable
class Interpolation(Protocol):
    """How a function is read between its nodes. ``order`` is p in error = O(spacing^p)."""

    @property
    def order(self) -> float:
        """The power of the spacing in the error."""
        ...

    def matrix(
        self, x: Float[Tensor, "*b n"], nodes: Float[Tensor, "q"], period: float | None
    ) -> Float[Tensor, "*b n q"]:
        """Return C with f(x_i) ≈ Σ_j C_ij f(nodes_j)."""
        ...


@register
@dataclass(frozen=True)
class Hold:
    """f(x) = f(the last node ≤ x): the left-node convention of depth. Discrete case: the weight of the layer."""

    order: ClassVar[float] = 1.0

    def matrix(
        self, x: Float[Tensor, "*b n"], nodes: Float[Tensor, "q"], period: float | None
    ) -> Float[Tensor, "*b n q"]:
        """One-hot rows."""
        return torch.nn.functional.one_hot(self.index(x, nodes, period), nodes.numel()).to(x.dtype)

    def index(self, x: Tensor, nodes: Tensor, period: float | None) -> Tensor:
        """Which node each x reads. A hair of slack keeps 0.1 + 0.2 on the node 0.3."""
        slack = 1e-9 * (period or float(nodes[-1] - nodes[0]) or 1.0)
        found = torch.searchsorted(nodes.contiguous(), (x.detach() + slack).contiguous(), right=True) - 1
        return found % nodes.numel() if period else found.clamp_min(0)


@register
@dataclass(frozen=True)
class Linear:
    """Straight lines between nodes, continued beyond the outer ones; order 2."""

    order: ClassVar[float] = 2.0

    def matrix(
        self, x: Float[Tensor, "*b n"], nodes: Float[Tensor, "q"], period: float | None
    ) -> Float[Tensor, "*b n q"]:
        """Hat functions."""
        return _spline(x, nodes, period, degree=1)


@register
@dataclass(frozen=True)
class Cubic:
    """The cubic spline through the nodes (not-a-knot ends, or periodic); order 4."""

    order: ClassVar[float] = 4.0

    def matrix(
        self, x: Float[Tensor, "*b n"], nodes: Float[Tensor, "q"], period: float | None
    ) -> Float[Tensor, "*b n q"]:
        """Cardinal splines."""
        return _spline(x, nodes, period, degree=3)


@register
@dataclass(frozen=True)
class Trigonometric:
    """The trigonometric polynomial through uniform nodes of a circle (Fourier resampling); spectral."""

    order: ClassVar[float] = math.inf

    def matrix(
        self, x: Float[Tensor, "*b n"], nodes: Float[Tensor, "q"], period: float | None
    ) -> Float[Tensor, "*b n q"]:
        """Dirichlet kernels D(x_i − node_j); for an even count the Nyquist cosine enters once."""
        if period is None:
            raise GridError("Trigonometric reads functions on a circle", got="another axis", remedy="Use Circle().")
        n = nodes.numel()
        k = torch.arange(1, (n - 1) // 2 + 1, dtype=x.dtype, device=x.device) * (2 * math.pi / period)
        waves_x, waves_n = x[..., None] * k, nodes[:, None] * k
        kernel = 1 + 2 * (waves_x.cos() @ waves_n.cos().T + waves_x.sin() @ waves_n.sin().T)
        if n % 2 == 0:
            kernel = kernel + ((x[..., None] - nodes) * (math.pi * n / period)).cos()
        return kernel / n


@register
@dataclass(frozen=True)
class Nodal:
    """f(x) = Σ_j f_j C_j(x) with C_j(node_i) = δ_ij: the coefficients are the values at the nodes of ``rule``.

    Discrete case: on its own grid the field is the stored tensor; ``Nodal(Counting(n), Hold())`` is a weight axis.
    """

    rule: Rule
    how: Interpolation = Hold()

    @property
    def size(self) -> int:
        """The number of nodes."""
        return self.rule.n

    @property
    def spread(self) -> float:
        """Each node carries one coefficient."""
        return 1.0

    def native_key(self, axis: Axis) -> int | None:
        """The key of the rule's own nodes."""
        return quadrature(axis, self.rule).nodes.key

    def matrix(self, axis: Axis, nodes: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b n size"]:
        """Read the nodal values at other nodes."""
        own = self._nodes(axis, nodes)
        if own.numel() == 1:
            return torch.ones_like(nodes)
        return self.how.matrix(nodes[..., 0], own, axis.length if isinstance(axis, Circle) else None)

    def _nodes(self, axis: Axis, like: Tensor) -> Tensor:
        """The nodes of the rule [n]."""
        return constants.numbers(node_numbers(axis, self.rule), like.device, like.dtype)

    def rows(self, axis: Axis, nodes: Float[Tensor, "n 1"]) -> Tensor | None:
        """Which stored values are read, where reading is picking (``Hold``, or indices of ``Points``)."""
        own = self._nodes(axis, nodes)
        if not isinstance(self.how, Hold) and not (isinstance(axis, Points) and _integers(nodes)):
            return None
        return Hold().index(nodes[:, 0], own, axis.length if isinstance(axis, Circle) else None)


def _integers(nodes: Tensor) -> bool:
    return bool((nodes == nodes.round()).all())


def _spline(x: Tensor, nodes: Tensor, period: float | None, degree: int) -> Tensor:
    """Spline interpolation as a matrix: B(x) B(nodes)⁻¹, with the interior knots at nodes."""
    if period is not None:
        n = nodes.numel()
        turns = max(1, math.ceil(16 / n))  # far ends: their influence decays by 0.27 a node
        far = torch.cat([nodes + turn * period for turn in range(-turns, turns + 1)])
        start = nodes[0]
        wrapped = _spline((x - start) % period + start, far, None, degree)
        return wrapped.reshape(*x.shape, 2 * turns + 1, n).sum(-2)
    degree = min(degree, nodes.numel() - 1)
    trim = (degree + 1) // 2
    inner = nodes[trim : nodes.numel() - trim]
    knots = torch.cat([nodes[:1].expand(degree + 1), inner, nodes[-1:].expand(degree + 1)])
    return torch.linalg.solve(bspline(nodes, knots, degree).T, bspline(x, knots, degree).mT).mT
