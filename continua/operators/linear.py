"""The matrix products of operators, open to whoever wants the moments of what goes in and of what comes back."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from continua.operators.low_rank import factored, factors_of
from continua.operators.products import Products, product, serve
from continua.typing import Float, Tensor


@dataclass
class Moments:
    """Σ aaᵀ and Σ ggᵀ over the products y = Wa of a weight, with g the gradients by y: one pair for each C_k.

    A weight is W(z) = Σ_k B_k(z) R C_k Sᵀ, where R and S hold the bases and quadrature weights of rows and columns, so
    the gradient by C_k is Σ_z B_k(z) (Rᵀg)(Sᵀa)ᵀ. The moments are those of Rᵀg and Sᵀa, and a depth counts B_k(z)²
    times. ``leading`` and ``rows`` say how the coefficients are matrices; nothing is noted unless ``looking``.
    """

    leading: int
    rows: int
    looking: bool = True
    count: Tensor | None = None
    inputs: Tensor | None = None
    outputs: Tensor | None = None

    def clear(self) -> None:
        """Forget what was seen."""
        self.count = self.inputs = self.outputs = None

    def add(self, share: Float[Tensor, "k"], a: Float[Tensor, "c c"], g: Float[Tensor, "r r"], tokens: int) -> None:
        """Add the sums over the tokens of one product; gradients of a mean over tokens are made those of each."""
        share = share.to(a)
        new = tokens * share, share[:, None, None] * a, tokens * share[:, None, None] * g.to(a)
        if self.count is None or self.inputs is None or self.outputs is None:
            self.count, self.inputs, self.outputs = new
        else:
            for old, more in zip((self.count, self.inputs, self.outputs), new, strict=True):
                old.add_(more)


@dataclass(frozen=True)
class Watch:
    """Notes the products of a weight at one depth: B_k(z)², and R and S (the diagonal alone, or None for identity)."""

    moments: Moments
    share: Tensor
    rows: Tensor | None
    columns: Tensor | None

    def __call__(self, x: Tensor, g: Tensor) -> None:
        """Take x and the gradient by the answer."""
        if torch.is_grad_enabled():  # a penalty differentiates the field: this is no gradient of the objective
            return
        with torch.autocast(x.device.type, enabled=False):
            tokens = x.shape[:-1].numel()
            self.moments.add(self.share, _second(x, self.columns), _second(g, self.rows), tokens)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b. Who watches W is shown x and the gradient by the answer, when that comes."""
    if torch.compiler.is_compiling():
        return functional.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return product(x, weight, bias) if serve(x, (weight,)) else functional.linear(x, weight, bias)
    factors = factors_of(weight)
    if factors is not None:
        return factored(x, [weight], [bias], [factors])[0]
    y: Tensor = Products.apply(x, weight, bias)[0] if serve(x, (weight,)) else functional.linear(x, weight, bias)
    watch: Watch | None = getattr(weight, "watch", None)
    if watch is not None and y.requires_grad:
        seen = x.detach()
        y.register_hook(lambda g: watch(seen, g))
    return y


def linears(x: Tensor, *maps: tuple[Tensor, Tensor | None]) -> tuple[Tensor, ...]:
    """x Wᵀ + b for some pairs of W and b; where all W have a low-rank addition they share what reads x for it."""
    if not torch.compiler.is_compiling() and torch.is_grad_enabled():
        weights = [weight for weight, _ in maps]
        biases = [bias for _, bias in maps]
        found = [factors_of(weight) for weight in weights]
        factors = [own for own in found if own is not None]
        if len(factors) == len(maps):
            return factored(x, weights, biases, factors)
        watched = any(hasattr(weight, "watch") for weight in weights)
        if not factors and not watched and serve(x, weights):
            made: tuple[Tensor, ...] = Products.apply(x, *weights, *biases)
            return made
    return tuple([linear(x, weight, bias) for weight, bias in maps])


def show(parameter: nn.Parameter, moments: Moments) -> None:
    """Note the products of this parameter from now on; whoever was shown them before is not any more."""
    parameter.moments = moments  # type: ignore[attr-defined]


def looked_at(field: Any) -> Moments | None:
    """Who wants the moments of a field's products, if somebody does and gradients are to come."""
    if torch.compiler.is_compiling():
        return None
    found: Moments | None = getattr(getattr(field, "coefficients", None), "moments", None)
    return found if found is not None and found.looking and torch.is_grad_enabled() else None


def marked(weight: Tensor, watch: Watch) -> Tensor:
    """The same weight as a tensor of its own, whose products are watched."""
    weight = weight.view_as(weight)
    weight.watch = watch  # type: ignore[attr-defined]
    return weight


def _second(x: Tensor, side: Tensor | None) -> Tensor:
    """Σ (Sᵀx)(Sᵀx)ᵀ over all tokens."""
    flat = x.reshape(-1, x.shape[-1]).to(torch.promote_types(x.dtype, torch.float32))
    made = flat.mT @ flat
    if side is None:
        return made
    side = side.to(made)
    return made * side * side[:, None] if side.dim() == 1 else side.mT @ made @ side
