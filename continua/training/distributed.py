"""One command on one process or on many: data-parallel copies (DDP) or sharded weights (FSDP2)."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from continua.errors import RunError
from continua.typing import Tensor


@dataclass(frozen=True)
class World:
    """Who takes part: this process's number, how many there are, and its device."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009  (immutable)

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add up over all processes."""
        if self.size > 1:
            try:
                dist.all_reduce(values)
            except RuntimeError as broken:
                remedy = "Look at the output of the process that ended first, then resume the run."
                raise RunError(
                    "another process of this run has gone", got=_first_line(broken), remedy=remedy
                ) from broken
        return values

    def wait(self) -> None:
        """Meet all others."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined() -> Iterator[World]:
    """Take part in what ``torchrun`` started, or be alone."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if size == 1:
        yield World(0, 1, device)
        return
    started = not dist.is_initialized()
    if started:
        dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield World(rank, size, device)
    finally:
        if started:
            dist.destroy_process_group()


def wrapped(objective: nn.Module, world: World, sharded: bool) -> nn.Module:
    """The objective, copied to every process or sharded among them."""
    if world.size == 1:
        return objective
    if sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(objective)
        return objective
    return DistributedDataParallel(objective, find_unused_parameters=True)


def quiet(module: nn.Module, last: bool) -> contextlib.AbstractContextManager[None]:
    """Gradients meet after the last micro-batch only."""
    if isinstance(module, DistributedDataParallel) and not last:
        return module.no_sync()
    sync: Any = getattr(module, "set_requires_gradient_sync", None)  # of a sharded module
    if sync is not None:
        sync(last)
    return contextlib.nullcontext()


def whole(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sharded tensors gathered into whole ones on the processor; every process must call this."""
    return {name: _gathered(value) for name, value in values.items()}


def _gathered(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def spread(values: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors laid out as ``like`` is, where that is sharded and of the same shape."""
    laid: dict[str, Tensor] = {}
    for name, value in values.items():
        model: Any = like.get(name)
        if model is not None and hasattr(model, "device_mesh") and model.shape == value.shape:
            from torch.distributed.tensor import distribute_tensor

            laid[name] = distribute_tensor(value.to(model.device), model.device_mesh, model.placements)
        else:
            laid[name] = value
    return laid


def _first_line(problem: Exception) -> str:
    return str(problem).splitlines()[0][:120] if str(problem) else type(problem).__name__
