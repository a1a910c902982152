"""Matrix products of single precision on a processor, by the quicker of torch's two libraries.

torch multiplies by MKL, whose best kernels are for processors by Intel; on those by AMD oneDNN's are quicker. For few
tokens that does not pay: what is saved goes into the function that calls them.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from continua.operators.eager import is_eager
from continua.typing import Float, Tensor

TOKENS = 1024  # from which on it pays
WEIGHT = 2**14  # numbers; thinner maps are left to MKL
CPUINFO = Path("/proc/cpuinfo")
KINDS = (Tensor, nn.Parameter)
_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)  # whoever counts operations, or fakes tensors


class Products(torch.autograd.Function):
    """y_i = W_i x + b_i for some maps of one x: their values and the gradient by x through the quicker kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        """``tensors`` are all W and all b; x is kept where some W learns."""
        n = len(tensors) // 2
        learns = any(ctx.needs_input_grad[1 : 1 + n])
        ctx.save_for_backward(x if learns else None, *tensors[:n])
        return tuple([product(x, w, b) for w, b in zip(tensors[:n], tensors[n:], strict=True)])  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients by x, all W and all b; those that are differentiated once more by plain products."""
        x, *weights = ctx.saved_tensors
        n = len(weights)
        needs = ctx.needs_input_grad
        flat = [g.reshape(-1, g.shape[-1]) for g in gradients]  # [bt, o]
        to_x = None
        if needs[0]:
            to_x = to_state(flat, weights, not torch.is_grad_enabled()).view(*gradients[0].shape[:-1], -1)
        to_weights = [None] * n
        if x is not None:
            rows = x.view(-1, x.shape[-1])  # [bt, c]
            to_weights = [g.mT @ rows if needed else None for g, needed in zip(flat, needs[1 : 1 + n], strict=True)]
        to_biases = [g.sum(0) if needed else None for g, needed in zip(flat, needs[1 + n :], strict=True)]
        return to_x, *to_weights, *to_biases


def to_state(flat: Sequence[Float[Tensor, "bt o"]], weights: Sequence[Tensor], quick: bool) -> Float[Tensor, "bt c"]:
    """Σ g_i W_i, which grows in one buffer."""
    if quick:
        found = product(flat[0], weights[0].mT)
        for g, weight in zip(flat[1:], weights[1:], strict=True):
            found = _kernel().binary(g, found, weight.mT, None, "add")
        return found
    found = flat[0] @ weights[0]
    for g, weight in zip(flat[1:], weights[1:], strict=True):
        found = found.addmm_(g, weight)
    return found


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b without a graph, for tensors that were found to be served."""
    made: Tensor = _kernel()(x, weight, bias, "none", [], "")
    return made


def serve(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether ``product`` is there for these tensors, pays, and nobody looks at single operations."""
    if x.numel() < TOKENS * x.shape[-1] or x.dtype is not torch.float32:
        return False
    if type(x) is not Tensor or not x.is_contiguous() or not is_eager(x):
        return False
    for weight in weights:
        if type(weight) not in KINDS or weight.dtype is not torch.float32 or not weight.is_contiguous():
            return False
        if weight.numel() < WEIGHT:
            return False
    return not _modes() and bool(torch.backends.mkldnn.enabled) and _kernel() is not None


@cache
def _kernel() -> Any:
    """oneDNN's product, where torch has it and multiplies by MKL on a processor by AMD."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available() and CPUINFO.exists()):
        return None
    by_amd = "AuthenticAMD" in CPUINFO.read_text()
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None) if by_amd else None
