"""Adam on the Stiefel manifold: kernels that stay orthonormal."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from continua.config import register
from continua.geometry import stiefel
from continua.optim.optimiser import AdamW, Optimiser
from continua.optim.parameters import ParameterInfo, PerParameter
from continua.settings import NonNegative, PartialShare
from continua.typing import Tensor

ASTRAY = 1e-3  # ‖QᵀQ − I‖ beyond which a start is put on the manifold; a resumed one is not touched


@register
@dataclass(frozen=True)
class RiemannianAdam:
    """Q ← qr(Q − lr m̂/(√v̂ + eps)), with m of tangent gradients carried along, v one number a matrix (QᵀQ = I).

    Bécigneul and Ganea (2019). v is the mean square over the entries, so ``lr`` is that of Adam. A wide matrix keeps
    its rows orthonormal instead. On continuous axes Q is the matrix times the scale of its basis, so the integral
    operator is the isometry. Making the optimiser puts its parameters on the manifold (the nearest point). What is no
    matrix is trained by ``others``.
    """

    lr: NonNegative = 1e-3
    betas: tuple[PartialShare, PartialShare] = (0.9, 0.99)
    eps: NonNegative = 1e-8
    others: Optimiser = AdamW(decay=0.0)  # noqa: RUF009  (frozen)

    def make(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo] = ()) -> torch.optim.Optimizer:
        """The optimiser of these matrices, which it puts on the manifold."""
        return _RiemannianAdam(self, parameters, info)


class _RiemannianAdam(PerParameter):
    def __init__(
        self, chosen: RiemannianAdam, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo]
    ) -> None:
        super().__init__(parameters, info, chosen.lr)
        self.chosen = chosen
        for p, own in self.info.items():
            q = _tall(own.matrices(p.detach())) * own.scale
            if stiefel.defect(q) > ASTRAY:
                self._write(p, stiefel.polar(q))

    def update(self, p: nn.Parameter, gradient: Tensor, lr: float) -> None:
        own = self.info[p]
        state = self.state[p]
        beta1, beta2 = self.chosen.betas
        q = _tall(own.matrices(p)) * own.scale
        g = stiefel.project(q, _tall(own.matrices(gradient)) / own.scale)
        if not state:
            state["step"] = torch.tensor(0.0)
            state["first"] = q.new_zeros(q.shape)
            state["second"] = q.new_zeros(len(q), 1, 1)
        state["step"] += 1
        step = float(state["step"])
        first = state["first"].lerp_(g, 1 - beta1)
        second = state["second"].lerp_(g.square().mean((1, 2), keepdim=True), 1 - beta2)
        size = (second / (1 - beta2**step)).sqrt().add_(self.chosen.eps)
        moved = stiefel.retract_qr(q, first / size * (-lr / (1 - beta1**step)))
        state["first"] = stiefel.transport(moved, first).contiguous()  # as files give it back: products round by layout
        self._write(p, moved)

    @torch.no_grad()
    def _write(self, p: nn.Parameter, q: Tensor) -> None:
        wide = self.info[p].matrices(p.detach()).shape[1:] != q.shape[1:]
        p.copy_(((q.mT if wide else q) / self.info[p].scale).reshape(p.shape))


def _tall(matrices: Tensor) -> Tensor:
    return matrices.mT if matrices.shape[1] < matrices.shape[2] else matrices
