"""A bank of learned tokens that cross-attention can look at, beside an encoder's output or alone."""

from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import pad

from continua.axes import Grid, Grids
from continua.config import register
from continua.fields import Parametrisation
from continua.operators import Context
from continua.settings import Size, Spread
from continua.typing import Tensor


@register
class Bank(nn.Module):
    """Memory slots M(i, d), i = 0…slots−1, joined to the context as a disjoint union: masses add, nothing is shared.

    Cross-attention then integrates over [context; slots], each slot with weight one. With ``separate`` values come
    from a second table, V(i, d) beside M(i, d). Without a context the bank is all there is to attend to.

    Discrete case: rows concatenated to the keys and values (Sukhbaatar et al. 2019).
    """

    def __init__(self, weights: Parametrisation, slots: Size, separate: bool = False, std: Spread = 1.0) -> None:
        super().__init__()
        self.slots = slots
        self.keys = weights.table(slots, "d", std)
        self.values = weights.table(slots, "d", std) if separate else None

    def read(self, grids: Grids) -> tuple[Tensor, Tensor | None]:
        """The tables of keys and values on the d grid."""
        return self.keys.on(d=grids.d), None if self.values is None else self.values.on(d=grids.d)

    def forward(self, grids: Grids, context: Context, read: tuple[Tensor, Tensor | None] | None = None) -> Context:
        """Return the context with the slots behind it."""
        own_keys, own_values = self.read(grids) if read is None else read
        keys = own_keys[None]
        values = None if own_values is None else own_values[None]
        if context.state is None or context.grid is None:
            return replace(context, state=keys, values=values, grid=self._grid(grids.tokens.nodes))
        seen = context.values
        if values is not None or seen is not None:
            seen = _behind(context.state if seen is None else seen, keys if values is None else values)
        return replace(
            context,
            state=_behind(context.state, keys),
            values=seen,
            grid=context.grid.union(self._grid(context.grid.nodes)),
            cross_pairs=_open(context.cross_pairs, self.slots),
        )

    def _grid(self, like: Tensor) -> Grid:
        """Counted slots, with coordinates in the domain of the other tokens: 0, 1, … along its first direction."""
        first = torch.arange(self.slots, dtype=like.dtype, device=like.device)[:, None]
        nodes = pad(first, (0, like.shape[-1] - 1))
        ones = torch.ones((), dtype=like.dtype, device=like.device).expand(self.slots)
        return Grid(nodes, ones, is_counting=True, is_uniform=True, is_unit=True)


def _behind(state: Tensor, slots: Tensor) -> Tensor:
    return torch.cat([state, slots.to(state.dtype).expand(state.shape[0], -1, -1)], 1)


def _open(pairs: Tensor | None, slots: int) -> Tensor | None:
    """Every query may look at every slot."""
    return None if pairs is None else pad(pairs, (0, slots), value=pairs.dtype == torch.bool)
