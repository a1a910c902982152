"""Two flows, one of which looks at the end of the other."""

from pathlib import Path
from typing import Any

from torch import nn

from continua.axes import Axes, Discretisation, Grid, at
from continua.config import register
from continua.errors import ShapeError
from continua.flow import SaveAt, Trajectory
from continua.models.batch import Batch
from continua.models.store import save
from continua.models.transformer import Transformer, View
from continua.operators import Context
from continua.typing import Tensor


@register
class EncoderDecoder(nn.Module):
    """The decoder's cross-attention integrates over the encoder's final field, against the encoder's measure.

    ``Batch(values, source=Batch(…))``: the source goes to the encoder. One discretisation serves both; what it leaves
    open stays native to each.
    Discrete case: ``nn.Transformer``, T5.
    """

    def __init__(self, encoder: Transformer, decoder: Transformer) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    @property
    def axes(self) -> Axes:
        """The decoder's axes."""
        return self.decoder.axes

    def forward(self, batch: Batch, at: Discretisation | None = None) -> Tensor:
        """Encode the source, then decode the values beside it."""
        return self.run(batch, at)[0]

    def run(
        self,
        batch: Batch,
        at: Discretisation | None = None,
        keep: SaveAt = SaveAt(),  # noqa: B008  (frozen)
    ) -> tuple[Tensor, Trajectory, Grid]:
        """Return the answer, the decoder's path and its token grid."""
        if batch.source is None:
            raise ShapeError("an encoder–decoder needs a source", got="none", remedy="Pass Batch(values, source=…).")
        memory, _, grid = self.encoder.run(batch.source, at)
        return self.decoder.run(batch, at, Context(memory, grid, cross_pairs=batch.cross_pairs), keep)

    def states(self, batch: Batch, at: Discretisation | None = None, every: int = 1) -> Trajectory:
        """Return the decoder's path, kept at every ``every``-th step."""
        return self.run(batch, at, keep=SaveAt(every))[1]

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
