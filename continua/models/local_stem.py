"""Irregular series as fewer tokens: straight lines between the points, and local kernels of relative time."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.nn.functional import conv1d, gelu

from continua import memory
from continua.axes import Grid, Grids
from continua.checks import looking
from continua.config import register
from continua.errors import ConfigError, GridError, ShapeError
from continua.fields import Parametrisation, Role, Use, kernel_std
from continua.fields.role import LIFT, SHIFT
from continua.models.batch import Batch
from continua.models.embed import Embedding, added, observed_only
from continua.operators import Encoding
from continua.settings import Size
from continua.typing import Tensor

BESIDE = 2  # channels that the stem adds: how far the nearest point is, and whether the series is still running
FIRST = 5  # nodes that the first kernel sees
LATER = 3  # nodes that every further kernel sees
CLOSE = 0.5  # units of time within which a point is as good as there
LIMIT = 10**6  # nodes of one series


class StemTables(NamedTuple):
    """Kernels [d, channels, taps] on the d grid, the later ones with its measure, their biases, and positions."""

    kernels: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    position: Any


@register
class LocalStem(Embedding):
    """X(0, t, d) = x_L(t, d) + p(t, d), x_l(t, d) = φ(∫∫ K_l(s − t, d, c) x_(l−1)(s, c) dμ(c) dμ(s) + b_l(d)).

    x_0(s) is the observed function: straight lines between its points, constant beyond them, with log(1 + distance to
    the nearest point beyond half a unit), and one while the series lasts, zero behind its end. It is read at the nodes
    0, 1, 2 … of the clock, however the points lie; kernels K_l are functions of relative time, known at the nodes
    around zero. Layer l answers at every ``strides[l]``-th node of the one before, so that the flow behind sees one
    token for Π strides units of time. φ is GELU, and what lies behind the end of a series is zero in every layer. There
    are tokens for ``span`` units of time, or, without it, for the longest series of the batch.
    Discrete case: on points 0 … n−1 ``nn.Conv1d(channels + 2, d, 5, stride, padding=2)`` and convolutions of width 3.
    """

    def __init__(
        self,
        weights: Parametrisation,
        channels: Size,
        strides: tuple[Size, ...] = (2, 2, 2),
        position: Encoding | None = None,
        span: Size | None = None,
    ) -> None:
        super().__init__()
        if not strides:
            raise ConfigError("a stem has a layer or more", got=strides, remedy="Use strides=(2, 2, 2).")
        self.channels = channels
        self.strides = tuple(strides)
        self.position = position
        self.span = span
        entries = (channels + BESIDE) * FIRST
        self.first = weights.table(entries, "d", std=entries**-0.5, role=LIFT)
        std = kernel_std(weights, "c") * LATER**-0.5
        many = LATER * (len(self.strides) - 1)
        self.later = weights.table(many, "dc", std=std, role=Role(Use.KERNEL, "c")) if many else None
        self.bias = weights.table(len(self.strides), "d", std=0.02, role=SHIFT)

    @property
    def stride(self) -> int:
        """Units of time of one token."""
        return math.prod(self.strides)

    def lay(self, batch: Batch) -> Batch:
        """Read the lines between the points at whole units of time; ``stride`` of these make a token."""
        values = batch.values
        if not isinstance(values, Tensor) or values.dim() != 3 or values.shape[-1] != self.channels:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(f"observations need shape [b, t, {self.channels}]", got=got, remedy="Check the channels.")
        times = self._stamps(batch, values)
        there = torch.ones_like(times, dtype=torch.bool) if batch.observed is None else batch.observed != 0
        there = there.expand(times.shape)
        end = torch.where(there, times, -torch.inf).amax(-1, keepdim=True)
        tokens = self._count(times, there, end)
        nodes = torch.arange(tokens * self.stride, device=times.device, dtype=times.dtype)
        running = (nodes <= end).to(values)[..., None]
        laid = torch.cat([straight(values, times, there, nodes) * running, running], -1)
        weights = running[..., 0].unflatten(-1, (tokens, self.stride)).sum(-1).to(times)
        grid = Grid(nodes[:: self.stride, None], weights, is_ordered=True, has_gaps=True)
        flat = laid.unflatten(1, (tokens, self.stride)).flatten(2)
        return replace(batch, values=flat, grid=grid, times=None, observed=None)

    @staticmethod
    def _stamps(batch: Batch, values: Tensor) -> Tensor:
        """The stamps of each sample [b, t]; points without any are counted."""
        if batch.grid is not None:
            return batch.grid.nodes[..., 0].double().expand(values.shape[:2])
        if batch.times is None:
            return torch.arange(values.shape[1], device=values.device, dtype=torch.float64).expand(values.shape[:2])
        times = batch.times[..., 0] if batch.times.dim() == 3 else batch.times
        return times.to(values.device, torch.float64).expand(values.shape[:2])

    def _count(self, times: Tensor, there: Tensor, end: Tensor) -> int:
        """How many tokens there are."""
        if looking():
            self._check(times, there, end)
        elif self.span is None and torch.compiler.is_compiling():
            remedy = "Make the stem with span=…, the units of time of the longest series."
            raise GridError("a program needs to know how long series are", got="span=None", remedy=remedy)
        longest = float(end.max()) if self.span is None else self.span - 1
        return int(longest // self.stride) + 1

    def _check(self, times: Tensor, there: Tensor, end: Tensor) -> None:
        """Refuse what has no place on the nodes."""
        if not bool(torch.isfinite(end).all()):
            remedy = "Drop the series, or mark at least one point as observed."
            raise GridError("a series needs an observed point at a finite time", got="one without", remedy=remedy)
        if bool((times[there] < 0).any()):
            got = f"{float(times[there].min()):g}"
            remedy = "Count time from the first point of all series, or from that of each."
            raise GridError("a stem reads the clock from zero on", got=got, remedy=remedy)
        longest = float(end.max())
        if longest >= (LIMIT if self.span is None else self.span):
            remedy = "Count time in a longer unit, or make the stem with a longer span."
            limit = LIMIT if self.span is None else self.span
            raise GridError(f"a stem reads {limit} units of time at most", got=f"{longest:g}", remedy=remedy)
        bytes_ = 8 * int(longest + 1) * len(times) * (self.channels + BESIDE)
        memory.require(bytes_, "the lines of these series", "Use fewer at once.")

    def read(self, grids: Grids) -> StemTables:
        """Kernels, biases and positions."""
        d = grids.d
        first = self.first.on(d=d).mT.reshape(d.count, self.channels + BESIDE, FIRST)
        kernels = [first]
        if self.later is not None:
            later = self.later.on(d=d, c=d)  # [(l taps), d, c]
            later = later if d.is_unit else later * d.weights.to(later)
            kernels += [part.permute(1, 2, 0) for part in later.split(LATER)]
        position = None if self.position is None else self.position.read(d)
        return StemTables(tuple(kernels), tuple(self.bias.on(d=d).unbind(0)), position)

    def forward(self, batch: Batch, grids: Grids, read: StemTables | None = None) -> Tensor:
        """Convolve; behind the end of a series nothing is left."""
        grids.tokens.require_whole(type(self).__name__)
        values = batch.values
        width = self.channels + BESIDE
        if not isinstance(values, Tensor) or values.dim() != 3 or values.shape[-1] != self.stride * width:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            remedy = "Let the model lay them."
            raise ShapeError(f"a token holds {self.stride} nodes of {width} numbers", got=got, remedy=remedy)
        tables = self.read(grids) if read is None else read
        x = values.to(tables.kernels[0]).unflatten(2, (self.stride, width)).flatten(1, 2).mT  # [b, c, nodes]
        running = x[:, -1:]
        for kernel, bias, stride in zip(tables.kernels, tables.biases, self.strides, strict=True):
            running = running[..., ::stride]
            x = gelu(conv1d(x, kernel, bias, stride=stride, padding=kernel.shape[-1] // 2)) * running
        return observed_only(added(self.position, x.mT, grids, tables.position), grids.tokens)


def straight(values: Tensor, times: Tensor, there: Tensor, nodes: Tensor) -> Tensor:
    """Straight lines between the points [b, t, c] that are ``there``, at ``nodes`` [n], and how far the nearest is.

    Returns [b, n, c + 1]; the last channel is log(1 + distance), where a distance begins at half a unit: samplings
    finer than the nodes look like the nodes' own.
    """
    stamps, order = torch.where(there, times, torch.inf).sort(dim=-1, stable=True)
    values = values.gather(1, order[..., None].expand(values.shape))
    most = there.sum(-1, keepdim=True) - 1
    right = torch.searchsorted(stamps, nodes.expand(len(stamps), -1).contiguous(), right=True)
    low = torch.minimum((right - 1).clamp_min(0), most)
    high = torch.minimum(right, most)
    before = stamps.gather(1, low)
    after = stamps.gather(1, high)
    gap = after - before
    share = torch.where(gap > 0, (nodes - before) / torch.where(gap > 0, gap, 1.0), 0.0).clamp(0, 1)
    near = torch.minimum((nodes - before).abs(), (nodes - after).abs())
    near = (near - CLOSE).clamp_min(0.0).log1p()
    first, last = (values.gather(1, at[..., None].expand(-1, -1, values.shape[-1])) for at in (low, high))
    lines = torch.lerp(first, last, share[..., None].to(values))
    return torch.cat([lines, near[..., None].to(values)], -1)
