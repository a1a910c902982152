"""Models: embedding, flow and readout put together."""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from continua.models.bank import Bank
from continua.models.batch import Batch
from continua.models.cells import Cells, FromCells
from continua.models.elastic import elastic
from continua.models.embed import Embedding, Observations, Queries, States, Tokens
from continua.models.encoder_decoder import EncoderDecoder
from continua.models.factored import Narrowed, Widened
from continua.models.frames import Frames
from continua.models.generate import generate, stream
from continua.models.image_stem import ImageStem
from continua.models.init import GPT2Init, Scaled, Xavier, initialise
from continua.models.lift import lift
from continua.models.local_stem import LocalStem
from continua.models.low_rank import learn_only, load_lora, lora_of, merged, save_lora, with_lora
from continua.models.model import Execution, Model, Pass, Reads
from continua.models.patches import Patches, Pixels
from continua.models.readout import Averaged, Readout
from continua.models.sampling import Greedy, Sample, Sampling
from continua.models.store import load, save
from continua.models.structure import Structure
from continua.models.tiling import Tiling
from continua.models.transformer import Transformer
from continua.models.two_towers import TwoTowers
from continua.models.view import FrozenView, View
from continua.operators import Convolution

if TYPE_CHECKING:
    from continua.models import zoo

__all__ = [
    "Averaged",
    "Bank",
    "Batch",
    "Cells",
    "Convolution",
    "Embedding",
    "EncoderDecoder",
    "Execution",
    "Frames",
    "FromCells",
    "GPT2Init",
    "ImageStem",
    "LocalStem",
    "States",
    "Structure",
    "Greedy",
    "FrozenView",
    "Model",
    "Narrowed",
    "Observations",
    "Pass",
    "Patches",
    "Pixels",
    "Queries",
    "Readout",
    "Reads",
    "Sample",
    "Sampling",
    "Scaled",
    "Tiling",
    "Tokens",
    "Transformer",
    "TwoTowers",
    "View",
    "Widened",
    "Xavier",
    "elastic",
    "generate",
    "initialise",
    "learn_only",
    "lift",
    "load",
    "load_lora",
    "lora_of",
    "merged",
    "save",
    "save_lora",
    "stream",
    "with_lora",
    "zoo",
]

_RENAMED = {"Given": "States", "Held": "FrozenView"}


def __getattr__(name: str) -> Any:
    if name == "zoo":  # a dozen families, of which a program needs one
        return importlib.import_module("continua.models.zoo")
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{name} is called {_RENAMED[name]} now", DeprecationWarning, stacklevel=2)
    return globals()[_RENAMED[name]]
