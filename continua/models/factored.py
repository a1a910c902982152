"""Factorised tables (ALBERT): words live on a narrow counted axis, a linear map leads from there to d and back."""

import torch
from torch import nn
from torch.nn.functional import linear

from continua.config import register
from continua.fields import Field, Parametrisation, Role, kernel_std
from continua.fields.role import HEAD, LIFT, SHIFT
from continua.models.batch import Batch
from continua.models.embed import rows
from continua.models.readout import Readout
from continua.operators import Grids
from continua.typing import Tensor


def _narrow(grids: Grids, size: int) -> Grids:
    return {**grids, "d": rows(size), "c": rows(size)}


@register
class Widened(nn.Module):
    """X(0, t, d) = Σ_n y(t, n) M(n, d) + b(d), where ``embed`` makes y on a counted axis of ``size`` points.

    Discrete case: an embedding of that width and ``nn.Linear(size, d)``.
    """

    def __init__(self, weights: Parametrisation, embed: nn.Module, size: int) -> None:
        super().__init__()
        self.embed, self.size = embed, size
        self.map = weights.table(size, "d", std=size**-0.5, role=LIFT)
        self.bias = weights.table(1, "d", std=0.02, role=SHIFT)

    @property
    def table(self) -> Field | None:
        """The narrow token table, for a tied readout."""
        return getattr(self.embed, "table", None)

    def forward(self, batch: Batch, grids: Grids) -> Tensor:
        """Embed on the narrow axis, then lift to the d grid."""
        y = self.embed(batch, _narrow(grids, self.size))
        return linear(y, self.map.on(n=rows(self.size), d=grids["d"]).mT, self.bias.on(n=rows(1), d=grids["d"])[0])


@register
class Narrowed(nn.Module):
    """y(t, n) = ∫ M(n, d) X(t, d) dμ(d) + b(n) on a counted axis of ``size`` points, then ``readout`` from there.

    Discrete case: ``nn.Linear(d, size)`` before the head.
    """

    def __init__(self, weights: Parametrisation, readout: Readout, size: int) -> None:
        super().__init__()
        self.readout, self.size = readout, size
        self.map = weights.table(size, "d", kernel_std(weights, "d"), role=HEAD)
        self.bias = nn.Parameter(torch.zeros(size))

    def parameter_roles(self) -> dict[str, Role | None]:
        """The bias is a plain parameter."""
        return {"bias": SHIFT}

    def forward(self, x: Tensor, grids: Grids, table: Field | None) -> Tensor:
        """Integrate over d, then answer."""
        d = grids["d"]
        kernel = self.map.on(n=rows(self.size), d=d)
        y = linear(x, kernel if d.is_unit else kernel * d.weights.to(kernel), self.bias)
        answer: Tensor = self.readout(y, _narrow(grids, self.size), table)
        return answer
