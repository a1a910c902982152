"""Wrappers of any optimiser that bound its kernels after each step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from continua.config import register
from continua.errors import ConfigError
from continua.optim.optimiser import Optimiser, others
from continua.optim.parameters import ParameterInfo, info_of, refuse_shards
from continua.typing import Float, Tensor

FIRST = 30  # power iterations when a matrix is met
LATER = 2  # and after each small step from there


@dataclass(frozen=True)
class _Around:
    """A description around another one."""

    inner: Optimiser

    @property
    def lr(self) -> float:
        """That of the inner optimiser."""
        return self.inner.lr

    @property
    def others(self) -> Optimiser:
        """What has no norm is left to the inner optimiser."""
        return others(self.inner)


@register
@dataclass(frozen=True)
class Rescaled(_Around):
    """W ← W · c/‖W‖_F after each step of ``inner``; c is ``norm``, or what the norm was at the start.

    Every coefficient in z is rescaled on its own; on continuous axes the norm is that of the integral operator (in
    the sense of Hilbert and Schmidt). It fixes the energy of a kernel and bounds its gain; it makes nothing unitary:
    for that see ``RiemannianAdam``.
    """

    norm: float | None = None

    def make(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo] = ()) -> torch.optim.Optimizer:
        """The inner optimiser, and rescaling after it."""
        return _Rescaling(self, parameters, info)


@register
@dataclass(frozen=True)
class SpectrallyNormalised(_Around):
    """W ← W · min(1, bound/‖W‖₂) after each step of ``inner``, ‖W‖₂ by power iteration from the last vectors.

    The bound holds for the integral operator of every coefficient in z, and so limits how fast the flow can stretch
    (T5). Miyato et al. (2018) divide in the forward pass instead; here the weights themselves obey.
    """

    bound: float = 1.0

    def __post_init__(self) -> None:
        if not self.bound > 0:
            raise ConfigError("a norm is bounded by a positive number", got=self.bound, remedy="Use bound > 0.")

    def make(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo] = ()) -> torch.optim.Optimizer:
        """The inner optimiser, and the bound after it."""
        return _Normalising(self, parameters, info)


class _After(torch.optim.Optimizer):
    """Steps with an inner optimiser, then changes the parameters; what it remembers lies beside the inner state."""

    def __init__(self, inner: Optimiser, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo]) -> None:
        self.info = info_of(parameters, info)
        for parameter, own in self.info.items():
            refuse_shards(parameter, type(self).__name__.strip("_"))
            own.matrices(parameter)
        self.inner = inner.make(parameters, info)
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.kept: dict[nn.Parameter, Tensor] = {p: self.first(p) for p in parameters}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step, then bound."""
        for group, own in zip(self.inner.param_groups, self.param_groups, strict=True):
            group["lr"] = own["lr"]
        self.inner.step()
        for p in self.kept:
            if p.grad is not None:
                p.mul_(self.factor(p)[:, None, None].expand_as(self.info[p].matrices(p)).reshape(p.shape))

    def state_dict(self) -> dict[str, Any]:
        """That of the inner optimiser, with what is kept."""
        described = self.inner.state_dict()
        for i, value in enumerate(self.kept.values()):
            described["state"][i] = {**described["state"].get(i, {}), self.key: value}
        return described

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set what ``state_dict`` returned."""
        inner = {}
        for i, p in enumerate(self.kept):
            own = dict(state_dict["state"].get(i, {}))
            self.kept[p] = own.pop(self.key, self.kept[p])
            if own:
                inner[i] = own
        self.inner.load_state_dict({**state_dict, "state": inner})

    @property
    def key(self) -> str:
        """The name of what is kept: wrappers may be wrapped."""
        return type(self).__name__.strip("_").lower()

    def first(self, p: nn.Parameter) -> Tensor:
        """What is to be remembered of a parameter."""
        raise NotImplementedError

    def factor(self, p: nn.Parameter) -> Tensor:
        """By what each of its matrices is multiplied."""
        raise NotImplementedError


class _Rescaling(_After):
    def __init__(self, chosen: Rescaled, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo]) -> None:
        self.chosen = chosen
        super().__init__(chosen.inner, parameters, info)

    def first(self, p: nn.Parameter) -> Tensor:
        norms = self._norms(p)
        return norms if self.chosen.norm is None else torch.full_like(norms, self.chosen.norm)

    def factor(self, p: nn.Parameter) -> Tensor:
        norms = self._norms(p)
        return torch.where(norms > 0, self.kept[p] / norms.clamp_min(torch.finfo(norms.dtype).tiny), 1.0)

    def _norms(self, p: nn.Parameter) -> Tensor:
        return self.info[p].matrices(p.detach()).flatten(1).norm(dim=1) * self.info[p].scale


class _Normalising(_After):
    def __init__(
        self, chosen: SpectrallyNormalised, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo]
    ) -> None:
        self.chosen = chosen
        super().__init__(chosen.inner, parameters, info)

    def first(self, p: nn.Parameter) -> Tensor:
        matrices = self.info[p].matrices(p.detach())
        start = torch.randn(matrices.shape[:2], generator=torch.Generator().manual_seed(0), dtype=p.dtype).to(p.device)
        return spectral_norm(matrices, start, FIRST)[1]

    def factor(self, p: nn.Parameter) -> Tensor:
        sigma, self.kept[p] = spectral_norm(self.info[p].matrices(p), self.kept[p], LATER)
        return (self.chosen.bound / (sigma * self.info[p].scale).clamp_min(self.chosen.bound)).to(p)


def spectral_norm(
    w: Float[Tensor, "k r c"], left: Float[Tensor, "k r"], iterations: int
) -> tuple[Float[Tensor, "k"], Float[Tensor, "k r"]]:
    """‖W‖₂ of each matrix from below, and its left singular vector, by the power method from ``left``."""
    u = left[..., None]
    tiny = torch.finfo(w.dtype).tiny
    for _ in range(iterations):
        v = w.mT @ u
        u = w @ (v / v.norm(dim=1, keepdim=True).clamp_min(tiny))
        sigma = u.norm(dim=1, keepdim=True)
        u = torch.where(sigma > 0, u / sigma.clamp_min(tiny), left[..., None])
    return sigma[:, 0, 0], u[..., 0]
