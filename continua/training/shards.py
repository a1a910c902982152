"""Tensors in shards: each process writes its own as safetensors, by torch's distributed checkpoint (DCP).

A name in a shard is that of its group and its own: ``model/embed.table``. Which part of a tensor a file holds stands in
the file's header, so nothing but safetensors and JSON is ever read.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.futures
from safetensors import SafetensorError
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter, async_save, load
from torch.distributed.checkpoint.api import CheckpointException

from continua.errors import CheckpointError
from continua.files import sha256_of
from continua.training.checkpoint import refuse_ruined
from continua.training.distributed import ShardedTensor
from continua.typing import Tensor

Like = Callable[[str], Tensor | None]
AGAIN = "Resume from an older checkpoint: remove this one."


@dataclass(frozen=True)
class Shard:
    """A file that one of the processes wrote."""

    name: str
    sha256: str


class ShardWriter(HuggingFaceStorageWriter):
    """Writes one checkpoint. The leading process makes its folder before anybody writes (``prepare``).

    When all have written, it is given the SHA-256 of each file (``complete``); where one of them fails, nobody is.
    """

    def __init__(self, folder: Path, prepare: Callable[[], object], complete: Callable[[dict[str, str]], object]):
        super().__init__(str(folder), save_distributed=True)
        self._prepare = prepare
        self._complete = complete

    def prepare_local_plan(self, plan: Any) -> Any:
        """The folder is made once, by ``prepare``."""
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        """Make the folder: what this process decides comes before anybody writes."""
        self._prepare()
        return super().prepare_global_plan(plans)

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write the own file, flushed; what it holds is finite."""
        for item in plan.items:
            kind, _, name = item.index.fqn.partition("/")
            refuse_ruined(kind, {name: planner.resolve_data(item)})
        written = super().write_data(plan, planner).wait()
        sums = {name: sha256_of(Path(self.path) / name) for name in {one.storage_data.relative_path for one in written}}
        done: Any = torch.futures.Future()
        done.set_result([replace(one, storage_data=_shard(one.storage_data.relative_path, sums)) for one in written])
        return done

    def finish(self, metadata: Any, results: Any) -> None:
        """All files are there."""
        files = [one.storage_data for written in results for one in written]
        self._complete({file.name: file.sha256 for file in files})


def _shard(name: str, sums: Mapping[str, str]) -> Shard:
    return Shard(name, sums[name])


def begin(tensors: Mapping[str, Mapping[str, Tensor]], writer: ShardWriter, group: Any) -> Future[Any]:
    """Copy the tensors and begin to write them in the background; every process of ``group`` must call this."""
    named = {f"{kind}/{name}": value for kind, values in tensors.items() for name, value in values.items()}
    begun: Any = async_save(named, storage_writer=writer, process_group=group)
    return begun


def fault_of(begun: Future[Any]) -> str | None:
    """Why a checkpoint was not written, in the same words on every process, or None; waits for its end.

    Where a process has gone the link to it says so: that error is raised.
    """
    try:
        begun.result()
    except CheckpointException as problem:
        return _first(problem)
    return None


def _first(problem: CheckpointException) -> str:
    process = min(problem.failures)
    wrong = problem.failures[process][0]
    return f"process {process}: {str(wrong) or type(wrong).__name__}"


def read(folder: Path, kind: str, like: Like | None = None) -> dict[str, Tensor]:
    """One group of tensors from all shards, each process its own part of those that ``like`` says are sharded."""
    try:
        found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        targets: dict[str, Any] = {}
        for key, stored in found.items():
            group, _, name = key.partition("/")
            if group == kind:
                _refuse_holes(folder, name, stored)
                targets[key] = _room(stored, None if like is None else like(name))
        _fill(folder, targets)
    except (SafetensorError, OSError, LookupError, RuntimeError, TypeError, ValueError, CheckpointException) as problem:
        if isinstance(problem, CheckpointError):
            raise
        got = _first(problem) if isinstance(problem, CheckpointException) else repr(problem)
        raise CheckpointError(f"the shards in {folder} cannot be read", got=got, remedy=AGAIN) from problem
    return {key.partition("/")[2]: value for key, value in targets.items()}


def _fill(folder: Path, targets: dict[str, Any]) -> None:
    """Read parts into their places; no process needs another one for that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that each reads for itself
        load(targets, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)


def _refuse_holes(folder: Path, name: str, stored: Any) -> None:
    """The parts of a tensor are as many numbers as it has."""
    held = sum(math.prod(chunk.sizes) for chunk in stored.chunks)
    if held != math.prod(stored.size):
        got = f"{held} of {math.prod(stored.size)} numbers of {name}"
        raise CheckpointError(f"{folder} lacks a shard", got=got, remedy=AGAIN)


def _room(stored: Any, like: Any) -> Tensor:
    """Where a tensor is read into."""
    if isinstance(like, ShardedTensor) and like.shape == stored.size:
        model: Any = like
        return torch.zeros_like(model, dtype=stored.properties.dtype).detach()
    return torch.zeros(stored.size, dtype=stored.properties.dtype)
