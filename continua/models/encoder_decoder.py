"""Two flows, one of which looks at the end of the other."""

from pathlib import Path
from typing import Any

from torch import nn

from continua.axes import Axes, Discretisation, Grid, at
from continua.config import register
from continua.errors import ConfigError, ShapeError
from continua.flow import Adjoint, SaveAt, Trajectory
from continua.flow.vectorfield import Cost
from continua.models.batch import Batch
from continua.models.embed import Tokens
from continua.models.generate import generate
from continua.models.store import save
from continua.models.transformer import Transformer, View
from continua.operators import Context
from continua.typing import Callable, Tensor


@register
class EncoderDecoder(nn.Module):
    """The decoder's cross-attention integrates over the encoder's final field, against the encoder's measure.

    ``Batch(values, source=Batch(…))``: the source goes to the encoder. One discretisation serves both; what it leaves
    open stays native to each. ``shared`` lets the decoder look its words up in the encoder's table (T5).
    Discrete case: ``nn.Transformer``, T5.
    """

    def __init__(self, encoder: Transformer, decoder: Transformer, shared: bool = False) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        if shared:
            _share_table(encoder.embed, decoder.embed)

    @property
    def axes(self) -> Axes:
        """The decoder's axes."""
        return self.decoder.axes

    @property
    def adjoint(self) -> Adjoint:
        """How the decoder's gradients are computed; setting it sets both flows'."""
        return self.decoder.adjoint

    @adjoint.setter
    def adjoint(self, adjoint: Adjoint) -> None:
        self.encoder.adjoint = self.decoder.adjoint = adjoint

    def forward(self, batch: Batch, at: Discretisation | None = None) -> Tensor:
        """Encode the source, then decode the values beside it."""
        return self.run(batch, at)[0]

    def run(
        self,
        batch: Batch,
        at: Discretisation | None = None,
        keep: SaveAt = SaveAt(),  # noqa: B008  (frozen)
        cost: Callable[[Grid, Grid], Cost | None] | None = None,
    ) -> tuple[Tensor, Trajectory, Grid]:
        """Return the answer, the decoder's path (its running cost is the decoder's) and its token grid."""
        return self.decoder.run(batch, at, self.beside(batch, at), keep, cost)

    def velocity(self, batch: Batch, z: float, x: Tensor, at: Discretisation | None = None) -> Tensor:
        """Return the decoder's F(z, x); the source is encoded for it."""
        return self.decoder.velocity(batch, z, x, at, self.beside(batch, at))

    def beside(self, batch: Batch, at: Discretisation | None = None) -> Context:
        """Encode the source: what the decoder looks at."""
        if batch.source is None:
            raise ShapeError("an encoder–decoder needs a source", got="none", remedy="Pass Batch(values, source=…).")
        memory, _, grid = self.encoder.run(batch.source, at)
        return Context(memory, grid, cross_pairs=batch.cross_pairs)

    def states(self, batch: Batch, at: Discretisation | None = None, every: int = 1) -> Trajectory:
        """Return the decoder's path, kept at every ``every``-th step."""
        return self.run(batch, at, keep=SaveAt(every))[1]

    def generate(self, prompt: Batch | Tensor, **choices: Any) -> Tensor:
        """Write on from ``Batch(start tokens, source=…)``; the choices are those of ``models.generate``."""
        return generate(self, prompt, **choices)

    def at(self, discretisation: Discretisation | None = None, **sizes: Any) -> View:
        """Return a frozen view of both flows on another discretisation."""
        self.decoder.at(discretisation, **sizes)  # refuses what does not fit
        return View(self, discretisation if discretisation is not None else at(**sizes))

    def settle(self, wish: Discretisation | None) -> Discretisation:
        """Fill what ``wish`` leaves open with the decoder's native choice."""
        return self.decoder.settle(wish)

    def save(self, folder: str | Path) -> Path:
        """Write ``model.safetensors`` and ``config.json`` into ``folder``."""
        return save(self, folder)


def _share_table(owner: Any, reader: Any) -> None:
    """Replace the reader's token table by the owner's.

    Written past ``nn.Module.__setattr__``: the reader only refers to the table, so parameters and files list it once,
    under its owner, and it stays shared whatever is loaded, copied or converted.
    """
    if not isinstance(owner, Tokens) or not isinstance(reader, Tokens):
        got, remedy = f"{type(owner).__name__} and {type(reader).__name__}", "Embed both with Tokens(…)."
        raise ConfigError("a shared table needs two embeddings of tokens", got=got, remedy=remedy)
    sizes = [_shapes(each.table) for each in (owner, reader)]
    if sizes[0] != sizes[1]:
        got, remedy = f"{sizes[0]} and {sizes[1]}", "Give both the same vocabulary, axes and basis of d."
        raise ConfigError("a shared table needs one size", got=got, remedy=remedy)
    del reader.table
    object.__setattr__(reader, "table", owner.table)


def _shapes(table: Any) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in table.state_dict().items()}
