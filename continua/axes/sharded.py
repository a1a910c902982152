"""A token axis in parts: each process of a mesh holds some of the tokens."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist

from continua.errors import ContinuaError, GridError
from continua.typing import Tensor


@runtime_checkable
class Mesh(Protocol):
    """Processes along one or more dimensions, as torch's ``DeviceMesh`` has them."""

    @property
    def ndim(self) -> int:
        """How many dimensions."""
        ...

    def size(self) -> int:
        """How many processes."""
        ...

    def get_local_rank(self) -> int:
        """The number of this one."""
        ...

    def get_group(self) -> Any:
        """What a collective is called on."""
        ...


@dataclass(frozen=True)
class Sharded:
    """The tokens of every sample, in parts on the processes of a one-dimensional ``mesh``: ``at(t=Sharded(mesh))``.

    All processes are given the same batch, whose stamps and values are small; states, keys, values and answers are
    those of the own tokens alone, ``part`` of all of them. ``rule`` lays tokens out where the data do not.
    With 2R chunks of equal length, process r has the chunks r and 2R−1−r: under a causal mask each has the same work.
    Chunks are filled up with absent tokens (weight zero). Process r calls ``backward`` on its own share of a loss: the
    gradient of their sum is the sum of the processes' gradients.

    Discrete case: a mesh of one process holds all tokens.
    """

    mesh: Any
    rule: Any = None  # a Rule, a whole number of nodes, or None: as the data come

    def __post_init__(self) -> None:
        if not isinstance(self.mesh, Mesh):
            remedy = 'Make one: init_device_mesh("cpu", (2,), mesh_dim_names=("tokens",)).'
            raise GridError("tokens are sharded among a mesh of processes", got=type(self.mesh).__name__, remedy=remedy)
        if self.mesh.ndim != 1:
            remedy = 'Name one of them: Sharded(mesh["tokens"]).'
            got = f"{self.mesh.ndim} dimensions"
            raise GridError("tokens are sharded along one dimension of a mesh", got=got, remedy=remedy)

    def __str__(self) -> str:
        inner = "" if self.rule is None else f"{self.rule} "
        return f"{inner}in {self.mesh.size()} parts"

    def layout(self, count: int) -> "Layout":
        """How so many tokens are laid out."""
        return Layout(self.mesh, count)

    def part(self, whole: Tensor, dim: int = 1, fill: Any = 0) -> Tensor:
        """The entries of this process's tokens, ``fill`` at absent ones: targets and flags beside the answers."""
        return self.layout(whole.shape[dim]).part(whole, dim, fill)

    def gather(self, part: Tensor, count: int, dim: int = 1) -> Tensor:
        """All ``count`` tokens in their order, from the parts of all processes; gradients flow back to these."""
        layout = self.layout(count)
        places = torch.from_numpy(layout.places[:count]).to(part.device)
        return layout.gathered(part, dim).index_select(dim, places)

    def sum(self, share: Tensor) -> Tensor:
        """Σ over the processes, on each of them; gradients add up on the way back too."""
        return self.layout(1).sum(share)


@dataclass(frozen=True)
class Layout:
    """Which of ``count`` tokens each process of a mesh has."""

    mesh: Any
    count: int

    @property
    def ranks(self) -> int:
        """How many processes there are."""
        return int(self.mesh.size())

    @property
    def rank(self) -> int:
        """The number of this one."""
        return int(self.mesh.get_local_rank())

    @property
    def chunk(self) -> int:
        """How many tokens each of the two chunks of a process has."""
        return -(-self.count // (2 * self.ranks))

    @property
    def padded(self) -> bool:
        """Whether some tokens are absent on all accounts."""
        return self.chunk * 2 * self.ranks != self.count

    @cached_property
    def order(self) -> np.ndarray:
        """The numbers of the tokens in the order of the processes; ``count`` and above are absent ones."""
        chunks = np.arange(2 * self.ranks * self.chunk).reshape(2 * self.ranks, self.chunk)
        head_and_tail = [(rank, 2 * self.ranks - 1 - rank) for rank in range(self.ranks)]
        return chunks[np.array(head_and_tail).ravel()].ravel()

    @property
    def own(self) -> np.ndarray:
        """The numbers of this process's tokens."""
        return self.order[2 * self.chunk * self.rank : 2 * self.chunk * (self.rank + 1)]

    def part(self, whole: Tensor, dim: int, fill: Any = None) -> Tensor:
        """The entries of this process's tokens; absent ones repeat the last, or are ``fill``."""
        return self.taken(whole, dim, self.own, fill)

    def taken(self, whole: Tensor, dim: int, which: np.ndarray, fill: Any = None) -> Tensor:
        """Some tokens by their numbers."""
        device = whole.device
        found = whole.index_select(dim, torch.from_numpy(np.minimum(which, self.count - 1)).to(device))
        if fill is None or not self.padded:
            return found
        there = torch.from_numpy(which < self.count).to(device)
        there = there.reshape([-1 if i == dim % whole.dim() else 1 for i in range(whole.dim())])
        return torch.where(there, found, fill)

    def gathered(self, part: Tensor, dim: int) -> Tensor:
        """The parts of all processes behind one another along ``dim``; gradients flow back to these."""
        made: Tensor = _Gather.apply(part, dim, self)
        return made

    def sum(self, share: Tensor) -> Tensor:
        """Σ over the processes; gradients add up on the way back too."""
        made: Tensor = _Sum.apply(share, self)
        return made

    def largest(self, own: Tensor) -> Tensor:
        """The largest of all processes, entry by entry; no gradient flows."""
        found = own.detach().contiguous().clone()
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.mesh.get_group())
        return found

    @cached_property
    def places(self) -> np.ndarray:
        """Where each token, by its number, stands in the order of the processes."""
        return np.argsort(self.order)

    def picked(self, part: Tensor, numbers: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Rows ``numbers`` [samples, m] of part [b, h, t, e], on every process: each gives those it has.

        They come in ``dtype``, in which their gradients are added up.
        """
        places = torch.from_numpy(self.places).to(part.device)[numbers] - 2 * self.chunk * self.rank
        here = (places >= 0) & (places < part.shape[2])
        index = torch.where(here, places, 0).expand(part.shape[0], -1)[:, None, :, None]
        rows = part.gather(2, index.expand(-1, part.shape[1], -1, part.shape[-1])).to(dtype or part.dtype)
        return self.sum(torch.where(here[:, None, :, None], rows, 0.0))

    def any(self, here: bool) -> bool:
        """Whether it is so on any process."""
        said: list[Any] = [None] * self.ranks
        dist.all_gather_object(said, here, group=self.mesh.get_group())
        return any(said)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """What one process refuses all refuse, in the same sentence: nobody waits for one that has gone."""
        problem: ContinuaError | None = None
        try:
            yield
        except ContinuaError as refused:
            problem = refused
        said: list[Any] = [None] * self.ranks
        mine = None if problem is None else (type(problem), str(problem))
        dist.all_gather_object(said, mine, group=self.mesh.get_group())
        first = next((one for one in said if one is not None), None)
        if first is not None:
            kind, sentence = first
            raise kind(sentence.removesuffix(".")) from problem


def require_same(sharded: Sharded, given: Sequence[Any]) -> None:
    """Refuse, on every process, batches that differ from one to the other."""
    said: list[Any] = [None] * sharded.mesh.size()
    dist.all_gather_object(said, digest(given), group=sharded.mesh.get_group())
    if len(set(said)) > 1:
        shapes: list[Any] = [None] * sharded.mesh.size()
        own = [list(one.shape) for one in given if isinstance(one, Tensor)]
        dist.all_gather_object(shapes, own, group=sharded.mesh.get_group())
        other = next(i for i, one in enumerate(said) if one != said[0])
        got = f"{shapes[0]} on process 0 and {shapes[other]} on process {other}"
        got = got if shapes[0] != shapes[other] else f"other numbers on process {other}"
        remedy = "Give all of them the whole batch: read the same file, draw with the same seed."
        raise GridError("processes that share tokens are given one batch", got=got, remedy=remedy)


def digest(given: Sequence[Any]) -> str:
    """One number for tensors and words: equal where they are."""
    made = hashlib.sha256()
    for one in given:
        if isinstance(one, Tensor):
            held = one.detach().cpu().contiguous()
            made.update(f"{held.dtype}{list(held.shape)}".encode())
            made.update(held.reshape(-1).view(torch.uint8).numpy().tobytes() if held.numel() else b"")
        else:
            made.update(repr(one).encode())
    return made.hexdigest()


class _Gather(torch.autograd.Function):
    """Parts behind one another; back, the sum of what all processes say of a part."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, layout: Layout) -> Tensor:
        ctx.dim = dim
        ctx.layout = layout
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(layout.ranks)]
        dist.all_gather(parts, part.contiguous(), group=layout.mesh.get_group())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        layout = ctx.layout
        g = g.contiguous().clone()
        dist.all_reduce(g, group=layout.mesh.get_group())
        return g.chunk(layout.ranks, ctx.dim)[layout.rank].contiguous(), None, None


class _Sum(torch.autograd.Function):
    """Σ over processes, there and back."""

    @staticmethod
    def forward(ctx: Any, share: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        total = share.contiguous().clone()
        dist.all_reduce(total, group=layout.mesh.get_group())
        return total

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        total = g.contiguous().clone()
        dist.all_reduce(total, group=ctx.layout.mesh.get_group())
        return total, None


@dataclass(frozen=True, eq=False)
class Shard:
    """What a grid of some tokens knows of the others: how they are laid out, and the grid of all of them.

    ``whole`` is in the order of the processes, filled up with absent tokens; ``before`` is the grid before the cut, in
    its own order. Their weights are the same, and gradients reach them.
    """

    layout: Layout
    whole: Any  # a Grid
    before: Any  # a Grid

    def observed_up_to_own(self) -> Tensor:
        """For each own token, how many observed ones there are up to it, itself among them: [*b, t]."""
        observed: Tensor = self.whole.observed
        device = observed.device
        in_order = observed.index_select(-1, torch.from_numpy(self.layout.places).to(device))
        return in_order.long().cumsum(-1).index_select(-1, torch.from_numpy(self.layout.own).to(device))
