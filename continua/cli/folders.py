"""Folders that commands read a model from, and write one to: whole, or not at all."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continua import files
from continua.cli.out import refuse_unwritable, writing
from continua.cli.tokens import token_table
from continua.convert.folders import model_in
from continua.convert.special_tokens import GENERATION, SpecialTokens, special_tokens
from continua.convert.tokenizer import TOKENIZER, read_tokeniser, write_tokeniser
from continua.data.tokens import Tokeniser
from continua.errors import ConfigError
from continua.files import fault_of
from continua.models import Transformer
from continua.recipes import tokens_of
from continua.training import Run

TOKENISERS = (
    TOKENIZER,
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)


@dataclass(frozen=True)
class Opened:
    """A model and where it is from: a Hugging Face folder, a folder of ``model.save``, or a run."""

    model: Any
    folder: Path
    run: Run | None
    is_hf: bool

    @property
    def is_discrete(self) -> bool:
        """Whether it has one size, and is to be lifted before it has others."""
        return all(flow.native.is_discrete for flow in self.model.flows)

    def tokens(self) -> Tokeniser:
        """Its tokeniser; a model that reads no text is refused."""
        if not isinstance(self.model, Transformer) or token_table(self.model) is None:
            got = f"{type(self.model).__name__} of {self.folder}"
            remedy = "Use ct.elastic(model, calibrate=batches) and continua.lab.drift in Python."
            raise ConfigError("texts are read by an encoder or a language model", got=got, remedy=remedy)
        if self.run is not None and self.run.about.get("tokens") is not None:
            return tokens_of(self.run)
        return read_tokeniser(self.folder)

    def write_tokeniser(self, folder: Path) -> None:
        """Put the tokeniser beside a model that is made from this one, where there is any."""
        if self.run is not None and self.run.about.get("tokens") is not None:
            write_tokeniser(tokens_of(self.run), folder, self.model.flows[-1].embed.room)
            return
        for name in TOKENISERS:
            if fault_of(self.folder / name) is None:
                shutil.copyfile(self.folder / name, folder / name)
        bos, eos = self.ends()
        named = {"bos_token_id": bos, "eos_token_id": eos}
        if named != dict.fromkeys(named):
            known = {name: number for name, number in named.items() if number is not None}
            (folder / GENERATION).write_text(json.dumps(known, indent=1), encoding="utf-8")

    def ends(self) -> tuple[int | None, int | None]:
        """The tokens that begin and end a text, as the folder of Hugging Face named them that a model is from."""
        found = self.special()
        return found.begin, found.ends[0] if found.ends else None

    def special(self) -> SpecialTokens:
        """The tokens by which generation starts and ends."""
        return special_tokens(self.folder, self.model.flows[-1].embed.vocab or 0)


def open_model(folder: Path) -> Opened:
    """The model of a Hugging Face folder, of a folder of ``model.save``, or the best one of a run.

    A name ``org/name`` that is no folder here means the model in the cache of Hugging Face.
    """
    found = model_in(folder)
    return Opened(found.model, found.folder, found.run, found.is_hf)


def refuse_taken(out: Path) -> None:
    """Refuse a folder that holds something, before the work."""
    if out.is_dir() and not any(out.iterdir()) and os.access(out.parent, os.W_OK | os.X_OK):
        return
    if out.exists():
        got = f"{out}, which is there"
        raise ConfigError("a model is written into a new folder", got=got, remedy="Choose another name.")
    refuse_unwritable(out)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """``files.new_folder``, where a place that cannot be written is answered with a sentence."""
    with writing(out), files.new_folder(out) as made:
        yield made
