"""The hypernetwork: a basis in depth that a small network emits."""

import torch
from torch import nn

from continua.axes import Axis
from continua.config import register
from continua.fields.basis import require_weight, unit_coordinate
from continua.fields.role import NETWORK, Role
from continua.settings import Seed, Size
from continua.typing import Float, Tensor


@register
class Generated(nn.Module):
    """θ(z) = Σ_k H_φ(z)_k θ_k: a network emits ``size`` basis *coefficients* for each depth, not the weights.

    Emitting coefficients costs one small network evaluation and one matrix product for all depths; emitting weights
    costs more than the Transformer itself. Give it to the ``z`` axis of a field.
    """

    spread = 1.0

    def __init__(self, size: Size, hidden: Size = 32, seed: Seed = 0) -> None:
        super().__init__()
        require_weight(size, hidden)
        self.size = size
        generator = torch.Generator().manual_seed(seed)
        self.inner = nn.Parameter(torch.randn(hidden, 4, generator=generator))
        self.shift = nn.Parameter(torch.randn(hidden, generator=generator))
        self.outer = nn.Parameter(torch.randn(size, hidden, generator=generator) * (hidden * size) ** -0.5)
        self.rest = nn.Parameter(torch.full((size,), size**-0.5))

    def parameter_roles(self) -> dict[str, Role | None]:
        """All belong to the network."""
        return {name: NETWORK for name, _ in self.named_parameters()}

    def native_key(self, axis: Axis) -> int | None:
        """A generated basis is cardinal nowhere."""
        return None

    def matrix(self, axis: Axis, nodes: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b n size"]:
        """Evaluate the network at all depths at once."""
        u = unit_coordinate(axis, nodes)[..., None]
        features = torch.cat([u, u * u, (torch.pi * u).cos(), (torch.pi * u).sin()], -1).to(self.inner)
        hidden = torch.tanh(features @ self.inner.T + self.shift)
        return hidden @ self.outer.T + self.rest

    def forward(self, axis: Axis, nodes: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b n size"]:
        """The matrix, so that ``torch.func.functional_call`` can make it from other parameters."""
        return self.matrix(axis, nodes)
