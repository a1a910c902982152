"""Coordinate networks: fields whose values a network computes from the coordinates."""

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import nn

from continua.axes import Axis, Circle, Sites, coordinates
from continua.config import register
from continua.errors import ShapeError
from continua.fields.basis import precisely, require_weight, unit_coordinate
from continua.fields.role import NETWORK, Role
from continua.settings import Single, Size, Spread, Whole
from continua.typing import Letter, Tensor


def wave_features(axis: Axis, where: Sites, count: int, like: Tensor) -> Tensor:
    """x, cos, sin of ``count`` whole (circle) or half (interval) waves of one coordinate: [n, 2·count+1]."""
    u = unit_coordinate(axis, coordinates(where, like))[..., None]
    base = 2 * math.pi if isinstance(axis, Circle) else math.pi
    waves = base * u * torch.arange(1, count + 1, dtype=u.dtype, device=u.device)
    head = torch.zeros_like(u) if isinstance(axis, Circle) else u - 0.5
    return torch.cat([head, waves.cos(), waves.sin()], -1)


@register
class Neural(nn.Module):
    """f(x_1, …, x_r) = network(features(x_1), …, features(x_r)): a joint coordinate network, one hidden layer.

    Its cost is the number of grid points times the width. ``Separable`` is the cheap form.
    """

    def __init__(
        self,
        axes: Mapping[Letter, Axis],
        hidden: Size = 64,
        waves: Whole = 4,
        std: Single = 1.0,
        mean: Single = 0.0,
        role: Role | None = None,
    ) -> None:
        super().__init__()
        self.role = role
        self.axes, self.letters, self.waves = dict(axes), tuple(axes), waves
        require_weight(len(self.letters), hidden, 2 * waves + 1)
        self.inner = nn.ParameterDict({k: nn.Parameter(torch.randn(hidden, 2 * waves + 1)) for k in self.letters})
        for weight in self.inner.values():
            weight.data.div_(math.sqrt((waves + 1) * len(self.letters)))
        self.shift = nn.Parameter(torch.randn(hidden))
        self.outer = nn.Parameter(torch.randn(hidden) * (std * math.sqrt(2 / hidden)))
        self.rest = nn.Parameter(torch.full((), float(mean)))

    def _hidden(self, grids: Mapping[Letter, Sites]) -> Tensor:
        # the first layer is linear in concatenated features: add one small table for each axis instead
        total: Tensor = self.shift
        for position, letter in enumerate(self.letters):
            line = wave_features(self.axes[letter], grids[letter], self.waves, self.shift) @ self.inner[letter].T
            total = total + line.reshape(-1, *[1] * (len(self.letters) - 1 - position), line.shape[-1])
        return torch.tanh(total)

    def parameter_roles(self) -> dict[str, Role | None]:
        """Whatever the field is for, its parameters are those of a network."""
        return {name: NETWORK for name, _ in self.named_parameters()}

    def forward(self, **grids: Sites) -> Tensor:
        """``on``, so that ``torch.func.functional_call`` can read the field with other parameters."""
        return self.on(**grids)

    @precisely
    def on(self, **grids: Sites) -> Tensor:
        """Evaluate the network at every point of the product grid."""
        return self._hidden(grids) @ self.outer + self.rest

    @torch.no_grad()
    def project(self, values: Tensor, grids: Mapping[Letter, Sites]) -> "Neural":
        """Least squares for the last layer; the first stays as it was drawn."""
        features = self._hidden(grids).reshape(-1, self.outer.numel())
        if values.numel() != len(features):
            raise ShapeError(f"the values need {len(features)} entries", got=values.numel(), remedy="Check the grids.")
        table = torch.cat([features, torch.ones_like(features[:, :1])], 1)
        solution = torch.linalg.lstsq(table, values.to(table).reshape(-1, 1)).solution[:, 0]
        self.outer.copy_(solution[:-1])
        self.rest.copy_(solution[-1])
        return self


@register
class Separable(nn.Module):
    """f(x_1, …, x_r) = mean + Σ_k u¹_k(x_1) ⋯ uʳ_k(x_r): a rank-``rank`` product of one-axis networks.

    Cheap for each step: the networks see the nodes of one axis at a time, and one contraction builds the kernel.
    """

    def __init__(
        self,
        axes: Mapping[Letter, Axis],
        rank: Size = 8,
        hidden: Size = 32,
        std: Spread = 1.0,
        mean: Single = 0.0,
        role: Role | None = None,
    ) -> None:
        super().__init__()
        self.role = role
        self.axes, self.letters = dict(axes), tuple(axes)
        require_weight(len(self.letters), hidden, 9 + rank)
        scale = (std * math.sqrt(1 / rank)) ** (1 / len(self.letters))
        self.factors = nn.ModuleDict({k: _Factor(axes[k], rank, hidden, scale) for k in self.letters})
        self.rest = nn.Parameter(torch.full((), float(mean)))

    def parameter_roles(self) -> dict[str, Role | None]:
        """Whatever the field is for, its parameters are those of a network."""
        return {name: NETWORK for name, _ in self.named_parameters()}

    def forward(self, **grids: Sites) -> Tensor:
        """``on``, so that ``torch.func.functional_call`` can read the field with other parameters."""
        return self.on(**grids)

    @precisely
    def on(self, **grids: Sites) -> Tensor:
        """Contract the factors over the rank."""
        factors = [cast(_Factor, self.factors[k])(grids[k]) for k in self.letters]
        spec = ",".join(f"{chr(97 + i)}z" for i in range(len(factors)))
        out = "".join(chr(97 + i) for i in range(len(factors)))
        return torch.einsum(f"{spec}->{out}", *factors) + self.rest

    @torch.no_grad()
    def project(self, values: Tensor, grids: Mapping[Letter, Sites]) -> "Separable":
        """Alternating least squares over the last layers of the factors."""
        target = values.to(self.rest) - self.rest
        for _ in range(20):
            for position, letter in enumerate(self.letters):
                others = [cast(_Factor, self.factors[k])(grids[k]) for k in self.letters if k != letter]
                table = torch.ones_like(cast(_Factor, self.factors[letter]).outer[:, :1].T)
                for other in others:
                    table = (table[:, None] * other[None]).flatten(0, 1)
                unfolded = torch.moveaxis(target, position, 0).reshape(target.shape[position], -1)
                wanted = torch.linalg.lstsq(table, unfolded.T).solution.T
                cast(_Factor, self.factors[letter]).project(wanted, grids[letter])
        return self


class _Factor(nn.Module):
    """One axis of a separable field: [n, rank]."""

    def __init__(self, axis: Axis, rank: int, hidden: int, scale: float) -> None:
        super().__init__()
        self.axis = axis
        self.inner = nn.Parameter(torch.randn(hidden, 9) / math.sqrt(5))
        self.shift = nn.Parameter(torch.randn(hidden))
        self.outer = nn.Parameter(torch.randn(rank, hidden) * (scale * math.sqrt(2 / hidden)))

    def _hidden(self, where: Sites) -> Tensor:
        return torch.tanh(wave_features(self.axis, where, 4, self.shift) @ self.inner.T + self.shift)

    def forward(self, where: Sites) -> Tensor:
        return self._hidden(where) @ self.outer.T

    def project(self, wanted: Tensor, where: Sites) -> None:
        self.outer.copy_(torch.linalg.lstsq(self._hidden(where), wanted).solution.T)
