"""Control variates for sampled sources: queries whose attention over all sources is known exactly.

Ê(t) = Σ_i ω_i e^{a(t, s_i)} V(s_i) is corrected by E(c) − Ê(c), where c is the nearest of a few control queries, E(c)
its exact integral and Ê(c) its estimate with the same sources. The correction has mean zero, because c does not depend
on the draw; it takes away the part of the error that t and c share. So does that of the normaliser. Keys are taken
from their mean, which leaves the weights as they are and brings the sums of t and c to one size.
(Sources that are used again in every batch correct nothing: they only repeat their error.)
"""

from typing import cast

import torch

from continua.operators.attention.plan import Plan, Scores
from continua.typing import Tensor

CHUNK = 1024  # sources or queries at a time
FAR = 60.0  # e^60 is beyond use and within float32


def pick(x: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` [samples, m] of x [b, h, n, e]; one sample may serve all."""
    index = index.expand(x.shape[0], -1)
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[-1]))


def attend_controlled(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, scores: Scores, index: Tensor, omega: Tensor
) -> Tensor:
    """The ratio of the corrected sums; a row whose corrected normaliser nearly vanishes keeps the plain ratio."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).to(dtype) for x in (k, v))
    known = scores.prepared.controls
    weights = k.new_zeros(1, k.shape[2]) if scores.log_weights is None else scores.log_weights.to(dtype)
    weights = weights.reshape(-1, k.shape[2]).log_softmax(-1)  # [samples, s], of mass one
    k = k - torch.einsum("bs,bhse->bhe", weights.exp().expand(k.shape[0], -1), k)[:, :, None]
    wide = plan.scale * q.to(dtype)
    few, values, omega = pick(k, index), pick(v, index), omega.to(dtype)
    controls = pick(wide, known)
    with torch.no_grad():
        level = (controls @ few.mT).amax(-1, keepdim=True)
    error = sum(
        _sums(controls, k[:, :, i : i + CHUNK], v[:, :, i : i + CHUNK], weights[:, i : i + CHUNK], level)
        for i in range(0, k.shape[2], CHUNK)
    ) - _sums(controls, few, values, omega, level)
    owner = nearest_control(cast(Tensor, scores.t), known)
    answers = []
    for start in range(0, q.shape[2], CHUNK):
        rows = slice(start, start + CHUNK)
        near = wide[:, :, rows] @ few.mT + omega[:, None, None]
        top = near.detach().amax(-1, keepdim=True)
        sums = _with_ones((near - top).exp(), values)
        mine = owner[:, rows]
        better = sums + (pick(level, mine) - top).clamp_max(FAR).exp() * pick(error, mine)
        chosen = torch.where(better[..., -1:] > 0.1 * sums[..., -1:], better, sums)
        answers.append(chosen[..., :-1] / chosen[..., -1:])
    return torch.cat(answers, 2).to(q.dtype)


def _sums(q: Tensor, k: Tensor, v: Tensor, log_weights: Tensor, level: Tensor) -> Tensor:
    """Σ w e^{a − level} [V, 1]: [b, h, rows, e + 1]."""
    return _with_ones((q @ k.mT + (log_weights[:, None, None] - level)).clamp_max(FAR).exp(), v)


def _with_ones(weights: Tensor, v: Tensor) -> Tensor:
    """Weights times [V, 1]."""
    return torch.cat([weights @ v, weights.sum(-1, keepdim=True)], -1)


def nearest_control(nodes: Tensor, known: Tensor) -> Tensor:
    """The number of the control next to each query: [samples, t]."""
    nodes = nodes.detach().reshape(-1, *nodes.shape[-2:])
    samples = max(nodes.shape[0], known.shape[0])
    nodes, known = nodes.expand(samples, -1, -1), known.expand(samples, -1)
    there = nodes.gather(1, known[..., None].expand(-1, -1, nodes.shape[-1]))
    found = [torch.cdist(part, there).argmin(-1) for part in nodes.split(CHUNK, 1)]
    return torch.cat(found, 1)
