"""Some tokens of other processes: each is sent what it wants, and nothing else travels."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from continua.axes.sharded import Layout
from continua.typing import Tensor


@dataclass(frozen=True, eq=False)
class Exchange:
    """What each process of a layout wants: ``wanted[r]`` are places in the order of the processes, increasing.

    Every process knows all of these lists, because all of them know all stamps; so none has to be asked for.
    """

    layout: Layout
    wanted: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, layout: Layout, wanted: Sequence[np.ndarray]) -> "Exchange":
        """From flags [padded count] of each process, in the order of the processes."""
        return cls(layout, tuple(np.flatnonzero(flags) for flags in wanted))

    @property
    def own(self) -> np.ndarray:
        """The places that this process wants."""
        return self.wanted[self.layout.rank]

    @cached_property
    def sent(self) -> tuple[np.ndarray, ...]:
        """Which of the own tokens each process wants."""
        wide = 2 * self.layout.chunk
        first = wide * self.layout.rank
        return tuple(places[(places >= first) & (places < first + wide)] - first for places in self.wanted)

    @cached_property
    def received(self) -> list[int]:
        """How many tokens come from each process."""
        wide = 2 * self.layout.chunk
        counts: list[int] = np.bincount(self.own // wide, minlength=self.layout.ranks).tolist()
        return counts

    @property
    def travelling(self) -> int:
        """How many tokens come from other processes."""
        return sum(self.received) - self.received[self.layout.rank]

    def fetched(self, part: Tensor, dim: int) -> Tensor:
        """The wanted tokens along ``dim``; gradients go back to the processes that have them, and add up there."""
        made: Tensor = _Fetch.apply(part.movedim(dim, 0), self)
        return made.movedim(0, dim)


class _Fetch(torch.autograd.Function):
    """Rows of all processes, there and back."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        ctx.rows = len(part)
        sent = _index(exchange.sent, part.device)
        outgoing = part.index_select(0, sent).contiguous()
        found = part.new_empty(len(exchange.own), *part.shape[1:])
        counts = [len(rows) for rows in exchange.sent]
        dist.all_to_all_single(found, outgoing, exchange.received, counts, group=exchange.layout.mesh.get_group())
        return found

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        exchange: Exchange = ctx.exchange
        sent = _index(exchange.sent, g.device)
        back = g.new_empty(len(sent), *g.shape[1:])
        counts = [len(rows) for rows in exchange.sent]
        dist.all_to_all_single(back, g.contiguous(), counts, exchange.received, group=exchange.layout.mesh.get_group())
        total = g.new_zeros(ctx.rows, *g.shape[1:])
        return total.index_add_(0, sent, back), None


def _index(rows: Sequence[np.ndarray], device: torch.device) -> Tensor:
    return torch.from_numpy(np.concatenate(rows)).to(device)
