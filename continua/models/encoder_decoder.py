"""Two flows, one of which looks at the end of the other."""

from pathlib import Path

from torch import nn

from continua.axes import Discretisation
from continua.config import register
from continua.errors import ShapeError
from continua.models.batch import Batch
from continua.models.store import save
from continua.models.transformer import Transformer
from continua.operators import Context
from continua.typing import Tensor


@register
class EncoderDecoder(nn.Module):
    """The decoder's cross-attention integrates over the encoder's final field, against the encoder's measure.

    ``Batch(values, source=Batch(…))``: the source goes to the encoder. One discretisation serves both.
    Discrete case: ``nn.Transformer``, T5.
    """

    def __init__(self, encoder: Transformer, decoder: Transformer) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, batch: Batch, at: Discretisation | None = None) -> Tensor:
        """Encode the source, then decode the values beside it."""
        if batch.source is None:
            raise ShapeError("an encoder–decoder needs a source", got="none", remedy="Pass Batch(values, source=…).")
        memory, _, grid = self.encoder.run(batch.source, at)
        context = Context(memory, grid, cross_pairs=batch.cross_pairs)
        return self.decoder.run(batch, at, context)[0]

    def save(self, folder: str | Path) -> Path:
        """Write ``model.safetensors`` and ``config.json`` into ``folder``."""
        return save(self, folder)
