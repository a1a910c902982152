"""Exact attention to a few sources of each query: neighbours in time, or in phase. No pair outside is looked at."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from continua import constants
from continua.axes import Grid, counting
from continua.checks import looking
from continua.config import register
from continua.errors import ConfigError
from continua.operators.attention.plan import Plan, Scores
from continua.operators.kernels.blocks import Blocks, Runs, attend_runs, check_runs, runs, sorted_along, stamps
from continua.operators.kernels.kernel import Dot, Kernel, Softmax, Way
from continua.operators.mask import Mask, Strided, Window
from continua.typing import PerQuery, PerSource, Tensor

SLACK = 4e-6  # a run is a hair wider than the mask's own hair; the mask decides


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{name} needs a length above zero", got=value, remedy="Give it in the unit of the stamps.")


def _rounding(t: Grid, s: Grid) -> float:
    """How far float stamps may be off."""
    largest = max(float(grid.nodes.detach().abs().amax()) for grid in (t, s))
    return 4 * torch.finfo(t.nodes.dtype).eps * largest


@dataclass(frozen=True)
class _Blocks(Dot):
    """Exact attention of blocks of queries to the few sources that they may see."""

    is_exact: ClassVar[bool] = True
    order: ClassVar[float] = torch.inf

    def way(self, mask: Mask | None) -> Way:
        """The surroundings are fetched; the teeth of a comb are everywhere."""
        return Way.FETCHED if mask is not None and mask.is_local else Way.GATHERED

    def attend(self, q: PerQuery, k: PerSource, v: PerSource, plan: Any, scores: Any) -> PerQuery:
        """Softmax attention block by block."""
        return attend_runs(q, k, v, plan, scores)


@register
@dataclass(frozen=True)
class Local(_Blocks):
    """κ = exp(τ ∫QK dμ(e)) where |t − s| ≤ radius, zero elsewhere: O(n·w) time and memory for w sources in a window.

    Exactly softmax attention under ``Window(radius)``, on stamps of any kind and in any order, with any other mask
    and any position. Discrete case: a band of width 2·radius + 1.
    """

    radius: float

    def __post_init__(self) -> None:
        _positive("Local", self.radius)

    def plain(self, mask: Mask | None) -> tuple[Kernel, Mask | None]:
        """Softmax under the window."""
        window = Window(self.radius)
        return Softmax(self.temperature), window if mask is None else window & mask

    def prepare(self, plan: Plan, scores: Scores, t: Grid, s: Grid) -> Runs:
        """Blocks of queries and the sources within the radius of some query of the block."""
        causal = plan.mask is not None and plan.mask.is_causal
        made = runs_of(self, plan, t, s, causal)
        if plan.unsure and looking():
            check_runs(plan, replace(scores, prepared=made), t)
        return made

    def runs(self, t: Grid, s: Grid, itself: bool, causal: bool) -> Runs:
        """The blocks of these stamps."""
        before = (1 + SLACK) * self.radius + _rounding(t, s)
        queries = sorted_along(*stamps(t, "Local"))
        sources = queries if itself else sorted_along(*stamps(s, "Local"))
        queries, sources = _alike(queries, sources)
        most = torch.full((len(queries[0]),), len(s), device=queries[0].device)
        return runs(queries, sources, before, 0.0 if causal else before, most)


@register
@dataclass(frozen=True)
class Comb(_Blocks):
    """κ = exp(τ ∫QK dμ(e)) where t − s is within ``width``/2 of a multiple of ``stride``, zero elsewhere.

    Exactly softmax attention under ``Strided(stride, width)``: sources are sorted by their phase s mod stride, where
    the teeth of the comb are one window. O(n²·width/stride) time, so O(n^1.5) with a stride that grows like √n.
    Discrete case: every stride-th token (width 0).
    """

    stride: float
    width: float = 0.0

    def __post_init__(self) -> None:
        _positive("Comb", self.stride)

    def plain(self, mask: Mask | None) -> tuple[Kernel, Mask | None]:
        """Softmax under the strided mask."""
        teeth = Strided(self.stride, self.width)
        return Softmax(self.temperature), teeth if mask is None else teeth & mask

    def prepare(self, plan: Plan, scores: Scores, t: Grid, s: Grid) -> Runs:
        """Blocks of queries along the phase; sources one turn before and after stand for the circle."""
        made = runs_of(self, plan, t, s, False)
        if plan.unsure and looking():
            check_runs(plan, replace(scores, prepared=made), t)
        return made

    def runs(self, t: Grid, s: Grid, itself: bool, causal: bool) -> Runs:
        """The blocks of these stamps."""
        reach = self.width / 2 + SLACK * self.stride + _rounding(t, s)
        times, observed = stamps(t, "Comb")
        queries = sorted_along(times.remainder(self.stride), observed)
        own = (times, observed) if itself else stamps(s, "Comb")
        phase, numbers = sorted_along(own[0].remainder(self.stride), own[1])
        turns = torch.cat([phase + turn * self.stride for turn in (-1, 0, 1)], -1).sort(dim=-1, stable=True)
        sources = turns.values, numbers.repeat(1, 3).gather(-1, turns.indices)
        queries, sources = _alike(queries, sources)
        present = own[1].sum(-1).clamp_min(1).expand(len(queries[0]))
        return runs(queries, sources, reach, reach, present)


_kept = constants.Cache(256)


def runs_of(kernel: Local | Comb, plan: Plan, t: Grid, s: Grid, causal: bool) -> Runs:
    """The blocks of queries ``t``, and in parts those of each of the two chunks of a process."""
    if plan.layout is not None:
        return _by_chunks(kernel, t, s, plan.layout.chunk, causal)
    if plan.itself and t.is_counting and t.is_ordered:
        return counted_runs(kernel, t, causal)
    return kernel.runs(t, s, plan.itself, causal)


def _by_chunks(kernel: Local | Comb, t: Grid, s: Grid, chunk: int, causal: bool) -> Runs:
    """Chunks lie far apart: a block with queries of both would see all that is between them."""
    groups = []
    samples = 1
    for start in (0, chunk):
        made = kernel.runs(t.some(np.arange(start, start + chunk)), s, False, causal)
        samples = made.samples
        for group in made.groups:
            rows = torch.where(group.rows < chunk, group.rows + start, len(t))
            groups.append(replace(group, rows=rows))
    return Runs(groups, samples)


def counted_runs(kernel: Local | Comb, t: Grid, causal: bool) -> Runs:
    """The blocks of counted tokens in order: known from their number alone, so no value is read."""
    device = t.nodes.device
    key = (kernel, t.start, len(t), causal, device)

    def make() -> Runs:
        with constants.outside_modes():
            tokens = counting(len(t), torch.empty((), dtype=torch.float64), t.start)
            made = kernel.runs(tokens, tokens, True, causal)
            arrays = [[x.numpy() for x in (one.sample, one.rows, one.sources, one.inside)] for one in made.groups]
        groups = [
            [constants.tensor(x, device, torch.bool if x.dtype == bool else torch.long) for x in a] for a in arrays
        ]
        return Runs([Blocks(*group) for group in groups], made.samples)

    return _kept.get(key, make)


Pair = tuple[Tensor, Tensor]


def _alike(queries: Pair, sources: Pair) -> tuple[Pair, Pair]:
    """One set of stamps for all samples, or one for each, on both sides."""
    samples = max(len(queries[0]), len(sources[0]))
    spread = [tuple(x.expand(samples, -1) for x in pair) for pair in (queries, sources)]
    return (spread[0][0], spread[0][1]), (spread[1][0], spread[1][1])
