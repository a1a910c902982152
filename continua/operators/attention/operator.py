"""The attention operator."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from continua.axes import Counting, Grid, Points, grid_on
from continua.config import register
from continua.errors import ConfigError, MaskError, ShapeError
from continua.fields import ByBasis, Field, Nodal, Parametrisation, Role, Use
from continua.fields import kernel as make_kernel
from continua.fields.role import DENSITY, SHIFT
from continua.flow.vectorfield import Bound
from continua.operators.attention.plan import Plan, check_rows, next_row, once_for_all_depths, plan
from continua.operators.calibration import Target, calibration, extra, folded
from continua.operators.kernels.kernel import Kernel, Softmax, Subquadratic
from continua.operators.linear import linear
from continua.operators.manual_backward import Heads, LeanAttention, merged, spread
from continua.operators.mask import Mask
from continua.operators.operator import Context, Operator, Recorded, weights_of
from continua.operators.position import Position
from continua.operators.weights import Finish, Grids, Weight, at_depth, local, read
from continua.tree import tensors
from continua.typing import Args, Tensor

OUTPUT = Role(Use.KERNEL, inputs="he", is_output=True)  # of O


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
        self.o = make_kernel(weights, "zdhe", inputs="he", is_output=True)
        self.bq = weights.field("zhe", role=SHIFT) if "q" in bias else None
        self.bk = shared.field("zhe", role=SHIFT) if "k" in bias else None
        self.bv = shared.field("zhe", role=SHIFT) if "v" in bias else None
        self.bo = weights.field("zd", role=SHIFT) if "o" in bias else None
        self.density: Field | None = weights.field("zh", role=DENSITY) if density else None
        self.calibration = calibration(weights, {"o": Target(OUTPUT, "hd", integral="h")})

    def rho(self, grids: Grids) -> Tensor | None:
        """ρ(z, h) ≥ 0 with ∫ρ dμ(h) = mass(h): the normalised exponential of a field, or ``None`` for ρ = 1."""
        return None if self.density is None else self._normalised(read(self.density, grids), grids["h"])

    def _normalised(self, density: Tensor, h: Grid) -> Tensor:
        weights = h.weights.to(device=density.device)
        p = torch.softmax(density + weights.log().to(density), -1)
        return p * (weights.sum() / weights).to(p)

    @property
    def o_like(self) -> Tensor:
        """Any parameter, for its device and dtype."""
        return next(self.parameters())

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Read the kernels, plan the scores, and return plain attention arithmetic."""
        context = context or Context()
        made, scores = self._plan(grids, context)
        inner, cache, record, cross = len(grids["e"]), context.cache, context.record, self.cross
        weights, reader = weights_of(self, grids, context, self._weights(grids), self._finish(grids))
        args = {**weights, "scores": scores}
        if cross:
            args.update(source=context.state, values=context.state if context.values is None else context.values)
        heads = Heads(made, self.position, inner, cross)

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            w, scores = at_depth(args, z), args["scores"]

            def keys_and_values() -> tuple[Tensor, Tensor]:
                k, v = heads.keys_and_values(x, w, args)
                return heads.turned(k, args, "keys" if cross else "queries"), heads.split(v)

            q = heads.turned(linear(x, w["q"], w.get("bq")), args, "queries")
            if cache is None:
                k, v = keys_and_values()
            else:
                k, v = cache.once(self, z, keys_and_values) if cross else cache.extend(self, *keys_and_values())
            if record is None:
                mixed = heads.mix(q, k, v, scores)
            else:  # through the recorded weights themselves, so that the answer can be differentiated by them
                k, v = spread(k, q), spread(v, q)
                record.append(Recorded(self, z, made.weights(q, k, scores)))
                mixed = record[-1].weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
            return linear(merged(mixed), w["o"], w.get("bo"))

        turns = any(t.requires_grad for t in tensors([scores["queries"], scores.get("keys")]))  # by learned stamps
        lean = None if cache is not None or record is not None or turns else LeanAttention(heads)
        return Bound(f, reader, local, lean), args

    def _plan(self, grids: Grids, context: Context) -> tuple[Plan, dict[str, Any]]:
        """Decide how to attend, and see that every query has a key."""
        t, source, pairs = self._tokens(grids, context)
        heads, cache, cross = len(grids["h"]), context.cache, self.cross
        if pairs is not None and pairs.dim() == 4 and pairs.shape[1] not in (1, heads):
            remedy = "Give one mask for each head, or one [b, 1, t, s] for all."
            raise MaskError(f"pairs needs {heads} heads", got=list(pairs.shape), remedy=remedy)
        kernel, mask = self._kernel(context)
        made, scores = plan(
            t,
            source,
            mask=mask,
            position=self.position,
            placed=self.position.bind(grids["h"], grids["e"]),
            kernel=(kernel, self.kernel.scale(self.axes.e)),
            pairs=pairs,
            itself=not cross,
        )
        scores["queries"] = self.position.where(t.nodes, scores["position"])  # new keys of self-attention sit there too
        if cross:
            scores["keys"] = self.position.where(source.nodes, scores["position"])
        if (
            made.unsure and made.quick is None and not (cache and pairs is None)
        ):  # a source is checked once, before the first token
            check_rows(made, t, source, scores)
        if cache is not None and len(t) == 1 and context.record is None and kernel.is_dot:
            return next_row(made, scores, self.o_like, itself=not cross)
        return made, once_for_all_depths(made, scores, self.o_like, len(t))

    def _kernel(self, context: Context) -> tuple[Kernel, Mask | None]:
        """The kernel to plan with, and its mask: recorded weights and a cache need one that looks at single pairs."""
        if not isinstance(self.kernel, Subquadratic):
            return self.kernel, self.mask
        plain, mask = self.kernel.plain(self.mask)
        wish = "recorded weights" if context.record is not None else "a cache" if context.cache is not None else None
        if wish is None:
            return self.kernel, mask
        if not self.kernel.is_exact:
            got, remedy = type(self.kernel).__name__, f"Build the operator with kernel={plain} for that."
            raise ConfigError(f"{wish} need weights of single pairs", got=got, remedy=remedy)
        return plain, mask

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

    def _weights(self, grids: Grids) -> dict[str, Weight]:
        """Weights of c on q, k, v; of e on q (for the score integral) and o; of h and ρ on o; heads flattened."""
        shared, keys = self._shared_grids(grids), self.kernel.over_keys

        def rows(place: int, each: bool = False) -> Any:
            """Merge the head and inner dimensions (head first)."""
            return lambda v: (self._each(v, grids, place) if each else v).flatten(place, place + 1)

        return {
            "q": Weight(self.q, "ce", rows(-3)),
            "k": Weight(self.k, keys, rows(-3, each=True), shared),
            "v": Weight(self.v, "c", rows(-3, each=True), shared),
            "o": Weight(self.o, "he", rows(-2)),
            "bq": Weight(self.bq, "e", rows(-2)),
            "bk": Weight(self.bk, keys.removeprefix("c"), rows(-2, each=True), shared),
            "bv": Weight(self.bv, "", rows(-2, each=True), shared),
            "bo": Weight(self.bo),
            "density": Weight(self.density),
            **extra(self.calibration, grids),
        }

    def _finish(self, grids: Grids) -> Finish:
        """Fold the calibration and ρ into o."""

        def fold(values: dict[str, Tensor], depths: Sequence[float] | None) -> dict[str, Tensor]:
            values = folded(self.calibration, values, grids, depths)
            if "density" not in values:
                return values
            rho = self._normalised(values["density"], grids["h"]).repeat_interleave(len(grids["e"]), -1)
            rest = {name: value for name, value in values.items() if name != "density"}
            return {**rest, "o": values["o"] * rho[..., None, :]}

        return fold

    def _shared_grids(self, grids: Grids) -> Grids:
        if self.groups is None:
            return grids
        return {**grids, "h": grid_on(Points(self.groups), Counting(self.groups))}

    def _each(self, values: Tensor, grids: Grids, place: int) -> Tensor:
        """Shared heads stay shared on the native grid; a subset of heads reads the group of each."""
        if self.groups is None or grids["h"].is_counting:
            return values
        per_group = (self.axes.h.n or 1) // self.groups  # type: ignore[union-attr]
        return values.index_select(place, (grids["h"].nodes[:, 0].long() // per_group).to(values.device))


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
