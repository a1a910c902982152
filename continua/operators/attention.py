"""The attention operator."""

from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import linear

from continua.axes import Counting, Grid, Points, grid_on
from continua.config import register
from continua.errors import ConfigError, MaskError, ShapeError
from continua.fields import ByBasis, Field, Nodal, Parametrisation
from continua.fields import kernel as make_kernel
from continua.operators.kernel import Kernel, Softmax
from continua.operators.mask import Mask
from continua.operators.operator import Context, Grids, Operator, Recorded, at_depth, by_depth, read, remembered
from continua.operators.position import Position
from continua.operators.scores import Plan, check_rows, next_row, once_for_all_depths, plan
from continua.typing import Args, Tensor, VectorFunction


@register
class Attention(Operator):
    """A[x](t,d) = ∫ρ(h) ∫ α_h(t,s) (O_h V_h x)(s,d) dμ(s) dμ(h) + b_O(d), α_h = normalised exp(τ∫QK dμ(e) + bias).

    The measure of the sources enters as log-weights inside the softmax; those of c, e and h are folded into the
    kernels at ``bind``, so the arithmetic is that of plain attention on every grid. ``groups`` shares keys and values
    among heads (one: multi-query). ``cross`` attends to ``Context.state``. ``density`` adds ρ(h, z), mean one.

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
    ) -> None:
        super().__init__()
        self.axes, self.mask, self.kernel, self.cross = weights.axes, mask, kernel, cross
        self.position = position if position is not None else Position()
        self.groups, shared = groups, _grouped(weights, groups)
        # queries start smaller where scores are not scaled, so that these start with spread one all the same (T5)
        self.q, self.k, self.v = (
            make_kernel(weights, "zhec", inputs="c", gain=Softmax().scale(self.axes.e) / kernel.scale(self.axes.e)),
            make_kernel(shared, "zhec", inputs="c"),
            make_kernel(shared, "zhec", inputs="c"),
        )
        self.o = make_kernel(weights, "zdhe", inputs="he")
        self.bq = weights.field("zhe") if "q" in bias else None
        self.bk = shared.field("zhe") if "k" in bias else None
        self.bv = shared.field("zhe") if "v" in bias else None
        self.bo = weights.field("zd") if "o" in bias else None
        self.density: Field | None = weights.field("zh") if density else None

    def rho(self, grids: Grids) -> Tensor | None:
        """ρ(z, h) ≥ 0 with ∫ρ dμ(h) = mass(h): the normalised exponential of a field, or ``None`` for ρ = 1."""
        if self.density is None:
            return None
        weights = grids["h"].weights.to(device=self.o_like.device)
        p = torch.softmax(read(self.density, grids) + weights.log().to(self.o_like), -1)  # type: ignore[operator]
        return p * (weights.sum() / weights).to(p)

    @property
    def o_like(self) -> Tensor:
        """Any parameter, for its device and dtype."""
        return next(self.parameters())

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[VectorFunction, Args]:
        """Read the kernels, plan the scores, and return plain attention arithmetic."""
        context = context or Context()
        made, scores = self._plan(grids, context)
        heads, inner = len(grids["h"]), len(grids["e"])
        cache, record, cross, position = context.cache, context.record, self.cross, self.position
        weights = remembered(context, self, lambda: by_depth(grids, self._sample(grids)))
        args = {**weights, "scores": scores}
        if self.cross:
            args.update(source=context.state, values=context.state if context.values is None else context.values)

        def split(x: Tensor) -> Tensor:
            return x.unflatten(-1, (-1, inner)).transpose(1, 2)

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            w, scores = at_depth(args, z), args["scores"]

            def keys_and_values() -> tuple[Tensor, Tensor]:
                k = split(linear(args.get("source", x), w["k"], w.get("bk")))
                k = position.turn(k, scores["keys" if cross else "queries"])
                v = split(linear(args.get("values", x), w["v"], w.get("bv")))
                if len(k) == len(x):
                    return k, v
                return k.expand(len(x), -1, -1, -1), v.expand(len(x), -1, -1, -1)  # one memory serves all samples

            q = position.turn(split(linear(x, w["q"], w.get("bq"))), scores["queries"])
            if cache is None:
                k, v = keys_and_values()
            else:
                k, v = cache.once(self, z, keys_and_values) if cross else cache.extend(self, *keys_and_values())
            if record is None:
                mixed = made.attend(q, k, v, scores).transpose(1, 2)
            else:  # through the recorded weights themselves, so that the answer can be differentiated by them
                record.append(Recorded(self, z, made.weights(q, k, scores)))
                mixed = (record[-1].weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)).transpose(1, 2)
            return linear(mixed.reshape(*mixed.shape[:2], heads * inner), w["o"], w.get("bo"))

        return f, args

    def _plan(self, grids: Grids, context: Context) -> tuple[Plan, dict[str, Any]]:
        """Decide how to attend, and see that every query has a key."""
        t, source, pairs = self._tokens(grids, context)
        heads, cache, cross = len(grids["h"]), context.cache, self.cross
        if pairs is not None and pairs.dim() == 4 and pairs.shape[1] not in (1, heads):
            remedy = "Give one mask for each head, or one [b, 1, t, s] for all."
            raise MaskError(f"pairs needs {heads} heads", got=list(pairs.shape), remedy=remedy)
        made, scores = plan(
            t,
            source,
            mask=self.mask,
            position=self.position,
            placed=self.position.bind(grids["h"], grids["e"]),
            kernel=(self.kernel, self.kernel.scale(self.axes.e)),
            pairs=pairs,
            itself=not cross,
        )
        scores["queries"] = self.position.where(t.nodes, scores["position"])  # new keys of self-attention sit there too
        if cross:
            scores["keys"] = self.position.where(source.nodes, scores["position"])
        if made.unsure and not (cache and pairs is None):  # a source is checked once, before the first token
            check_rows(made, t, source, scores)
        if cache is not None and len(t) == 1 and context.record is None and self.kernel.is_dot:
            return next_row(made, scores, self.o_like, itself=not cross)
        return made, once_for_all_depths(made, scores, self.o_like, len(t))

    def _tokens(self, grids: Grids, context: Context) -> tuple[Grid, Grid, Tensor | None]:
        if not self.cross:
            past = context.cache
            return grids["t"], grids["t"] if past is None else past.sources(grids["t"]), context.pairs
        if context.state is None or context.grid is None:
            raise ShapeError(
                "cross-attention needs something to attend to", got="no context", remedy="Pass Context(state, grid)."
            )
        if context.state.shape[1:] != (len(context.grid), len(grids["c"])):
            wanted, got = f"[b, {len(context.grid)}, {len(grids['c'])}]", list(context.state.shape)
            raise ShapeError(f"the context needs shape {wanted}", got=got, remedy="Match its grid and at(d=…).")
        return grids["t"], context.grid, context.cross_pairs

    def _sample(self, grids: Grids) -> dict[str, tuple[Field | None, Any]]:
        """Weights of c on q, k, v; of e on q (for the score integral) and o; of h and ρ on o; heads flattened."""
        shared, keys = self._shared_grids(grids), self.kernel.over_keys
        o, rho = read(self.o, grids, over="he"), self.rho(grids)
        if o is not None and rho is not None:
            o = o * rho[..., None, :, None]
        return {
            "q": (self.q, _rows(read(self.q, grids, over="ce"), -3)),
            "k": (self.k, _rows(self._each(read(self.k, shared, over=keys), grids, -3), -3)),
            "v": (self.v, _rows(self._each(read(self.v, shared, over="c"), grids, -3), -3)),
            "o": (self.o, _rows(o, -2)),
            "bq": (self.bq, _rows(read(self.bq, grids, over="e"), -2)),
            "bk": (self.bk, _rows(self._each(read(self.bk, shared, over=keys.removeprefix("c")), grids, -2), -2)),
            "bv": (self.bv, _rows(self._each(read(self.bv, shared), grids, -2), -2)),
            "bo": (self.bo, read(self.bo, grids)),
        }

    def _shared_grids(self, grids: Grids) -> Grids:
        if self.groups is None:
            return grids
        return {**grids, "h": grid_on(Points(self.groups), Counting(self.groups))}

    def _each(self, values: Tensor | None, grids: Grids, place: int) -> Tensor | None:
        """Shared heads stay shared on the native grid; a subset of heads reads the group of each."""
        if values is None or self.groups is None or grids["h"].is_counting:
            return values
        per_group = (self.axes.h.n or 1) // self.groups  # type: ignore[union-attr]
        return values.index_select(place, (grids["h"].nodes[:, 0].long() // per_group).to(values.device))


def _rows(values: Tensor | None, place: int) -> Tensor | None:
    """Merge the head and inner dimensions (head first)."""
    return None if values is None else values.flatten(place, place + 1)


def _grouped(weights: Parametrisation, groups: int | None) -> Parametrisation:
    """The parametrisation of shared keys and values: constant on groups of heads."""
    if groups is None:
        return weights
    heads = weights.axes.h.n if isinstance(weights.axes.h, Points) else None
    if heads is None or not isinstance(weights, ByBasis):
        raise ConfigError("groups share the heads of a counted axis", got=weights.axes.h, remedy="Use h=Points(n).")
    if groups < 1 or heads % groups:
        raise ConfigError(f"{heads} heads do not split into equal groups", got=groups, remedy="Choose a divisor.")
    axes = replace(weights.axes, h=Points(groups))
    return replace(weights, axes=axes, bases={**weights.bases, "h": Nodal(Counting(groups))})
