"""What the laws measure with: slopes, and models whose every parameter matters."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from continua.models.refine import Refinement

EXACT = 1e-12  # float64 round-off of a few hundred operations, relative to the largest entry


def slope(sizes: Sequence[float], errors: Sequence[float]) -> float:
    """p of the least-squares line log error = −p log size + const."""
    x, y = torch.tensor(sizes).double().log(), torch.tensor(errors).double().log()
    x, y = x - x.mean(), y - y.mean()
    return -((x * y).sum() / (x * x).sum()).item()


def gap(got: Tensor, wanted: Tensor) -> float:
    """Largest difference, relative to the largest entry (absolute below one)."""
    assert got.shape == wanted.shape, f"{tuple(got.shape)} is not {tuple(wanted.shape)}"
    scale = max(1.0, wanted.abs().max().item())
    return (got - wanted).abs().max().item() / scale


def mean_error(measure: Callable[[int], float], draws: int = 32) -> float:
    """Mean |error| over draws with the fixed seeds 0, 1, …"""
    return math.fsum(abs(measure(seed)) for seed in range(draws)) / draws


def random(*shape: int, seed: int = 0, low: float | None = None) -> Tensor:
    """Fixed normal numbers, or uniform ones in [low, 1]."""
    generator = torch.Generator().manual_seed(seed)
    if low is None:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)
    return low + (1 - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)


@torch.no_grad()
def stirred(module: nn.Module, amount: float = 0.2, seed: int = 1) -> nn.Module:
    """In float64, with noise on every parameter: zero biases and unit scales hide mistakes."""
    module.double()
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.add_(amount * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def settles(refinement: Refinement) -> bool:
    """Spectral: below 1e-9 at the finest grid, and falling faster than any low power on the way."""
    return refinement.errors[-1] < 1e-9 and refinement.slope > 5
