"""Steps on the simplex for ρ over heads: entropic mirror descent and dual averaging."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from continua.config import register
from continua.errors import ConfigError
from continua.geometry import simplex
from continua.optim.parameters import ParameterInfo, PerParameter
from continua.settings import NonNegative
from continua.typing import Tensor


@register
@dataclass(frozen=True)
class Mirror:
    """ρ ← ρ exp(−lr δJ/δρ) / Z: the exponentiated gradient, mirror descent in the entropy (Beck and Teboulle 2003).

    δJ/δρ is taken against the probability measure dμ(h)/mass(h). ρ is stored as logits ℓ, ρ ∝ exp ℓ, so the step is
    written there, ℓ ← ℓ − lr (∂J/∂ℓ)/p with p = softmax(ℓ + log w): ρ then follows the multiplicative update exactly,
    stays ≥ 0 and keeps its mass to rounding. A gradient step in ℓ would multiply by exp(−lr p δJ/δρ) instead, and a
    head that is nearly off could never come back. Each coefficient in z holds a ρ of its own, and between them ρ is
    read by its logarithm.
    """

    lr: NonNegative = 0.05

    def make(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo] = ()) -> torch.optim.Optimizer:
        """The optimiser of these logits, heads along the last dimension."""
        return _Mirror(parameters, info, self.lr)


@register
@dataclass(frozen=True)
class DualAveraging:
    """ρ_{t+1} = ρ_0 exp(−(lr/√t) Σ_{s≤t} δJ/δρ_s) / Z: all gradients count alike (Nesterov 2009, Xiao 2010).

    It minimises ⟨Σ δJ/δρ_s, ρ⟩ + (√t/lr) KL(ρ‖ρ_0), and is written in the logits as ``Mirror`` is.
    """

    lr: NonNegative = 0.05

    def make(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo] = ()) -> torch.optim.Optimizer:
        """The optimiser of these logits, heads along the last dimension."""
        return _DualAveraging(parameters, info, self.lr)


class _Mirror(PerParameter):
    needs_matrices = False

    def __init__(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo], lr: float) -> None:
        super().__init__(parameters, info, lr)
        for own in self.info.values():
            if own.name and own.measure is None:
                remedy = "Use h=Nodal(…), or AdamW for the density."
                raise ConfigError("a step on the simplex needs ρ at nodes of h", got=own.name, remedy=remedy)

    def ascent(self, p: nn.Parameter, gradient: Tensor) -> Tensor:
        """δJ/δρ against the probability measure, up to a constant."""
        measure = self.info[p].measure
        weights = None if measure is None else torch.tensor(measure, dtype=torch.float64, device=p.device)
        return simplex.ascent(gradient, simplex.shares(p, weights))

    def update(self, p: nn.Parameter, gradient: Tensor, lr: float) -> None:
        p.sub_(self.ascent(p, gradient), alpha=lr)


class _DualAveraging(_Mirror):
    def update(self, p: nn.Parameter, gradient: Tensor, lr: float) -> None:
        state = self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["start"] = p.clone()
            state["sum"] = torch.zeros_like(p)
        state["step"] += 1
        state["sum"] += self.ascent(p, gradient)
        p.copy_(state["start"] - state["sum"] * (lr / float(state["step"]) ** 0.5))
