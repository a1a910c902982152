"""Two flows, one of which looks at the end of the other."""

from dataclasses import replace
from typing import Any

from continua.axes import Axes, Discretisation
from continua.config import register
from continua.errors import ConfigError, ShapeError
from continua.models.base import ModelBase
from continua.models.batch import Batch
from continua.models.embed import Tokens
from continua.models.model import Pass, Reads
from continua.models.transformer import Transformer, chosen_sizes
from continua.models.view import View
from continua.operators import Context
from continua.typing import Tensor


@register
class EncoderDecoder(ModelBase):
    """The decoder's cross-attention integrates over the encoder's final field, against the encoder's measure.

    ``Batch(values, source=Batch(…))``: the source goes to the encoder. One discretisation serves both; what it leaves
    open stays native to each. ``shared`` lets the decoder look its words up in the encoder's table (T5).
    Discrete case: ``nn.Transformer``, T5.
    """

    def __init__(self, encoder: Transformer, decoder: Transformer, shared: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.execution = decoder.execution
        encoder.execution = decoder.execution  # one way of running serves both
        if shared:
            _share_table(encoder.embed, decoder.embed)

    @property
    def axes(self) -> Axes:
        """The decoder's axes."""
        return self.decoder.axes

    @property
    def native(self) -> Discretisation:
        """The decoder's native discretisation."""
        return self.decoder.native

    @property
    def flows(self) -> tuple[Transformer, ...]:
        """The encoder, and the decoder that answers."""
        return self.encoder, self.decoder

    def forward(self, batch: Batch, at: Discretisation | None = None, told: Pass | None = None) -> Tensor:
        """Encode the source, unless ``told.context`` has it encoded; then decode the values beside it."""
        if told is None:
            told = Pass()
        context = told.context
        if context is None or context.state is None:
            shown = None if context is None else context.inputs
            encoded = self.beside(batch, at, None if told.reads is None else told.reads.source, shown)
            if context is not None:
                encoded = replace(encoded, cache=context.cache, record=context.record, inputs=context.inputs)
            told.context = encoded
        answer: Tensor = self.decoder(batch, at, told)
        return answer

    def read(self, at: Discretisation | None = None) -> Reads:
        """Read the weights of both flows, to be kept while they do not change."""
        return replace(self.decoder.read(at), source=self.encoder.read(at))

    def laid(self, batch: Batch, at: Discretisation | None = None) -> Batch:
        """Return the batch and its source as tokens on their grids; see ``Transformer.laid``."""
        source = None if batch.source is None else self.encoder.laid(batch.source, at)
        return replace(self.decoder.laid(batch, at), source=source)

    def beside(
        self, batch: Batch, at: Discretisation | None = None, reads: Reads | None = None, inputs: Any = None
    ) -> Context:
        """Encode the source: what the decoder looks at. ``inputs`` are shown on the way, as ``Context`` has it."""
        if not isinstance(batch, Batch) or batch.source is None:
            raise ShapeError("an encoder–decoder needs a source", got="none", remedy="Pass Batch(values, source=…).")
        told = Pass(None if inputs is None else Context(inputs=inputs), reads=reads)
        memory = self.encoder(batch.source, at, told)
        return Context(memory, told.t, cross_pairs=batch.cross_pairs)

    def at(self, discretisation: Discretisation | None = None, **sizes: Any) -> View:
        """Return a frozen view of both flows on another discretisation."""
        self.decoder.at(discretisation, **sizes)  # refuses what does not fit
        return View(self, chosen_sizes(discretisation, sizes))

    def settle(self, wish: Discretisation | None) -> Discretisation:
        """Fill what ``wish`` leaves open with the decoder's native choice."""
        return self.decoder.settle(wish)


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
