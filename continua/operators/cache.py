"""What generation remembers between tokens: sampled weights, and the keys and values of tokens already seen."""

from collections.abc import Callable
from typing import Any

import torch

from continua.axes import Grid
from continua.typing import Tensor


class Cache:
    """Keys and values by operator and depth, the grid of the tokens they belong to, and weights that were read.

    It serves one model on one fixed-step discretisation: every token visits the same depths in the same order.
    """

    def __init__(self) -> None:
        self.grid: Grid | None = None
        self._seen: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}
        self._read: dict[int, Any] = {}

    def __len__(self) -> int:
        return 0 if self.grid is None else len(self.grid)

    def sources(self, t: Grid) -> Grid:
        """The grid of all tokens up to the new ones ``t``."""
        return t if self.grid is None else _after(self.grid, t)

    def append(self, t: Grid) -> None:
        """Count the tokens ``t`` as seen."""
        self.grid = self.sources(t)

    def extend(self, operator: object, z: float, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put new keys and values behind those of the past and return all of them."""
        past = self._seen.get((id(operator), z))
        both = (k, v) if past is None else (torch.cat([past[0], k], 2), torch.cat([past[1], v], 2))
        self._seen[id(operator), z] = both
        return both

    def once(self, operator: object, z: float, make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values that never change (those of an encoder's output): made at the first token."""
        if (id(operator), z) not in self._seen:
            self._seen[id(operator), z] = make()
        return self._seen[id(operator), z]

    def weights(self, operator: object, read: Callable[[], Any]) -> Any:
        """Weights of an operator, read at the first token."""
        if id(operator) not in self._read:
            self._read[id(operator)] = read()
        return self._read[id(operator)]

    def select(self, rows: Tensor) -> None:
        """Keep some samples of the batch, in this order."""
        self._seen = {key: (k.index_select(0, rows), v.index_select(0, rows)) for key, (k, v) in self._seen.items()}


def _after(past: Grid, new: Grid) -> Grid:
    """Past tokens followed by new ones of the same kind; what is known of both stays known."""
    joined = past.union(new)
    ordered = past.is_counting and new.is_counting and not (past.has_gaps or new.has_gaps)
    return Grid(**{**joined.__dict__, "is_ordered": ordered and past.is_ordered})
