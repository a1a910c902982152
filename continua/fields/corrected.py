"""Fields that are corrected on coarse grids, by numbers that finer grids never read."""

import math
from collections.abc import Mapping

from continua.axes import Axis, Grid, Sites, mass_of
from continua.fields.basis import Basis
from continua.fields.field import Expansion
from continua.fields.role import VECTOR, Role
from continua.settings import Single
from continua.typing import Letter, Tensor


class CorrectedTable(Expansion):
    """f(n, d) + s g(n, d), where s = log2(native nodes of d / nodes) − ``beyond``, and nothing is read unless s > 0.

    g starts at zero, and is stored on the nodes of the finest grid that reads it.
    """

    def __init__(
        self,
        axes: Mapping[Letter, Axis],
        bases: Mapping[Letter, Basis],
        std: Single = 0.0,
        role: Role | None = None,
        *,
        coarse: Mapping[Letter, Basis],
        beyond: float,
    ) -> None:
        super().__init__(axes, bases, std, role=role)
        self.beyond = beyond
        self.below = Expansion(axes, coarse, 0.0, role=VECTOR)

    def size(self, d: Sites | None) -> float:
        """s on a grid of d."""
        return octaves_beyond(mass_of(self.axes["d"]), d.count, self.beyond) if isinstance(d, Grid) else 0.0

    def on(self, **grids: Sites) -> Tensor:
        """The table, corrected where the grid is that coarse."""
        values = super().on(**grids)
        size = self.size(grids.get("d"))
        return values if size == 0.0 else values + size * self.below.on(**grids)


def octaves_beyond(native: float, count: float, beyond: float) -> float:
    """log2(native / count) − beyond, and at least zero."""
    return max(0.0, math.log2(native / count) - beyond)
