"""Products of kernels with a low-rank addition: the gradient goes to its few numbers, not by way of the kernel."""

from typing import Any

import torch
from torch.nn import functional

from continua.fields import Factors
from continua.operators.products import product, serve, to_state
from continua.typing import Tensor


class FactoredProducts(torch.autograd.Function):
    """y_i = W_i x + b_i for some maps of one x, where W = W₀ + s AᵀB and W₀ stays.

    Forward as any product, backward in the ``rank`` of A and B: ∂L/∂A = s B x gᵀ and ∂L/∂B = s A g xᵀ take no product
    of the size of W, which is a third of the work of a step. All maps read x together: once for all B x, once for all
    ∂L/∂B. W itself gets no gradient here: it is there for the product, and for derivatives of derivatives.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: tuple[float, ...], *tensors: Tensor | None) -> tuple[Tensor, ...]:
        """The products by the whole kernels; ``tensors`` are all W, all b, all A and all B."""
        n = len(scales)
        weights: Any
        weights, biases, outs, inputs = (tensors[k * n : (k + 1) * n] for k in range(4))
        ctx.save_for_backward(x, *weights, *outs, *inputs)
        ctx.scales = scales
        ctx.quick = serve(x, weights)
        multiply = product if ctx.quick else functional.linear
        return tuple([multiply(x, w, b) for w, b in zip(weights, biases, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients by x, the biases, all A and all B."""
        x, *rest = ctx.saved_tensors
        n = len(ctx.scales)
        weights, outs, inputs = (rest[k * n : (k + 1) * n] for k in range(3))
        needs = ctx.needs_input_grad
        rows = x.reshape(-1, x.shape[-1])  # [bt, c]
        flat = [g.reshape(-1, g.shape[-1]) for g in gradients]  # [bt, o]
        quick = ctx.quick and not torch.is_grad_enabled()
        to_x = to_state(flat, weights, quick).view(x.shape) if needs[0] else None
        to_biases = [g.sum(0) if needed else None for g, needed in zip(flat, needs[2 + n : 2 + 2 * n], strict=True)]
        seen = torch.cat(inputs) @ rows.mT  # [Σr, bt]: few long rows are quicker than few columns
        ranks = [len(own) for own in inputs]
        to_outs = [s * (own @ g) for s, own, g in zip(ctx.scales, seen.split(ranks), flat, strict=True)]
        back = torch.cat([out @ g.mT for out, g in zip(outs, flat, strict=True)])  # [Σr, bt]
        to_inputs = [s * own for s, own in zip(ctx.scales, (back @ rows).split(ranks), strict=True)]
        return to_x, None, *[None] * n, *to_biases, *to_outs, *to_inputs


def factored(
    x: Tensor, weights: list[Tensor], biases: list[Tensor | None], factors: list[Factors]
) -> tuple[Tensor, ...]:
    """The products of one x by kernels that know their factors."""
    scales = tuple(own.scale for own in factors)
    sides = [own.out for own in factors], [own.inputs for own in factors]
    made: tuple[Tensor, ...] = FactoredProducts.apply(x, scales, *weights, *biases, *sides[0], *sides[1])
    return made


def with_factors(weight: Tensor, factors: Factors) -> Tensor:
    """The same weight, which knows its factors."""
    weight.factors = factors  # type: ignore[attr-defined]
    return weight


def factors_of(weight: Tensor) -> Factors | None:
    """The factors of a weight whose product gets a gradient that they can take; half precision goes the plain way."""
    found: Factors | None = getattr(weight, "factors", None)
    return None if found is None or torch.is_autocast_enabled(weight.device.type) else found
