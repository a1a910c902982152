"""Matrices that lie in parts on several processes (FSDP2), brought together one at a time, each on one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from continua.errors import ConfigError
from continua.optim.parameters import Block
from continua.typing import Tensor


@dataclass(frozen=True)
class Cut:
    """How a tensor lies on processes: cut along ``dim`` into as many parts as ``group`` has processes."""

    group: Any
    dim: int
    shape: torch.Size  # of the whole

    @property
    def ranks(self) -> int:
        """How many processes have a part."""
        return dist.get_world_size(self.group)

    @property
    def longest(self) -> int:
        """How many rows the first part has; later ones may have fewer, or none."""
        return -(-self.shape[self.dim] // self.ranks)

    @property
    def start(self) -> int:
        """The first row of the part of this process."""
        return min(dist.get_rank(self.group) * self.longest, self.shape[self.dim])

    def here(self, block: Block) -> Block:
        """The part of a ``block`` of the whole that lies here, counted from the first row here."""
        if len(block) <= self.dim:
            return block
        along = block[self.dim]
        start, stop, step = along.indices(self.shape[self.dim])
        ahead = start - self.start
        first = ahead if ahead >= 0 else ahead % step
        mine = slice(first, max(0, stop - self.start), step)
        return (*block[: self.dim], mine, *block[self.dim + 1 :])

    def sizes(self, block: Block) -> torch.Size:
        """The shape of a block of the whole."""
        return torch.empty(self.shape, device="meta")[block].shape

    def owns(self, owner: int) -> bool:
        """Whether this process is the ``owner``-th of the group."""
        return dist.get_rank(self.group) == owner

    def padded(self, part: Tensor) -> Tensor:
        """A part as long as the first one: a collective takes equal parts."""
        missing = self.longest - part.shape[self.dim]
        if not missing:
            return part.contiguous()
        shape = list(part.shape)
        shape[self.dim] = missing
        return torch.cat([part, part.new_zeros(shape)], self.dim).contiguous()


def cut_of(parameter: Any) -> Cut | None:
    """How a parameter is cut; None for one that is whole here."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    from torch.distributed.tensor import DTensor, Replicate, Shard  # takes a second, and only processes have shards

    if not isinstance(parameter, DTensor):
        return None
    cuts = [(i, placed.dim) for i, placed in enumerate(parameter.placements) if type(placed) is Shard]
    plain = all(type(placed) in (Shard, Replicate) for placed in parameter.placements)
    if not plain or len(cuts) != 1:
        remedy = "Shard each parameter along one dimension of the mesh (fully_shard does), or use AdamW for this role."
        raise ConfigError("a matrix is cut along one dimension", got=parameter.placements, remedy=remedy)
    (mesh_dim, dim), *_ = cuts
    return Cut(parameter.device_mesh.get_group(mesh_dim), dim, parameter.shape)


def local(tensor: Any) -> Tensor:
    """The part of a sharded tensor that is here, as a view; a whole tensor is its own."""
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True)
class Gathering:
    """A matrix on its way to its owner; ``parts`` are those of all processes, there."""

    cut: Cut
    owner: int
    own: Tensor  # the part of this process
    parts: list[Tensor] | None
    work: Any

    def whole(self) -> Tensor | None:
        """The matrix, on its owner."""
        self.work.wait()
        if self.parts is None:
            return None
        return torch.cat(self.parts, self.cut.dim).narrow(self.cut.dim, 0, self.cut.shape[self.cut.dim])

    def back(self, made: Tensor | None) -> "Returning":
        """Send what the owner made of it to those whose parts it has."""
        cut = self.cut
        parts = None
        if made is not None:
            places = [slice(i * cut.longest, (i + 1) * cut.longest) for i in range(cut.ranks)]
            rows = [(slice(None),) * cut.dim + (place,) for place in places]
            parts = [cut.padded(made[row]) for row in rows]
        own = torch.empty_like(cut.padded(self.own))
        sender = dist.get_global_rank(cut.group, self.owner)
        work = dist.scatter(own, parts, src=sender, group=cut.group, async_op=True)
        return Returning(own.narrow(cut.dim, 0, self.own.shape[cut.dim]), work, parts)


@dataclass(frozen=True)
class Returning:
    """A part on its way back; ``sent`` are kept alive until all are there."""

    part: Tensor
    work: Any
    sent: list[Tensor] | None

    def there(self) -> Tensor:
        """The part, when it has come."""
        self.work.wait()
        return self.part


def gather(part: Tensor, cut: Cut, owner: int) -> Gathering:
    """Begin to bring the parts of a matrix to the ``owner``-th process."""
    padded = cut.padded(part)
    parts = [torch.empty_like(padded) for _ in range(cut.ranks)] if cut.owns(owner) else None
    receiver = dist.get_global_rank(cut.group, owner)
    work = dist.gather(padded, parts, dst=receiver, group=cut.group, async_op=True)
    return Gathering(cut, owner, part, parts, work)


def rounds(parameters: Sequence[nn.Parameter], cuts: dict[nn.Parameter, Cut]) -> list[list[tuple[nn.Parameter, int]]]:
    """Parameters with their owners, round by round: in each of them every process owns at most one."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(cuts[parameter].group, []).append(parameter)
    found: list[list[tuple[nn.Parameter, int]]] = []
    for own in groups.values():
        ranks = cuts[own[0]].ranks
        for start in range(0, len(own), ranks):
            found.append([(parameter, i) for i, parameter in enumerate(own[start : start + ranks])])
    return found
