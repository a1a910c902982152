"""Function patches: a domain cut into cells, a token for each cell, and answers at any points of the domain."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import linear

from continua.axes import Grid, Grids, mass_of
from continua.checks import looking
from continua.config import register
from continua.errors import ConfigError, GridError, ShapeError
from continua.fields import Field, Parametrisation, Role, kernel_std
from continua.fields.role import SHIFT
from continua.models.batch import Batch
from continua.models.embed import Embedding, apply_once
from continua.models.readout import ReadoutWeights, measured
from continua.models.tiling import Tiling, settled
from continua.operators import Operator
from continua.settings import Size
from continua.typing import Tensor


class CellTables(NamedTuple):
    """The maps of an embedding of cells, on the d grid."""

    table: Tensor
    bias: Tensor
    place: Tensor | None


@register
class Cells(Embedding):
    """X(0, j, d) = Σ_i a_i(j) B(i, d) + b(d) + p(j, d) over the moments a_i of the observed function in cell j.

    The function may be observed anywhere: values [b, n, channels] with a ``grid`` (or ``times``, then every point
    weighs the same), or images [b, channels, height, width] and volumes, sampled at the centres of their pixels;
    ``observed`` marks what is there. Cost is linear in the points, and the flow behind it sees ``tiling.count``
    tokens whatever their number. ``placed`` learns p, a row for each cell.
    Discrete case: with (degree + 1) pixels in each direction of a cell the moments are an invertible map of the
    pixels, so this is ``Patches``.
    """

    def __init__(self, weights: Parametrisation, tiling: Tiling, channels: Size = 1, placed: bool = True) -> None:
        super().__init__()
        if weights.axes.t != tiling.axis:
            remedy = "Tile the t axis of the model."
            raise ConfigError("cells tile the domain of the tokens", got=f"{weights.axes.t}", remedy=remedy)
        self.tiling = tiling
        self.channels = channels
        self.entries = channels * tiling.size + 1
        self.table = weights.table(self.entries, "d", std=self.entries**-0.5)  # not LIFT: schemes draw it as a look-up
        self.bias = weights.table(1, "d", std=0.02, role=SHIFT)
        self.place = weights.table(tiling.count, "d", std=0.02) if placed else None

    def lay(self, batch: Batch) -> Batch:
        """Turn what was observed into the moments of the cells; answers are wanted at the nodes unless asked elsewhere.

        Absent nodes are asked too: there the answer is what the model makes of the others.
        """
        grid, values = self._observed(batch)
        if values.dim() != 3 or values.shape[-1] != self.channels or values.shape[1] != len(grid):
            remedy = f"Give values [b, {len(grid)}, {self.channels}], or pixels [b, {self.channels}, …]."
            raise ShapeError("values and points do not fit the cells", got=list(values.shape), remedy=remedy)
        if looking() and not bool((grid.weights > 0).any(-1).all()):
            remedy = "Drop the sample, or mark at least one point as observed."
            raise GridError("a function needs at least one observed point", got="one with none", remedy=remedy)
        tokens, moments = self.tiling.grid, self.tiling.moments(grid, values)
        asked = grid.nodes if batch.asked is None else batch.asked
        return replace(batch, values=moments, grid=tokens, times=None, observed=None, asked=asked)

    def _observed(self, batch: Batch) -> tuple[Grid, Tensor]:
        """The points with their weights, and the values there."""
        values: Any = batch.values
        dim, grid = self.tiling.axis.dim, batch.grid
        if isinstance(values, Tensor) and grid is None and batch.times is None and dim > 1 and values.dim() == dim + 2:
            grid, values = self.tiling.pixels(tuple(values.shape[2:])), values.flatten(2).mT
        elif grid is None and batch.times is not None:
            grid = self._equal(batch.times)
        if grid is None:
            remedy = "Pass Batch(values, grid=…), or times=… for points that weigh the same."
            raise GridError("cells need to know where values were observed", got="no points", remedy=remedy)
        if callable(values) and not isinstance(values, Tensor):
            values = values(grid.nodes)
        if not isinstance(values, Tensor) or not values.is_floating_point():
            got = f"{values.dtype}" if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError("cells read real numbers", got=got, remedy="Give a floating tensor.")
        like = values.new_empty((), dtype=torch.promote_types(values.dtype, torch.float32))
        grid = grid if values.device == grid.nodes.device else grid.to(like)
        if batch.observed is not None:
            flags = batch.observed != 0
            flags = flags.flatten(-dim) if dim > 1 and flags.shape[-1] != len(grid) else flags
            grid = grid.only(flags)
        return settled(grid, self.tiling), values

    def _equal(self, times: Tensor) -> Grid:
        """Points that share the mass of the domain in equal parts."""
        dim = self.tiling.axis.dim
        nodes = times[..., None] if dim == 1 and (times.dim() == 1 or times.shape[-1] > 1) else times
        return Grid(nodes, torch.full_like(nodes[..., 0], mass_of(self.tiling.axis) / nodes.shape[-2]))

    @property
    def tied_table(self) -> Field | None:
        """The lift of the moments."""
        return self.table

    def read(self, grids: Grids) -> CellTables:
        """The lift of the moments, its bias and the rows of the cells."""
        return CellTables(
            table=self.table.on(d=grids.d),
            bias=self.bias.on(d=grids.d),
            place=None if self.place is None else self.place.on(d=grids.d),
        )

    def forward(self, batch: Batch, grids: Grids, read: CellTables | None = None) -> Tensor:
        """Lift the moments to the d grid."""
        values = batch.values
        grids.tokens.require_whole(type(self).__name__)
        if not isinstance(values, Tensor) or values.shape[1:] != (self.tiling.count, self.entries):
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            wanted = f"[b, {self.tiling.count}, {self.entries}]"
            raise ShapeError(f"the moments of the cells have shape {wanted}", got=got, remedy="Let the model lay them.")
        tables = self.read(grids) if read is None else read
        x = linear(values.to(tables.table), tables.table.mT, tables.bias[0])
        return x if tables.place is None else x + tables.place


@register
class FromCells(nn.Module):
    """y(t, v) = Σ_j h_j(t) Σ_p φ_p(t) ∫ R(v, p, d) N[X](j, d) dμ(d): polynomials in the cells, blended, at any points.

    Answers are given at the points of ``Batch.asked``, by default those that were observed, at a cost linear in their
    number. With ``blend`` the answer is continuous; see ``Tiling.evaluate``.
    Discrete case: degree 0 without ``blend`` answers in each cell what ``Readout`` answers at its token.
    """

    def __init__(
        self,
        weights: Parametrisation,
        tiling: Tiling,
        out: Size = 1,
        before: tuple[Operator, ...] = (),
        blend: bool = True,
    ) -> None:
        super().__init__()
        self.tiling = tiling
        self.out = out
        self.blend = blend
        self.before = nn.ModuleList(before)
        self.head = weights.table(out * tiling.size, "d", kernel_std(weights, "d"))  # not HEAD: as the table above
        self.bias = nn.Parameter(torch.zeros(out * tiling.size))

    def parameter_roles(self) -> dict[str, Role | None]:
        """The bias is a plain parameter."""
        return {"bias": SHIFT}

    @property
    def answers_each_token(self) -> bool:
        """Its answers are those of points."""
        return False

    def read(self, grids: Grids, table: Any) -> ReadoutWeights:
        """The operators before the head, and the head."""
        before = tuple(operator.read(grids) for operator in self.before)  # type: ignore[operator]
        return ReadoutWeights(before, measured(self.head, grids.d), self.bias)

    def forward(self, x: Tensor, grids: Grids, table: Any, read: ReadoutWeights | None = None) -> Tensor:
        """Return the answers [b, n, out]."""
        if grids.asked is None or x.shape[1] != self.tiling.count:
            got, remedy = f"{x.shape[1]} tokens", "Put it behind Cells of the same tiling, or give Batch(asked=…)."
            raise GridError(f"FromCells reads {self.tiling.count} cells at given points", got=got, remedy=remedy)
        weights = self.read(grids, table) if read is None else read
        for operator, own in zip(self.before, weights.before, strict=True):
            x = apply_once(operator, own, grids, x)  # type: ignore[arg-type]
        made = linear(x, weights.kernel, weights.bias)  # type: ignore[arg-type]
        return self.tiling.evaluate(grids.asked.nodes, made.unflatten(-1, (self.out, -1)), self.blend)
