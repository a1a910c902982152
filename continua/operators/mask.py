"""Masks: the support of the attention kernel and, for ``Causal``, the measure of a row's own cell.

Every mask is a function of *real* times, so irregular stamps need nothing new. A product is written ``a & b``.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch

from continua import constants
from continua.config import register
from continua.constants import constant_result
from continua.errors import MaskError
from continua.typing import Bool, Float, Tensor

HAIR = 4e-6  # a span is wider than a mask by more than rounding: the mask decides


class Mask:
    """Which sources s a query t may look at."""

    def allowed(self, t: Float[Tensor, "*#b t k"], s: Float[Tensor, "*#b s k"]) -> Bool[Tensor, "*b t s"]:
        """Return True where query t may attend to source s."""
        raise NotImplementedError

    @property
    def is_causal(self) -> bool:
        """Whether a row integrates over the past only."""
        return False

    @property
    def sees_itself(self) -> bool:
        """Whether every query is sure to see its own token; if not, rows are checked for having any key at all."""
        return False

    @property
    def is_local(self) -> bool:
        """Whether a query sees its surroundings alone, those that ``span`` gives."""
        return False

    def span(self, low: Float[Tensor, "*b k"], high: Float[Tensor, "*b k"]) -> tuple[Tensor, Tensor]:
        """The corners of a box that holds all that queries between ``low`` and ``high`` may look at."""
        return torch.full_like(low, -torch.inf), torch.full_like(high, torch.inf)

    def __and__(self, other: "Mask") -> "Both":
        return Both(self, other)


def _difference(t: Tensor, s: Tensor) -> Tensor:
    """t − s for 1-D times: [..., t, s]."""
    if t.shape[-1] != 1:
        raise MaskError("this mask orders time", got=f"{t.shape[-1]}-dimensional points", remedy="Use Window(r) there.")
    return t - s.mT


@register
@dataclass(frozen=True)
class Causal(Mask):
    """Row t integrates over (−∞, t].

    On a Lebesgue axis earlier nodes keep their weights and the row's own node gets the part of its cell left of it
    (``Grid.left``), so no row uses a later stamp. Discrete case: the lower triangle, diagonal included.
    """

    @property
    def is_causal(self) -> bool:
        """Yes."""
        return True

    @property
    def sees_itself(self) -> bool:
        """At distance zero."""
        return True

    def span(self, low: Float[Tensor, "*b k"], high: Float[Tensor, "*b k"]) -> tuple[Tensor, Tensor]:
        """Nothing later than the last query."""
        return torch.full_like(low, -torch.inf), high

    def allowed(self, t: Float[Tensor, "*#b t k"], s: Float[Tensor, "*#b s k"]) -> Bool[Tensor, "*b t s"]:
        """s ≤ t; equal stamps see each other."""
        return _difference(t, s) >= 0


@register
@dataclass(frozen=True)
class Window(Mask):
    """|t − s| ≤ radius (in any dimension). Discrete case: a band of width 2·radius + 1."""

    radius: float

    @property
    def sees_itself(self) -> bool:
        """At distance zero."""
        return True

    @property
    def is_local(self) -> bool:
        """A ball is bounded."""
        return True

    def span(self, low: Float[Tensor, "*b k"], high: Float[Tensor, "*b k"]) -> tuple[Tensor, Tensor]:
        """The box and the radius; a hair wider than the mask's own hair."""
        wide = torch.full_like(low[..., :1], self.radius * (1 + HAIR))
        if low.shape[-1] > 1:  # distances of points are roots of sums that cancel
            far = torch.maximum(low.abs(), high.abs()).amax(-1, keepdim=True)
            wide = wide + HAIR * far.square() / self.radius
        return low - wide, high + wide

    def allowed(self, t: Float[Tensor, "*#b t k"], s: Float[Tensor, "*#b s k"]) -> Bool[Tensor, "*b t s"]:
        """A ball around the query; a hair wider, so that 0.1 + 0.2 is within 0.3."""
        gap = _difference(t, s).abs() if t.shape[-1] == 1 else torch.cdist(t, s)
        return gap <= self.radius * (1 + 1e-6)


@register
@dataclass(frozen=True)
class Strided(Mask):
    """t − s within ``width``/2 of a multiple of ``stride``. Discrete case: every stride-th token (width 0)."""

    stride: float
    width: float = 0.0

    @property
    def sees_itself(self) -> bool:
        """At distance zero."""
        return True

    def allowed(self, t: Float[Tensor, "*#b t k"], s: Float[Tensor, "*#b s k"]) -> Bool[Tensor, "*b t s"]:
        """Distance to the nearest multiple of the stride."""
        gap = _difference(t, s)
        off = (gap - self.stride * torch.round(gap / self.stride)).abs()
        return off <= self.width / 2 + 1e-6 * self.stride


@register
@dataclass(frozen=True)
class Neighbours(Mask):
    """The edges of a graph: node ``targets[i]`` looks at node ``sources[i]``, and at itself unless ``itself=False``.

    Nodes are known by their number, the coordinate of a counted token; a token of any other coordinate has no edges.
    Nothing of size n² is kept: each block of rows is filled from the list of edges.
    Discrete case: the adjacency matrix of a graph attention network.
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    itself: bool = True

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.targets):
            got, remedy = f"{len(self.sources)} and {len(self.targets)}", "Give one source for each target."
            raise MaskError("every edge has two ends", got=got, remedy=remedy)
        if any(not isinstance(node, int) or node < 0 for node in (*self.sources, *self.targets)):
            remedy = "Number the nodes from 0 up."
            raise MaskError("nodes are whole numbers from zero", got="another number in the edges", remedy=remedy)

    @classmethod
    def of(cls, edges: Tensor, itself: bool = True) -> "Neighbours":
        """Return the mask of an edge list [2, m]: a row of sources and a row of targets."""
        if edges.dim() != 2 or len(edges) != 2 or edges.is_floating_point() or edges.dtype == torch.bool:
            remedy = "Give a row of sources and a row of targets, whole numbers."
            raise MaskError("edges need shape [2, m]", got=f"{edges.dtype} {list(edges.shape)}", remedy=remedy)
        return cls(tuple(edges[0].tolist()), tuple(edges[1].tolist()), itself)

    @property
    def sees_itself(self) -> bool:
        """Unless told otherwise."""
        return self.itself

    def allowed(self, t: Float[Tensor, "*#b t k"], s: Float[Tensor, "*#b s k"]) -> Bool[Tensor, "*b t s"]:
        """Whether s → t is an edge."""
        if t.shape[-1] != 1 or s.shape[-1] != 1:
            raise MaskError("edges join numbered nodes", got="points of a plane", remedy="Use counted tokens there.")
        count = self.count
        to = _numbers(t, count)
        back = _numbers(s, count)
        there = (
            self._listed(to, t.device) if torch.compiler.is_compiling() or t.device.type != "cpu" else self._filled(to)
        )
        found = there.gather(-1, back[..., None, :].expand(*to.shape, back.shape[-1]))
        return found | (t == s.mT) if self.itself else found

    @property
    def count(self) -> int:
        """One more than the largest number of a node."""
        return 1 + max((*self.sources, *self.targets), default=-1)

    def _listed(self, to: Tensor, device: torch.device) -> Tensor:
        """Which sources each row sees, [*b, t, count + 1], from lists as long as the longest: no value is read."""
        lists = self._lists(device)[0][to]  # [*b, t, longest]
        there = torch.zeros(*to.shape, self.count + 2, dtype=torch.bool, device=device)
        return there.scatter(-1, lists, True)[..., :-1]

    @constant_result
    def _lists(self, device: torch.device) -> tuple[Tensor]:
        """The sources of each target, filled up with a number that is no node's."""
        found: list[list[int]] = [[] for _ in range(self.count + 1)]
        for source, target in zip(self.sources, self.targets, strict=True):
            found[target].append(source)
        longest = max(1, *(len(row) for row in found))
        filled = [row + [self.count + 1] * (longest - len(row)) for row in found]
        return (constants.tensor(np.array(filled), device, torch.long),)

    def _filled(self, to: Tensor) -> Tensor:
        """The same from the edges alone: nothing is as long as the longest list."""
        starts, sources = self._rows
        count = self.count
        first, rows = starts[to.flatten()], torch.arange(to.numel(), device=to.device)
        degrees = starts[to.flatten() + 1] - first
        rows = rows.repeat_interleave(degrees)
        skipped = (degrees.cumsum(0) - degrees).repeat_interleave(degrees)  # edges of the rows before
        edges = torch.arange(len(rows), device=to.device) - skipped + first.repeat_interleave(degrees)
        there = torch.zeros(to.numel(), count + 1, dtype=torch.bool, device=to.device)
        there[rows, sources[edges]] = True
        return there.view(*to.shape, count + 1)

    @functools.cached_property
    def _rows(self) -> tuple[Tensor, Tensor]:
        """Where the edges of each target start, and the sources sorted by target (no edges for the one past the last).

        The first tensor has two entries more than there are nodes.
        """
        sources, targets = (torch.tensor(ends, dtype=torch.long) for ends in (self.sources, self.targets))
        count = 1 + max((*self.sources, *self.targets), default=-1)
        degrees = torch.bincount(targets, minlength=count + 1)
        starts = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        return starts, sources[targets.argsort()]


def _numbers(nodes: Tensor, count: int) -> Tensor:
    """Coordinates as node numbers; one that is no node's gets ``count``, which has no edges."""
    near = nodes[..., 0].round()
    known = (near == nodes[..., 0]) & (near >= 0) & (near < count)
    return torch.where(known, near, count).long()


@register
@dataclass(frozen=True)
class Both(Mask):
    """The product of two masks."""

    first: Mask
    second: Mask

    @property
    def is_causal(self) -> bool:
        """If either is."""
        return self.first.is_causal or self.second.is_causal

    @property
    def sees_itself(self) -> bool:
        """If both do."""
        return self.first.sees_itself and self.second.sees_itself

    @property
    def is_local(self) -> bool:
        """If either is."""
        return self.first.is_local or self.second.is_local

    def span(self, low: Float[Tensor, "*b k"], high: Float[Tensor, "*b k"]) -> tuple[Tensor, Tensor]:
        """What both boxes hold."""
        first = self.first.span(low, high)
        second = self.second.span(low, high)
        return torch.maximum(first[0], second[0]), torch.minimum(first[1], second[1])

    def allowed(self, t: Float[Tensor, "*#b t k"], s: Float[Tensor, "*#b s k"]) -> Bool[Tensor, "*b t s"]:
        """Allowed by both."""
        return self.first.allowed(t, s) & self.second.allowed(t, s)


@register
@dataclass(frozen=True)
class ByDepth(Mask):
    """A mask of its own for each unit of depth, or none: ``masks[i]`` for z in [i, i + 1), the last one beyond.

    Discrete case: layers that differ in what they see, such as windows in turn with the whole past.
    """

    masks: tuple[Mask | None, ...]

    def __post_init__(self) -> None:
        if not self.masks or any(isinstance(mask, ByDepth) for mask in self.masks):
            got = "none" if not self.masks else "masks by depth inside"
            raise MaskError("every depth has one mask", got=got, remedy="Give a mask for each layer.")

    @property
    def kinds(self) -> tuple[Mask | None, ...]:
        """The masks that differ, in order of appearance."""
        return tuple(dict.fromkeys(self.masks))

    @property
    def order(self) -> tuple[int, ...]:
        """For each unit of depth, which of ``kinds`` serves it."""
        kinds = self.kinds
        return tuple(kinds.index(mask) for mask in self.masks)

    @property
    def is_causal(self) -> bool:
        """If all are."""
        return all(mask is not None and mask.is_causal for mask in self.masks)

    @property
    def sees_itself(self) -> bool:
        """If all do."""
        return all(mask is None or mask.sees_itself for mask in self.masks)

    def allowed(self, t: Float[Tensor, "*#b t k"], s: Float[Tensor, "*#b s k"]) -> Bool[Tensor, "*b t s"]:
        """Allowed in some depth."""
        each = [t == s.mT if mask is None else mask.allowed(t, s) for mask in self.kinds]
        found = torch.ones_like(each[0]) if None in self.kinds else each[0]
        for allowed in each[1:]:
            found = found | allowed
        return found
