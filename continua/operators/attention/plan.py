"""What is added to the scores: log-weights of the sources, masks, given pairs and position biases.

The plan is made once at bind. It decides, from facts known without looking at numbers, whether a bias of each key is
enough (fused attention) or a bias of each pair is needed (blocked attention).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from continua.axes import Grid
from continua.axes.grid import absent
from continua.errors import GridError, MaskError
from continua.operators.attention import fused
from continua.operators.attention.fused import attend_blocked, attend_fused, normalised
from continua.operators.kernels.kernel import Kernel, Subquadratic
from continua.operators.mask import Causal, Mask
from continua.operators.position import Position
from continua.typing import Tensor


@dataclass(frozen=True)
class Plan:
    """Static decisions; the tensors they speak of are in ``args``."""

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
    row: bool = False  # one query behind all its sources: ``args["row"]`` is its whole bias
    itself: bool = True  # the sources are the queries' own tokens
    quick: Subquadratic | None = None  # the kernel attends by itself, without all pairs

    def attend(self, q: Tensor, k: Tensor, v: Tensor, args: Mapping[str, Any]) -> Tensor:
        """∫ α(t, s) V(s) dμ(s) for queries and keys that were turned, zero for absent queries."""
        if self.row:
            bias = args["row"] if args["row"] is None else args["row"].to(q.dtype)
            grouped = q.shape[1] != k.shape[1]
            return scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale, enable_gqa=grouped)
        if self.quick is not None:
            out = self.quick.attend(q, k, v, self, args)
        elif self.paired:
            scores = None if self.kernel.is_dot else self._scores
            out = attend_blocked(q, k, v, self.scale, lambda rows: self.pair_bias(rows, q, args), scores)
        else:
            out = attend_fused(q, k, v, self.scale, self.triangle, self.key_bias(args))
        if args["present"] is not None:
            out = torch.where(args["present"][..., None, :, None], out, 0.0)
        return out

    def is_bare(self, q: Tensor, k: Tensor, args: Mapping[str, Any]) -> bool:
        """Whether nothing is added to the scores but the lower triangle, every query is there and has its own keys."""
        special = self.row or self.paired or self.weighted or self.quick is not None
        plain = not special and args["present"] is None and q.shape[1] == k.shape[1]
        return plain and (not self.past_only or self.position.key_bias(args["s"], args["position"]) is None)

    def weights(self, q: Tensor, k: Tensor, args: Mapping[str, Any]) -> Tensor:
        """α(t, s) w(s) itself, for those who want to look: [b, h, t, s], rows of absent queries zero."""
        if k.shape[1] != q.shape[1]:
            k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        alpha = normalised(self._scores(q, k), self.pair_bias(slice(0, q.shape[2]), q, args))
        alpha = alpha.to(q.dtype)
        return alpha if args["present"] is None else torch.where(args["present"][..., None, :, None], alpha, 0.0)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self.kernel.scores(q, k, self.scale)

    def key_bias(self, args: Mapping[str, Any]) -> Tensor | None:
        """log w(s) and the part of the position bias that the source alone decides: [*b, 1 or h, s]."""
        bias = args["log_weights"][..., None, :] if self.weighted else None
        term = self.position.key_bias(args["s"], args["position"]) if self.past_only else None
        if term is None:
            return bias
        return term if bias is None else bias + term

    def pair_bias(self, rows: slice, like: Tensor, args: Mapping[str, Any]) -> Tensor:
        """Everything that is added to the scores of some query rows: [*b, 1 or h, rows, s]."""
        if args.get("bias") is not None:
            whole: Tensor = args["bias"]
            return whole[..., rows, :]
        t, s = _alike(args["t"][..., rows, :], args["s"])
        bias: Tensor = torch.zeros((), dtype=like.dtype, device=like.device)
        if self.weighted:
            bias = args["log_weights"][..., None, None, :]
        if self.split_cell:
            own = (t == s.mT)[..., None, :, :]
            bias = torch.where(own, args["log_left"][..., None, None, :], bias)
        term = self.position.pair_bias(t, s, args["position"])
        if term is not None:
            bias = bias + term
        pairs = args["pairs"]
        if pairs is not None:
            pairs = pairs if pairs.shape[-2] == 1 else pairs[..., rows, :]
            bias = torch.where(pairs, bias, absent(like.dtype)) if pairs.dtype == torch.bool else bias + pairs
        if self.mask is not None:
            bias = torch.where(self.mask.allowed(t, s)[..., None, :, :], bias, absent(like.dtype))
        # half precision adds in float32: log w in 8 bits would be off by a percent
        bias = bias.clamp_min(absent(like.dtype)).to(torch.promote_types(like.dtype, torch.float32))
        bias = bias.reshape(*[1] * (4 - bias.dim()), *bias.shape)  # the fused kernel asks for four dimensions
        return bias.expand(*bias.shape[:-2], t.shape[-2], s.shape[-2])


def plan(
    t: Grid,
    s: Grid,
    *,
    mask: Mask | None,
    position: Position,
    placed: Any,
    kernel: tuple[Kernel, float],
    pairs: Tensor | None,
    itself: bool,
) -> tuple[Plan, dict[str, Any]]:
    """Decide how to attend from ``t`` to ``s`` with a kernel and its scale, and collect the tensors for it."""
    causal_mask = mask is not None and mask.is_causal
    if causal_mask:
        _check_order(t)
    split_cell = causal_mask and itself and not s.is_counting
    if split_cell and s.left is None:
        raise MaskError("a causal mask needs ordered times", got="a grid without cells", remedy="Use a 1-D time axis.")
    plain = pairs is None and kernel[0].is_dot  # else each pair has its own score or bias
    counted_past = isinstance(mask, Causal) and itself and s.is_counting and s.is_ordered and plain
    past_only = counted_past and (len(t) == len(s) or len(t) == 1) and _needs_no_pairs(position, causal=True)
    no_mask = mask is None and plain and _needs_no_pairs(position, causal=False)
    sure = itself and (mask is None or mask.sees_itself)
    quick = kernel[0] if isinstance(kernel[0], Subquadratic) else None
    if quick is not None and pairs is not None:
        got, remedy = type(quick).__name__, "Use kernel=Softmax(), or a mask of times."
        raise MaskError("given pairs need a kernel that looks at all pairs", got=got, remedy=remedy)
    made = Plan(
        mask=mask,
        position=position,
        kernel=kernel[0],
        scale=kernel[1],
        triangle=past_only and len(t) > 1,
        past_only=past_only,
        paired=not (past_only or no_mask) and quick is None,
        weighted=s.has_gaps or not s.is_uniform,
        split_cell=split_cell,
        unsure=pairs is not None or not (sure or (mask is None and not s.has_gaps)),
        itself=itself,
        quick=quick,
    )
    args = {
        "t": t.nodes,
        "s": s.nodes,
        "present": t.observed if t.has_gaps else None,
        "pairs": _four_dimensional(pairs),
        "log_weights": s.log_weights if made.weighted or split_cell else None,
        "log_left": _log_left(s) if split_cell else None,
        "position": placed,
    }
    if split_cell and not made.weighted:
        # equal weights: only the ratio of the left part to the whole cell matters
        args["log_left"] = args["log_left"] - args["log_weights"]
    if quick is not None:
        args["quick"] = quick.prepare(made, args, t, s)
    return made, args


def once_for_all_depths(made: Plan, args: dict[str, Any], like: Tensor, queries: int) -> dict[str, Any]:
    """Make the bias of all pairs now, where it is one block; only then it is less than every depth would make anew."""
    if not made.paired or queries > fused.BLOCK:
        return args
    bias = made.pair_bias(slice(0, queries), like, args)
    used = dict.fromkeys(("t", "s", "pairs", "log_weights", "log_left", "position"))
    return {**args, **used, "bias": bias}


def part(args: Mapping[str, Any], rows: slice, keys: slice) -> dict[str, Any]:
    """The tensors that ``Plan.pair_bias`` reads, for some queries and some sources in a row."""
    t, s, weights, left = (args[name] for name in ("t", "s", "log_weights", "log_left"))
    return {
        "t": t[..., rows, :],
        "s": s[..., keys, :],
        "log_weights": None if weights is None else weights[..., keys],
        "log_left": None if left is None else left[..., keys],
        "pairs": None,
        "position": args["position"],
    }


def next_row(made: Plan, args: dict[str, Any], like: Tensor, itself: bool) -> tuple[Plan, dict[str, Any]]:
    """The same plan for one new query behind all its sources (generation): its bias is made once for all depths."""
    if not made.kernel.is_dot:
        return made, args
    made = replace(made, row=True, mask=None if itself and isinstance(made.mask, Causal) else made.mask)
    plain = _needs_no_pairs(made.position, causal=False) and not (made.weighted or made.split_cell)
    if plain and made.mask is None and args["pairs"] is None:
        return made, {**args, "row": None}
    return made, {**args, "row": made.pair_bias(slice(0, 1), like, args)}


def _alike(t: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Stamps that all samples share, spread where those of the other side are not."""
    if t.dim() == s.dim():
        return t, s
    lead = t.shape[:-2] or s.shape[:-2]
    return t.expand(*lead, *t.shape[-2:]), s.expand(*lead, *s.shape[-2:])


def _needs_no_pairs(position: Position, causal: bool) -> bool:
    if type(position).pair_bias is Position.pair_bias:
        return True
    return causal and type(position).key_bias is not Position.key_bias


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
        got, remedy = f"{t.nodes.shape[-1]}-dimensional points", "Use a 1-D time axis, or Window(r)."
        raise MaskError("a causal mask orders time", got=got, remedy=remedy)
    if t.is_ordered or len(t) == 1:
        return
    stamps = t.nodes[..., 0].detach()
    latest = torch.where(t.observed, stamps, -torch.inf).cummax(-1).values  # an absent token may carry any stamp
    if bool((t.observed & (stamps < latest)).any()):
        remedy = "Sort the tokens by time, or drop the causal mask."
        raise GridError("a causal mask needs stamps that do not decrease", got="a step back in time", remedy=remedy)


def check_rows(made: Plan, t: Grid, s: Grid, args: Mapping[str, Any]) -> None:
    """Every observed query must see at least one observed source."""
    expected = (len(t), len(s))
    pairs = args["pairs"]
    if pairs is not None and (pairs.shape[-1] != expected[1] or pairs.shape[-2] not in (1, expected[0])):
        raise MaskError(
            f"pairs needs shape [..., {expected[0]}, {expected[1]}]", got=list(pairs.shape), remedy="One entry a pair."
        )
    floor = absent(s.weights.dtype) / 2
    for start in range(0, len(t), fused.BLOCK):
        rows = slice(start, min(start + fused.BLOCK, len(t)))
        seen = (made.pair_bias(rows, s.weights, args) > floor).any(-1)
        blind = ~seen & t.observed[..., None, rows]
        if bool(blind.any()):
            where = blind.nonzero()[0].tolist()
            raise MaskError(
                "an observed query has no key left to attend to",
                got=f"query {start + where[-1]} of sample {where[0] if len(where) > 2 else 0}",
                remedy="Allow it at least one key, or mark the query itself as absent with observed=False.",
            )
