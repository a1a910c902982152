"""φ(u) v on a processor: what torch does in two operations and keeps φ(u) for, in one that keeps u and v alone."""

from typing import Any

import torch

from continua.operators.activation import GELU, Activation, SiLU
from continua.operators.eager import apart, is_eager
from continua.typing import Tensor

LARGE = 2**20  # numbers from which on the memory that is not touched outweighs a function of ours in the graph


class Gated(torch.autograd.Function):
    """y = φ(u) v, written into one tensor; on the way back φ(u) is made again, in place of ∂L/∂v."""

    @staticmethod
    def forward(ctx: Any, phi: GELU | SiLU, u: Tensor, v: Tensor) -> Tensor:
        """φ(u) v."""
        ctx.phi = phi
        ctx.save_for_backward(u, v)
        return phi(u).mul_(v)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients by u and v."""
        phi = ctx.phi
        u, v = ctx.saved_tensors
        (g,) = gradients
        _, u_learns, v_learns = ctx.needs_input_grad
        if torch.is_grad_enabled():  # derivatives of derivatives go through torch's operations
            u, v = apart((u, v))
            wanted = [own for own, learns in ((u, u_learns), (v, v_learns)) if learns]
            found = iter(torch.autograd.grad(phi(u) * v, wanted, g, create_graph=True))
            return None, next(found) if u_learns else None, next(found) if v_learns else None
        return None, phi.pull_(u, g * v) if u_learns else None, phi(u).mul_(g) if v_learns else None


def gated(phi: Activation, u: Tensor, v: Tensor) -> Tensor:
    """φ(u) v, by the quickest way that serves these tensors."""
    if torch.compiler.is_compiling() or u.numel() < LARGE or not torch.is_grad_enabled():
        return phi(u) * v
    if not isinstance(phi, GELU | SiLU) or not is_eager(u):
        return phi(u) * v
    y: Tensor = Gated.apply(phi, u, v)
    return y
