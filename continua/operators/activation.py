"""Pointwise nonlinearities φ as small frozen objects, so that a configuration can name them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from continua.config import register
from continua.typing import Callable, Tensor

Activation = Callable[[Tensor], Tensor]


def pulled(phi: Activation, u: Tensor, g: Tensor) -> Tensor:
    """g·φ'(u): by the activation's own formula if it has one, else by autograd."""
    own = getattr(phi, "pull", None)
    if own is not None:
        result: Tensor = own(u, g)
        return result
    with torch.enable_grad():
        start = u.detach().requires_grad_()
        value = phi(start)
    return torch.autograd.grad(value, start, g)[0]


@register
@dataclass(frozen=True)
class Identity:
    """φ(x) = x."""

    def __call__(self, x: Tensor) -> Tensor:
        """φ at every entry."""
        return x

    def pull(self, u: Tensor, g: Tensor) -> Tensor:
        """g·φ'(u)."""
        return g


@register
@dataclass(frozen=True)
class ReLU:
    """φ(x) = max(x, 0)."""

    def __call__(self, x: Tensor) -> Tensor:
        """φ at every entry."""
        return F.relu(x)

    def pull(self, u: Tensor, g: Tensor) -> Tensor:
        """g·φ'(u)."""
        return torch.ops.aten.threshold_backward(g, u, 0)


@register
@dataclass(frozen=True)
class GELU:
    """φ(x) = x Φ(x); ``tanh=True`` is the approximation that GPT-2 uses."""

    tanh: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """φ at every entry."""
        return F.gelu(x, approximate="tanh" if self.tanh else "none")

    def pull(self, u: Tensor, g: Tensor) -> Tensor:
        """g·φ'(u)."""
        return torch.ops.aten.gelu_backward(g, u, approximate="tanh" if self.tanh else "none")

    def pull_(self, u: Tensor, g: Tensor) -> Tensor:
        """The same in the place of g."""
        way = "tanh" if self.tanh else "none"
        return torch.ops.aten.gelu_backward.grad_input(g, u, approximate=way, grad_input=g)


@register
@dataclass(frozen=True)
class SiLU:
    """φ(x) = x σ(x); with a gate this is SwiGLU."""

    def __call__(self, x: Tensor) -> Tensor:
        """φ at every entry."""
        return F.silu(x)

    def pull(self, u: Tensor, g: Tensor) -> Tensor:
        """g·φ'(u)."""
        return torch.ops.aten.silu_backward(g, u)

    def pull_(self, u: Tensor, g: Tensor) -> Tensor:
        """The same in the place of g."""
        return torch.ops.aten.silu_backward.grad_input(g, u, grad_input=g)


@register
@dataclass(frozen=True)
class QuickGELU:
    """φ(x) = x σ(1.702 x), an approximation of GELU (CLIP)."""

    def __call__(self, x: Tensor) -> Tensor:
        """φ at every entry."""
        return x * torch.sigmoid(1.702 * x)

    def pull(self, u: Tensor, g: Tensor) -> Tensor:
        """g·φ'(u)."""
        share = torch.sigmoid(1.702 * u)
        return g * share * (1 + 1.702 * u * (1 - share))


@register
@dataclass(frozen=True)
class ELU:
    """φ(x) = x for x > 0, eˣ − 1 below."""

    def __call__(self, x: Tensor) -> Tensor:
        """φ at every entry."""
        return F.elu(x)


@register
@dataclass(frozen=True)
class Tanh:
    """φ(x) = tanh x."""

    def __call__(self, x: Tensor) -> Tensor:
        """φ at every entry."""
        return x.tanh()
