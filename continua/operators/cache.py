"""What generation remembers between tokens: the keys and values of tokens already seen."""

from collections.abc import Callable
from dataclasses import replace

from continua.axes import Grid
from continua.typing import Tensor


class Cache:
    """Keys and values of every evaluation, and the grid of the tokens they belong to.

    It serves one model on one fixed-step discretisation, without gradients: every token visits the same depths in the
    same order, so the i-th call of an operator belongs to the i-th call for the tokens before. (Depth alone would not
    do: the middle stages of RK4 share theirs.)
    """

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
