"""Shampoo and SOAP, by ``pytorch_optimizer``, on the matrices of kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from continua.config import register
from continua.errors import ConfigError, install
from continua.optim.optimiser import AdamW, Optimiser
from continua.optim.parameters import ParameterInfo, info_of, refuse_shards
from continua.settings import Count, NonNegative, PartialShare
from continua.typing import Tensor


@register
@dataclass(frozen=True)
class Shampoo:
    """W ← W − lr (Σ GGᵀ)^(−¼) G (Σ GᵀG)^(−¼): full-matrix AdaGrad in Kronecker form (Gupta et al. 2018).

    A tensor of more than two dimensions is reshaped to its matrices, ``[z][rows, columns]`` (see ``Unfolding``), and
    each coefficient in z has factors of its own. The roots are taken anew at every step, which costs an SVD of each
    side. It needs ``pip install 'continua-ml[optim]'``. What is no matrix is trained by ``others``.
    """

    lr: NonNegative = 0.02
    decay: NonNegative = 0.0
    eps: NonNegative = 1e-6
    others: Optimiser = AdamW(decay=0.0)  # noqa: RUF009  (frozen)

    def make(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo] = ()) -> torch.optim.Optimizer:
        """The library's, one matrix at a time."""
        shampoo = library().Shampoo

        def build(matrices: list[nn.Parameter]) -> Any:
            return shampoo(matrices, lr=self.lr, weight_decay=self.decay, weight_decouple=True, matrix_eps=self.eps)

        return ByMatrix(parameters, info, self.lr, build)


@register
@dataclass(frozen=True)
class SOAP:
    """Adam in the eigenbasis of Shampoo's two factors, which is renewed every ``every`` steps (Vyas et al. 2024).

    Tensors are reshaped as for ``Shampoo``; the first step only looks. It needs ``pip install 'continua-ml[optim]'``.
    What is no matrix is trained by ``others``.
    """

    lr: NonNegative = 3e-3
    betas: tuple[PartialShare, PartialShare] = (0.95, 0.95)
    decay: NonNegative = 0.01
    every: Count = 10
    others: Optimiser = AdamW(decay=0.0)  # noqa: RUF009  (frozen)

    def make(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo] = ()) -> torch.optim.Optimizer:
        """The library's, one matrix at a time."""
        soap = library().SOAP

        def build(matrices: list[nn.Parameter]) -> Any:
            return soap(
                matrices,
                lr=self.lr,
                betas=self.betas,
                weight_decay=self.decay,
                precondition_frequency=self.every,
            )

        return ByMatrix(parameters, info, self.lr, build)


def library() -> Any:
    """``pytorch_optimizer``, imported when it is first needed."""
    try:
        import pytorch_optimizer
    except ImportError as missing:
        remedy = f"Install it: {install('optim')}."
        raise ConfigError(
            "Shampoo and SOAP come from pytorch_optimizer", got="no such package", remedy=remedy
        ) from missing
    return pytorch_optimizer


class ByMatrix(torch.optim.Optimizer):
    """Shows another optimiser the matrices of each parameter, as parameters that share its memory."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        info: Sequence[ParameterInfo],
        lr: float,
        build: Callable[[list[nn.Parameter]], Any],
    ) -> None:
        super().__init__(list(parameters), {"lr": lr})
        self.info = info_of(parameters, info)
        self.matrices: list[list[nn.Parameter]] = []
        for parameter, own in self.info.items():
            refuse_shards(parameter, "A preconditioner")
            self.matrices.append([nn.Parameter(matrix) for matrix in own.matrices(parameter.detach())])
        self.inner = build([matrix for group in self.matrices for matrix in group])

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of the other optimiser on gradients cut the same way."""
        for group in self.inner.param_groups:
            group["lr"] = self.param_groups[0]["lr"]
        for (parameter, own), matrices in zip(self.info.items(), self.matrices, strict=True):
            if parameter.grad is None:
                continue
            # copies: these libraries change gradients in place, and parameters may have been moved meanwhile
            values = own.matrices(parameter.detach())
            gradients = own.matrices(parameter.grad).clone()
            for matrix, value, gradient in zip(matrices, values, gradients, strict=True):
                matrix.data = value
                matrix.grad = gradient
        self.inner.step()
        for parameter, matrices in zip(self.info, self.matrices, strict=True):
            if parameter.grad is None:
                continue
            parameter.copy_(torch.stack([matrix.detach() for matrix in matrices]).reshape(parameter.shape))
            for matrix in matrices:
                matrix.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The inner state, by parameter; its clock lies with the first."""
        described = super().state_dict()
        for i, matrices in enumerate(self.matrices):
            states = ((j, self.inner.state.get(matrix, {})) for j, matrix in enumerate(matrices))
            described["state"][i] = {f"{j}.{key}": value for j, state in states for key, value in state.items()}
        if "step" in self.inner.param_groups[0]:
            described["state"].setdefault(0, {})["clock"] = self.inner.param_groups[0]["step"]
        return described

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set what ``state_dict`` returned; tensors keep the precision they were stored in."""
        for i, matrices in enumerate(self.matrices):
            for key, value in state_dict["state"].get(i, {}).items():
                if key == "clock":
                    self.inner.param_groups[0]["step"] = value
                    continue
                place, _, name = key.partition(".")
                self.inner.state[matrices[int(place)]][name] = _apart(value)


def _apart(value: Any) -> Any:
    """A copy that shares no memory."""
    if isinstance(value, Tensor):
        return value.clone()
    return [_apart(item) for item in value] if isinstance(value, list) else value
