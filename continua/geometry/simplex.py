"""The simplex: p ≥ 0, Σp = 1 along the last dimension, held by its logits so that no step can leave it."""

import torch

from continua.typing import Tensor


def shares(logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """p = softmax(ℓ + log w): the shares of a density ρ ∝ exp ℓ on nodes with the weights w."""
    return torch.softmax(logits if weights is None else logits + weights.log().to(logits), -1)


def ascent(gradient: Tensor, p: Tensor) -> Tensor:
    """∂J/∂p from ∂J/∂ℓ = p(∂J/∂p − ⟨p, ∂J/∂p⟩): divide by p; the constant left open moves nothing on the simplex.

    Where p has underflowed to zero so has its gradient: it stays.
    """
    return gradient / p.clamp_min(torch.finfo(p.dtype).tiny)


def tilted(p: Tensor, g: Tensor, lr: float) -> Tensor:
    """p exp(−lr g) / Z: the exponentiated gradient step (Kivinen and Warmuth 1997), for comparison."""
    return torch.softmax(p.log() - lr * g, -1)
