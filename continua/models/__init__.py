"""Models: embedding, flow and readout put together."""

from continua.models import zoo
from continua.models.bank import Bank
from continua.models.batch import Batch
from continua.models.cells import Cells, FromCells, Tiling
from continua.models.elastic import elastic
from continua.models.embed import Observations, Queries, States, Tokens
from continua.models.encoder_decoder import EncoderDecoder
from continua.models.factored import Narrowed, Widened
from continua.models.generate import generate, stream
from continua.models.init import GPT2Init, Scaled, Xavier, initialise
from continua.models.patches import Patches, Pixels
from continua.models.readout import Readout
from continua.models.sampling import Greedy, Sample, Sampling
from continua.models.store import load, save
from continua.models.transformer import FrozenView, Transformer, View
from continua.operators import Convolution

__all__ = [
    "Bank",
    "Batch",
    "Cells",
    "Convolution",
    "EncoderDecoder",
    "FromCells",
    "GPT2Init",
    "States",
    "Greedy",
    "FrozenView",
    "Narrowed",
    "Observations",
    "Patches",
    "Pixels",
    "Queries",
    "Readout",
    "Sample",
    "Sampling",
    "Scaled",
    "Tiling",
    "Tokens",
    "Transformer",
    "View",
    "Widened",
    "Xavier",
    "elastic",
    "generate",
    "initialise",
    "load",
    "save",
    "stream",
    "zoo",
]
