"""Products of kernels with a low-rank addition: the gradient goes to its few numbers, not by way of the kernel."""

from typing import Any

import torch
from torch.nn import functional

from continua.fields import Factors
from continua.typing import Tensor


class FactoredProduct(torch.autograd.Function):
    """y = W x + b, where W = W₀ + s AᵀB and W₀ stays: forward as any product, backward in the ``rank`` of A and B.

    ∂L/∂A = s B x gᵀ and ∂L/∂B = s A g xᵀ take no product of the size of W, which is a third of the work of a step.
    W itself gets no gradient here: it is there for the product, and for derivatives of derivatives.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, inputs: Tensor, scale: float
    ) -> Tensor:
        """The product by the whole kernel."""
        ctx.save_for_backward(x, weight, out, inputs)
        ctx.scale = scale
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients by x, the bias, A and B."""
        x, weight, out, inputs = ctx.saved_tensors
        (g,) = gradients
        rows = x.reshape(-1, x.shape[-1])
        flat = g.reshape(-1, g.shape[-1])
        to_x = g @ weight if ctx.needs_input_grad[0] else None
        to_bias = flat.sum(0) if ctx.needs_input_grad[2] else None
        to_out = (ctx.scale * (inputs @ rows.mT)) @ flat  # few long rows: quicker than few columns
        to_inputs = (ctx.scale * (out @ flat.mT)) @ rows
        return to_x, None, to_bias, to_out, to_inputs, None


def with_factors(weight: Tensor, factors: Factors) -> Tensor:
    """The same weight, which knows its factors."""
    weight.factors = factors  # type: ignore[attr-defined]
    return weight


def factors_of(weight: Tensor) -> Factors | None:
    """The factors of a weight, where a gradient is to come that they can take; half precision goes the plain way."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return None
    found: Factors | None = getattr(weight, "factors", None)
    return None if found is None or torch.is_autocast_enabled(weight.device.type) else found
