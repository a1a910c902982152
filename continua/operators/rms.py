"""x / √(⟨x²⟩ + eps) γ on a processor: the kernel of layer norms does its backward pass, in one sweep over x.

torch has a fused kernel of this norm for graphics cards alone; elsewhere it is a chain of operations whose backward
pass sweeps over x many times. The values are those of that chain, bit for bit.
"""

from typing import Any

import torch
from torch.nn import functional

from continua.operators.eager import apart, is_eager
from continua.typing import Tensor

LARGE = 2**18  # numbers from which on the sweeps that are saved outweigh a function of ours in the graph
SINGLE = (torch.float32, torch.float64)  # half precision is summed in float32 by torch itself


class FusedRMS(torch.autograd.Function):
    """y = x r γ with r = (⟨x²⟩ + eps)^(−1/2).

    With a mean of zero the layer norm of torch has ∂L/∂x = r (gγ − ⟨gγ⟩ − x r² ⟨gγ x⟩), so that r ⟨gγ⟩ is to be added.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, eps: float) -> Tensor:
        """The norm of torch."""
        ctx.save_for_backward(x, scale)
        ctx.eps = eps
        return functional.rms_norm(x, (x.shape[-1],), scale, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients by x and γ."""
        x, scale = ctx.saved_tensors
        (g,) = gradients
        width = x.shape[-1]
        if torch.is_grad_enabled():  # derivatives of derivatives go through the chain
            x, scale = apart((x, scale))
            y = functional.rms_norm(x, (width,), scale, ctx.eps)
            wanted = [own for own in (x, scale) if own.requires_grad]
            found = iter(torch.autograd.grad(y, wanted, g, create_graph=True))
            return next(found) if x.requires_grad else None, next(found) if scale.requires_grad else None, None
        needs = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], False]
        g = g.contiguous()
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        r = square.div_(width).add_(ctx.eps).rsqrt_()  # [b, t, 1]
        zero = torch.zeros_like(r)
        to_x, to_scale, _ = torch.ops.aten.native_layer_norm_backward(g, x, (width,), zero, r, scale, None, needs)
        if to_x is not None:
            to_x.add_((g @ (scale / width))[..., None].mul_(r))
        return to_x, to_scale, None


def rms_norm(x: Tensor, scale: Tensor | None, eps: float) -> Tensor:
    """The norm over the last dimension, by the quickest way that serves these tensors."""
    if scale is None or not _is_served(x, scale):
        return functional.rms_norm(x, (x.shape[-1],), scale, eps)
    y: Tensor = FusedRMS.apply(x, scale, eps)
    return y


def _is_served(x: Tensor, scale: Tensor) -> bool:
    """Whether ``FusedRMS`` is quicker, and has what is asked for: gradients, and nothing that looks inside."""
    if torch.compiler.is_compiling() or x.numel() < LARGE or not torch.is_grad_enabled() or not x.is_contiguous():
        return False
    return x.dtype in SINGLE and scale.dtype == x.dtype and is_eager(x)
