"""What "equal to round-off" means here: outputs and every gradient, relative to the largest entry."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

# Round-off of a few hundred operations, relative to the largest entry.
EXACT = {torch.float64: 1e-12, torch.float32: 1e-5}
SMALL = 1e-2  # of the largest gradient: below it only noise is found (that of a key bias is zero by symmetry)


def stirred(module: nn.Module, dtype: torch.dtype = torch.float64, seed: int = 1) -> nn.Module:
    """Noise on every parameter: zero biases and unit scales hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return module.to(dtype)


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Fixed normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def aligned(module: nn.Module) -> nn.Module:
    """A copy whose weights lie where torch puts them: from a file they may lie anywhere, and products round by that."""
    return copy.deepcopy(module)


def gap(got: Tensor, wanted: Tensor) -> float:
    """The largest difference over the largest entry."""
    assert got.shape == wanted.shape, f"{list(got.shape)} is not {list(wanted.shape)}"
    assert got.dtype == wanted.dtype, f"{got.dtype} is not {wanted.dtype}"
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


def gradients(loss: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """dloss/dleaf by name; a leaf that the loss does not see has gradient zero."""
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def written_gradients(theirs: Any, slopes: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The gradients of Hugging Face's model under its names on disk; what has none is left out.

    Its own ``save_pretrained`` writes them: the model holds gradients from then on.
    """
    with torch.no_grad():
        for buffer in theirs.buffers():
            if buffer.is_floating_point():
                buffer.fill_(torch.nan)
        for name, parameter in theirs.named_parameters():
            parameter.copy_(slopes[name]) if name in slopes else parameter.fill_(torch.nan)
    theirs.save_pretrained(folder)
    return {
        name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if not tensor.isnan().any()
    }


def worst(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest gap of a family of gradients; the names must be the same."""
    assert set(got) == set(wanted), set(got) ^ set(wanted)
    floor = SMALL * max(tensor.abs().max().item() for tensor in wanted.values())
    assert floor > 0, "no gradient at all"
    gaps = []
    for name, tensor in wanted.items():
        assert got[name].shape == tensor.shape, f"{name}: {list(got[name].shape)} is not {list(tensor.shape)}"
        scale = max(floor, tensor.abs().max().item())
        gaps.append((got[name] - tensor).abs().max().item() / scale)
    assert all(value == value for value in gaps), "NaN"
    return max(gaps)
