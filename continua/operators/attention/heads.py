"""How queries, keys and values of all heads are laid out, turned and mixed."""

from collections.abc import Mapping
from dataclasses import dataclass

from continua.operators.attention.head_norm import HeadNorming
from continua.operators.attention.plan import Plan, Scores
from continua.operators.linear import linear, linears
from continua.operators.operator import Operands
from continua.typing import Any, Tensor


@dataclass(frozen=True)
class AttentionOperands(Operands):
    """The weights of attention, the tensors of its scores, and what cross-attention looks at."""

    scores: Scores
    source: Tensor | None = None  # keys are made of it [b, s, d]; None: of the state itself
    values: Tensor | None = None  # values are made of it, where they differ from keys
    layers: tuple[Scores, ...] = ()  # of each kind of a mask that changes with depth
    share: Tensor | None = None  # of each inner node in the norm of queries and keys


def merged(mixed: Tensor) -> Tensor:
    """[b, h, t, e] → [b, t, h·e]."""
    mixed = mixed.transpose(1, 2)
    return mixed.reshape(*mixed.shape[:2], -1)


def spread(x: Tensor, like: Tensor) -> Tensor:
    """One memory may serve all samples."""
    return x if x.shape[0] == like.shape[0] else x.expand(like.shape[0], -1, -1, -1)


@dataclass(frozen=True)
class Heads:
    """The arithmetic of attention on one discretisation: ``inner`` coordinates a head."""

    plan: Plan
    inner: int
    cross: bool
    norm: HeadNorming | None = None

    def split(self, x: Tensor) -> Tensor:
        """[b, t, h·e] → [b, h, t, e]."""
        return x.view(*x.shape[:-1], -1, self.inner).transpose(1, 2)

    def turned(self, x: Tensor, where: Any, scale: Tensor | None, share: Tensor | None) -> Tensor:
        """Split, normalised where there is a ``scale``, and turned by the position."""
        if self.norm is not None and scale is not None:
            split = self.norm(x.view(*x.shape[:-1], -1, self.inner), scale, share).transpose(1, 2)
            return self.plan.position.turn(split, where)
        return self.plan.position.turn(self.split(x), where)

    def projected(self, x: Tensor, w: Mapping[str, Tensor], args: AttentionOperands) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; those of one state are made together."""
        if args.source is not None or args.values is not None:
            return self.queries(x, w, args), self.keys(x, w, args), self.values(x, w, args)
        q, k, v = linears(x, (w["q"], w.get("bq")), (w["k"], w.get("bk")), (w["v"], w.get("bv")))
        q = self.turned(q, args.scores.queries, w.get("nq"), args.share)  # [b, h, t, e]
        k = self.turned(k, self.key_places(args.scores), w.get("nk"), args.share)  # [b, g, s, e]
        return q, k, self.split(v)

    def queries(self, x: Tensor, w: Mapping[str, Tensor], args: AttentionOperands) -> Tensor:
        """[b, t, d] → [b, h, t, e]."""
        made = linear(x, w["q"], w.get("bq"))
        return self.turned(made, args.scores.queries, w.get("nq"), args.share)

    def keys(self, x: Tensor, w: Mapping[str, Tensor], args: AttentionOperands) -> Tensor:
        """[b, s, d] → [b, g, s, e], of the state itself or of what it attends to."""
        source = x if args.source is None else args.source
        made = linear(source, w["k"], w.get("bk"))
        return self.turned(made, self.key_places(args.scores), w.get("nk"), args.share)

    def values(self, x: Tensor, w: Mapping[str, Tensor], args: AttentionOperands) -> Tensor:
        """[b, s, d] → [b, g, s, e]."""
        source = x if args.values is None else args.values
        return self.split(linear(source, w["v"], w.get("bv")))

    def key_places(self, scores: Scores) -> Any:
        """What turns the keys: where the queries are, or where the other field is."""
        return scores.keys if self.cross else scores.queries

    def mix(self, q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
        """Attend: [b, h, t, e]."""
        return self.plan.attend(q, spread(k, q), spread(v, q), scores)
