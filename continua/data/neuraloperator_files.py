"""Darcy and Burgers files that come inside the package ``neuraloperator`` 0.3.0 (MIT), read without importing it.

The wheel has them in ``neuralop/datasets/data``; unpack that folder and give it here. Nothing is fetched.
"""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from continua.axes import Circle
from continua.data.darcy import SQUARE
from continua.data.pairs import Pairs, lattice
from continua.errors import ConfigError
from continua.typing import Tensor

FILES: Mapping[str, str] = {
    "darcy_train_16.pt": "0be662acdb1dab7dfd1a1da0b140e97f75cc94f98a14edcf768abe6968b3b418",
    "darcy_test_16.pt": "d2b19af9d4a6ae04ba2de54b8ecccc8b89766472faf6ce7f506c0b2a60f69a4c",
    "darcy_test_32.pt": "bcbd10622373e94df84a17fcdb72ac4317d76e024c2499d21fd1fd34d0742cfd",
    "burgers_lowres.pt": "0bdfd68a13ab9f6b7777628bb82527b9d77524e08e01eafc3fc353df39416d5d",
}
WHERE = "Give the folder neuralop/datasets/data out of the wheel of neuraloperator==0.3.0."


class PackagedDarcy(NamedTuple):
    """1,000 pairs on 16² points to learn from; 50 others on 16² and the same 50 on 32² points."""

    train: Pairs
    test: Pairs
    fine: Pairs


def darcy(folder: str | Path) -> PackagedDarcy:
    """Which of two materials (0 or 1) ↦ u, on the points (i, j)/n of the unit square: the first lines lie on the edge.

    u is zero on the boundary; the last lines, at 1 − 1/n, are inside. Every second line of the fine set is a line of
    the coarse one.
    """
    return PackagedDarcy(
        *(_darcy(folder, name) for name in ("darcy_train_16.pt", "darcy_test_16.pt", "darcy_test_32.pt"))
    )


def burgers(folder: str | Path, time: int = 16) -> Pairs:
    """u(·, 0) ↦ u(·, time/16) of Burgers' equation, ν = 0.01, at the points j/16 of the unit circle: 1,200 pairs."""
    if not 0 < time <= 16:
        raise ConfigError("the file has the times 1/16, 2/16, …, 1", got=time, remedy="Use time=1 … 16.")
    found = _read(folder, "burgers_lowres.pt", ("input", "output"))
    inputs = found["input"]
    outputs = found["output"][:, time]
    points = lattice(Circle(), torch.arange(inputs.shape[1], dtype=torch.float64) / inputs.shape[1])
    return Pairs("packaged burgers", Circle(), inputs.float()[..., None], outputs.float()[..., None], points)


def _darcy(folder: str | Path, name: str) -> Pairs:
    found = _read(folder, name, ("x", "y"))
    line = torch.arange(found["x"].shape[1], dtype=torch.float64) / found["x"].shape[1]
    points = lattice(SQUARE, line, line)
    return Pairs("packaged darcy", SQUARE, found["x"].float()[..., None], found["y"].float()[..., None], points)


def _read(folder: str | Path, name: str, wanted: tuple[str, ...]) -> dict[str, Tensor]:
    """The tensors of a pinned file: whatever is not that very file is not unpickled."""
    path = Path(folder) / name
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise ConfigError(f"{name} cannot be read", got=problem.strerror or str(problem), remedy=WHERE) from problem
    digest = hashlib.sha256(content).hexdigest()
    if digest != FILES[name]:
        raise ConfigError(f"{name} is not the pinned file", got=f"sha256 {digest[:16]}…", remedy=WHERE)
    found: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return {word: found[word] for word in wanted}
