"""Hand-written backward passes of the standard field: they keep what the matrix products need and nothing else.

Norms and activations are made again on the way back, and the last product of each branch is not needed there at all.
Fused attention keeps its own graph (queries, keys, values, its answer and the log-sums), so every mask, bias and
device goes through the same kernels as the plain path.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from continua.flow.vectorfield import Bound, Gradients, HandWritten
from continua.operators.activation import Activation, Identity, pulled
from continua.operators.attention.fused import attend_back, attend_keeping, can_keep
from continua.operators.attention.heads import AttentionOperands, Heads, merged
from continua.operators.attention.operator import Attending, AttendingByDepth, layer_at
from continua.operators.dropout import Dropped, Mask
from continua.operators.linear import linear
from continua.operators.norm import FusedLayerNorm, NormOperands
from continua.operators.operator import Both, Composed, Operands, Skipped
from continua.operators.pointwise import FeedForward
from continua.tree import mapped, tensors
from continua.typing import Args, Tensor

Pairs = list[tuple[Tensor, Tensor]]


def _flat(x: Tensor) -> Tensor:
    """All tokens in one dimension."""
    return x.reshape(-1, x.shape[-1])


def _pull_linear(pairs: Pairs, x: Tensor, g: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Gradients of g·(Wx + b) by W and b."""
    if weight.requires_grad:
        pairs.append((weight, (g.mT @ x).to(weight.dtype)))
    if bias is not None and bias.requires_grad:
        pairs.append((bias, g.sum(0).to(bias.dtype)))


@dataclass(frozen=True)
class LeanPointwise:
    """φ1(xW1 + b1) [· xG] W2 + b2: keeps what goes into φ1 (and the gate)."""

    phi: Activation
    gated: bool
    uses_x = False

    def prepare(self, z: float, x: Tensor, args: Operands) -> Any:
        """The hidden values before φ1, and the gate."""
        w = args.weights.at(z)
        return linear(x, w["w1"], w.get("b1")), linear(x, w["gate"]) if self.gated else None

    def finish(self, z: float, x: Tensor, kept: Any, args: Operands) -> Tensor:
        """φ1 and the second map."""
        w = args.weights.at(z)
        before, gate = kept
        hidden = self.phi(before)
        return linear(hidden if gate is None else hidden * gate, w["w2"], w.get("b2"))

    def pull(self, z: float, x: Tensor, kept: Any, args: Operands, g: Tensor) -> tuple[Tensor, Gradients]:
        """Backwards through W2, φ1 (evaluated again) and W1."""
        w = args.weights.at(z)
        before, gate = kept
        pairs: Pairs = []
        rows = _flat(x)
        flat = _flat(g)
        lit = self.phi(before)
        _pull_linear(pairs, _flat(lit if gate is None else lit * gate), flat, w["w2"], w.get("b2"))
        to_hidden = (flat @ w["w2"]).view(before.shape).to(before.dtype)
        to_before = _flat(pulled(self.phi, before, to_hidden if gate is None else to_hidden * gate))
        _pull_linear(pairs, rows, to_before, w["w1"], w.get("b1"))
        gx = to_before @ w["w1"]
        if gate is not None:
            to_gate = _flat(to_hidden * lit)
            _pull_linear(pairs, rows, to_gate, w["gate"], None)
            gx = gx + to_gate @ w["gate"]
        return gx.view(x.shape), pairs


@dataclass(frozen=True)
class LeanAttention:
    """Attention: keeps queries, keys, values and their mixture, through the graph of the fused kernel alone."""

    heads: Heads
    uses_x = False

    def prepare(self, z: float, x: Tensor, args: AttentionOperands) -> Any:
        """Project, split, turn and mix."""
        heads = self.heads
        w = args.weights.at(z)
        q = heads.queries(x, w, args)
        k = heads.keys(x, w, args)
        v = heads.values(x, w, args)
        if can_keep(q, k, v) and heads.plan.is_bare(q, k, args.scores):
            return [q, k, v], *attend_keeping(q, k, v, heads.plan.scale, heads.plan.triangle)
        with torch.enable_grad():
            inputs = [t.detach().requires_grad_() for t in (q, k, v)]
            scores = mapped(args.scores, lambda t: t.detach().requires_grad_(t.requires_grad))
            mixed = heads.mix(inputs[0], inputs[1], inputs[2], scores)
        return [*inputs, *(t for t in tensors(scores) if t.requires_grad)], mixed, None

    def finish(self, z: float, x: Tensor, kept: Any, args: AttentionOperands) -> Tensor:
        """The output map."""
        w = args.weights.at(z)
        return linear(merged(kept[1].detach()), w["o"], w.get("bo"))

    def pull(self, z: float, x: Tensor, kept: Any, args: AttentionOperands, g: Tensor) -> tuple[Tensor, Gradients]:
        """Backwards through the output map, the fused kernel and the three projections."""
        heads = self.heads
        w = args.weights.at(z)
        inputs, mixed, sums = kept
        pairs: Pairs = []
        flat = _flat(g)
        _pull_linear(pairs, _flat(merged(mixed.detach())), flat, w["o"], w.get("bo"))
        to_mixed = heads.split((flat @ w["o"]).view(*g.shape[:-1], -1)).to(mixed.dtype)
        if sums is not None:
            found = attend_back(to_mixed, (*inputs, mixed, sums), heads.plan.scale, heads.plan.triangle)
        else:
            found = torch.autograd.grad(mixed, inputs, to_mixed, retain_graph=True, allow_unused=True)
            leaves = [leaf for leaf in tensors(args.scores) if leaf.requires_grad]
            pairs += [(leaf, gl) for leaf, gl in zip(leaves, found[3:], strict=True) if gl is not None]
        to_q = self._unturned(found[0], args.scores.queries)
        to_k = self._unturned(found[1], heads.key_places(args.scores))
        to_v = _flat(merged(found[2]))
        rows = _flat(x)
        _pull_linear(pairs, rows, to_q, w["q"], w.get("bq"))
        gx = to_q @ w["q"]
        for name, to, source in (("k", to_k, args.source), ("v", to_v, args.values)):
            _pull_linear(pairs, rows if source is None else _flat(source), to, w[name], w.get(f"b{name}"))
            if source is None:
                gx = torch.addmm(gx, to, w[name]) if gx.dtype == to.dtype == w[name].dtype else gx + to @ w[name]
            elif source.requires_grad:
                pairs.append((source, (to @ w[name]).view(source.shape).to(source.dtype)))
        return gx.view(x.shape), pairs

    def _unturned(self, g: Tensor, where: Any) -> Tensor:
        """Pull a gradient back through the turn, which is linear, and lay it out as [b·t, h·e]."""
        position = self.heads.plan.position
        if position.turns:
            with torch.enable_grad():
                start = torch.zeros_like(g).requires_grad_()
                turned = position.turn(start, where)
            g = torch.autograd.grad(turned, start, g)[0]
        return _flat(merged(g))


@dataclass(frozen=True)
class LeanByDepth:
    """Attention whose mask changes with depth: each depth by the hand of its own."""

    each: tuple[HandWritten, ...]
    order: tuple[int, ...]
    uses_x = False

    def _at(self, z: float, args: AttentionOperands) -> tuple[HandWritten, AttentionOperands]:
        kind = layer_at(self.order, z)
        return self.each[kind], replace(args, scores=args.layers[kind])

    def prepare(self, z: float, x: Tensor, args: AttentionOperands) -> Any:
        """As the depth's own does."""
        own, args = self._at(z, args)
        return own.prepare(z, x, args)

    def finish(self, z: float, x: Tensor, kept: Any, args: AttentionOperands) -> Tensor:
        """As the depth's own does."""
        own, args = self._at(z, args)
        return own.finish(z, x, kept, args)

    def pull(self, z: float, x: Tensor, kept: Any, args: AttentionOperands, g: Tensor) -> tuple[Tensor, Gradients]:
        """As the depth's own does."""
        own, args = self._at(z, args)
        return own.pull(z, x, kept, args, g)


@dataclass(frozen=True)
class LeanLayerNorm:
    """Layer norm over equally weighted nodes, by the fused kernel and its own backward."""

    width: int
    eps: float

    def again(self, z: float, x: Tensor, args: NormOperands) -> tuple[Tensor, Any]:
        """The normalised state, and what ``pull`` needs."""
        w = args.weights.at(z)
        scale = w.get("scale")
        shift = w.get("shift")
        y, mean, spread = torch.native_layer_norm(x, (self.width,), scale, shift, self.eps)
        return y, (mean, spread, scale, shift)

    def pull(self, x: Tensor, kept: Any, g: Tensor) -> tuple[Tensor, Gradients]:
        """Backwards through the norm."""
        mean, spread, scale, shift = kept
        wanted = [True, *(w is not None and w.requires_grad for w in (scale, shift))]
        backward = torch.ops.aten.native_layer_norm_backward
        gx, to_scale, to_shift = backward(g, x, [self.width], mean, spread, scale, shift, wanted)
        pairs = [
            (w, gw) for w, gw, asked in zip((scale, shift), (to_scale, to_shift), wanted[1:], strict=True) if asked
        ]
        return gx, pairs


@dataclass(frozen=True)
class LeanByGraph:
    """Any norm, evaluated again with a graph."""

    f: Bound

    def again(self, z: float, x: Tensor, args: Args) -> tuple[Tensor, Any]:
        """The normalised state, and what ``pull`` needs."""
        own = args if self.f.local is None else self.f.local(z, args)
        leaves = [leaf for leaf in tensors(own) if leaf.requires_grad]
        with torch.enable_grad():
            start = x.detach().requires_grad_()
            normed = self.f.f(z, start, args)
        return normed.detach(), (start, leaves, normed)

    def pull(self, x: Tensor, kept: Any, g: Tensor) -> tuple[Tensor, Gradients]:
        """Backwards through the graph."""
        start, leaves, normed = kept
        found = torch.autograd.grad(normed, [start, *leaves], g, allow_unused=True)
        return found[0], [(leaf, gl) for leaf, gl in zip(leaves, found[1:], strict=True) if gl is not None]


@dataclass(frozen=True)
class LeanNormed:
    """inner(N(x)): the norm is made again on the way back."""

    norm: Bound
    by_hand: "LeanLayerNorm | LeanByGraph"
    inner: HandWritten
    uses_x = True

    def prepare(self, z: float, x: Tensor, args: Both) -> Any:
        """Normalise, and prepare the branch."""
        return self.inner.prepare(z, self.norm.f(z, x, args.norm), args.inner)

    def finish(self, z: float, x: Tensor, kept: Any, args: Both) -> Any:
        """Finish the branch, which seldom looks at the normalised state again."""
        x = self.norm.f(z, x, args.norm) if self.inner.uses_x else x
        return self.inner.finish(z, x, kept, args.inner)

    def pull(self, z: float, x: Tensor, kept: Any, args: Both, g: Tensor) -> tuple[Tensor, Gradients]:
        """Backwards through the branch, then through the norm."""
        normed, made = self.by_hand.again(z, x, args.norm)
        to_normed, pairs = self.inner.pull(z, normed, kept, args.inner, g)
        gx, more = self.by_hand.pull(x, made, to_normed.to(normed.dtype))
        return gx, [*pairs, *more]


@dataclass(frozen=True)
class LeanSkip:
    """γx + inner(x)."""

    inner: HandWritten
    gamma: float
    uses_x = True

    def prepare(self, z: float, x: Tensor, args: Args) -> Any:
        """Prepare the branch."""
        return self.inner.prepare(z, x, args)

    def finish(self, z: float, x: Tensor, kept: Any, args: Args) -> Tensor:
        """Add γx."""
        return torch.add(self.inner.finish(z, x, kept, args), x, alpha=self.gamma)

    def pull(self, z: float, x: Tensor, kept: Any, args: Args, g: Tensor) -> tuple[Tensor, Gradients]:
        """Both ways."""
        gx, pairs = self.inner.pull(z, x, kept, args, g)
        return torch.add(gx, g, alpha=self.gamma), pairs


@dataclass
class LeanDrop:
    """Dropout on top: the mask is drawn again, not kept."""

    inner: HandWritten
    mask: Mask
    uses_x: bool

    def prepare(self, z: float, x: Tensor, args: Args) -> Any:
        """Prepare the branch."""
        return self.inner.prepare(z, x, args)

    def finish(self, z: float, x: Tensor, kept: Any, args: Args) -> Tensor:
        """Drop entries of the answer."""
        return self.mask(z, self.inner.finish(z, x, kept, args))

    def pull(self, z: float, x: Tensor, kept: Any, args: Args, g: Tensor) -> tuple[Tensor, Gradients]:
        """The mask is its own transpose."""
        return self.inner.pull(z, x, kept, args, self.mask(z, g))


def by_hand(bound: Bound, args: Args) -> HandWritten | None:
    """The hand-written backward of a bound function, where there is one."""
    f = bound.f
    if isinstance(f, Composed):
        inner = by_hand(f.inner, args.inner)
        norm = LeanLayerNorm(f.norm.f.width, f.norm.f.eps) if isinstance(f.norm.f, FusedLayerNorm) else None
        return None if inner is None else LeanNormed(f.norm, norm or LeanByGraph(f.norm), inner)
    if isinstance(f, Skipped):
        inner = by_hand(f.inner, args)
        return None if inner is None else LeanSkip(inner, f.gamma)
    if isinstance(f, Dropped):
        inner = by_hand(f.inner, args)
        return None if inner is None else LeanDrop(inner, f.mask, inner.uses_x)
    if isinstance(f, FeedForward) and isinstance(f.phi2, Identity):
        return LeanPointwise(f.phi1, f.gated)
    if isinstance(f, Attending) and f.heads.norm is None:
        learned = tensors([args.scores.queries, args.scores.keys])  # stamps that are learned turn with a gradient
        return None if any(t.requires_grad for t in learned) else LeanAttention(f.heads)
    if isinstance(f, AttendingByDepth):
        pairs = zip(f.each, args.layers, strict=True)
        each = [by_hand(Bound(own), replace(args, scores=scores)) for own, scores in pairs]
        found = tuple(own for own in each if own is not None)
        return LeanByDepth(found, f.order) if len(found) == len(each) else None
    return None
