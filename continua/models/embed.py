"""Embeddings: from data to the field X(0, t, d)."""

from torch import nn
from torch.nn.functional import embedding

from continua.axes import Counting, Grid, Points, grid_on
from continua.config import register
from continua.errors import ShapeError
from continua.fields import Parametrisation
from continua.fields.role import LIFT, SHIFT
from continua.models.batch import Batch
from continua.operators import Encoding, Grids, Integral, Operator, depth_grid
from continua.typing import Tensor

START = 0.0


def apply_once(operator: Operator, grids: Grids, x: Tensor) -> Tensor:
    """Apply an operator outside the flow (its weights do not depend on depth), which may be told its ``steps``."""
    f, args = operator.bind({**grids, "z": grids.get("steps", depth_grid((START,)))})
    return f(START, x, args)


def rows(count: int) -> Grid:
    """The grid of a table's counted rows."""
    return grid_on(Points(count), Counting(count))


def _looked_up(ids: Tensor, table: Tensor, pad: int | None = None) -> Tensor:
    try:
        return embedding(ids, table, padding_idx=pad)
    except IndexError as outside:
        got, remedy = f"{ids.min().item()} to {ids.max().item()}", "Use the tokeniser of this model."
        raise ShapeError(f"the table has the numbers 0 to {len(table) - 1}", got=got, remedy=remedy) from outside


@register
class Tokens(nn.Module):
    """X(0, t, d) = E(token(t), d) + type(t, d) + p(t, d), normalised if ``norm`` is given.

    Looking up the token ``pad`` sends no gradient to its row, as BERT has it.
    Discrete case: ``nn.Embedding`` plus a position table (GPT-2: wte + wpe; BERT: three tables and a LayerNorm).
    """

    def __init__(
        self,
        weights: Parametrisation,
        vocab: int,
        position: Encoding | None = None,
        types: int = 0,
        norm: Operator | None = None,
        std: float = 0.02,
        pad: int | None = None,
    ) -> None:
        super().__init__()
        self.vocab, self.position, self.norm, self.pad = vocab, position, norm, pad
        self.table = weights.table(vocab, "d", std)
        self.types = weights.table(types, "d", std) if types else None
        self.type_count = types

    def forward(self, batch: Batch, grids: Grids) -> Tensor:
        """Look the tokens up on the d grid."""
        ids = batch.values
        if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dim() != 2:
            got = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
            raise ShapeError("tokens are whole numbers of shape [b, t]", got=got, remedy="Tokenise the text first.")
        x = _looked_up(ids, self.table.on(n=rows(self.vocab), d=grids["d"]), self.pad)
        if self.types is not None:
            if batch.types is not None and batch.types.shape != ids.shape:
                remedy = "Give one type for each token."
                raise ShapeError(
                    f"token types need shape {list(ids.shape)}", got=list(batch.types.shape), remedy=remedy
                )
            table = self.types.on(n=rows(self.type_count), d=grids["d"])
            x = x + (table[0] if batch.types is None else _looked_up(batch.types, table))
        if self.position is not None:
            x = x + self.position(grids["t"], grids["d"], x)
        return x if self.norm is None else apply_once(self.norm, grids, x)


@register
class Observations(nn.Module):
    """X(0, t, d) = Σ_i (u_i(t) − m)/s B(i, d) + b(d) + p(t, d): fields or series, ``channels`` values at each node.

    ``scale`` = (m, s) brings the values of all channels to mean zero and spread one.
    Discrete case: ``nn.Linear(channels, n)`` at each token.
    """

    def __init__(
        self,
        weights: Parametrisation,
        channels: int,
        position: Encoding | None = None,
        scale: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__()
        self.channels, self.position, self.scale = channels, position, scale
        self.table = weights.table(channels, "d", std=channels**-0.5, role=LIFT)
        self.bias = weights.table(1, "d", std=0.02, role=SHIFT)

    def forward(self, batch: Batch, grids: Grids) -> Tensor:
        """Lift the channels to the d grid; absent tokens start at zero."""
        values = batch.values
        if not isinstance(values, Tensor) or values.dim() != 3 or values.shape[-1] != self.channels:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(f"observations need shape [b, t, {self.channels}]", got=got, remedy="Check the channels.")
        table = self.table.on(n=rows(self.channels), d=grids["d"])
        values = values.to(table)
        if self.scale != (0.0, 1.0):
            values = (values - self.scale[0]) / self.scale[1]
        x = values @ table + self.bias.on(n=rows(1), d=grids["d"])
        if self.position is not None:
            x = x + self.position(grids["t"], grids["d"], x)
        return x.masked_fill(~grids["t"].observed[..., None], 0.0) if grids["t"].has_gaps else x


@register
class Queries(nn.Module):
    """X(0, t, d) = ∫ B(d, c) p(t, c) dμ(c) + b(d): a question is its time alone, whatever values come with it.

    Discrete case: ``nn.Linear(n, n)`` of a position encoding.
    """

    def __init__(self, weights: Parametrisation, position: Encoding) -> None:
        super().__init__()
        self.position = position
        self.lift = Integral(weights)

    def forward(self, batch: Batch, grids: Grids) -> Tensor:
        """Encode the times; every sample asks at its own, or all at the same."""
        like = next(self.lift.parameters())
        p = self.position(grids["t"], grids["d"], like)
        x = apply_once(self.lift, grids, p.expand(len(batch.values), *p.shape[-2:]))  # type: ignore[arg-type]
        return x.masked_fill(~grids["t"].observed[..., None], 0.0) if grids["t"].has_gaps else x


@register
class States(nn.Module):
    """X(0, t, d) is handed over as it is: [b, t, n] on the d grid of the call (layers used on their own)."""

    def forward(self, batch: Batch, grids: Grids) -> Tensor:
        """Check the width."""
        x = batch.values
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[-1] != len(grids["d"]):
            got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(f"the state needs shape [b, t, {len(grids['d'])}]", got=got, remedy="Match at(d=…).")
        return x
