"""The norm of queries and keys, inside each head."""

from dataclasses import dataclass

import torch
from torch import nn

from continua.config import register
from continua.fields import Parametrisation
from continua.fields.role import GAIN
from continua.operators.rms import rms_norm
from continua.settings import NonNegative
from continua.typing import Tensor


@register
class HeadNorm(nn.Module):
    """q ← γ_q(z,e) q/√(⟨q²⟩ + eps) and the same for k, ⟨q²⟩ = ∫q² dμ(e)/mass(e), before the position turns them.

    All heads share γ; ``around_one`` stores γ − 1 (Gemma). Discrete case: ``nn.RMSNorm(d_head)`` of queries and keys.
    """

    def __init__(self, weights: Parametrisation, eps: NonNegative = 1e-6, around_one: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.missing = 1.0 if around_one else 0.0  # what is added to the scale as it is stored
        self.q = weights.field("ze", mean=1 - self.missing, role=GAIN)
        self.k = weights.field("ze", mean=1 - self.missing, role=GAIN)


@dataclass(frozen=True)
class HeadNorming:
    """The arithmetic of a ``HeadNorm``: plain means where the inner nodes weigh the same."""

    eps: float
    missing: float = 0.0  # added to the scale

    def __call__(self, x: Tensor, scale: Tensor, share: Tensor | None) -> Tensor:
        """[…, e] → […, e]; ``share`` is the part of each inner node in the mean."""
        scale = scale + self.missing if self.missing else scale
        if share is None:
            return rms_norm(x, scale, self.eps)
        mean = (x * x * share.to(x)).sum(-1, keepdim=True)
        return x * torch.rsqrt(mean + self.eps) * scale
