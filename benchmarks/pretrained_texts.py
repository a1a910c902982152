"""Texts and embeddings for ``pretrained.py``: the same sentences for everybody, batches by length, mean pooling."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from continua.data import Docstrings, docstrings, sentences, spread

LONGEST = 128  # tokens of a text
ROWS = 32  # texts in a batch

States = Callable[[Tensor, Tensor], Tensor]  # token numbers [b, t] and which are there → states [b, t, d]


@dataclass(frozen=True)
class Tokens:
    """A batch of texts of nearly the same length: numbers, which of them are there, and where the texts stood."""

    ids: Tensor
    there: Tensor
    places: Tensor


@dataclass(frozen=True)
class Sentences:
    """What is calibrated with and what is measured on: sentences of other files."""

    docs: Docstrings
    calibration: tuple[str, ...]
    held_out: tuple[str, ...]


def chosen(calibration: int, held_out: int) -> Sentences:
    """Sentences of the standard library's docstrings, evenly spread over its files."""
    docs = docstrings()
    train = sentences(docs.train)
    return Sentences(docs, spread(train, calibration), spread(sentences(docs.validation, without=train), held_out))


@dataclass(frozen=True)
class Reader:
    """The tokeniser of a Hugging Face folder."""

    folder: Path

    @cached_property
    def tokenizer(self):  # type: ignore[no-untyped-def]
        """Without padding, cut to the longest text."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            sys.exit("The benchmark reads text with the package tokenizers: pip install 'continua-ml[text]'")
        made = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        made.no_padding()
        made.enable_truncation(LONGEST)
        return made

    def read(self, texts: Sequence[str], rows: int = ROWS) -> list[Tokens]:
        """Batches from short texts to long ones, so that little is padded."""
        numbers = [torch.tensor(one.ids) for one in self.tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(numbers)), key=lambda i: len(numbers[i]))
        batches = []
        for start in range(0, len(order), rows):
            places = order[start : start + rows]
            own = [numbers[i] for i in places]
            ids = torch.nn.utils.rnn.pad_sequence(own, batch_first=True)
            there = torch.arange(ids.shape[1]) < torch.tensor([[len(row)] for row in own])
            batches.append(Tokens(ids, there, torch.tensor(places)))
        return batches


@torch.no_grad()
def embedded(states: States, batches: Sequence[Tokens]) -> Tensor:
    """The mean state over the tokens of each text, of length one, [n, d] in the order of the texts."""
    made: list[Tensor] = []
    for batch in batches:
        there = batch.there[..., None]
        made.append((states(batch.ids, batch.there) * there).sum(1) / there.sum(1))
    places = torch.cat([batch.places for batch in batches])
    return normalize(torch.cat(made))[places.argsort()]


def likeness(ours: Tensor, full: Tensor) -> float:
    """The mean cosine of embeddings to those of the full model."""
    return float((ours * full).sum(1).double().mean())
