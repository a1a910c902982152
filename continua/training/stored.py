"""What a checkpoint holds, in one file or in shards; shards are laid out anew on any number of processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from continua.errors import CheckpointError
from continua.models.store import built, load, read_config
from continua.training import checkpoint
from continua.training.distributed import spread
from continua.typing import Tensor


def tensors(path: Path, name: str, like: Callable[[str], Tensor | None] | None = None) -> dict[str, Tensor]:
    """One group of tensors, each laid out on processes as what ``like`` says of its name; whole ones without it."""
    if checkpoint.is_sharded(path):
        try:
            from continua.training.shards import read  # torch needs a moment for what shards
        except ImportError as problem:
            remedy = "Install a newer one, or make one file of it where it was written: continua gather RUN."
            raise CheckpointError("this torch reads no shards", got=torch.__version__, remedy=remedy) from problem
        return read(path, name, like)
    found = checkpoint.read_tensors(path, name)
    models = {} if like is None else {key: model for key in found if (model := like(key)) is not None}
    return spread(found, models)


def model(path: Path) -> Any:
    """The model of a checkpoint, or one that ``model.save`` wrote."""
    if not checkpoint.is_sharded(path):
        return load(path)
    return built(read_config(path)["model"], tensors(path, "model"), path)


def gather(path: Path) -> Path:
    """Write a checkpoint of shards as one file of weights and one of the optimiser, in its place."""
    groups = {name: tensors(path, name) for name in ("model", "optimiser")}
    texts = {name: checkpoint.read_text(path, name) for name in ("config", "progress", "optimiser")}
    return checkpoint.write(path.parent, checkpoint.step_of(path), groups, texts)
