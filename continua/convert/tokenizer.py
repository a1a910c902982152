"""Our tokenisers as the ``tokenizer.json`` that the libraries of Hugging Face read. Only text is written."""

import json
from pathlib import Path
from typing import Any

from continua.data.tokens import BytePairs, Characters, Tokeniser
from continua.errors import ConfigError

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
