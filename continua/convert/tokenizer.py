"""Our tokenisers as the ``tokenizer.json`` that the libraries of Hugging Face read, and theirs as ours. Only text."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from continua.data.tokens import BytePairs, Characters, Tokeniser
from continua.errors import CheckpointError, ConfigError, install
from continua.typing import Tensor

TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"


def write_tokeniser(tokens: Tokeniser, folder: Path, context: int | None) -> None:
    """Write both files; ``context`` is how many tokens the model reads at most."""
    described = described_as_json(tokens)
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if context is not None:
        settings["model_max_length"] = context
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TOKENIZER).write_text(described, encoding="utf-8")
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1), encoding="utf-8")


def described_as_json(tokens: Tokeniser) -> str:
    """The JSON of the ``tokenizers`` library: byte pairs as they were learned, characters as words of one character.

    >>> json.loads(described_as_json(Characters("ab")))["model"]["vocab"]
    {'a': 0, 'b': 1}
    """
    if isinstance(tokens, BytePairs):
        return tokens.described
    if not isinstance(tokens, Characters):
        remedy = "Leave tokens out, and put a tokenizer.json of your own beside the model."
        got = type(tokens).__name__
        raise ConfigError("only characters and byte pairs can be written as tokenizer.json", got=got, remedy=remedy)
    alone = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
    vocabulary = {character: number for number, character in enumerate(tokens.alphabet)}
    made: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": alone,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unknown>"},
    }
    return json.dumps(made, ensure_ascii=False)


@dataclass(frozen=True)
class Pieces:
    """The tokeniser of a Hugging Face folder: whole texts, with the tokens that begin and end one, without padding."""

    made: Any  # of the tokenizers library

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return int(self.made.get_vocab_size())

    def encode(self, text: str) -> Tensor:
        """Token numbers [n]."""
        return torch.tensor(self.made.encode(text).ids, dtype=torch.int64)

    def decode(self, ids: Tensor) -> str:
        """The text, without the tokens that begin and end it."""
        return str(self.made.decode([int(i) for i in ids]))

    def encode_part(self, text: str) -> Tensor:
        """Token numbers [n] of a text that has the tokens that begin and end it written in it, or has none."""
        return torch.tensor(self.made.encode(text, add_special_tokens=False).ids, dtype=torch.int64)


def read_tokeniser(folder: Path) -> Pieces:
    """The tokeniser of a folder, from its ``tokenizer.json``."""
    file = folder / TOKENIZER
    if not file.is_file():
        remedy = "Copy the tokenizer.json of the model into its folder."
        raise CheckpointError("a text needs a tokeniser", got=f"no {file.name} in {folder}", remedy=remedy)
    return read_tokeniser_file(file)


def read_tokeniser_file(file: Path) -> Pieces:
    """The tokeniser that a ``tokenizer.json`` describes."""
    try:
        from tokenizers import Tokenizer
    except ImportError as missing:
        remedy = f"Install the extra: {install('text')}."
        raise ConfigError("a text is read by the tokenizers library", got=str(missing), remedy=remedy) from missing
    try:
        made = Tokenizer.from_file(str(file))
    except Exception as unreadable:  # the package raises bare Exception
        got = str(unreadable)
        remedy = "Fetch the file again."
        raise CheckpointError(f"{file.name} is not a tokeniser", got=got, remedy=remedy) from unreadable
    made.no_padding()
    made.no_truncation()
    return Pieces(made)
