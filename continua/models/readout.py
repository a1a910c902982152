"""Readouts: from the field X(Z, t, d) to an answer."""

from typing import Any, NamedTuple

import torch
from torch import nn, tanh
from torch.nn.functional import linear

from continua.axes import Grid, Grids
from continua.config import register
from continua.errors import ConfigError
from continua.fields import Field, Parametrisation, Role, kernel_std
from continua.fields.role import HEAD, SHIFT
from continua.models.embed import apply_once, observed_only
from continua.operators import Operator
from continua.settings import Positive, Size, Whole
from continua.typing import Tensor


def measured(head: Field, d: Grid) -> Tensor:
    """R(v, d) w(d): with the measure of d folded in, the integral over d is a plain product."""
    kernel = head.on(d=d)
    return kernel if d.is_unit else kernel * d.weights.to(kernel)


def first_of(x: Tensor, t: Grid) -> Tensor:
    """x(t₀, d) at the first token that is observed, [b, d]."""
    if t.shard is not None:  # one process has it, all answer
        here = t.observed & (t.shard.observed_up_to_own() == 1)
        return t.shard.layout.sum(torch.where(here[..., None], x, 0.0).sum(1))
    if not t.has_gaps:
        return x[:, 0]
    place = t.observed.expand(x.shape[:2]).long().argmax(-1)
    return x.gather(1, place[:, None, None].expand(-1, 1, x.shape[-1]))[:, 0]


def last_of(x: Tensor, t: Grid) -> Tensor:
    """x(t_n, d) at the last token that is observed, [b, d]."""
    t.require_whole("an answer at the last token")
    if not t.has_gaps:
        return x[:, -1]
    place = t.count - 1 - t.observed.expand(x.shape[:2]).flip(-1).long().argmax(-1)
    return x.gather(1, place[:, None, None].expand(-1, 1, x.shape[-1]))[:, 0]


class ReadoutWeights(NamedTuple):
    """What a readout reads: the weights of the operators before the head, the head and its bias."""

    before: tuple[Any, ...]
    kernel: Tensor | None
    bias: Tensor | None = None


@register
class Readout(nn.Module):
    """y(t, v) = s ∫ R(v, d) N[X](t, d) dμ(d) + b(v), after the operators ``before`` (a final norm, BERT's transform).

    ``out=None`` returns the field itself; ``tied`` takes R from the token table; ``scale`` is s; ``pool`` averages
    over the tokens with their measure first: y(v) = ∫ … dμ(t) / mass(t); ``first`` answers at the first observed token
    alone, ``last`` at the last one; operators from number ``pooled_at`` on come behind that, none unless it is given.
    ``labels`` name the answers; ``cap`` = c bends them to c·tanh(y/c) (Gemma 2).
    Discrete case: ``ln_f`` and ``lm_head``.
    """

    def __init__(
        self,
        weights: Parametrisation,
        out: Size | None = None,
        before: tuple[Operator, ...] = (),
        tied: bool = False,
        bias: bool = False,
        pool: bool = False,
        scale: float = 1.0,
        first: bool = False,
        *,
        labels: tuple[str, ...] = (),
        cap: Positive | None = None,
        last: bool = False,
        pooled_at: Whole | None = None,
    ) -> None:
        super().__init__()
        if labels and len(labels) != out:
            raise ConfigError(f"{out} answers have as many labels", got=len(labels), remedy="Give one each, or none.")
        if (tied or bias) and out is None:
            raise ConfigError("a head needs to know its size", got="out=None", remedy="Give out=the vocabulary size.")
        self.out = out
        self.tied = tied
        self.pool = pool
        self.scale = scale
        self.first = first
        self.last = last
        self.pooled_at = len(before) if pooled_at is None else pooled_at
        self.labels = labels
        self.cap = cap
        self.before = nn.ModuleList(before)
        self.head = weights.table(out, "d", kernel_std(weights, "d"), HEAD) if out is not None and not tied else None
        self.bias = nn.Parameter(_zeros(out)) if bias and out is not None else None

    def parameter_roles(self) -> dict[str, Role | None]:
        """The bias is a plain parameter."""
        return {} if self.bias is None else {"bias": SHIFT}

    def read(self, grids: Grids, table: Field | None) -> ReadoutWeights:
        """The operators before the head, and the head on the d grid; ``table`` is the embedding's."""
        head = table if self.tied else self.head
        kernel = measured(head, grids.d) if self.out is not None and head is not None else None
        before = tuple(operator.read(grids) for operator in self.before)  # type: ignore[operator]
        return ReadoutWeights(before, kernel, self.bias)

    def forward(self, x: Tensor, grids: Grids, table: Field | None, read: ReadoutWeights | None = None) -> Tensor:
        """Return the answer; absent tokens answer zero and enter no average."""
        t = grids.tokens
        weights = self.read(grids, table) if read is None else read
        steps = list(zip(self.before, weights.before, strict=True))
        for operator, own in steps[: self.pooled_at]:
            x = apply_once(operator, own, grids, x)  # type: ignore[arg-type]
        if self.pool:
            share = t.weights.to(x)
            pooled = (share[..., None] * x).sum(-2)
            pooled = pooled if t.shard is None else t.shard.layout.sum(pooled)
            x = pooled / t.mass.to(x)[..., None]
        elif self.first:
            x = first_of(x, t)
        elif self.last:
            x = last_of(x, t)
        for operator, own in steps[self.pooled_at :]:
            x = apply_once(operator, own, grids, x)  # type: ignore[arg-type]
        x = x if self.scale == 1.0 else x * self.scale
        if weights.kernel is not None:
            x = linear(x, weights.kernel, weights.bias)  # [b, t, v]
        x = x if self.cap is None else self.cap * tanh(x / self.cap)
        return observed_only(x, t) if self.answers_each_token else x

    @property
    def answers_each_token(self) -> bool:
        """Whether every token has an answer of its own."""
        return not (self.pool or self.first or self.last)


@register
class Averaged(nn.Module):
    """y(v) = 1/k Σ_i (∫ R_i(v, d) N[X](t_i, d) dμ(d) + b_i(v)) over the first k tokens, each with a head of its own.

    Discrete case: the two classifiers of DeiT, of its class token and of its distillation token.
    """

    def __init__(
        self,
        weights: Parametrisation,
        out: Size,
        before: tuple[Operator, ...] = (),
        count: Size = 2,
        labels: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.out = out
        self.labels = labels
        self.before = nn.ModuleList(before)
        self.heads = nn.ModuleList(Readout(weights, out, bias=True, labels=labels) for _ in range(count))

    answers_each_token = False

    def read(self, grids: Grids, table: Field | None) -> tuple[tuple[Any, ...], tuple[ReadoutWeights, ...]]:
        """The operators before the heads, and the heads on the d grid."""
        before = tuple(operator.read(grids) for operator in self.before)  # type: ignore[operator]
        return before, tuple(head.read(grids, table) for head in self.heads)  # type: ignore[operator]

    def forward(self, x: Tensor, grids: Grids, table: Field | None, read: Any = None) -> Tensor:
        """The mean of the answers at the first tokens."""
        grids.tokens.require_whole(type(self).__name__)
        before, heads = self.read(grids, table) if read is None else read
        for operator, own in zip(self.before, before, strict=True):
            x = apply_once(operator, own, grids, x)  # type: ignore[arg-type]
        answers = [linear(x[:, i], head.kernel, head.bias) for i, head in enumerate(heads)]
        total: Tensor = sum(answers[1:], answers[0])
        return total / len(answers)


def _zeros(count: int) -> Tensor:
    return torch.zeros(count)
