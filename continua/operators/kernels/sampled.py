"""A few sources that stand for all: nodes of a quadrature rule over the cumulated measure of the sources."""

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import torch
from torch import nn

from continua import constants
from continua.axes import Grid, Lattice, MonteCarlo, Rule, Sobol
from continua.axes.sharded import Layout
from continua.checks import refuse_in_graph
from continua.config import register
from continua.constants import constant_result
from continua.errors import ConfigError, MaskError
from continua.operators.attention.fused import attend_blocked, attend_fused, fused_with
from continua.operators.attention.plan import Plan, Scores
from continua.operators.kernels.control_variates import attend_controlled, pick
from continua.operators.kernels.kernel import Dot, Way
from continua.operators.mask import Causal, Mask
from continua.operators.position import Position
from continua.typing import PerQuery, PerSource, Tensor

ROWS = 128  # rows of a causal block: those see their own block exactly


@constant_result
@functools.lru_cache(maxsize=256)
def reference(rule: Rule, step: int = 0) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes and weights of a rule on [0, 1]; the draw is a function of its seed and the step."""
    with constants.outside_modes():
        if step and isinstance(rule, MonteCarlo | Sobol | Lattice):
            fresh = torch.Generator().manual_seed((rule.seed * 1_000_003 + step) % 2**63)
            rule = replace(rule, seed=int(torch.randint(2**62, (), generator=fresh)))
        nodes, weights = rule.reference(periodic=False)
    return tuple(nodes.tolist()), tuple(weights.tolist())


def masses(grid: Grid) -> Tensor:
    """The weights of each sample, [samples, n], in float64 where there is such a thing."""
    return grid.weights.detach().to(constants.widest(grid.weights.device)).reshape(-1, grid.count)


def in_time(grid: Grid) -> Tensor | None:
    """The numbers of the nodes in the order of time, [samples, n], where they are not in that order anyway."""
    if grid.is_ordered or grid.nodes.shape[-1] != 1:
        return None
    times, observed = torch.broadcast_tensors(grid.nodes[..., 0].detach(), grid.observed)
    return torch.where(observed, times, torch.inf).reshape(-1, grid.count).argsort(dim=-1, stable=True)


def at_quantiles(weights: Tensor, nodes: tuple[float, ...], order: Tensor | None = None) -> Tensor:
    """The sources whose cells hold these parts of the mass: [samples, m]. An absent source holds none."""
    if order is not None:
        weights, order = torch.broadcast_tensors(weights, order)
        weights = weights.gather(-1, order)
    reached = weights.cumsum(-1)
    wanted = constants.numbers(nodes, reached.device, reached.dtype) * reached[:, -1:]
    last = (reached < reached[:, -1:]).sum(-1, keepdim=True)
    found = torch.minimum(torch.searchsorted(reached, wanted.contiguous(), right=True), last)
    return found if order is None else order.gather(-1, found)


def only_causal(plan: Plan, kernel: str, causal: bool = True) -> bool:
    """Whether the plan is causal; any other mask is refused, and so is a causal one where it cannot be."""
    if plan.mask is None:
        return False
    if causal and isinstance(plan.mask, Causal) and plan.itself:
        return True
    takes = "no mask but Causal() over its own tokens" if causal else "no mask"
    remedy = "Use kernel=Local(r) for a window, or kernel=Softmax()."
    raise MaskError(f"{kernel} takes {takes}", got=plan.mask, remedy=remedy)


def overhang(t: Grid, rows: int) -> int:
    """How many tokens behind a block of rows may carry the stamp of its last one: equal stamps see each other."""
    return equal_stamps(t, rows).after


@dataclass(frozen=True)
class Equal:
    """How many tokens before the start, and behind the end, of a block of rows may carry a stamp of the block."""

    before: int = 0
    after: int = 0


def equal_stamps(t: Grid, rows: int, chunk: int | None = None) -> Equal:
    """Of blocks that end after every ``rows`` tokens, and begin anew with every chunk."""
    if t.is_ordered:
        return Equal()
    if torch.compiler.is_compiling():
        remedy = "Use counted tokens or kernel=Softmax() there, or do not compile."
        refuse_in_graph("how many stamps are equal is not known inside a compiled graph", "stamps", remedy)
    times, observed = torch.broadcast_tensors(t.nodes[..., 0].detach().double(), t.observed)
    filled = torch.where(observed, times, -torch.inf).cummax(-1).values.reshape(-1, t.count)
    chunk = len(t) if chunk is None else chunk
    cuts = {min(end, len(t)) for start in range(0, len(t), chunk) for end in (*range(start, start + chunk, rows),)}
    inner = torch.tensor(sorted(cuts - {0, len(t)}), dtype=torch.long, device=filled.device)
    if not len(inner):
        return Equal()
    last = filled[:, inner - 1].contiguous()
    first = filled[:, inner].contiguous()
    after = torch.searchsorted(filled, last, right=True) - inner
    before = inner - torch.searchsorted(filled, first, right=False)
    return Equal(int(before.max()), int(after.max()))


@dataclass(frozen=True)
class Drawn:
    """Which sources stand for all: of every row, or of the past of each causal block; and control queries."""

    sources: Tensor | None = None  # [samples, m]
    controls: Tensor | None = None
    past: list[Tensor] = field(default_factory=list)
    over: int = 0  # tokens behind a block that may carry its last stamp
    nodes: Tensor | None = None  # of all tokens, where these are in parts
    log_weights: Tensor | None = None


@register
@dataclass(frozen=True)
class FewSources(Dot):
    """∫ e^a V dμ / ∫ e^a dμ ≈ Σ_i ω_i e^{a(t, s_i)} V(s_i) / Σ_i ω_i e^{a(t, s_i)}: O(n·m) for m sources.

    s_i are the sources at the nodes of ``rule`` over the cumulated measure, ω_i its weights: ``MonteCarlo(m)`` draws
    in proportion to the measure (error m^−½), ``Sobol(m)`` and ``Lattice(m)`` are randomised quasi-Monte-Carlo,
    ``GaussLegendre(m)`` is quadrature. A ratio of two estimates: it has a bias of O(1/m), which ``spread`` reports.
    The draw is a function of the rule's seed and ``step``; equal ones reuse the same points in every batch.

    Under ``Causal()`` a block of rows sees itself exactly, and m sources of its past. ``control`` > 0 takes that many
    queries whose attention is computed exactly as control variates (see ``controls``).
    """

    rule: Rule
    step: int = 0
    control: int = 0
    is_exact: ClassVar[bool] = False

    @property
    def order(self) -> float:
        """That of the rule, as long as its nodes lie further apart than the tokens."""
        return self.rule.order

    def fresh(self, step: int) -> "FewSources":
        """The same kernel with the draw of another step."""
        return replace(self, step=step)

    def way(self, mask: Mask | None) -> Way:
        """The sources of all rows are the same ones; those of causal blocks, and controls, need all keys."""
        got = str(mask) if mask is not None else f"control={self.control}" if self.control else None
        if got is not None:
            remedy = "Use control=0 without a mask, or kernel=PositiveFeatures(m), or leave Sharded out."
            raise MaskError("FewSources needs all tokens on one process there", got=got, remedy=remedy)
        return Way.SUMMED

    def prepare(self, plan: Plan, scores: Scores, t: Grid, s: Grid) -> Drawn:
        """The numbers of the sources, of each causal block or of all rows."""
        nodes, _ = reference(self.rule, self.step)
        if s.shard is not None:
            before: Grid = s.shard.before
            numbers = at_quantiles(masses(before), nodes, in_time(before))
            return Drawn(sources=numbers, nodes=before.nodes, log_weights=before.log_weights)
        weights = masses(s)
        if not only_causal(plan, "FewSources"):
            sources = at_quantiles(weights, nodes, in_time(s))
            controls = None
            if self.control:
                if not _no_pairs(plan.position):
                    got, remedy = type(plan.position).__name__, "Use control=0, or Rotary() positions."
                    raise ConfigError("control variates need scores without a bias of pairs", got=got, remedy=remedy)
                middles = tuple((i + 0.5) / self.control for i in range(self.control))
                controls = at_quantiles(masses(t), middles, in_time(t))
            return Drawn(sources=sources, controls=controls)
        if self.control:
            got, remedy = "Causal()", "Use control=0 under a causal mask."
            raise MaskError("control variates need one set of sources for all rows", got=got, remedy=remedy)
        blocks = [at_quantiles(weights[:, :start], nodes) for start in range(ROWS, len(t), ROWS)]
        return Drawn(past=blocks, over=overhang(t, ROWS))

    def attend(self, q: PerQuery, k: PerSource, v: PerSource, plan: Any, scores: Any) -> PerQuery:
        """Softmax attention to the sources."""
        index = scores.prepared.sources
        if index is None:
            return self._causal(q, k, v, plan, scores)
        _, omega = reference(self.rule, self.step)
        drawn: Drawn = scores.prepared
        if plan.layout is not None:
            known = drawn.log_weights if plan.weighted else None
            scores = replace(scores, s=drawn.nodes, log_weights=known)
        weights = _carried(omega, scores.log_weights, index, q)
        if scores.prepared.controls is not None:
            return attend_controlled(q, k, v, plan, scores, index, weights)
        near, values = _picked(k, v, index, plan.layout)
        if _no_pairs(plan.position):
            return attend_fused(q, near, values, plan.scale, False, weights[..., None, :])
        some = _at_sources(scores, index, weights)
        weighted = replace(plan, weighted=True)
        return attend_blocked(q, near, values, plan.scale, lambda rows: weighted.pair_bias(rows, q, some))

    def _causal(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scores: Scores) -> Tensor:
        """Each block of rows: its own tokens under the mask, and sources of the past that carry the past's mass."""
        _, omega = reference(self.rule, self.step)
        drawn: Drawn = scores.prepared
        log_weights = scores.log_weights if plan.weighted else None
        answers = []
        for i, start in enumerate(range(0, q.shape[2], ROWS)):
            rows, keys = slice(start, start + ROWS), slice(start, start + ROWS + drawn.over)
            own = scores.part(rows, keys)
            bias = plan.pair_bias(slice(0, ROWS), q, own)
            near, values = k[:, :, keys], v[:, :, keys]
            if i:
                index = drawn.past[i - 1]
                before = None if log_weights is None else log_weights[..., :start]
                mass = math.log(start) if before is None else before.detach().logsumexp(-1)[..., None]
                far = _carried(omega, before, index, q) + mass
                past = replace(plan, weighted=True, split_cell=False, mask=None)
                wide = past.pair_bias(slice(0, ROWS), q, replace(_at_sources(scores, index, far), t=own.t))
                lead = torch.broadcast_shapes(bias.shape[:2], wide.shape[:2])
                bias = torch.cat([x.expand(*lead, *x.shape[2:]) for x in (bias, wide)], -1)
                near, values = torch.cat([near, pick(k, index)], 2), torch.cat([values, pick(v, index)], 2)
            answers.append(fused_with(bias, q[:, :, rows], near, values, plan.scale, q.shape[1] != k.shape[1]))
        return torch.cat(answers, 2)


@runtime_checkable
class Redrawn(Protocol):
    """A kernel that draws something; ``fresh`` gives the draw of another step."""

    def fresh(self, step: int) -> Any:
        """The same kernel with another draw."""
        ...


@runtime_checkable
class DrawsSources(Protocol):
    """An operator whose kernel may be drawn anew."""

    kernel: Any


def redraw(model: nn.Module, step: int) -> nn.Module:
    """Give every kernel of a model that draws something the draw of this step, a function of its seed and the step."""
    for one in model.modules():
        if isinstance(one, DrawsSources) and isinstance(one.kernel, Redrawn):
            one.kernel = one.kernel.fresh(step)
    return model


def _picked(k: Tensor, v: Tensor, index: Tensor, layout: Layout | None) -> tuple[Tensor, Tensor]:
    """Keys and values of the sources; in parts on every process, by one sum."""
    if layout is None:
        return pick(k, index), pick(v, index)
    keys, values = layout.picked(torch.cat([k, v], -1), index).split([k.shape[-1], v.shape[-1]], -1)
    return keys, values


def _no_pairs(position: Position) -> bool:
    return not position.has_pair_bias


def _carried(omega: tuple[float, ...], log_weights: Tensor | None, index: Tensor, like: Tensor) -> Tensor:
    """log ω, and the gradient of the measure: sources are drawn as they weigh, so only its value cancels."""
    logs = tuple(math.log(weight) for weight in omega)
    carried = constants.numbers(logs, like.device, constants.at_least_single(like.dtype))
    if log_weights is None:
        return carried.expand(index.shape)
    flat = log_weights.reshape(-1, log_weights.shape[-1]).expand(index.shape[0], -1)
    picked = flat.gather(-1, index)
    return carried + picked - picked.detach()


def _at_sources(scores: Scores, index: Tensor, weights: Tensor) -> Scores:
    """What ``Plan.pair_bias`` reads, for the sources of each sample."""
    s = cast(Tensor, scores.s)
    s = s.reshape(-1, *s.shape[-2:]).expand(index.shape[0], -1, -1)
    picked = s.gather(1, index[..., None].expand(-1, -1, s.shape[-1]))
    return replace(scores, s=picked, log_weights=weights, log_left=None, pairs=None, bias=None)
