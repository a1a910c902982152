"""A grid: nodes and weights, the discretised form of a measure."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from continua.axes.nodes import interned
from continua.axes.sharded import Layout, Shard
from continua.checks import looking
from continua.constants import constant_result
from continua.errors import GridError
from continua.typing import Bool, Float, Tensor


@dataclass(frozen=True, eq=False)
class Grid:
    """∫ f dμ ≈ Σ_i weights_i f(nodes_i).

    Leading batch dimensions are allowed (stamps of each sample). A weight of zero means *absent*: padding or a
    missing point. The flags are facts known without looking at the numbers, so that fast paths never wait for a device.

    Discrete case: ``Points(n)`` gives nodes 0…n−1 and weights one; integrals are plain sums.
    """

    nodes: Float[Tensor, "*#b n k"]  # one set of nodes may carry weights of each sample
    weights: Float[Tensor, "*#b n"]
    left: Float[Tensor, "*#b n"] | None = None  # the part of each node's cell that lies left of it (1-D, Lebesgue)
    is_counting: bool = False
    is_uniform: bool = False  # all weights are equal
    is_unit: bool = False  # all weights are one
    is_ordered: bool = False  # nodes increase strictly
    has_gaps: bool = False  # some weights may be zero
    start: int = 0  # the first node, where nodes are counted in order
    key: int | None = None  # of the nodes as plain numbers, where they are known before the data; see ``nodes_of``
    lines: "tuple[Grid, ...] | None" = None  # the grids whose product this is, first coordinate slowest
    shard: Shard | None = None  # where these are the tokens of one process among several

    def __len__(self) -> int:
        return self.nodes.shape[-2]

    @property
    def count(self) -> int:
        """The number of nodes; where it is a symbol of a compiler it stays one, which ``len`` cannot."""
        return self.nodes.shape[-2]

    @property
    def mass(self) -> Float[Tensor, "*b"]:
        """Σ weights: the measure of what is present, on all processes."""
        if self.shard is not None:
            whole: Tensor = self.shard.whole.weights.sum(-1)
            return whole
        return self.weights.sum(-1)

    @property
    def observed(self) -> Bool[Tensor, "*b n"]:
        """Which nodes are present."""
        return self.weights > 0

    @property
    def log_weights(self) -> Float[Tensor, "*b n"]:
        """log w, and a very negative finite number where w = 0.

        Built with ``where``: log 0 back-propagates NaN, and −inf times zero does too.
        """
        present = self.observed
        return torch.where(present, torch.where(present, self.weights, 1.0).log(), absent(self.weights.dtype))

    def integrate(self, values: Float[Tensor, "*b n c"]) -> Float[Tensor, "*b c"]:
        """∫ f dμ for values f(nodes_i) along the second-last dimension."""
        self._check_values(values)
        share = torch.einsum("...n,...nc->...c", self.weights.to(values.dtype), values)
        return share if self.shard is None else self.shard.layout.sum(share)

    def inner(self, f: Float[Tensor, "*b n c"], g: Float[Tensor, "*b n c"]) -> Float[Tensor, "*b c"]:
        """⟨f, g⟩ = ∫ f g dμ."""
        self._check_values(f)
        self._check_values(g)
        return self.integrate(f * g)

    def _check_values(self, values: Tensor) -> None:
        if not isinstance(values, Tensor) or not (values.is_floating_point() or values.is_complex()):
            got = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise GridError("values at nodes are a tensor of real numbers", got=got, remedy="Convert: values.float().")
        if values.dim() < 2 or values.shape[-2] != self.count:
            remedy = "Give one row of values for each node."
            raise GridError(f"values need shape […, {self.count}, c]", got=list(values.shape), remedy=remedy)

    def norm(self, values: Float[Tensor, "*b n c"]) -> Float[Tensor, "*b c"]:
        """‖f‖ = ⟨f, f⟩^½."""
        return self.inner(values, values).sqrt()

    def to(self, like: Tensor) -> "Grid":
        """Return this grid on the device and in the floating dtype of ``like``.

        Nodes along a line are never rounded: the order of stamps, and which are equal, is theirs.
        """
        wide = torch.promote_types(self.nodes.dtype, like.dtype) if self.nodes.shape[-1] == 1 else like.dtype
        if self.weights.device == like.device and self.weights.dtype == like.dtype and self.nodes.dtype == wide:
            return self
        left = None if self.left is None else self.left.to(like)
        lines = None if self.lines is None else tuple(line.to(like) for line in self.lines)
        nodes = self.nodes.to(like.device, wide)
        return replace(self, nodes=nodes, weights=_rounded(self.weights, like), left=left, lines=lines)

    def in_parts(self, layout: Layout) -> "Grid":
        """Return the tokens of this process; those that fill up its chunks are absent."""
        whole = self._taken(layout, layout.order)
        return replace(self._taken(layout, layout.own), shard=Shard(layout, whole, self))

    def _taken(self, layout: Layout, which: np.ndarray) -> "Grid":
        """Some nodes by their numbers, in no order that a fast path could count on."""
        nodes = layout.taken(self.nodes, -2, which)
        if self.is_counting and self.is_ordered:
            nodes = torch.from_numpy(which + self.start).to(nodes)[:, None].expand_as(nodes)
        return Grid(
            nodes=nodes,
            weights=layout.taken(self.weights, -1, which, 0.0),
            left=None if self.left is None else layout.taken(self.left, -1, which, 0.0),
            is_counting=self.is_counting,
            is_uniform=self.is_uniform and not layout.padded,
            is_unit=self.is_unit and not layout.padded,
            has_gaps=self.has_gaps or layout.padded,
        )

    def some(self, places: np.ndarray) -> "Grid":
        """Return the nodes at these places, in no order that a fast path could count on."""
        index = torch.from_numpy(places).to(self.weights.device)
        return Grid(
            nodes=self.nodes.index_select(-2, index),
            weights=self.weights.index_select(-1, index),
            left=None if self.left is None else self.left.index_select(-1, index),
            is_counting=self.is_counting,
            is_uniform=self.is_uniform,
            is_unit=self.is_unit,
            has_gaps=self.has_gaps,
        )

    def require_whole(self, who: str) -> None:
        """Refuse tokens in parts, for what looks at all of them at once."""
        if self.shard is not None:
            remedy = "Mix tokens by attention with kernel=Softmax() or Local(r), or leave Sharded out."
            raise GridError(f"{who} needs all tokens on one process", got="tokens in parts", remedy=remedy)

    def only(self, observed: Bool[Tensor, "*b n"]) -> "Grid":
        """Return this grid with the unobserved nodes absent (weight zero)."""
        if not isinstance(observed, Tensor) or observed.dim() < 1 or observed.shape[-1] != self.count:
            is_row = isinstance(observed, Tensor) and observed.dim() > 0
            got = observed.shape[-1] if is_row else type(observed).__name__
            raise GridError(f"observed needs {self.count} entries", got=got, remedy="One flag per node.")
        observed = observed if observed.dtype == torch.bool else observed != 0
        weights = torch.where(observed, self.weights, 0.0)
        left = None if self.left is None else torch.where(observed, self.left, 0.0)
        return Grid(
            nodes=self.nodes,
            weights=weights,
            left=left,
            is_counting=self.is_counting,
            is_ordered=self.is_ordered,
            has_gaps=True,
            start=self.start,
            key=self.key,
        )

    def union(self, other: "Grid") -> "Grid":
        """The disjoint union of two grids (a CLS token, memory slots): masses add, nothing is shared."""
        if not isinstance(other, Grid):
            raise GridError("a union is made of two grids", got=type(other).__name__, remedy="Make it: grid_on(…).")
        if self.nodes.shape[-1] != other.nodes.shape[-1]:
            raise GridError(
                "a union needs nodes of one dimension",
                got=(self.nodes.shape[-1], other.nodes.shape[-1]),
                remedy="Give the extra slots coordinates of the same domain.",
            )
        lead = torch.broadcast_shapes(
            *(x.shape[:-2] for x in (self.nodes, other.nodes)), *(x.shape[:-1] for x in (self.weights, other.weights))
        )
        return Grid(
            nodes=torch.cat([grid.nodes.expand(*lead, *grid.nodes.shape[-2:]) for grid in (self, other)], -2),
            weights=torch.cat([grid.weights.expand(*lead, grid.count) for grid in (self, other)], -1),
            is_counting=self.is_counting and other.is_counting,
            is_uniform=self.is_unit and other.is_unit,
            is_unit=self.is_unit and other.is_unit,
            has_gaps=self.has_gaps or other.has_gaps,
        )


def _rounded(weights: Tensor, like: Tensor) -> Tensor:
    """Weights in another dtype; what is present stays so, however small its cell is."""
    made = weights.to(like)
    if torch.finfo(made.dtype).tiny <= torch.finfo(weights.dtype).tiny:
        return made
    return torch.where(weights > 0, made.clamp_min(torch.finfo(made.dtype).tiny), made)


def check_measure(grid: Grid) -> None:
    """Refuse weights that no measure has: below zero, NaN or infinite."""
    if not looking():
        return
    weights = grid.weights.detach()
    if not bool(((weights >= 0) & (weights < torch.inf)).all()):
        wrong = weights[~((weights >= 0) & (weights < torch.inf))][0].item()
        remedy = "Give weights from zero up (zero: absent), or Batch(times=…) to have them made."
        raise GridError("the weights of a grid are finite and not below zero", got=f"{wrong:g}", remedy=remedy)
    if not bool(torch.isfinite(grid.nodes.detach()).all()):
        remedy = "Mark missing points with a weight of zero, and give them any finite node."
        raise GridError("the nodes of a grid are finite", got="NaN or infinity", remedy=remedy)


def absent(dtype: torch.dtype) -> float:
    """Return what stands for log 0: its exp is exactly zero, and it survives a division by a small score scale."""
    return -2e3 if dtype == torch.float16 else -1e30


def counting(n: int, like: Tensor, start: int = 0) -> Grid:
    """Return the counting grid start…start+n−1 on the device and dtype of ``like``."""
    nodes = torch.arange(start, start + n, device=like.device, dtype=like.dtype)
    weights = torch.ones((), device=like.device, dtype=like.dtype).expand(n)
    return Grid(nodes[:, None], weights, is_counting=True, is_uniform=True, is_unit=True, is_ordered=True, start=start)


def counted(n: int, like: Tensor) -> Grid:
    """Return the counting grid 0…n−1 of a width, whose nodes are known before the data."""
    nodes = torch.arange(n, device=like.device, dtype=like.dtype)
    weights = torch.ones(n, device=like.device, dtype=like.dtype)
    return Grid(
        nodes[:, None],
        weights,
        is_counting=True,
        is_uniform=True,
        is_unit=True,
        is_ordered=True,
        key=_counted_key(n),
    )


@constant_result
def _counted_key(n: int) -> int:
    return interned(np.arange(float(n))[:, None]).key
