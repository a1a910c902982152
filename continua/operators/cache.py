"""What generation remembers between tokens: the keys and values of tokens already seen."""

from collections.abc import Callable
from dataclasses import replace

import torch

from continua.axes import Grid
from continua.typing import Tensor


class Cache:
    """Keys and values of every evaluation, and the grid of the tokens they belong to.

    It serves one model on one fixed-step discretisation, without gradients: every token visits the same depths in the
    same order, so the i-th call of an operator belongs to the i-th call for the tokens before. (Depth alone would not
    do: the middle stages of RK4 share theirs.)
    """

    is_behind: bool = True  # whether a token alone stands behind all sources, in every sample

    def __init__(self) -> None:
        self.grid: Grid | None = None
        self._joined: tuple[Grid, Grid] | None = None  # new tokens, and all up to them
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # with room for tokens to come
        self._visits: dict[int, int] = {}  # calls of each operator since the last token
        self._made: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return 0 if self.grid is None else len(self.grid)

    def sources(self, t: Grid) -> Grid:
        """The grid of all tokens up to the new ones ``t``."""
        if self.grid is None:
            return t
        if self._joined is None or self._joined[0] is not t:
            self._joined = (t, _after(self.grid, t))
        return self._joined[1]

    def append(self, t: Grid) -> None:
        """Count the tokens ``t`` as seen."""
        self.grid, self._joined = self.sources(t), None
        self._visits.clear()

    def extend(self, operator: object, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put new keys and values behind those of the past and return all of them."""
        visit = self._visits.get(id(operator), 0)
        self._visits[id(operator)] = visit + 1
        key, start, end = (id(operator), visit), len(self), len(self) + k.shape[2]
        room = self._kept.get(key)
        if room is None or room[0].shape[2] < end:
            old_k, old_v = room or (None, None)
            room = self._kept[key] = (_roomier(old_k, k, start), _roomier(old_v, v, start))
        all_k, all_v = (kept.narrow(2, 0, end) for kept in room)
        all_k.narrow(2, start, k.shape[2]).copy_(k)
        all_v.narrow(2, start, k.shape[2]).copy_(v)
        return all_k, all_v

    def once(self, operator: object, z: float, make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values that never change (those of an encoder's output): made at the first token."""
        if (id(operator), z) not in self._made:
            self._made[id(operator), z] = make()
        return self._made[id(operator), z]


class StaticCache(Cache):
    """Keys and values in buffers of one size, for a compiled step: where the next token goes is a tensor.

    All rows of a buffer are sources; the causal mask leaves out those behind ``place``, which are still empty.
    """

    is_behind = False

    def __init__(self, past: Cache, size: int) -> None:
        super().__init__()
        first = next(iter(past._kept.values()))[0]
        self.size = size
        self.place = torch.full((1,), len(past), dtype=torch.long, device=first.device)
        self.buffers = [
            (_filled(k, len(past), size), _filled(v, len(past), size)) for k, v in past._kept.values()
        ]  # in the order of evaluation
        self.visit = 0

    def sources(self, t: Grid) -> Grid:
        """Every row of the buffers."""
        nodes = torch.arange(self.size, device=t.nodes.device, dtype=t.nodes.dtype)
        ones = torch.ones_like(nodes)
        return Grid(nodes[:, None], ones, is_counting=True, is_uniform=True, is_unit=True)

    def extend(self, operator: object, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write one token's keys and values into their row."""
        all_k, all_v = self.buffers[self.visit]
        self.visit += 1
        all_k.index_copy_(2, self.place, k)
        all_v.index_copy_(2, self.place, v)
        return all_k, all_v

    def append(self, t: Grid) -> None:
        """The next token begins with the first evaluation again."""
        self.visit = 0


class RaggedCache(Cache):
    """Keys and values of samples that each have their own length: token i of a sample stands in row i of its buffers.

    New tokens go to the rows from ``place`` [b] on. Sources are the first ``reach`` rows; the causal mask leaves out
    those behind a query. So going back is a smaller ``place``: what stands behind it is never looked at, and written
    over. ``is_fresh`` says that all samples begin here, with tokens that look at one another alone; ``is_behind`` that
    all are of one length, and the next token goes to the last row within reach. ``slots`` says where the samples stand
    in the buffers: in a row, or anywhere [b].
    """

    def __init__(self, place: Tensor, size: int) -> None:
        super().__init__()
        self.size = size
        self.reach = size
        self.place = place
        self.is_fresh = False
        self.is_behind = False
        self.slots: Tensor | slice = slice(None)
        self.buffers: list[tuple[Tensor, Tensor]] = []  # in the order of evaluation
        self.visit = 0

    def sources(self, t: Grid) -> Grid:
        """The rows that are looked at."""
        if self.is_fresh:
            return t
        nodes = torch.arange(self.reach, device=t.nodes.device, dtype=t.nodes.dtype)
        ones = torch.ones_like(nodes)
        return Grid(nodes[:, None], ones, is_counting=True, is_uniform=True, is_unit=True)

    def extend(self, operator: object, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values of each sample into its own rows."""
        if self.visit == len(self.buffers):
            self.buffers.append((_empty(k, self.size), _empty(v, self.size)))
        all_k, all_v = self.buffers[self.visit]
        self.visit += 1
        if self.is_behind and isinstance(self.slots, slice) and k.shape[2] == 1:  # one row, known without a look
            all_k = all_k[self.slots, :, : self.reach]
            all_v = all_v[self.slots, :, : self.reach]
            all_k[:, :, -1:] = k
            all_v[:, :, -1:] = v
            return all_k, all_v
        rows = self.place[:, None] + torch.arange(k.shape[2], device=k.device)  # [b, t]
        if isinstance(self.slots, slice):
            _write(all_k[self.slots], rows, k)
            _write(all_v[self.slots], rows, v)
        else:
            where = (self.slots[:, None], slice(None), rows)
            all_k[where] = k.transpose(1, 2)
            all_v[where] = v.transpose(1, 2)
        if self.is_fresh:
            return k, v
        return all_k[self.slots, :, : self.reach], all_v[self.slots, :, : self.reach]

    def append(self, t: Grid) -> None:
        """The next tokens begin with the first evaluation again; ``place`` is moved by who knows what was accepted."""
        self.visit = 0

    def move(self, source: int, target: int, count: int) -> None:
        """Put the first rows of one slot into another."""
        for buffers in self.buffers:
            for kept in buffers:
                kept[target, :, :count] = kept[source, :, :count]

    def with_place(self, place: Tensor) -> "RaggedCache":
        """The same buffers for who reads elsewhere: a draft that looks at the keys of what verifies it."""
        other = RaggedCache(place, self.size)
        other.buffers = self.buffers
        return other

    def for_samples(self, count: int) -> "RaggedCache":
        """Empty buffers of the same shapes for so many samples."""
        other = RaggedCache(self.place.new_zeros(count), self.size)
        other.buffers = [(k.new_zeros(count, *k.shape[1:]), v.new_zeros(count, *v.shape[1:])) for k, v in self.buffers]
        return other


def _empty(like: Tensor, size: int) -> Tensor:
    """A buffer of zeros: a weight of zero times NaN would be NaN."""
    b, h, _, e = like.shape
    return like.new_zeros(b, h, size, e)


def _write(kept: Tensor, rows: Tensor, new: Tensor) -> None:
    """kept[b, :, rows[b, i]] = new[b, :, i]."""
    if len(rows) == 1:
        kept.index_copy_(2, rows[0], new)
    else:
        kept.scatter_(2, rows[:, None, :, None].expand(new.shape), new)


def _filled(kept: Tensor, count: int, size: int) -> Tensor:
    """A buffer of one size with the first rows in it, zero elsewhere: a weight of zero times NaN would be NaN."""
    b, h, _, e = kept.shape
    room = kept.new_zeros(b, h, size, e)
    room[:, :, :count] = kept[:, :, :count]
    return room


def _roomier(kept: Tensor | None, new: Tensor, start: int) -> Tensor:
    """A buffer for twice the tokens that are there now, with the old ones in it."""
    b, h, n, e = new.shape
    room = new.new_empty(b, h, max(64, 2 * (start + n)), e)
    if kept is not None:
        room[:, :, :start] = kept[:, :, :start]
    return room


def _after(past: Grid, new: Grid) -> Grid:
    """Past tokens followed by new ones of the same kind; what is known of both stays known."""
    joined = past.union(new)
    counted = past.is_counting and new.is_counting and past.is_ordered and new.is_ordered
    return replace(joined, is_ordered=counted and new.start == past.start + len(past), start=past.start)
