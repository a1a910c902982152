"""Embeddings: from data to the field X(0, t, d)."""

from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn.functional import embedding

from continua import constants
from continua.axes import Grid, Grids
from continua.config import register
from continua.errors import ConfigError, ShapeError
from continua.fields import Field, Parametrisation
from continua.fields.role import LIFT, SHIFT
from continua.models.batch import Batch, is_whole
from continua.operators import Context, Encoding, Integral, Operator
from continua.settings import Positive, Size, Spread, Whole
from continua.typing import Tensor

START = 0.0


class Embedding(nn.Module):
    """Data to X(0): ``read`` samples the tables on the grids, ``forward`` looks things up in them."""

    vocab: int | None = None  # how many words it knows, where it reads words
    room: int | None = None  # how many tokens its positions have room for, where that is bounded

    @property
    def tied_table(self) -> Field | None:
        """The table that a tied readout answers with."""
        return None

    def lay(self, batch: Batch) -> Batch:
        """Turn what is given into tokens, before these are placed."""
        return batch

    def read(self, grids: Grids) -> Any:
        """Sample the tables."""
        return None

    def forward(self, batch: Batch, grids: Grids, read: Any = None) -> Tensor:
        """Return X(0) on the grids, [b, t, d]; ``read`` are tables that were sampled before."""
        raise NotImplementedError


def apply_once(operator: Operator, read: Any, grids: Grids, x: Tensor) -> Tensor:
    """Apply an operator outside the flow (its weights do not depend on depth)."""
    f, args = operator.place(read, grids, Context())
    return f(START, x, args)


def added(position: Encoding | None, x: Tensor, grids: Grids, rows: Any) -> Tensor:
    """x + p(t, d), where there are positions."""
    return x if position is None else x + position(grids.tokens, grids.d, x, rows)


def observed_only(x: Tensor, t: Grid) -> Tensor:
    """Zero where a token is absent."""
    return x.masked_fill(~t.observed[..., None], 0.0) if t.has_gaps else x


def _looked_up(ids: Tensor, table: Tensor, pad: int | None = None) -> Tensor:
    if ids.dtype not in (torch.int64, torch.int32):  # other whole numbers are widened; flags are none
        ids = ids.long()
    try:
        return embedding(ids, table, padding_idx=pad)
    except IndexError as outside:
        got, remedy = f"{ids.min().item()} to {ids.max().item()}", "Use the tokeniser of this model."
        raise ShapeError(f"the table has the numbers 0 to {len(table) - 1}", got=got, remedy=remedy) from outside


class TokenTables(NamedTuple):
    """The tables of an embedding of words, on the d grid."""

    words: Tensor
    types: Tensor | None
    position: Any
    norm: Any


class ValueTables(NamedTuple):
    """The maps of an embedding of values, on the d grid."""

    table: Tensor
    bias: Tensor
    position: Any


@register
class Tokens(Embedding):
    """X(0, t, d) = s E(token(t), d) + type(t, d) + p(t, d), normalised if ``norm`` is given; ``scale`` is s.

    Looking up the token ``pad`` sends no gradient to its row, as BERT has it. What stands behind the first token
    ``end`` of a text is absent (CLIP).
    Discrete case: ``nn.Embedding`` plus a position table (GPT-2: wte + wpe; BERT: three tables and a LayerNorm).
    """

    def __init__(
        self,
        weights: Parametrisation,
        vocab: Size,
        position: Encoding | None = None,
        types: Whole = 0,
        norm: Operator | None = None,
        std: Spread = 0.02,
        pad: int | None = None,
        scale: float = 1.0,
        *,
        end: Whole | None = None,
    ) -> None:
        super().__init__()
        self.vocab = vocab
        self.scale = scale
        self.position = position
        self.norm = norm
        self.pad = pad
        self.room = None if position is None else position.room
        if pad is not None and not -vocab <= pad < vocab:  # below zero counts from the end, as torch has it
            raise ConfigError(f"pad is a token, 0 to {vocab - 1}", got=pad, remedy="Leave it out for none.")
        if end is not None and end >= vocab:
            raise ConfigError(f"end is a token, 0 to {vocab - 1}", got=end, remedy="Leave it out for none.")
        self.end = end
        self.table = weights.table(vocab, "d", std)
        self.types = weights.table(types, "d", std) if types else None
        self.type_count = types

    @property
    def tied_table(self) -> Field | None:
        """The words."""
        return self.table

    def lay(self, batch: Batch) -> Batch:
        """Leave out what stands behind the first end."""
        ids = batch.values
        if self.end is None or not isinstance(ids, Tensor) or ids.dim() != 2:
            return batch
        ends = ids == self.end
        if batch.observed is not None:
            ends = ends & batch.observed
        ended = ends.long().cumsum(-1) - ends.long()
        up_to = ended == 0
        return replace(batch, observed=up_to if batch.observed is None else up_to & batch.observed)

    def read(self, grids: Grids) -> TokenTables:
        """Words, types, positions and the norm."""
        return TokenTables(
            words=self.table.on(d=grids.d),
            types=None if self.types is None else self.types.on(d=grids.d),
            position=None if self.position is None else self.position.read(grids.d),
            norm=None if self.norm is None else self.norm.read(grids),
        )

    def forward(self, batch: Batch, grids: Grids, read: TokenTables | None = None) -> Tensor:
        """Look the tokens up on the d grid."""
        tables = self.read(grids) if read is None else read
        x = self.summed(batch, grids, tables)
        return x if self.norm is None else apply_once(self.norm, tables.norm, grids, x)

    def summed(self, batch: Batch, grids: Grids, tables: TokenTables) -> Tensor:
        """What goes into the norm: words, types and positions."""
        ids = batch.values
        if not is_whole(ids) or ids.dim() != 2:  # type: ignore[union-attr]
            got = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
            raise ShapeError("tokens are whole numbers of shape [b, t]", got=got, remedy="Tokenise the text first.")
        ids = cast(Tensor, ids)
        x = _looked_up(ids, tables.words, self.pad)  # [b, t, d]
        x = x if self.scale == 1.0 else x * self.scale
        if tables.types is not None:
            if batch.types is not None and (not is_whole(batch.types) or batch.types.shape != ids.shape):
                got = f"{batch.types.dtype} {list(batch.types.shape)}"
                remedy = "Give one type for each token."
                raise ShapeError(f"token types are whole numbers of shape {list(ids.shape)}", got=got, remedy=remedy)
            x = x + (tables.types[0] if batch.types is None else _looked_up(batch.types, tables.types))
        return added(self.position, x, grids, tables.position)


@register
class Observations(Embedding):
    """X(0, t, d) = Σ_i (u_i(t) − m)/s B(i, d) + b(d) + p(t, d): fields or series, ``channels`` values at each node.

    ``scale`` = (m, s) brings the values of all channels to mean zero and spread one.
    Discrete case: ``nn.Linear(channels, n)`` at each token.
    """

    def __init__(
        self,
        weights: Parametrisation,
        channels: Size,
        position: Encoding | None = None,
        scale: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__()
        self.channels = channels
        self.position = position
        self.scale = scale
        self.table = weights.table(channels, "d", std=channels**-0.5, role=LIFT)
        self.bias = weights.table(1, "d", std=0.02, role=SHIFT)

    @property
    def tied_table(self) -> Field | None:
        """The lift of the channels."""
        return self.table

    def read(self, grids: Grids) -> ValueTables:
        """The lift of the channels, its bias and the positions."""
        return ValueTables(
            table=self.table.on(d=grids.d),
            bias=self.bias.on(d=grids.d),
            position=None if self.position is None else self.position.read(grids.d),
        )

    def forward(self, batch: Batch, grids: Grids, read: ValueTables | None = None) -> Tensor:
        """Lift the channels to the d grid; absent tokens start at zero."""
        values = batch.values
        if not isinstance(values, Tensor) or values.dim() != 3 or values.shape[-1] != self.channels:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(f"observations need shape [b, t, {self.channels}]", got=got, remedy="Check the channels.")
        tables = self.read(grids) if read is None else read
        values = values.to(tables.table)
        if self.scale != (0.0, 1.0):
            values = (values - self.scale[0]) / self.scale[1]
        x = added(self.position, values @ tables.table + tables.bias, grids, tables.position)  # [b, t, d]
        return observed_only(x, grids.tokens)


@register
class Channels(Embedding):
    """X(0, t, i) = u_i(t)/s_i: the state is the field itself, each channel by its spread s_i.

    Discrete case: a division.
    """

    scale = (0.0, 1.0)
    table = None

    def __init__(self, spreads: tuple[Positive, ...]) -> None:
        super().__init__()
        self.spreads = spreads
        self.channels = len(spreads)

    def forward(self, batch: Batch, grids: Grids, read: None = None) -> Tensor:
        """Divide; the d grid counts the channels."""
        values = batch.values
        if not isinstance(values, Tensor) or values.dim() != 3 or values.shape[-1] != self.channels:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(f"fields need shape [b, t, {self.channels}]", got=got, remedy="Check the channels.")
        x = values.to(grids.d.weights)
        return x / constants.numbers(self.spreads, x.device, x.dtype)


@register
class Queries(Embedding):
    """X(0, t, d) = ∫ B(d, c) p(t, c) dμ(c) + b(d): a question is its time alone, whatever values come with it.

    Discrete case: ``nn.Linear(n, n)`` of a position encoding.
    """

    def __init__(self, weights: Parametrisation, position: Encoding) -> None:
        super().__init__()
        self.position = position
        self.lift = Integral(weights)

    def read(self, grids: Grids) -> tuple[Any, Any]:
        """The positions and the map behind them."""
        return self.position.read(grids.d), self.lift.read(grids)

    def forward(self, batch: Batch, grids: Grids, read: tuple[Any, Any] | None = None) -> Tensor:
        """Encode the times; every sample asks at its own, or all at the same."""
        rows, lift = self.read(grids) if read is None else read
        like = next(self.lift.parameters())
        p = self.position(grids.tokens, grids.d, like, rows)
        samples = batch.values.shape[0]  # type: ignore[union-attr]
        x = apply_once(self.lift, lift, grids, p.expand(samples, *p.shape[-2:]))
        return observed_only(x, grids.tokens)


@register
class States(Embedding):
    """X(0, t, d) is handed over as it is: [b, t, n] on the d grid of the call (layers used on their own)."""

    def forward(self, batch: Batch, grids: Grids, read: None = None) -> Tensor:
        """Check the width."""
        x = batch.values
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[-1] != grids.d.count:
            got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(f"the state needs shape [b, t, {grids.d.count}]", got=got, remedy="Match at(d=…).")
        if not x.is_floating_point():
            raise ShapeError("a state is made of real numbers", got=x.dtype, remedy="Convert it: x.float().")
        return x

    @staticmethod
    def check_precision(x: Tensor, own: torch.dtype) -> None:
        """Refuse a state of another precision than the weights have, unless autocast brings both together."""
        if x.dtype != own and not torch.is_autocast_enabled(x.device.type):
            remedy = "Convert it: x.to(dtype), or the model: model.to(dtype)."
            raise ShapeError(f"the state needs the precision of the weights, {own}", got=x.dtype, remedy=remedy)
