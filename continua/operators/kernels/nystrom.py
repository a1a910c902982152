"""Nyström attention: all pairs through a few landmarks."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn.functional import pad

from continua import constants
from continua.axes import GaussLegendre, Grid, Rule
from continua.axes.sharded import Layout
from continua.config import register
from continua.operators.attention.plan import Plan, Scores
from continua.operators.kernels.control_variates import pick
from continua.operators.kernels.features import dot_alone
from continua.operators.kernels.kernel import Dot, Way
from continua.operators.kernels.sampled import at_quantiles, in_time, masses, only_causal, reference
from continua.operators.mask import Mask
from continua.typing import PerQuery, PerSource, Tensor

CHUNK = 1024  # tokens at a time


@dataclass(frozen=True)
class Landmarks:
    """The numbers [samples, m] of the tokens that stand for all."""

    keys: Tensor
    queries: Tensor


@register
@dataclass(frozen=True)
class Nystrom(Dot):
    """e^{a(t, s)} ≈ C A⁺ R with C = e^{a(t, ·)}, A = e^{a(·, ·)} and R = e^{a(·, s)} at m landmarks: O(n·m) time.

    Landmarks are the tokens at the nodes of ``rule`` over the cumulated measure, so crowded or heavy stretches get
    their share. Numerator and normaliser both go through them. A⁺ = (AᵀA + λ²)⁻¹Aᵀ with λ = √ε‖A‖ in float64, which
    has a derivative everywhere and survives landmarks that are nearly alike. It multiplies what C and R lost by up to
    1/√ε, so these are float64 on the processor, too (``constants.summed_in``). On smooth fields the kernel has low
    rank, and the error falls faster than any power of m until it meets λ; on rough ones it falls slowly.
    """

    rule: Rule = GaussLegendre(32)  # noqa: RUF009  (frozen)
    is_exact: ClassVar[bool] = False
    order: ClassVar[float] = torch.inf

    def prepare(self, plan: Plan, scores: Scores, t: Grid, s: Grid) -> "Landmarks":
        """The numbers of the landmarks among queries and keys."""
        only_causal(plan, "Nystrom", causal=False)
        dot_alone(plan, "Nystrom")
        nodes, _ = reference(self.rule)
        s = s if s.shard is None else s.shard.before
        there = at_quantiles(masses(s), nodes, in_time(s))
        return Landmarks(there, there if plan.itself else at_quantiles(masses(t), nodes, in_time(t)))

    def way(self, mask: Mask | None) -> Way:
        """Landmarks and their integrals are two sums over the processes."""
        return Way.SUMMED

    def attend(self, q: PerQuery, k: PerSource, v: PerSource, plan: Any, scores: Any) -> PerQuery:
        """C A⁺ (R w V) over C A⁺ (R w 1)."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        summed = constants.summed_in(dtype, q.device)
        groups = q.shape[1] // k.shape[1]
        k, v = (x if groups == 1 else x.repeat_interleave(groups, 1) for x in (k, v))
        queries, keys = _landmarks(q, k, scores.prepared, plan.layout, summed)
        asked = plan.scale * queries
        weights = scores.log_weights.to(summed).reshape(-1, 1, 1, k.shape[2]) if plan.weighted else None
        right, level = _integrals(asked, k, v, weights)
        if plan.layout is not None:
            top = plan.layout.largest(level)
            right = plan.layout.sum((level - top).exp() * right)
            level = top
        # rows of A and R are divided alike, so A⁺R stays; rows of C drop out of the ratio
        wide = constants.widest(q.device)
        inner = (asked.to(wide) @ keys.to(wide).mT - level).exp()
        through = _solved(inner, right.to(wide), torch.finfo(dtype).eps ** 0.5).to(summed)
        near = plan.scale * keys
        return torch.cat([_through(rows, near, through) for rows in q.split(CHUNK, 2)], 2)


def _through(rows: Tensor, keys: Tensor, through: Tensor) -> Tensor:
    """C A⁺ R w V over C A⁺ R w 1 for some queries."""
    near = rows.to(keys.dtype) @ keys.mT
    sums = near.sub_(near.detach().amax(-1, keepdim=True)).exp_() @ through
    return (sums[..., :-1] / _away_from_zero(sums[..., -1:])).to(rows.dtype)


def _landmarks(
    q: Tensor, k: Tensor, numbers: Landmarks, layout: Layout | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Queries and keys at the landmarks; in parts these are the same tokens, on every process."""
    if layout is None:
        return pick(q, numbers.queries).to(dtype), pick(k, numbers.keys).to(dtype)
    queries, keys = layout.picked(torch.cat([q, k], -1), numbers.keys, dtype).chunk(2, -1)
    return queries, keys


def _integrals(queries: Tensor, k: Tensor, v: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """R w [V, 1] of the landmarks, [b, h, m, e + 1], divided by e^level with the level [b, h, m, 1] of each."""
    level = queries.new_full((*queries.shape[:-1], 1), -torch.inf)
    sums = queries.new_zeros(*queries.shape[:-1], v.shape[-1] + 1)
    parts = [None] * -(-k.shape[2] // CHUNK) if weights is None else weights.split(CHUNK, -1)
    for keys, values, logs in zip(k.split(CHUNK, 2), v.split(CHUNK, 2), parts, strict=True):
        scores = queries @ keys.to(queries.dtype).mT
        scores = scores if logs is None else scores + logs
        top = torch.maximum(level, scores.detach().amax(-1, keepdim=True))
        own = scores.sub_(top).exp_() @ pad(values.to(scores.dtype), (0, 1), value=1.0)
        sums = (level - top).exp() * sums + own
        level = top
    return sums, level


def _solved(a: Tensor, b: Tensor, small: float) -> Tensor:
    """(AᵀA + λ²)⁻¹ Aᵀ b with λ = small·‖A‖ (Frobenius), as least squares of [A; λ] x ≈ [b; 0].

    By a QR factorisation: the normal equations would square the condition number, and gradients even more.
    """
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    ridge = small * a.square().sum((-2, -1), keepdim=True).sqrt()
    q, r = torch.linalg.qr(torch.cat([a, ridge * eye], -2))
    found: Tensor = torch.linalg.solve_triangular(r, q[..., : a.shape[-2], :].mT @ b, upper=True)
    return found


def _away_from_zero(x: Tensor) -> Tensor:
    """A normaliser that the approximation made vanish would be no more than round-off."""
    least = torch.finfo(x.dtype).tiny
    return torch.where(x.abs() < least, least, x)
