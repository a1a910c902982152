"""Conversions: other people's weights as points of the continuous family."""

from continua.convert.calibrate import elastic
from continua.convert.corrections import with_corrections
from continua.convert.discretise import discretise
from continua.convert.distil import distil
from continua.convert.export import Exported, export
from continua.convert.gguf import from_gguf
from continua.convert.huggingface import from_hf, to_hf, with_classes
from continua.convert.joining import best_left_out
from continua.convert.names import Entry, Layout, NameMap
from continua.convert.profiles import best_profile, best_steps
from continua.convert.tokenizer import read_tokeniser
from continua.convert.torch_nn import from_torch
from continua.convert.transcription import Heard, Transcriber, Transcript, transcribe
from continua.convert.whisper import from_whisper

__all__ = [
    "Entry",
    "Exported",
    "Heard",
    "Layout",
    "NameMap",
    "Transcriber",
    "Transcript",
    "best_left_out",
    "best_profile",
    "best_steps",
    "discretise",
    "distil",
    "elastic",
    "export",
    "from_gguf",
    "from_hf",
    "from_torch",
    "from_whisper",
    "read_tokeniser",
    "to_hf",
    "transcribe",
    "with_classes",
    "with_corrections",
]
