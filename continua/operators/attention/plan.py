"""What is added to the scores: log-weights of the sources, masks, given pairs and position biases.

The plan is made once at bind. It decides, from facts known without looking at numbers, whether a bias of each key is
enough (fused attention) or a bias of each pair is needed (blocked attention).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from continua.axes import Grid
from continua.axes.exchange import Exchange
from continua.axes.grid import absent
from continua.axes.sharded import Layout
from continua.checks import looking
from continua.errors import GridError, MaskError
from continua.operators.attention import fused
from continua.operators.attention.fused import attend_blocked, attend_fused, normalised
from continua.operators.attention.parts import Sources, needs_no_pairs
from continua.operators.attention.ring import attend_gathered, attend_ring
from continua.operators.kernels.kernel import Kernel, Subquadratic, Way, subquadratic
from continua.operators.mask import Causal, Mask
from continua.operators.position import Position
from continua.typing import Tensor


@dataclass(frozen=True)
class Scores:
    """The tensors that a plan speaks of; ``None`` where it needs none."""

    t: Tensor | None = None  # stamps of the queries [*b, t, k]
    s: Tensor | None = None  # stamps of the sources [*b, s, k]
    position: Any = None  # what the position read on the head and inner grids
    queries: Any = None  # what turns queries, and the keys of self-attention
    keys: Any = None  # what turns the keys of cross-attention
    present: Tensor | None = None  # which queries are there [*b, t]
    pairs: Tensor | None = None  # given pairs [b, 1 or h, t, s]
    log_weights: Tensor | None = None  # [*b, s]
    log_left: Tensor | None = None  # of the part of each cell left of its node [*b, s]
    bias: Tensor | None = None  # of all pairs [*b, 1 or h, t, s], made once for all depths
    prepared: Any = None  # what a subquadratic kernel made of the nodes

    def part(self, rows: slice, keys: slice) -> "Scores":
        """What ``Plan.pair_bias`` reads, for some queries and some sources in a row."""
        return Scores(
            t=None if self.t is None else self.t[..., rows, :],
            s=None if self.s is None else self.s[..., keys, :],
            position=self.position,
            log_weights=None if self.log_weights is None else self.log_weights[..., keys],
            log_left=None if self.log_left is None else self.log_left[..., keys],
        )


@dataclass(frozen=True)
class Plan:
    """Static decisions; the tensors they speak of are ``Scores``."""

    mask: Mask | None
    position: Position
    kernel: Kernel
    scale: float
    triangle: bool  # the fused kernel's own lower triangle
    past_only: bool  # every source is in the past of every query that sees it: a bias of each key is enough
    paired: bool  # a bias of each pair
    weighted: bool  # log-weights of the sources
    split_cell: bool  # a causal row takes only the left part of its own cell
    unsure: bool  # some query may be left without any key
    row: bool = False  # one query behind all its sources: ``Scores.bias`` is its whole bias
    itself: bool = True  # the sources are the queries' own tokens
    quick: Subquadratic | None = None  # the kernel attends by itself, without all pairs
    layout: Layout | None = None  # tokens are in parts: where those of the other processes are
    way: Way | None = None  # how the keys of those come here
    exchange: Exchange | None = None  # which of them come, where only some do

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
        """∫ α(t, s) V(s) dμ(s) for queries and keys that were turned, zero for absent queries."""
        if self.row:
            bias = None if scores.bias is None else scores.bias.to(q.dtype)
            grouped = fused.shares_keys(q, k)
            return scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale, enable_gqa=grouped)
        out = self._attend(q, k, v, scores) if self.layout is None else self._attend_parts(q, k, v, scores, self.layout)
        if scores.present is not None:
            out = torch.where(scores.present[..., None, :, None], out, 0.0)
        return out

    def _attend_parts(self, q: Tensor, k: Tensor, v: Tensor, scores: Scores, layout: Layout) -> Tensor:
        """The same for the own queries among those of other processes."""
        if self.way is Way.RING:
            bias = self.key_bias(scores)
            return attend_ring(q, k, v, self.scale, self.triangle, bias, scores.present, layout)
        if self.way is Way.GATHERED:
            return attend_gathered(q, k, v, layout, lambda q, k, v: self._attend(q, k, v, scores))
        if self.exchange is not None:
            k, v = self.exchange.fetched(torch.cat([k, v], -1), 2).split([k.shape[-1], v.shape[-1]], -1)
        return self._attend(q, k, v, scores)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
        """The same with all keys at hand that it needs."""
        if self.quick is not None:
            return self.quick.attend(q, k, v, self, scores)
        if self.paired:
            by_kernel = None if self.kernel.is_dot else self._scores
            return attend_blocked(q, k, v, self.scale, lambda rows: self.pair_bias(rows, q, scores), by_kernel)
        return attend_fused(q, k, v, self.scale, self.triangle, self.key_bias(scores))

    def is_bare(self, q: Tensor, k: Tensor, scores: Scores) -> bool:
        """Whether nothing is added to the scores but the lower triangle, every query is there and has its own keys."""
        special = self.row or self.paired or self.weighted or self.quick is not None or self.layout is not None
        if special or scores.present is not None or q.shape[1] != k.shape[1]:
            return False
        return not self.past_only or self.key_bias(scores) is None

    def weights(self, q: Tensor, k: Tensor, scores: Scores) -> Tensor:
        """α(t, s) w(s) itself, for those who want to look: [b, h, t, s], rows of absent queries zero."""
        if k.shape[1] != q.shape[1]:
            k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        alpha = normalised(self._scores(q, k), self.pair_bias(slice(0, q.shape[2]), q, scores))
        alpha = alpha.to(q.dtype)
        return alpha if scores.present is None else torch.where(scores.present[..., None, :, None], alpha, 0.0)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self.kernel.scores(q, k, self.scale)

    def key_bias(self, scores: Scores) -> Tensor | None:
        """log w(s) and the part of the position bias that the source alone decides: [*b, 1 or h, s]."""
        bias = scores.log_weights[..., None, :] if self.weighted and scores.log_weights is not None else None
        term = self.position.key_bias(scores.s, scores.position) if self.past_only and scores.s is not None else None
        if term is None:
            return bias
        return term if bias is None else bias + term

    def pair_bias(self, rows: slice, like: Tensor, scores: Scores) -> Tensor:
        """Everything that is added to the scores of some query rows: [*b, 1 or h, rows, s]."""
        if scores.bias is not None:
            return scores.bias[..., rows, :]
        if scores.t is None or scores.s is None:
            raise GridError("a bias of pairs needs stamps", got="none", remedy="Bind the operator to its tokens.")
        t, s = _alike(scores.t[..., rows, :], scores.s)
        bias: Tensor = torch.zeros((), dtype=like.dtype, device=like.device)
        if self.weighted and scores.log_weights is not None:
            bias = scores.log_weights[..., None, None, :]
        if self.split_cell and scores.log_left is not None:
            own = (t == s.mT)[..., None, :, :]
            bias = torch.where(own, scores.log_left[..., None, None, :], bias)
        term = self.position.pair_bias(t, s, scores.position)
        if term is not None:
            bias = bias + term
        pairs = scores.pairs
        if pairs is not None:
            pairs = pairs if pairs.shape[-2] == 1 else pairs[..., rows, :]
            bias = torch.where(pairs, bias, absent(like.dtype)) if pairs.dtype == torch.bool else bias + pairs.to(like)
        if self.mask is not None:
            bias = torch.where(self.mask.allowed(t, s)[..., None, :, :], bias, absent(like.dtype))
        # half precision adds in float32: log w in 8 bits would be off by a percent
        bias = bias.clamp_min(absent(like.dtype)).to(torch.promote_types(like.dtype, torch.float32))
        bias = bias.reshape(*[1] * (4 - bias.dim()), *bias.shape)  # the fused kernel asks for four dimensions
        return bias.expand(*bias.shape[:-2], t.shape[-2], s.shape[-2])


def plan(
    t: Grid,
    sources: Sources,
    *,
    mask: Mask | None,
    position: Position,
    placed: Any,
    kernel: Kernel,
    scale: float,
    pairs: Tensor | None,
    itself: bool,
    queries: Any = None,
    keys: Any = None,
) -> tuple[Plan, Scores]:
    """Decide how to attend from ``t`` to sources, and collect tensors; ``queries`` and ``keys`` are what turns them."""
    s = sources.grid
    causal_mask = mask is not None and mask.is_causal
    if causal_mask:
        _check_order(t)
    split_cell = causal_mask and itself and not s.is_counting
    plain = pairs is None and kernel.is_dot  # else each pair has its own score or bias
    ring = sources.way is Way.RING
    counted_past = isinstance(mask, Causal) and itself and s.is_counting and (s.is_ordered or ring) and plain
    past_only = counted_past and (t is s or t.count == s.count or t.count == 1) and needs_no_pairs(position, True)
    no_mask = mask is None and plain and needs_no_pairs(position, causal=False)
    sure = itself and (mask is None or mask.sees_itself)
    quick = subquadratic(kernel)
    _refuse_given_pairs(quick, pairs)
    made = Plan(
        mask=mask,
        position=position,
        kernel=kernel,
        scale=scale,
        triangle=past_only and (t is s or t.count > 1),
        past_only=past_only,
        paired=not (past_only or no_mask) and quick is None,
        weighted=s.has_gaps or not s.is_uniform,
        split_cell=split_cell,
        unsure=pairs is not None or not (sure or (mask is None and not s.has_gaps)),
        itself=itself,
        quick=quick,
        layout=t.shard.layout if t.shard is not None and itself else None,
        way=sources.way,
        exchange=sources.exchange,
    )
    log_weights, log_left = log_measure(made, s)
    scores = Scores(
        t=t.nodes,
        s=s.nodes,
        position=placed,
        queries=queries,
        keys=keys,
        present=t.observed if t.has_gaps else None,
        pairs=_four_dimensional(pairs),
        log_weights=log_weights,
        log_left=log_left,
    )
    if quick is not None:
        scores = replace(scores, prepared=quick.prepare(made, scores, t, s))
    return made, scores


def log_measure(made: Plan, s: Grid) -> tuple[Tensor | None, Tensor | None]:
    """The logarithms of the sources' weights, and of the left parts of their cells, where they are needed."""
    log_weights = s.log_weights if made.weighted or made.split_cell else None
    log_left = _log_left(s) if made.split_cell else None
    if log_left is not None and log_weights is not None and not made.weighted:
        log_left = log_left - log_weights  # equal weights: only the ratio of the left part to the whole cell matters
    return log_weights, log_left


def once_for_all_depths(made: Plan, scores: Scores, like: Tensor, queries: int) -> Scores:
    """Make the bias of all pairs now, where it is one block; only then it is less than every depth would make anew."""
    if not made.paired or (not torch.compiler.is_exporting() and queries > fused.BLOCK):
        return scores
    bias = made.pair_bias(slice(None), like, scores)
    return Scores(queries=scores.queries, keys=scores.keys, present=scores.present, bias=bias)


def next_row(made: Plan, scores: Scores, like: Tensor, behind: bool) -> tuple[Plan, Scores]:
    """The same plan for one new query, ``behind`` all its sources or not: its bias is made once for all depths."""
    if not made.kernel.is_dot:
        return made, scores
    made = replace(made, row=True, mask=None if behind and isinstance(made.mask, Causal) else made.mask)
    plain = needs_no_pairs(made.position, causal=False) and not (made.weighted or made.split_cell)
    if plain and made.mask is None and scores.pairs is None:
        return made, scores
    return made, replace(scores, bias=made.pair_bias(slice(0, 1), like, scores))


def _alike(t: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Stamps that all samples share, spread where those of the other side are not."""
    if t.dim() == s.dim():
        return t, s
    lead = t.shape[:-2] or s.shape[:-2]
    return t.expand(*lead, *t.shape[-2:]), s.expand(*lead, *s.shape[-2:])


def _refuse_given_pairs(quick: Subquadratic | None, pairs: Tensor | None) -> None:
    if quick is not None and pairs is not None:
        remedy = "Use kernel=Softmax(), or a mask of times."
        raise MaskError("given pairs need a kernel that looks at all pairs", got=type(quick).__name__, remedy=remedy)


def _four_dimensional(pairs: Tensor | None) -> Tensor | None:
    """[t, s] and [b, t, s] mean the same mask for every head."""
    if pairs is None:
        return None
    if pairs.dim() not in (2, 3, 4) or not (pairs.dtype == torch.bool or pairs.is_floating_point()):
        raise MaskError(
            "pairs are boolean or floating point, [t, s], [b, t, s] or [b, h, t, s]",
            got=f"{pairs.dtype} {list(pairs.shape)}",
            remedy="Use True for allowed pairs, or floats that are added to the scores.",
        )
    return pairs[:, None] if pairs.dim() == 3 else pairs


def _log_left(s: Grid) -> Tensor:
    """log of the left part of each cell; a vanishing part counts only where a row has nothing else."""
    if s.left is None:
        raise MaskError("a causal mask needs ordered times", got="a grid without cells", remedy="Use a 1-D time axis.")
    smallest = torch.finfo(s.left.dtype).tiny
    return torch.where(s.observed, s.left.clamp_min(smallest).log(), absent(s.left.dtype))


def _check_order(t: Grid) -> None:
    if t.nodes.shape[-1] != 1:
        remedy = "Use a 1-D time axis, or Window(r)."
        raise MaskError("a causal mask orders time", got=f"{t.nodes.shape[-1]}-dimensional points", remedy=remedy)
    if t.is_ordered or not looking() or t.count == 1:
        return
    stamps = t.nodes[..., 0].detach()
    latest = torch.where(t.observed, stamps, -torch.inf).cummax(-1).values  # an absent token may carry any stamp
    if bool((t.observed & (stamps < latest)).any()):
        remedy = "Sort the tokens by time, or drop the causal mask."
        raise GridError("a causal mask needs stamps that do not decrease", got="a step back in time", remedy=remedy)


def check_pairs(t: Grid, s: Grid, pairs: Tensor | None) -> None:
    """Given pairs speak of every query and every source."""
    if pairs is not None and (pairs.shape[-1] != s.count or pairs.shape[-2] not in (1, t.count)):
        raise MaskError(
            f"pairs needs shape [..., {t.count}, {s.count}]", got=list(pairs.shape), remedy="One entry a pair."
        )


def check_rows(made: Plan, t: Grid, s: Grid, scores: Scores) -> None:
    """Every observed query must see at least one observed source."""
    floor = absent(s.weights.dtype) / 2
    for start in range(0, len(t), fused.BLOCK):
        rows = slice(start, min(start + fused.BLOCK, len(t)))
        seen = (made.pair_bias(rows, s.weights, scores) > floor).any(-1)
        blind = ~seen & t.observed[..., None, rows]
        if bool(blind.any()):
            where = blind.nonzero()[0].tolist()
            raise MaskError(
                "an observed query has no key left to attend to",
                got=f"query {start + where[-1]} of sample {where[0] if len(where) > 2 else 0}",
                remedy="Allow it at least one key, or mark the query itself as absent with observed=False.",
            )
