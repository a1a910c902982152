"""Attention through a few latent tokens: linear in the nodes, against their measure."""

from dataclasses import dataclass

import torch

from continua.axes import Grid, Grids
from continua.config import register
from continua.fields import Parametrisation, Role, Use, kernel, kernel_std
from continua.fields.role import SHIFT
from continua.flow.vectorfield import Bound
from continua.operators.attention.heads import merged
from continua.operators.kernels.kernel import Softmax
from continua.operators.linear import linear
from continua.operators.operator import Context, Operands, Operator, local, read_late
from continua.operators.weights import Sampled, Weight, sample
from continua.settings import Size
from continua.typing import Args, Tensor


@dataclass(frozen=True)
class MeasuredOperands(Operands):
    """The weights, and the measure of the nodes or its logarithm; None where all weigh the same."""

    measure: Tensor | None


def _is_equal(t: Grid) -> bool:
    return t.is_uniform and not t.has_gaps


@dataclass(frozen=True)
class Gating:
    """Values to latent tokens and back, with the weights of one depth: what a bound ``Gates`` evaluates."""

    inner: int
    scale: float

    def __call__(self, z: float, x: Tensor, args: MeasuredOperands) -> Tensor:
        """One matrix of scores serves both ways."""
        w = args.weights.at(z)
        k = self._split(linear(x, w["k"], w["bk"]))  # [b, h, n, e]
        v = self._split(linear(x, w["v"], w["bv"]))  # [b, h, n, e]
        scores = self.scale * w["latent"] @ k.mT  # [b, h, l, n]
        there = scores if args.measure is None else scores + args.measure
        tokens = torch.softmax(there, -1) @ v  # [b, h, l, e]
        mixed = torch.softmax(scores, -2).mT @ tokens  # [b, h, n, e]
        return linear(merged(mixed), w["o"], w["bo"])

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.inner).transpose(1, 2)


@register
class Gates(Operator):
    """A[x](t) = ∫ Σ_l β_l(t) ∫ α_l(s) (O V x)(s) dμ(s) dμ(h) + b, α_l = exp(a_l) / ∫ exp(a_l) dμ(s), β = softmax_l(a).

    a_l(s) = τ ∫ L_l(e) K[x](s, e) dμ(e) with learned L: attention of rank ``count``, and n·count operations. The
    measure of the nodes enters α as log-weights, so refining a mesh changes no answer but by its quadrature.
    Discrete case: on equal weights this is the layer of FLARE (Puri et al. 2025).
    """

    def __init__(self, weights: Parametrisation, count: Size = 32, gain: float = 1.0) -> None:
        super().__init__()
        self.count = count
        self.axes = weights.axes
        self.latent = weights.table(count, "zhe", 1.0, role=Role(Use.TABLE))
        self.k = kernel(weights, "zhec", inputs="c")
        self.v = kernel(weights, "zhec", inputs="c")
        self.o = kernel(weights, "zdhe", inputs="he", gain=gain, is_output=True)
        self.bk = weights.field("zhe", role=SHIFT)
        self.bv = weights.field("zhe", role=SHIFT)
        self.bo = weights.field("zd", role=SHIFT)

    def read(self, grids: Grids, late: bool = False) -> Sampled:
        """The latent queries with the measure of e, and the kernels with those of c, h and e."""
        return sample(
            grids,
            {
                "latent": Weight(self.latent, "e", lambda v: v.transpose(-3, -2)),
                "k": Weight(self.k, "c", lambda v: v.flatten(-3, -2)),
                "v": Weight(self.v, "c", lambda v: v.flatten(-3, -2)),
                "o": Weight(self.o, "he", lambda v: v.flatten(-2, -1)),
                "bk": Weight(self.bk, "", lambda v: v.flatten(-2, -1)),
                "bv": Weight(self.bv, "", lambda v: v.flatten(-2, -1)),
                "bo": Weight(self.bo),
            },
            late,
        )

    def place(self, read: Sampled, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Two normalised exponentials of one matrix of scores."""
        grids.tokens.require_whole(type(self).__name__)
        f = Gating(grids.e.count, Softmax().scale(self.axes.e))
        t = grids.tokens
        like = next(self.parameters())
        log_measure = None if _is_equal(t) else t.log_weights[..., None, None, :].to(like)
        return Bound(f, read_late(read.reading), local), MeasuredOperands(read.weights, log_measure)


@dataclass(frozen=True)
class Slicing:
    """Nodes to slices, attention among these, and back, with the weights of one depth."""

    inner: int
    scale: float

    def __call__(self, z: float, x: Tensor, args: MeasuredOperands) -> Tensor:
        """Slices share the nodes out; each attends with the mass that fell to it."""
        w = args.weights.at(z)
        share = torch.softmax(linear(x, w["slice"], w["offset"]), -1)  # [b, n, l]
        held = share / x.shape[1] if args.measure is None else share * args.measure
        mass = held.sum(1).clamp_min(torch.finfo(x.dtype).tiny)  # [b, l]
        tokens = (held.mT @ x) / mass[..., None]  # [b, l, d]
        q, k, v = (self._split(linear(tokens, w[name], w[f"b{name}"])) for name in "qkv")
        scores = self.scale * q @ k.mT + mass.log()[:, None, None]
        mixed = torch.softmax(scores, -1) @ v  # [b, h, l, e]
        return share @ linear(merged(mixed), w["o"], w["bo"])

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.inner).transpose(1, 2)


@register
class Slices(Operator):
    """A[x](t) = Σ_l γ_l(t) B[T]_l, T_l = ∫ γ_l x dμ / ∫ γ_l dμ, γ(t) = softmax_l(∫ G_l(c) x(t, c) dμ(c) + g_l).

    B is attention among the ``count`` tokens T_l, whose measure is the mass ∫ γ_l dμ that fell to each: nodes that look
    alike share a token, and n·count operations are enough. All heads share the slices.
    Discrete case: on equal weights this is the physics attention of Transolver (Wu et al. 2024) with one set of slices
    and log-masses in its scores.
    """

    def __init__(self, weights: Parametrisation, count: Size = 32, gain: float = 1.0) -> None:
        super().__init__()
        self.count = count
        self.axes = weights.axes
        self.slice = weights.table(count, "zc", kernel_std(weights, "c"), role=Role(Use.TABLE, inputs="c"))
        self.offset = weights.table(count, "z", 0.02, role=SHIFT)
        self.q = kernel(weights, "zhec", inputs="c")
        self.k = kernel(weights, "zhec", inputs="c")
        self.v = kernel(weights, "zhec", inputs="c")
        self.o = kernel(weights, "zdhe", inputs="he", gain=gain, is_output=True)
        self.bq = weights.field("zhe", role=SHIFT)
        self.bk = weights.field("zhe", role=SHIFT)
        self.bv = weights.field("zhe", role=SHIFT)
        self.bo = weights.field("zd", role=SHIFT)

    def read(self, grids: Grids, late: bool = False) -> Sampled:
        """The maps with the measures of what they are integrated over."""

        def rows(v: Tensor) -> Tensor:
            return v.flatten(-3, -2)

        def row(v: Tensor) -> Tensor:
            return v.flatten(-2, -1)

        return sample(
            grids,
            {
                "slice": Weight(self.slice, "c"),
                "offset": Weight(self.offset),
                "q": Weight(self.q, "ce", rows),
                "k": Weight(self.k, "c", rows),
                "v": Weight(self.v, "c", rows),
                "o": Weight(self.o, "he", row),
                "bq": Weight(self.bq, "e", row),
                "bk": Weight(self.bk, "", row),
                "bv": Weight(self.bv, "", row),
                "bo": Weight(self.bo),
            },
            late,
        )

    def place(self, read: Sampled, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Attention among the slices of the nodes of a call."""
        grids.tokens.require_whole(type(self).__name__)
        f = Slicing(grids.e.count, Softmax().scale(self.axes.e))
        t = grids.tokens
        like = next(self.parameters())
        share = None if _is_equal(t) else (t.weights / t.mass[..., None])[..., None].to(like)
        return Bound(f, read_late(read.reading), local), MeasuredOperands(read.weights, share)
