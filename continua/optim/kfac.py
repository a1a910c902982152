"""K-FAC: gradients divided by the curvature that a product of matrices can have, factor by factor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from continua.config import register
from continua.errors import ConfigError
from continua.fields import Use
from continua.operators.linear import Moments, show
from continua.optim.optimiser import AdamW, Optimiser
from continua.optim.parameters import ParameterInfo, PerParameter
from continua.settings import NonNegative
from continua.typing import Float, Tensor


@register
@dataclass(frozen=True)
class KFAC:
    """W ← W − lr ν Ĝ⁻¹ (∂J/∂W) Â⁻¹, with A = E[aaᵀ] of what goes into W and G = E[ggᵀ] of gradients by what comes out.

    Martens and Grosse (2015), tokens as samples (Eschenhagen et al. 2023, "expand"), g from the data themselves. Every
    coefficient in z has factors of its own: those of all depths, weighted by the square of its basis function there.
    Â = A + √damping·tr(A)/n and Ĝ likewise, so ``damping`` is relative to the mean curvature. ν keeps ⟨ν step, ∂J/∂W⟩
    ≤ ``trust``: a step then moves the answer by about lr²·trust/2 in the Kullback–Leibler sense at most. Every
    ``every`` steps the factors are looked at, averaged (at the rate 1 − ``beta``) and inverted. What is no kernel is
    trained by others.

    Discrete case: on counting axes the factors are those of ``nn.Linear`` in each layer.
    """

    lr: NonNegative = 0.02
    momentum: float = 0.9
    decay: NonNegative = 0.01
    damping: float = 0.1
    trust: float | None = 1.0
    beta: float = 0.9
    every: int = 5
    others: Optimiser = AdamW(decay=0.0)  # noqa: RUF009  (frozen)

    def __post_init__(self) -> None:
        if not self.damping > 0:
            raise ConfigError("damping keeps inverses finite", got=self.damping, remedy="Use damping > 0, as 0.1.")
        if self.trust is not None and not self.trust > 0:
            raise ConfigError("trust bounds a square", got=self.trust, remedy="Use trust > 0, or None for no bound.")
        if not (0 <= self.beta < 1 and 0 <= self.momentum < 1):
            got = f"beta={self.beta}, momentum={self.momentum}"
            raise ConfigError("averages forget at a rate in [0, 1)", got=got, remedy="0.9 is usual.")
        if self.every < 1:
            raise ConfigError("factors are looked at every so many steps", got=self.every, remedy="Use every ≥ 1.")

    def make(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo] = ()) -> torch.optim.Optimizer:
        """The optimiser of these kernels, whose products it looks at from now on."""
        return _KFAC(self, parameters, info)


class _KFAC(PerParameter):
    def __init__(self, chosen: KFAC, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo]) -> None:
        super().__init__(parameters, info, chosen.lr)
        self.chosen = chosen
        self.moments: dict[nn.Parameter, Moments] = {}
        for p, own in self.info.items():
            if own.unfolding is None or (own.role is not None and own.role.use is not Use.KERNEL):
                remedy = "Give the rest another optimiser: ByRole(AdamW(1e-3), kernel=KFAC())."
                raise ConfigError("K-FAC is for the kernels of integrals", got=own.name, remedy=remedy)
            self.moments[p] = Moments(own.unfolding.leading, own.unfolding.rows)
            show(p, self.moments[p])

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient, all by the same ν."""
        chosen = self.chosen
        moves: list[tuple[nn.Parameter, Tensor, float]] = []
        size = 0.0
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    direction = self._direction(p, p.grad)
                    size += float((p.grad * direction).sum())
                    moves.append((p, direction, group["lr"]))
        share = 1.0 if chosen.trust is None or size <= chosen.trust else (chosen.trust / size) ** 0.5
        for p, direction, lr in moves:
            held = self.state[p]["momentum"].lerp_(direction.mul_(share), 1 - chosen.momentum)
            p.mul_(1 - lr * chosen.decay).sub_(held, alpha=lr)
            self.state[p]["step"] += 1
        self._look()

    def _direction(self, p: nn.Parameter, gradient: Tensor) -> Tensor:
        """Ĝ⁻¹ ∂J/∂W Â⁻¹, with new factors if it is time for them."""
        state = self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["momentum"] = torch.zeros_like(p)
        if self.moments[p].looking:
            self._learn(p, state)
        matrices = self.info[p].matrices(gradient)
        return (state["left"] @ matrices.to(state["left"]) @ state["right"]).to(p.dtype).reshape(p.shape)

    def _learn(self, p: nn.Parameter, state: dict[str, Any]) -> None:
        """Average and invert what was seen since the last step."""
        a, g = self._seen(p)
        if "inputs" not in state:
            state["inputs"] = a
            state["outputs"] = g
        elif bool(torch.isfinite(a.sum() + g.sum())):  # one bad batch would spoil the average
            looks = float(state["step"]) // self.chosen.every + 1
            rate = max(1 - self.chosen.beta, 1 / looks)
            state["inputs"].lerp_(a, rate)
            state["outputs"].lerp_(g, rate)
        state["right"] = inverse(state["inputs"], self.chosen.damping)
        state["left"] = inverse(state["outputs"], self.chosen.damping)

    def _seen(self, p: nn.Parameter) -> tuple[Tensor, Tensor]:
        """A and G of each matrix, over all processes."""
        seen = self.moments[p]
        if seen.count is None or seen.inputs is None or seen.outputs is None:
            name = self.info[p].name or "a parameter outside any operator"
            remedy = "Compute gradients with adjoint=Direct(), which lets every product be seen, or use AdamW for it."
            raise ConfigError("K-FAC looks at products and their gradients", got=f"none of {name}", remedy=remedy)
        sums = (seen.count, seen.inputs, seen.outputs)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            for one in sums:
                dist.all_reduce(one)
            seen.outputs.div_(dist.get_world_size())  # each process has the gradients of a mean over its own tokens
        tiny = torch.finfo(sums[0].dtype).tiny
        return sums[1] / sums[0].clamp_min(tiny)[:, None, None], sums[2]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and the products they came from."""
        super().zero_grad(set_to_none)
        for moments in self.moments.values():
            moments.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set what ``state_dict`` returned."""
        super().load_state_dict(state_dict)
        self._look()

    def _look(self) -> None:
        """Look at the products of the next step, if it is one for that."""
        for p, moments in self.moments.items():
            moments.clear()
            moments.looking = float(self.state[p].get("step", 0.0)) % self.chosen.every == 0


def inverse(a: Float[Tensor, "k n n"], damping: float) -> Float[Tensor, "k n n"]:
    """(A + √damping·tr(A)/n)⁻¹, by Cholesky; by eigenvalues where rounding has left A indefinite."""
    mean = a.diagonal(dim1=-2, dim2=-1).mean(-1)
    shift = torch.where(mean > 0, mean * damping**0.5, 1.0)  # nothing was seen: gradients are zero too
    shifted = a + torch.diag_embed(shift[:, None].expand(a.shape[:2]))
    factor, failed = torch.linalg.cholesky_ex(shifted)
    if not bool(failed.any()):
        return torch.cholesky_inverse(factor).contiguous()  # as files give it back: products round by layout
    values, vectors = torch.linalg.eigh(shifted)
    return (vectors / values.clamp_min(shift[:, None])[:, None, :]) @ vectors.mT
