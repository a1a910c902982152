"""The norm of queries and keys, inside each head."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import rms_norm

from continua.config import register
from continua.fields import Parametrisation
from continua.fields.role import GAIN
from continua.settings import NonNegative
from continua.typing import Tensor


@register
class HeadNorm(nn.Module):
    """q ← γ_q(z,e) q/√(⟨q²⟩ + eps) and the same for k, ⟨q²⟩ = ∫q² dμ(e)/mass(e), before the position turns them.

    All heads share γ. Discrete case: ``nn.RMSNorm(d_head)`` of queries and of keys.
    """

    def __init__(self, weights: Parametrisation, eps: NonNegative = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.q = weights.field("ze", mean=1.0, role=GAIN)
        self.k = weights.field("ze", mean=1.0, role=GAIN)


@dataclass(frozen=True)
class HeadNorming:
    """The arithmetic of a ``HeadNorm``: plain means where the inner nodes weigh the same."""

    eps: float

    def __call__(self, x: Tensor, scale: Tensor, share: Tensor | None) -> Tensor:
        """[…, e] → […, e]; ``share`` is the part of each inner node in the mean."""
        if share is None:
            return rms_norm(x, (x.shape[-1],), scale, self.eps)
        mean = (x * x * share.to(x)).sum(-1, keepdim=True)
        return x * torch.rsqrt(mean + self.eps) * scale
