"""Models: embedding, flow and readout put together."""

from continua.models import zoo
from continua.models.batch import Batch
from continua.models.embed import Given, Observations, Tokens
from continua.models.encoder_decoder import EncoderDecoder
from continua.models.readout import Readout
from continua.models.store import load, save
from continua.models.transformer import Transformer, View

__all__ = [
    "Batch",
    "EncoderDecoder",
    "Given",
    "Observations",
    "Readout",
    "Tokens",
    "Transformer",
    "View",
    "load",
    "save",
    "zoo",
]
