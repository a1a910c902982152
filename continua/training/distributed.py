"""One command on one process or on many: data-parallel copies (DDP) or sharded weights (FSDP2)."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from continua.axes import Sharded as ShardedTokens
from continua.devices import find_device
from continua.errors import ConfigError, ContinuaError, RunError
from continua.typing import Tensor

SETTLING = 0.3  # seconds
LINK = "a link that closed or timed out"  # on every process the same words; what torch says is the cause of the error
TIME_LIMIT = 600.0  # seconds


@runtime_checkable
class Sharded(Protocol):
    """A module whose weights are sharded among processes (FSDP2)."""

    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:
        """Say whether gradients meet after the next backward pass."""
        ...

    def unshard(self) -> Any:
        """Gather the weights."""
        ...

    def reshard(self) -> None:
        """Let go of what was gathered."""
        ...


@runtime_checkable
class ShardedTensor(Protocol):
    """A tensor of which this process has a part."""

    shape: torch.Size
    device: torch.device

    @property
    def device_mesh(self) -> Any:
        """The processes."""
        ...

    @property
    def placements(self) -> Any:
        """How it is cut."""
        ...

    def full_tensor(self) -> Tensor:
        """The whole."""
        ...


@dataclass(frozen=True)
class World:
    """Who takes part: this process's number, how many there are, and its device.

    Processes in a row may share the ``tokens`` of their samples; then all of them have the same rows of a batch.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009  (immutable)
    tokens: ShardedTokens | None = None

    @property
    def share(self) -> int:
        """Which rows of a batch this process has."""
        return self.rank if self.tokens is None else self.rank // int(self.tokens.mesh.size())

    @property
    def shares(self) -> int:
        """Among how many the rows of a batch are shared out."""
        return self.size if self.tokens is None else self.size // int(self.tokens.mesh.size())

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add up over all processes."""
        if self.size > 1:
            with self.reaching():
                dist.all_reduce(values)
        return values

    def require_same(self, what: str, own: str) -> None:
        """Refuse, on every process, a run whose processes do not have the same of something."""
        said: list[Any] = [None] * self.size
        with self.reaching():
            dist.all_gather_object(said, own)
        other = next((i for i, one in enumerate(said) if one != said[0]), None)
        if other is not None:
            remedy = "Start all of them from the same code, with the same settings and files."
            raise RunError(f"the processes of a run have the same {what}", got=f"others on {other}", remedy=remedy)

    def wait(self) -> None:
        """Meet all others."""
        if self.size > 1:
            with self.reaching():
                dist.barrier()

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """What one process refuses all of them refuse, with its sentence."""
        problem: ContinuaError | None = None
        try:
            yield
        except ContinuaError as refused:
            problem = refused
        said: list[Any] = [problem]
        if self.size > 1:
            said = [None] * self.size
            with self.reaching():
                dist.all_gather_object(said, problem)
        first = next((one for one in said if one is not None), None)
        if first is not None:
            raise first from problem

    def told(self, number: int) -> int:
        """The number that the leading process knows."""
        return int(self.sum(torch.tensor(number if self.leads else 0, device=self.device)))

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Say it plainly if another process is not there any more."""
        try:
            yield
        except RuntimeError as broken:
            if self.size == 1 or not _is_lost(broken):
                raise
            remedy = "Look at the output of the process that ended first, then resume the run."
            raise RunError("another process of this run has gone", got=LINK, remedy=remedy) from broken


def leads() -> bool:
    """Whether this process is the one of ``torchrun``'s that writes and speaks, or alone."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def joined(device: str = "auto", time_limit: float = TIME_LIMIT, token_parts: int = 1) -> Iterator[World]:
    """Take part in what ``torchrun`` started, or be alone; on ``device``, or on this process's own GPU (``auto``).

    A process that does not answer for ``time_limit`` seconds has gone. ``token_parts`` processes share the tokens of
    their samples.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if size % token_parts:
        remedy = f"Start a multiple of them: torchrun --nproc-per-node {token_parts}."
        raise ConfigError(
            f"tokens in {token_parts} parts need a multiple of so many processes", got=size, remedy=remedy
        )
    place = find_device(device)
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield World(0, 1, place)
        return
    started = not dist.is_initialized()
    apart = World(rank, size, place)
    if started:
        with apart.reaching():
            _meet(apart, timedelta(seconds=time_limit))
    try:
        with apart.reaching():
            yield replace(apart, tokens=_among(place.type, size, token_parts))
            if started:
                settle()
    finally:
        if started:
            dist.destroy_process_group()


def _meet(world: World, limit: timedelta) -> None:
    """Find the others.

    One store of ``torchrun`` serves all of its attempts, so addresses that a killed process left there would be taken
    for those of its successor: each attempt has its own names. Agents of several machines count attempts each for
    itself; there ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` gives each attempt its own store.
    """
    backend = "nccl" if world.device.type == "cuda" else "gloo"
    given = os.environ
    if given.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or given.get("GROUP_WORLD_SIZE") != "1":
        dist.init_process_group(backend, timeout=limit)
        return
    store = dist.TCPStore(given["MASTER_ADDR"], int(given["MASTER_PORT"]), is_master=False, timeout=limit)
    own = dist.PrefixStore(f"attempt-{given.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group(backend, timeout=limit, store=own, rank=world.rank, world_size=world.size)


def _among(device: str, size: int, parts: int) -> ShardedTokens | None:
    """Samples along one dimension of a mesh, tokens along the other."""
    if parts == 1:
        return None
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device, (size // parts, parts), mesh_dim_names=("data", "tokens"))
    return ShardedTokens(mesh["tokens"])


def settle() -> None:
    """Wait for all processes, and until the threads of gloo have let go of the last gradients.

    They need the interpreter for that, and who destroys a group or its reducer holds it and waits for them.
    """
    dist.barrier()
    time.sleep(SETTLING)


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
    if isinstance(module, Sharded):
        module.set_requires_gradient_sync(last)
    return contextlib.nullcontext()


@contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """Have all weights of a sharded module at hand, to call its parts outside its own forward."""
    if not isinstance(module, Sharded):
        yield
        return
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


def whole(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sharded tensors gathered into whole ones on the processor; every process must call this."""
    return {name: _gathered(value) for name, value in values.items()}


def _gathered(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, ShardedTensor) else value


def spread(values: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors laid out as ``like`` is, where that is sharded and of the same shape."""
    laid: dict[str, Tensor] = {}
    for name, value in values.items():
        model: Any = like.get(name)
        if isinstance(model, ShardedTensor) and model.shape == value.shape:
            from torch.distributed.tensor import distribute_tensor

            # nobody sends anything: each process has the whole, and takes its part
            laid[name] = distribute_tensor(
                value.to(model.device), model.device_mesh, model.placements, src_data_rank=None
            )
        else:
            laid[name] = value
    return laid


LOST = (
    "gloo",
    "nccl",
    "connection",
    "peer",
    "broken pipe",
    "socket",
    "process group",
    "timed out",
    "timeout",
    "pair closure",
)


def _is_lost(problem: RuntimeError) -> bool:
    """Whether a collective failed because of the others; the back-ends have no exception of their own for that."""
    known = isinstance(problem, dist.DistError)
    return known or any(word in str(problem).lower() for word in LOST)
