"""Nyström attention: all pairs through a few landmarks."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

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
    has a derivative everywhere and survives landmarks that are nearly alike. On smooth fields the kernel has low
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
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).to(dtype) for x in (k, v))
        x = plan.scale * q.to(dtype)
        queries, keys = _landmarks(x, k, scores.prepared, plan.layout)
        weights = scores.log_weights.to(dtype).reshape(-1, 1, 1, k.shape[2]) if plan.weighted else None
        right, level = _integrals(queries, k, v, weights)
        if plan.layout is not None:
            top = plan.layout.largest(level)
            right = plan.layout.sum((level - top).exp() * right)
            level = top
        # rows of A and R are divided alike, so A⁺R stays; rows of C drop out of the ratio
        inner = (queries.double() @ keys.double().mT - level).exp()
        through = _solved(inner, right.double(), torch.finfo(dtype).eps ** 0.5).to(dtype)
        answers = []
        for rows in x.split(CHUNK, 2):
            near = rows @ keys.mT
            sums = (near - near.detach().amax(-1, keepdim=True)).exp() @ through
            answers.append(sums[..., :-1] / _away_from_zero(sums[..., -1:]))
        return torch.cat(answers, 2).to(q.dtype)


def _landmarks(q: Tensor, k: Tensor, numbers: Landmarks, layout: Layout | None) -> tuple[Tensor, Tensor]:
    """Queries and keys at the landmarks; in parts these are the same tokens, on every process."""
    if layout is None:
        return pick(q, numbers.queries), pick(k, numbers.keys)
    queries, keys = layout.picked(torch.cat([q, k], -1), numbers.keys).chunk(2, -1)
    return queries, keys


def _integrals(queries: Tensor, k: Tensor, v: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """R w [V, 1] of the landmarks, [b, h, m, e + 1], divided by e^level with the level [b, h, m, 1] of each."""
    level = queries.new_full((*queries.shape[:-1], 1), -torch.inf)
    sums = v.new_zeros(*queries.shape[:-1], v.shape[-1] + 1)
    for start in range(0, k.shape[2], CHUNK):
        part = slice(start, start + CHUNK)
        scores = queries @ k[:, :, part].mT
        scores = scores if weights is None else scores + weights[..., part]
        top = torch.maximum(level, scores.detach().amax(-1, keepdim=True))
        raised = (scores - top).exp()
        sums = (level - top).exp() * sums + torch.cat([raised @ v[:, :, part], raised.sum(-1, keepdim=True)], -1)
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
