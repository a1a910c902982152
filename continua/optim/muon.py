"""Muon: momentum whose matrices are made orthogonal."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from continua.config import register
from continua.optim.optimiser import AdamW, Optimiser
from continua.optim.parameters import ParameterInfo, PerParameter
from continua.settings import NonNegative, PartialShare, Whole
from continua.typing import Float, Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan et al. (2024): steepest at zero, singular values end in about [0.7, 1.2]


@register
@dataclass(frozen=True)
class Muon:
    """W ← (1 − lr·decay) W − lr √max(1, rows/columns) · O, with O ≈ (MMᵀ)^(−½) M of the Nesterov momentum M.

    Jordan et al. (2024). Every coefficient in z is a matrix of its own (see ``Unfolding``). On continuous axes O is
    divided by the scale of the basis, so that a step changes the integral operator by lr in norm, as it does on
    counting axes. ``half`` iterates in bfloat16. What is no matrix is trained by ``others``.

    Discrete case: on a plain matrix with ``half=True`` this is ``torch.optim.Muon``.
    """

    lr: NonNegative = 0.02
    momentum: PartialShare = 0.95
    decay: NonNegative = 0.01
    iterations: Whole = 5
    half: bool = False
    others: Optimiser = AdamW(decay=0.0)  # noqa: RUF009  (frozen)

    def make(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo] = ()) -> torch.optim.Optimizer:
        """The optimiser of these matrices."""
        return _Muon(self, parameters, info)


class _Muon(PerParameter):
    def __init__(self, chosen: Muon, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo]) -> None:
        super().__init__(parameters, info, chosen.lr)
        self.chosen = chosen

    def update(self, p: nn.Parameter, gradient: Tensor, lr: float) -> None:
        chosen = self.chosen
        own = self.info[p]
        state = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
        block = self.blocks.get(p, ())
        gradient = gradient[block]
        part = p[block]
        held = state["momentum"][block].lerp_(gradient, 1 - chosen.momentum)
        ahead = own.matrices(gradient.lerp(held, chosen.momentum))
        rows, columns = ahead.shape[1:]
        turned = orthogonalised(ahead, chosen.iterations, chosen.half).to(p.dtype).reshape(part.shape)
        part.mul_(1 - lr * chosen.decay)
        part.add_(turned, alpha=-lr * max(1.0, rows / columns) ** 0.5 / own.scale)


def orthogonalised(m: Float[Tensor, "k r c"], iterations: int = 5, half: bool = False) -> Float[Tensor, "k r c"]:
    """U V' of each m = U S V', nearly: Newton–Schulz with the quintic X ← aX + (bXX' + c(XX')²)X, no SVD."""
    a, b, c = QUINTIC
    x = m.bfloat16() if half else m
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / x.flatten(1).norm(dim=1).clamp_min(1e-7)[:, None, None]
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
