"""The attention operator."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from continua.axes import Grid, Grids
from continua.checks import looking
from continua.config import register
from continua.errors import ConfigError, MaskError, ShapeError
from continua.fields import Field, Parametrisation, Role, Use
from continua.fields import kernel as make_kernel
from continua.fields.role import DENSITY, SHIFT
from continua.flow.vectorfield import Bound
from continua.operators.attention.by_depth import Kind, changes_with_depth, kinds_by_depth
from continua.operators.attention.groups import grouped, maps, of_heads, vectors
from continua.operators.attention.head_norm import HeadNorm, HeadNorming
from continua.operators.attention.heads import AttentionOperands, Heads, merged, spread
from continua.operators.attention.parts import Sources, seen_from
from continua.operators.attention.plan import Plan, Scores, check_pairs, check_rows, next_row, once_for_all_depths, plan
from continua.operators.cache import Cache
from continua.operators.calibration import Target, calibration, extra, folded
from continua.operators.correction import corrected, corrected_by, correction
from continua.operators.kernels.kernel import InParts, Kernel, Softmax, subquadratic
from continua.operators.linear import linear
from continua.operators.mask import Mask
from continua.operators.operator import Context, Note, Operator, Recorded, local, read_late
from continua.operators.position import Position, PositionByDepth
from continua.operators.refit import keys_of, refit, source_of
from continua.operators.stored import StoredReads
from continua.operators.weights import Finish, Sampled, Weight, sample
from continua.operators.weights import read as read_field
from continua.typing import Args, Tensor

OUTPUT = Role(Use.KERNEL, inputs="he", is_output=True)  # of O


@dataclass(frozen=True)
class Attending:
    """A[x] with the weights of one depth: the function that a bound ``Attention`` evaluates."""

    heads: Heads
    note: Note | None = None

    def __call__(self, z: float, x: Tensor, args: AttentionOperands) -> Tensor:
        """Project, attend, project back."""
        heads = self.heads
        w = args.weights.at(z)
        if self.note is not None:
            self.note(z, "d", x)
        q, k, v = heads.projected(x, w, args)  # [b, h, t, e], [b, g, s, e], [b, g, s, e]
        mixed = merged(heads.mix(q, k, v, args.scores))  # [b, t, h·e]
        if self.note is not None:
            self.note(z, "he", mixed)
        return linear(mixed, w["o"], w.get("bo"))  # [b, t, d]


@dataclass(frozen=True)
class AttendingCached:
    """The same for new tokens behind others, whose keys and values are kept."""

    heads: Heads
    operator: "Attention"
    cache: Cache

    def __call__(self, z: float, x: Tensor, args: AttentionOperands) -> Tensor:
        """Keys and values of a source are made once, those of the state put behind the ones before."""
        heads = self.heads
        w = args.weights.at(z)
        q = heads.queries(x, w, args)
        if heads.cross:
            k, v = self.cache.once(self.operator, z, lambda: (heads.keys(x, w, args), heads.values(x, w, args)))
        else:
            k, v = self.cache.extend(self.operator, heads.keys(x, w, args), heads.values(x, w, args))
        mixed = heads.mix(q, k, v, args.scores)
        return linear(merged(mixed), w["o"], w.get("bo"))


@dataclass(frozen=True)
class AttendingRecorded:
    """The same through the weights α themselves, which are kept, so that the answer can be differentiated by them."""

    heads: Heads
    operator: "Attention"
    record: list[Recorded]

    def __call__(self, z: float, x: Tensor, args: AttentionOperands) -> Tensor:
        """Form all pairs."""
        heads = self.heads
        w = args.weights.at(z)
        q = heads.queries(x, w, args)
        k = spread(heads.keys(x, w, args), q)
        v = spread(heads.values(x, w, args), q)
        alpha = heads.plan.weights(q, k, args.scores)  # [b, h, t, s]
        self.record.append(Recorded(self.operator, z, alpha))
        mixed = alpha @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        return linear(merged(mixed), w["o"], w.get("bo"))


@dataclass(frozen=True)
class AttendingByDepth:
    """Each depth with the function of its own mask."""

    each: tuple[Any, ...]
    order: tuple[int, ...]  # which of them serves a unit of depth

    def __call__(self, z: float, x: Tensor, args: AttentionOperands) -> Tensor:
        """Choose by depth, a plain number."""
        kind = layer_at(self.order, z)
        found: Tensor = self.each[kind](z, x, replace(args, scores=args.layers[kind]))
        return found


def layer_at(order: tuple[int, ...], z: float) -> int:
    """The entry of depth z; a hair below a whole number is that number."""
    return order[min(max(math.floor(z + 1e-9), 0), len(order) - 1)]


@dataclass(frozen=True)
class AttentionRead(Sampled):
    """The weights of attention, and what its position read on the head and inner grids."""

    position: Any = None


@register
class Attention(Operator):
    """A[x](t,d) = ∫ρ(h) ∫ α_h(t,s) (O_h V_h x)(s,d) dμ(s) dμ(h) + b_O(d), α_h = normalised exp(τ∫QK dμ(e) + bias).

    The measure of the sources enters as log-weights inside the softmax; those of c, e and h are folded into the
    kernels at ``bind``, so the arithmetic is that of plain attention on every grid. ``groups`` shares keys and values
    among heads (one: multi-query). ``cross`` attends to ``Context.state``. ``density`` adds ρ(h, z), mean one. ``norm``
    normalises queries and keys in each head.

    Discrete case: on ``Points`` axes with ρ = 1 this is ``nn.MultiheadAttention``.
    """

    def __init__(
        self,
        weights: Parametrisation,
        mask: Mask | None = None,
        position: Position | None = None,
        kernel: Kernel = Softmax(),  # noqa: B008  (frozen and stateless)
        groups: int | None = None,
        bias: tuple[str, ...] = ("q", "k", "v", "o"),
        density: bool = False,
        cross: bool = False,
        *,
        norm: HeadNorm | None = None,
    ) -> None:
        super().__init__()
        self.axes = weights.axes
        self.mask = mask
        self.kernel = kernel
        self.cross = cross
        self.position = position if position is not None else Position()
        self.kinds, self.order = kinds_by_depth(mask, self.position)
        self.groups = groups
        self.norm = norm
        shared = grouped(weights, groups)
        # queries start smaller where scores are not scaled, so that these start with spread one all the same (T5)
        self.q, self.k, self.v = (
            make_kernel(weights, "zhec", inputs="c", gain=Softmax().scale(self.axes.e) / kernel.scale(self.axes.e)),
            make_kernel(shared, "zhec", inputs="c"),
            make_kernel(shared, "zhec", inputs="c"),
        )
        self.o = make_kernel(weights, "zdhe", inputs="he", is_output=True)
        self.bq = weights.field("zhe", role=SHIFT) if "q" in bias else None
        self.bk = shared.field("zhe", role=SHIFT) if "k" in bias else None
        self.bv = shared.field("zhe", role=SHIFT) if "v" in bias else None
        self.bo = weights.field("zd", role=SHIFT) if "o" in bias else None
        self.density: Field | None = weights.field("zh", role=DENSITY) if density else None
        self.calibration = calibration(weights, {"o": Target(OUTPUT, "hd", integral="h", own="e", shift="bo")})
        # a density is a measure of heads already, learned beside them
        self.refit = None if density else refit(weights, "he", rank="h", centred="o" in bias)
        # keys and values of another state say nothing of this one
        self.state_refit = None if cross else refit(weights, "c", rank="d", centred={"q", "k", "v"} <= set(bias))
        self.correction = correction(weights, maps(groups), vectors(groups, bias))
        self._stored = StoredReads()

    @property
    def _is_plain(self) -> bool:
        """Whether nothing is folded into the maps as they are read."""
        folded_in = (self.calibration, self.refit, self.state_refit, self.correction, self.density)
        return all(part is None for part in folded_in)

    def rho(self, grids: Grids) -> Tensor | None:
        """ρ(z, h) ≥ 0 with ∫ρ dμ(h) = mass(h): the normalised exponential of a field, or ``None`` for ρ = 1."""
        return None if self.density is None else self._normalised(read_field(self.density, grids), grids.h)

    def _normalised(self, density: Tensor, h: Grid) -> Tensor:
        weights = h.weights
        p = torch.softmax(density + weights.log().to(density), -1)
        return p * (weights.sum() / weights).to(p)

    @property
    def o_like(self) -> Tensor:
        """Any parameter, for its device and dtype."""
        return next(self.parameters())

    def read(self, grids: Grids, late: bool = False) -> AttentionRead:
        """The kernels of all heads, with the calibration and ρ folded in, and what the position learned."""
        own = self._stored.recall(self, grids)
        if own is None:
            weights = self._weights(grids, late)
            own = sample(grids, weights, late, self._finish(grids))
            own = self._stored.learn(self, grids, weights, own) if self._is_plain else own
        return AttentionRead(own.weights, own.reading, self.position.bind(grids.h, grids.e))

    def place(self, read: AttentionRead, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Plan the scores, and return plain attention arithmetic."""
        kinds = self.kinds if changes_with_depth(self.mask, self.position) else (Kind(self.mask),)
        planned = [self._plan(grids, context, read.position, kind) for kind in kinds]
        source = context.state if self.cross else None
        values = context.values if self.cross and context.values is not None else source
        norm = None if self.norm is None else HeadNorming(self.norm.eps, self.norm.missing if grids.e.is_unit else 0.0)
        each = [Heads(made, grids.e.count, self.cross, norm) for made, _ in planned]
        share = None if norm is None or grids.e.is_uniform else (grids.e.weights / grids.e.mass).to(self.o_like)
        args = AttentionOperands(read.weights, planned[0][1], source, values, share=share)
        functions = tuple(self._function(heads, context, grids.t) for heads in each)
        if not self.order:
            return Bound(functions[0], read_late(read.reading), local), args
        args = replace(args, scores=Scores(), layers=tuple(scores for _, scores in planned))
        return Bound(AttendingByDepth(functions, self.order), read_late(read.reading), local), args

    def _function(self, heads: Heads, context: Context, t: Grid | None) -> Any:
        if context.record is not None:
            return AttendingRecorded(heads, self, context.record)
        if context.cache is not None:
            return AttendingCached(heads, self, context.cache)
        return Attending(heads, context.noting(self, t))

    def _plan(self, grids: Grids, context: Context, placed: Any, kind: Kind) -> tuple[Plan, Scores]:
        """Decide how to attend, and see that every query has a key."""
        position = self.position
        if isinstance(position, PositionByDepth):
            position, placed = position.positions[kind.position], placed[kind.position]  # type: ignore[assignment]
        t, source, pairs = self._tokens(grids, context)
        heads = grids.h.count
        cache = context.cache
        if pairs is not None and pairs.dim() == 4 and pairs.shape[1] not in (1, heads):
            remedy = "Give one mask for each head, or one [b, 1, t, s] for all."
            raise MaskError(f"pairs needs {heads} heads", got=list(pairs.shape), remedy=remedy)
        kernel, mask = self._kernel(context, kind.mask, t)
        if position.knows_length:
            t.require_whole(f"{type(position).__name__}, whose turns depend on the length,")
        whole = t.shard is None or self.cross
        sources = Sources(source) if whole else seen_from(t, mask, position, kernel, pairs)
        origin = _origin(source if t.shard is None else t.shard.whole) if position.turns else None
        made, scores = plan(
            t,
            sources,
            mask=mask,
            position=position,
            placed=placed,
            kernel=kernel,
            scale=self.kernel.scale(self.axes.e),
            pairs=pairs,
            itself=not self.cross,
            queries=position.where(_since(origin, t, position), placed),  # new keys of self-attention sit there too
            keys=position.where(_since(origin, source, position), placed) if self.cross else None,
        )
        check_pairs(t, sources.grid, scores.pairs)
        if made.unsure and made.quick is None and looking() and not (cache and pairs is None):
            check_rows(made, t, sources.grid, scores)  # a source is checked once, before the first token
        if cache is not None and t.count == 1 and context.record is None and kernel.is_dot:
            behind = not self.cross and cache.is_behind  # all sources are in its past
            return next_row(made, scores, self.o_like, behind)
        return made, once_for_all_depths(made, scores, self.o_like, t.count)

    def _kernel(self, context: Context, mask: Mask | None, t: Grid) -> tuple[Kernel, Mask | None]:
        """The kernel to plan with, and its mask: recorded weights and a cache need one that looks at single pairs."""
        own = subquadratic(self.kernel)
        if own is None:
            return self.kernel, mask
        plain, mask = own.plain(mask)
        by_pairs = t.shard is not None and not isinstance(self.kernel, InParts)
        if own.is_exact and (torch.compiler.is_compiling() or by_pairs):
            return plain, mask  # its blocks depend on the values of all stamps: all pairs, exactly
        wish = "recorded weights" if context.record is not None else "a cache" if context.cache is not None else None
        if wish is None:
            return self.kernel, mask
        if not own.is_exact:
            got, remedy = type(self.kernel).__name__, f"Build the operator with kernel={plain} for that."
            raise ConfigError(f"{wish} need weights of single pairs", got=got, remedy=remedy)
        return plain, mask

    def _tokens(self, grids: Grids, context: Context) -> tuple[Grid, Grid, Tensor | None]:
        t = grids.tokens
        if not self.cross:
            return t, t if context.cache is None else context.cache.sources(t), context.pairs
        if context.state is None or context.grid is None:
            raise ShapeError(
                "cross-attention needs something to attend to", got="no context", remedy="Pass Context(state, grid)."
            )
        if context.state.shape[1] != context.grid.count or context.state.shape[2] != grids.d.count:
            wanted = f"[b, {context.grid.count}, {grids.d.count}]"
            got = list(context.state.shape)
            raise ShapeError(f"the context needs shape {wanted}", got=got, remedy="Match its grid and at(d=…).")
        return t, context.grid, context.cross_pairs

    @property
    def _keys(self) -> str:
        """The letter of the inner coordinates, where keys carry the weights of these."""
        return self.kernel.over_keys.removeprefix("c")

    def _weights(self, grids: Grids, late: bool) -> dict[str, Weight]:
        """Weights of c on q, k, v; of e on q (for the score integral) and o; of h and ρ on o; heads flattened."""
        keys = self._keys
        inner = ("e", keys) if self.norm is None else ("", "")  # of queries and keys: behind a norm, its scales have it
        shared = "" if self.groups is None else "h"  # stored group by group
        fewer = keys_of(self.refit, grids)
        state = "c" if keys_of(self.state_refit, grids) is None else ""  # integrated over here, or refitted below
        whole = "" if state else "c"
        moved = self.refit is not None and self.refit.arranges(grids)
        heads = "h" if moved else ""  # taken below, in the order of each layer
        shares = shared or heads

        def rows(place: int, each: bool = False) -> Any:
            """Merge the head and inner dimensions (head first)."""
            return lambda v: (self._each(v, grids, place) if each else v).flatten(place, place + 1)

        return {
            "q": Weight(self.q, state + inner[0], rows(-3), heads + whole, moved),
            "k": Weight(self.k, state + inner[1], rows(-3, each=True), shares + whole, moved),
            "v": Weight(self.v, state, rows(-3, each=True), shares + whole, moved),
            "o": Weight(self.o, "he", rows(-2), heads, moved) if fewer is None else Weight(self.o, "", rows(-2), "he"),
            "bq": Weight(self.bq, inner[0], rows(-2), heads),
            "bk": Weight(self.bk, inner[1], rows(-2, each=True), shares),
            "bv": Weight(self.bv, "", rows(-2, each=True), shares),
            "bo": Weight(self.bo),
            **({} if self.density is None else {"density": Weight(self.density)}),
            **({} if self.norm is None else {"nq": Weight(self.norm.q, "e"), "nk": Weight(self.norm.k, keys)}),
            **extra(self.calibration, grids, late),
            **corrected_by(self.correction, grids),
        }

    def _finish(self, grids: Grids) -> Finish:
        """Fold the refit, the calibration and ρ into o, and corrections into all maps."""

        def fold(values: dict[str, Tensor], depths: tuple[float, ...] | None) -> dict[str, Tensor]:
            if self.refit is not None:
                fewer = keys_of(self.refit, grids)
                dims = of_heads(self.groups, fewer is None)
                values = self.refit.arranged(values, dims, grids, depths, self._modules)
                values = self.refit.fold(values, ("o", "bo"), fewer, depths, source_of(self.o, grids))
            if self.state_refit is not None:
                narrow = keys_of(self.state_refit, grids)
                for name, field in (("q", self.q), ("k", self.k), ("v", self.v)):
                    values = self.state_refit.fold(values, (name, f"b{name}"), narrow, depths, source_of(field, grids))
            values = corrected(self.correction, values, grids)
            values = folded(self.calibration, values, grids, depths)
            if self.norm is not None and self.norm.missing and "nq" in values and not grids.e.is_unit:
                over = self.norm.missing * grids.e.weights.to(values["nq"])
                values = {
                    **values,
                    "nq": values["nq"] + over,
                    "nk": values["nk"] + (over if self._keys else self.norm.missing),
                }
            if "density" not in values:
                return values
            rho = self._normalised(values["density"], grids.h).repeat_interleave(grids.e.count, -1)
            rest = {name: value for name, value in values.items() if name != "density"}
            return {**rest, "o": values["o"] * rho[..., None, :]}

        return fold

    def _each(self, values: Tensor, grids: Grids, place: int) -> Tensor:
        """Shared heads stay shared on the native grid; a subset of heads reads the group of each."""
        if self.groups is None or grids.h.is_counting:
            return values
        per_group = (self.axes.h.n or 1) // self.groups  # type: ignore[union-attr]
        return values.index_select(place, grids.h.nodes[:, 0].long() // per_group)


def _origin(s: Grid) -> Tensor | None:
    """What queries and keys are turned from: their first stamp, since a turn tells nothing but differences.

    Angles of Unix time would lose in their product what float64 stamps have to tell. Counted tokens count from zero.
    """
    if s.is_counting or s.nodes.shape[-1] != 1:
        return None
    there = torch.where(s.observed[..., None], s.nodes, torch.inf) if s.has_gaps else s.nodes
    first = there.detach().amin(-2, keepdim=True)
    return torch.where(first.isfinite(), first, 0.0) if s.has_gaps else first


def _since(origin: Tensor | None, grid: Grid, position: Position) -> Tensor:
    """Stamps from there on; where their length counts, absent tokens have none."""
    since = grid.nodes if origin is None else grid.nodes - origin
    return torch.where(grid.observed[..., None], since, 0.0) if position.knows_length and grid.has_gaps else since
