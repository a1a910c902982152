"""Factorised tables (ALBERT): words live on a narrow counted axis, a linear map leads from there to d and back."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import linear

from continua.axes import Grids, counted
from continua.config import register
from continua.fields import Field, Parametrisation, Role, kernel_std
from continua.fields.role import HEAD, LIFT, SHIFT
from continua.models.batch import Batch
from continua.models.embed import Embedding, added
from continua.models.readout import Readout, measured
from continua.operators import Encoding
from continua.settings import Size
from continua.typing import Tensor


def _narrow(grids: Grids, size: int) -> Grids:
    """The same grids with a counted axis of ``size`` points in the place of d."""
    return replace(grids, d=counted(size, grids.d.nodes))


class WidenedTables(NamedTuple):
    """The inner tables, and the map to d."""

    inner: Any
    map: Tensor
    bias: Tensor | None
    position: Any = None


@register
class Widened(Embedding):
    """X(0, t, d) = Σ_n y(t, n) M(n, d) + b(d), where ``embed`` makes y on a counted axis of ``size`` points.

    ``bias=False`` leaves b out; ``position`` adds p(t, d) behind the map.
    Discrete case: an embedding of that width and ``nn.Linear(size, d)``.
    """

    def __init__(
        self,
        weights: Parametrisation,
        embed: Embedding,
        size: Size,
        bias: bool = True,
        position: Encoding | None = None,
    ) -> None:
        super().__init__()
        self.embed = embed
        self.size = size
        self.vocab = embed.vocab
        self.position = position
        self.room = embed.room if position is None else position.room
        self.map = weights.table(size, "d", std=size**-0.5, role=LIFT)
        self.bias = weights.table(1, "d", std=0.02, role=SHIFT) if bias else None

    @property
    def tied_table(self) -> Field | None:
        """The narrow token table."""
        return self.embed.tied_table

    def lay(self, batch: Batch) -> Batch:
        """As the inner embedding does."""
        return self.embed.lay(batch)

    def read(self, grids: Grids) -> WidenedTables:
        """The tables of both."""
        inner = self.embed.read(_narrow(grids, self.size))
        bias = None if self.bias is None else self.bias.on(d=grids.d)[0]
        position = None if self.position is None else self.position.read(grids.d)
        return WidenedTables(inner, self.map.on(d=grids.d), bias, position)

    def forward(self, batch: Batch, grids: Grids, read: WidenedTables | None = None) -> Tensor:
        """Embed on the narrow axis, then lift to the d grid."""
        tables = self.read(grids) if read is None else read
        y = self.embed(batch, _narrow(grids, self.size), tables.inner)
        return added(self.position, linear(y, tables.map.mT, tables.bias), grids, tables.position)


@register
class Narrowed(nn.Module):
    """y(t, n) = ∫ M(n, d) X(t, d) dμ(d) + b(n) on a counted axis of ``size`` points, then ``readout`` from there.

    ``bias=False`` leaves b out. Discrete case: ``nn.Linear(d, size)`` before the head.
    """

    def __init__(self, weights: Parametrisation, readout: Readout, size: Size, bias: bool = True) -> None:
        super().__init__()
        self.readout = readout
        self.size = size
        self.map = weights.table(size, "d", kernel_std(weights, "d"), role=HEAD)
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def parameter_roles(self) -> dict[str, Role | None]:
        """The bias is a plain parameter."""
        return {} if self.bias is None else {"bias": SHIFT}

    @property
    def out(self) -> int | None:
        """How many numbers it answers."""
        return self.readout.out

    @property
    def answers_each_token(self) -> bool:
        """Whether every token has an answer of its own."""
        return self.readout.answers_each_token

    def read(self, grids: Grids, table: Field | None) -> tuple[Tensor, Tensor | None, Any]:
        """The map from d, with the measure of d in it, its bias, and what the inner readout reads."""
        return measured(self.map, grids.d), self.bias, self.readout.read(_narrow(grids, self.size), table)

    def forward(
        self, x: Tensor, grids: Grids, table: Field | None, read: tuple[Tensor, Tensor | None, Any] | None = None
    ) -> Tensor:
        """Integrate over d, then answer."""
        kernel, bias, inner = self.read(grids, table) if read is None else read
        answer: Tensor = self.readout(linear(x, kernel, bias), _narrow(grids, self.size), table, inner)
        return answer
