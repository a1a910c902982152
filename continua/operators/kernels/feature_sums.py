"""Sums of positive features: what linear attention keeps of its keys, of all of them or of those before a row."""

from dataclasses import dataclass

import torch

from continua.axes.sharded import Layout
from continua.operators.attention.plan import Plan, Scores
from continua.operators.kernels.sampled import Equal
from continua.typing import Tensor

ROWS = 256  # tokens of a causal block


@dataclass(frozen=True)
class Bank:
    """The features of each sample and head: √(1−4A) ω [b, h, m, e] and A‖ω‖² [b, h, 1, m]."""

    omega: Tensor
    offset: Tensor

    @classmethod
    def of(cls, omega: Tensor, size: Tensor) -> "Bank":
        """With the A of least variance for the mean ``size`` [b, h] of ‖x + y‖²."""
        d = omega.shape[-1]
        size = size.clamp_min(1e-3)
        rho = (((2 * size + d) ** 2 + 8 * d * size).sqrt() - 2 * size - d) / (4 * size)
        a = ((1 - 1 / rho) / 8)[..., None, None]
        return cls((1 - 4 * a).sqrt() * omega, a * omega.square().sum(-1))

    def logs(self, x: Tensor) -> Tensor:
        """log φ(x): [b, h, n, m]."""
        return x @ self.omega.mT + (self.offset - x.square().sum(-1, keepdim=True) / 2)


@dataclass(frozen=True)
class Sums:
    """Σ φ(k) w V and Σ φ(k) w, [b, h, m, e + 1], both divided by e^level: the largest feature is near one."""

    values: Tensor
    level: Tensor

    @classmethod
    def none(cls, k: Tensor, v: Tensor, omega: Tensor) -> "Sums":
        """No key yet."""
        lead = (*k.shape[:2], omega.shape[-2])
        return cls(v.new_zeros(*lead, v.shape[-1] + 1), v.new_full((*lead[:2], 1, 1), -torch.inf))

    def with_keys(self, logs: Tensor, v: Tensor) -> "Sums":
        """Some keys more."""
        top = torch.maximum(self.level, logs.detach().amax((-2, -1), keepdim=True))
        features = (logs - top).exp()
        more = torch.cat([features.mT @ v, features.sum(-2)[..., None]], -1)
        return Sums((self.level - top).exp() * self.values + more, top)

    def over_all(self, layout: Layout) -> "Sums":
        """Those of the keys of all processes."""
        top = layout.largest(self.level)
        return Sums(layout.sum((self.level - top).exp() * self.values), top)

    def answer(self, logs: Tensor) -> Tensor:
        """The ratio of the two sums for the log-features of some queries, each divided by its own largest."""
        return ratio((logs - logs.detach().amax(-1, keepdim=True)).exp() @ self.values)


def ratio(sums: Tensor) -> Tensor:
    """Values over the normaliser in the last column, which is kept from vanishing."""
    return sums[..., :-1] / sums[..., -1:].clamp_min(torch.finfo(sums.dtype).tiny)


def key_weights(plan: Plan, scores: Scores, like: Tensor, count: int) -> Tensor:
    """Log-weights of the keys for each sample and head of ``like``: [b, h, s]."""
    if not plan.weighted or scores.log_weights is None:
        return like.new_zeros(1, 1, count).expand(*like.shape[:2], -1)
    return scores.log_weights.to(like.dtype).reshape(-1, 1, count).expand(*like.shape[:2], -1)


@dataclass(frozen=True)
class Projected:
    """Queries and keys as features take them, values, log-weights of the keys, and the features."""

    x: Tensor
    y: Tensor
    v: Tensor
    weights: Tensor
    bank: Bank

    def keys_of(self, start: int, end: int, step: int) -> Sums:
        """The sums over some keys, ``step`` at a time."""
        sums = Sums.none(self.y, self.v, self.bank.omega)
        for first in range(start, end, step):
            keys = slice(first, min(first + step, end))
            sums = sums.with_keys(
                self.bank.logs(self.y[:, :, keys]) + self.weights[:, :, keys, None], self.v[:, :, keys]
            )
        return sums


@dataclass(frozen=True)
class Around:
    """The keys around the rows of causal attention.

    ``lead`` keys come before the first row. Up to ``equal.before`` keys before a block and ``equal.after`` behind it
    may carry one of its stamps, and share its cell: these are pairs, as those of the block are.
    """

    equal: Equal = Equal()  # noqa: RUF009  (frozen)
    lead: int = 0


def attend_causal(given: Projected, plan: Plan, scores: Scores, around: Around, sums: Sums) -> Tensor:
    """Block by block: the sums of all earlier keys, and the pairs around the block under the mask.

    ``sums`` are those of the keys before all that are given.
    """
    answers = []
    added = 0
    for start in range(0, given.x.shape[2], ROWS):
        rows = slice(start, start + ROWS)
        keys = slice(added, around.lead + start + ROWS + around.equal.after)
        queries = given.bank.logs(given.x[:, :, rows])
        own = given.bank.logs(given.y[:, :, keys])
        v = given.v[:, :, keys]
        bias = plan.pair_bias(slice(0, ROWS), given.x, scores.part(rows, keys))
        largest = own.detach().amax((-2, -1), keepdim=True)
        most = bias.detach().amax(-1, keepdim=True)  # a first row may own next to nothing: the left part of its cell
        top = torch.maximum(sums.level, largest + most)
        features = (queries - queries.detach().amax(-1, keepdim=True)).exp()
        pairs = features @ (own - largest).exp().mT * (bias - most).exp()
        here = torch.cat([pairs @ v, pairs.sum(-1, keepdim=True)], -1)
        answers.append(ratio((sums.level - top).exp() * (features @ sums.values) + (largest + most - top).exp() * here))
        past = around.lead + start + queries.shape[2] - around.equal.before  # the next block meets no cell of these
        if past > added:
            done = slice(added, past)
            sums = sums.with_keys(own[:, :, : past - added] + given.weights[:, :, done, None], v[:, :, : past - added])
            added = past
    return torch.cat(answers, 2)
