"""What attention looks at: recorded maps, their entropy, rollout, and attribution by gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from continua.axes import Discretisation, Grid
from continua.axes.grid import absent
from continua.errors import ConfigError, ShapeError
from continua.models import Batch, EncoderDecoder, Transformer, View
from continua.operators import Attention, Context, Mask, Recorded
from continua.typing import Float, Tensor


@dataclass(frozen=True)
class AttentionMap:
    """A_h(t, s) = α_h(t, s) w(t, s) of one evaluation of one attention operator: rows sum to one.

    ``base`` is w(t, s), the measure of the sources that row t may look at: zero where it may not, and a row of zeros
    for an absent query. On a Lebesgue axis a causal row weighs its own node with the part of the cell left of it.
    Discrete case: w is one on the allowed pairs, and A is the attention matrix.
    """

    name: str  # the operator's place in the model
    z: float
    dz: float  # the share of depth that this evaluation stands for: one for a layer
    weights: Float[Tensor, "b h t s"]
    base: Float[Tensor, "#b #h t s"]
    t: Grid
    s: Grid
    h: Grid
    is_self: bool

    @property
    def rows(self) -> Tensor:
        """The weight of each query in means over t: [b, t], zero where it is absent or its sources have no measure."""
        smallest = 2 * torch.finfo(self.base.dtype).tiny
        seen = (self.base.sum(-1) > smallest).any(-2)
        return (seen * self.t.weights).expand(len(self.weights), -1)

    def mean(self, values: Float[Tensor, "b h t"], rows: Tensor | None = None) -> Float[Tensor, "h"]:
        """The mean over samples and queries against the measure of t; zero where no row takes part."""
        rows = self.rows[:, None] if rows is None else rows
        rows = rows.expand_as(values).to(values)
        return (rows * values).sum((0, 2)) / rows.sum((0, 2)).clamp_min(torch.finfo(values.dtype).tiny)


class _Watched(list[Recorded]):
    """A record whose weights can be differentiated by even where no parameter asks for a gradient."""

    def append(self, item: Recorded) -> None:
        if not item.weights.requires_grad:
            item.weights.requires_grad_()
        super().append(item)


@torch.no_grad()
def attention_maps(
    model: Transformer | EncoderDecoder | View, batch: Batch | Tensor, at: Discretisation | None = None
) -> list[AttentionMap]:
    """Return the map of every attention evaluation, in the order of depth (an encoder's before its decoder's).

    >>> from continua.models import zoo
    >>> maps = attention_maps(zoo.gpt2(vocab=9, d=8, heads=2, depth=3, context=4), torch.tensor([[1, 2, 3, 4]]))
    >>> [(one.z, tuple(one.weights.shape)) for one in maps]
    [(0.0, (1, 2, 4, 4)), (1.0, (1, 2, 4, 4)), (2.0, (1, 2, 4, 4))]
    """
    return _run(model, batch, at, list)[1]


def attribution(
    model: Transformer | EncoderDecoder | View,
    batch: Batch | Tensor,
    of: Callable[[Tensor], Tensor],
    at: Discretisation | None = None,
) -> list[Tensor]:
    """A ⊙ |∂f/∂A| for a scalar f = of(answer) (attention × gradient): one [b, h, t, s] for each map, in their order.

    The gradient is taken by the recorded weights with everything after them following. ``of`` sums over the batch
    where samples are meant to be looked at on their own, for example ``lambda y: y[:, -1, token].sum()``.
    """
    with torch.enable_grad():
        answer, maps = _run(model, batch, at, _Watched)
        value = of(answer)
        if value.numel() != 1:
            remedy = "Reduce it: lambda y: y[:, -1, token].sum()."
            raise ShapeError("attribution explains one number", got=list(value.shape), remedy=remedy)
        weights = [one.weights for one in maps]
        gradients = torch.autograd.grad(value.reshape(()), weights, allow_unused=True, materialize_grads=True)
    return [(a * g.abs()).detach() for a, g in zip(weights, gradients, strict=True)]


def entropy(one: AttentionMap) -> Float[Tensor, "b h t"]:
    """H(t) = −∫ α log α dμ(s) = −Σ_s A log(A / w), the differential entropy of a row against the measure; 0 if absent.

    At most log w(allowed sources), reached by uniform attention, and steady when stamps are refined.
    Discrete case: on counted tokens w = 1 and this is −Σ A log A exactly.
    """
    a = one.weights
    base = one.base.to(a)
    h = (torch.special.xlogy(a, base) - torch.special.xlogy(a, a)).sum(-1)
    return torch.where(one.rows[:, None] > 0, h, 0.0)


def mean_entropy(one: AttentionMap) -> Float[Tensor, "h"]:
    """⟨H⟩ over samples and present queries, for each head."""
    return one.mean(entropy(one))


def rollout(maps: Sequence[AttentionMap]) -> Float[Tensor, "b t s"]:
    """R = Ã_L ⋯ Ã_1 with Ã = ½(I + A), rows normalised, A the mean over heads (Abnar and Zuidema 2020).

    For an evaluation that stands for dz of depth Ã = 2^(−dz) I + (1 − 2^(−dz)) A: what stays after two halves of a
    layer is what stays after one. Discrete case: dz = 1 is ½(I + A). Rows of absent tokens are those of the identity.
    """
    if not maps:
        raise ConfigError("rollout needs attention maps", got="none", remedy="Pass attention_maps(model, batch).")
    if not all(one.is_self and one.weights.shape == maps[0].weights.shape for one in maps):
        remedy = "Pass the self-attention maps of one stack: [m for m in maps if m.is_self and …]."
        raise ConfigError("rollout follows one stream of tokens", got="maps of several", remedy=remedy)
    like = maps[0].weights
    eye = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    rolled = eye.expand(len(like), -1, -1)
    for one in maps:
        share = (one.h.weights / one.h.mass).to(like)
        mixed = torch.einsum("h,bhts->bts", share, one.weights)
        keep = 2.0**-one.dz
        step = keep * eye + (1 - keep) * mixed
        rolled = step / step.sum(-1, keepdim=True) @ rolled
    return rolled


# --- recording -------------------------------------------------------------------------------------------------------


def _run(
    model: Transformer | EncoderDecoder | View,
    batch: Batch | Tensor,
    at: Discretisation | None,
    record: Callable[[], list[Recorded]],
) -> tuple[Tensor, list[AttentionMap]]:
    """Run with recording; return the answer and the maps."""
    if isinstance(model, View):
        return _run(model.model, batch, model.discretisation if at is None else at, record)
    batch = Batch.of(batch)
    if not isinstance(model, EncoderDecoder):
        return _side(model, batch, at, Context(record=record()), "")
    if batch.source is None:
        raise ShapeError("an encoder–decoder needs a source", got="none", remedy="Pass Batch(values, source=…).")
    seen = record()
    memory, _, grid = model.encoder.run(batch.source, at, Context(record=seen))
    maps = _maps(model.encoder, batch.source, at, grid, Context(record=seen), "encoder.")
    context = Context(memory, grid, cross_pairs=batch.cross_pairs, record=record())
    answer, own = _side(model.decoder, batch, at, context, "decoder.")
    return answer, maps + own


def _side(
    model: Transformer, batch: Batch, at: Discretisation | None, context: Context, prefix: str
) -> tuple[Tensor, list[AttentionMap]]:
    answer, _, grid = model.run(batch, at, context)
    return answer, _maps(model, batch, at, grid, context, prefix)


def _maps(
    model: Transformer, batch: Batch, at: Discretisation | None, t: Grid, context: Context, prefix: str
) -> list[AttentionMap]:
    """Dress what was recorded with names, grids and measures."""
    record = context.record
    grids = model.structure(at).grids.with_tokens(t)
    if model.bank is not None:  # its slots stand beside what cross-attention sees
        context = model.bank(grids, context)
    if not record:
        remedy = "Look at a model with attention in its block."
        raise ConfigError("nothing was recorded", got="no attention operator", remedy=remedy)
    names = {id(module): name for name, module in model.named_modules()}
    heads = grids.h
    length = model.axes.z.end - model.axes.z.start
    counts: dict[int, int] = {}
    for one in record:
        counts[id(one.operator)] = counts.get(id(one.operator), 0) + 1
    maps = []
    for one in record:
        operator = one.operator
        cross = isinstance(operator, Attention) and operator.cross
        mask = operator.mask if isinstance(operator, Attention) else None
        s = context.grid if cross and context.grid is not None else t
        pairs = context.cross_pairs if cross else batch.pairs
        base = _base(t, s, mask, pairs, not cross).to(one.weights)
        dz = length / counts[id(operator)]
        maps.append(AttentionMap(prefix + names[id(operator)], one.z, dz, one.weights, base, t, s, heads, not cross))
    return maps


def _base(t: Grid, s: Grid, mask: Mask | None, pairs: Tensor | None, is_self: bool) -> Tensor:
    """w(t, s): [b or 1, 1 or h, t, s]."""
    base = s.weights[..., None, None, :].expand(*s.weights.shape[:-1], 1, len(t), len(s))
    if mask is not None:
        if mask.is_causal and is_self and not s.is_counting and s.left is not None:
            own = (t.nodes == s.nodes.mT)[..., None, :, :]
            left = s.left.clamp_min(torch.finfo(s.left.dtype).tiny)
            base = torch.where(own & (s.weights > 0)[..., None, None, :], left[..., None, None, :], base)
        base = torch.where(mask.allowed(t.nodes, s.nodes)[..., None, :, :], base, 0.0)
    if pairs is not None:
        pairs = pairs[:, None] if pairs.dim() == 3 else pairs
        allowed = pairs if pairs.dtype == torch.bool else pairs > absent(pairs.dtype) / 2
        base = torch.where(allowed, base, 0.0)
    base = torch.where(t.observed[..., None, :, None], base, 0.0)
    return base.reshape(*[1] * (4 - base.dim()), *base.shape)
