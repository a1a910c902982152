"""Who writes the checkpoints of a fit: the leading process all of it, or each process its own shard meanwhile."""

import inspect
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch.distributed as dist

from continua.training import checkpoint
from continua.training.distributed import World, whole
from continua.training.run import Run, texts_of, warn_unwritten
from continua.training.settings import Training


@runtime_checkable
class Keeper(Protocol):
    """Writes states of a fit; every process calls it."""

    def begin(self, step: int, state: Mapping[str, Any], is_best: bool) -> None:
        """Begin to write a state, when the one before has been settled."""
        ...

    def settle(self) -> int | None:
        """Wait for what was begun: its step, if it is kept now."""
        ...


def keeper(run: Run | None, world: World, training: Training) -> Keeper | None:
    """Shards where processes share weights or tokens, one file of weights elsewhere."""
    if run is None:
        return None
    shared = training.sharded or training.shard_tokens > 1
    if world.size == 1 or not shared or not writes_shards():
        return WholeKeeper(run, world)
    limit = timedelta(seconds=training.time_limit)
    group = dist.new_group(backend="gloo", timeout=limit)  # its own: messages of a thread go beside those of training
    return ShardKeeper(run, world, group)


def writes_shards() -> bool:
    """Whether this torch writes shards as safetensors; where it does not, the leading process writes all."""
    try:
        from torch.distributed.checkpoint import HuggingFaceStorageWriter
    except ImportError:
        return False
    return "save_distributed" in inspect.signature(HuggingFaceStorageWriter).parameters


@dataclass
class WholeKeeper:
    """The leading process writes all of a state, before the next step."""

    run: Run
    world: World
    _kept: int | None = None

    def begin(self, step: int, state: Mapping[str, Any], is_best: bool) -> None:
        """Gather what lies on several processes and write it."""
        tensors, plain = state["optimiser"]
        gathered = {**state, "model": whole(state["model"]), "optimiser": (whole(tensors), plain)}
        written = self.world.leads and self.run.save(step, gathered, is_best)
        self._kept = step if self.world.told(int(written)) else None

    def settle(self) -> int | None:
        """It is written already."""
        kept = self._kept
        self._kept = None
        return kept


@dataclass(frozen=True)
class Writing:
    """A checkpoint that is being written."""

    step: int
    best: str | None  # the best one, when it is there
    begun: Future[Any]


@dataclass
class ShardKeeper:
    """Each process writes its shard while training goes on, one state at a time.

    The leading process gives the folder its name when all shards are there. A state that could not be written is said
    when it is settled: before the next one, and at the end.
    """

    run: Run
    world: World
    group: Any
    _writing: Writing | None = field(default=None, repr=False)

    def begin(self, step: int, state: Mapping[str, Any], is_best: bool) -> None:
        """Copy the own shard and begin to write it."""
        from continua.training import shards  # torch needs a moment for what shards

        run = self.run
        best = checkpoint.place(run.checkpoints, step).name if is_best else run.best
        texts = texts_of(state, best)
        with self.world.as_one():
            if self.world.leads:
                run.commit()

        def prepare() -> Path:
            run.refuse_moved()
            return checkpoint.begin(run.checkpoints, step)

        def complete(sums: dict[str, str]) -> Path:
            run.refuse_moved()
            return checkpoint.complete(run.checkpoints, step, texts, sums)

        writer = shards.ShardWriter(checkpoint.partial(run.checkpoints, step), prepare, complete)
        groups = {"model": state["model"], "optimiser": state["optimiser"][0]}
        self._writing = Writing(step, best, shards.begin(groups, writer, self.group))

    def settle(self) -> int | None:
        """Wait until all shards are written; a failure is warned of."""
        writing = self._writing
        self._writing = None
        if writing is None:
            return None
        from continua.training.shards import fault_of

        with self.world.reaching():
            fault = fault_of(writing.begun)
        if fault is None:
            if self.world.leads:
                self.run.kept(writing.best)
            return writing.step
        if self.world.leads:
            checkpoint.give_up(self.run.checkpoints, writing.step)
            warn_unwritten(writing.step, fault)
        return None


def let_go(kept: Keeper | None) -> None:
    """Wait for what was begun where a fit ends by an error of its own; what becomes of it is seen at the next start."""
    if kept is not None:
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept.settle()
