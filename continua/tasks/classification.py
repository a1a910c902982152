"""Classes of texts: learn which label a text has, and be measured on texts that were not seen."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from continua.data.generation import generator_for
from continua.data.labelled import LabelledTexts, labelled_texts
from continua.data.tokens import Tokeniser
from continua.errors import ConfigError
from continua.models import Batch
from continua.settings import PartialShare, Seed, Size, checked
from continua.tasks.task import Example, Score, device_of, divergence
from continua.typing import Tensor

LONGEST = 128  # tokens of a text that are read, as continua classify does


@dataclass(frozen=True)
class TokenisedTexts:
    """Texts as token numbers, and the numbers of their labels."""

    ids: tuple[Tensor, ...]
    numbers: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def example(self, rows: Sequence[int]) -> Example:
        """Some of them, padded to the longest."""
        ids = [self.ids[row] for row in rows]
        longest = max(len(one) for one in ids)
        values = torch.zeros(len(ids), longest, dtype=torch.long)
        observed = torch.zeros(len(ids), longest, dtype=torch.bool)
        for row, one in enumerate(ids):
            values[row, : len(one)] = one
            observed[row, : len(one)] = True
        there = None if bool(observed.all()) else observed
        return Example(Batch(values, observed=there), self.numbers[list(rows)])


@dataclass(frozen=True)
class TextClassification:
    """``batch`` texts a step, all of them before one comes again; measured by loss and accuracy on held-out ones.

    The model answers with a number for each of ``labels``, in their order (``convert.with_classes``).
    """

    train: TokenisedTexts
    held_out: TokenisedTexts
    labels: tuple[str, ...]
    batch: int = 16

    @property
    def steps_per_epoch(self) -> int:
        """How many steps meet every text once."""
        return math.ceil(len(self.train) / self.batch)

    def example(self, seed: int, step: int) -> Example:
        """Texts in an order that is drawn anew for each epoch."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = torch.randperm(len(self.train), generator=generator_for("classification", seed, epoch))
        return self.train.example(order[place * self.batch : (place + 1) * self.batch].tolist())

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        """The sum of −log p of the right labels."""
        if answer.dim() != 2 or answer.shape[-1] != len(self.labels):
            remedy = "Give the model a classifier of these: convert.with_classes(model, task.labels)."
            raise ConfigError(f"each text has {len(self.labels)} classes", got=list(answer.shape), remedy=remedy)
        exact = torch.promote_types(answer.dtype, torch.float32)
        return cross_entropy(answer.to(exact), example.target, reduction="sum")

    def imitation(self, answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
        """Σ KL(teacher ‖ answer) over the texts."""
        return divergence(answer, teacher).sum()

    @torch.no_grad()
    def evaluate(self, model: Any) -> Score:
        """The mean loss, and the share of texts whose likeliest label is the right one."""
        device = device_of(model)
        total = 0.0
        right = 0
        for start in range(0, len(self.held_out), self.batch):
            rows = range(start, min(start + self.batch, len(self.held_out)))
            example = self.held_out.example(rows).to(device)
            answer = model(example.batch)
            total += float(self.loss(answer, example))
            right += int((answer.argmax(-1) == example.target).sum())
        return Score({"loss": total / len(self.held_out), "accuracy": right / len(self.held_out)})

    @property
    def commonest(self) -> float:
        """The accuracy on held-out texts of who always says the label that is commonest among the others."""
        guess = int(torch.bincount(self.train.numbers).argmax())
        return float((self.held_out.numbers == guess).double().mean())


@checked
def classification(
    file: str | Path,
    tokens: Any,
    *,
    text: str | None = None,
    label: str | None = None,
    batch: Size = 16,
    longest: Size = LONGEST,
    held_out: PartialShare = 0.1,
    seed: Seed = 0,
) -> TextClassification:
    """The task of a .csv with a text and a label in each row, for a model that reads ``tokens``.

    ``text`` and ``label`` name its columns; usual names are found. A share ``held_out`` of the texts of each label is
    measured on: which ones depends on the texts and ``seed`` alone, and a text that is there twice is on one side.
    Texts are cut to ``longest`` tokens.

    >>> import tempfile
    >>> from continua.data import Characters
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as table:
    ...     _ = table.write("text,label\\n" + "".join(f"{'ab'[i % 2] * (i + 1)},{'ab'[i % 2]}\\n" for i in range(8)))
    ...     table.flush()
    ...     task = classification(table.name, Characters("ab"), held_out=0.25, batch=4)
    >>> task.labels, len(task.train), len(task.held_out)
    (('a', 'b'), 6, 2)
    """
    if not isinstance(tokens, Tokeniser):
        remedy = "Give that of the model's folder: convert.read_tokeniser(folder)."
        raise ConfigError("texts are read by a tokeniser", got=type(tokens).__name__, remedy=remedy)
    data = labelled_texts(file, text, label)
    measured = _held_out(data, held_out, seed)
    train = [row for row in range(len(data.texts)) if row not in measured]
    return TextClassification(
        _tokenised(data, train, tokens, longest),
        _tokenised(data, sorted(measured), tokens, longest),
        data.labels,
        batch,
    )


def _tokenised(data: LabelledTexts, rows: Sequence[int], tokens: Tokeniser, longest: int) -> TokenisedTexts:
    ids = tuple(tokens.encode(data.texts[row])[:longest] for row in rows)
    for row, one in zip(rows, ids, strict=True):
        if len(one) == 0:
            remedy = "Drop it, or use the tokeniser of the model's own folder."
            raise ConfigError("a text has no token", got=repr(data.texts[row][:40]), remedy=remedy)
    return TokenisedTexts(ids, torch.tensor([data.numbers[row] for row in rows]))


def _held_out(data: LabelledTexts, share: float, seed: int) -> set[int]:
    """The rows to be measured on: of each label those whose texts come first in the order of their digests."""
    rows_of: dict[str, list[int]] = {}
    for row, text in enumerate(data.texts):
        rows_of.setdefault(text, []).append(row)
    chosen: set[int] = set()
    for number, name in enumerate(data.labels):
        own = [text for text, rows in rows_of.items() if data.numbers[rows[0]] == number]
        if len(own) < 2:
            remedy = "Give two different texts of each label at least: one to learn from and one to be measured on."
            raise ConfigError(f"the label {name!r} has too few texts", got=len(own), remedy=remedy)
        own.sort(key=lambda text: hashlib.sha256(f"{seed} {text}".encode()).digest())
        count = min(max(1, round(share * len(own))), len(own) - 1)
        chosen.update(row for text in own[:count] for row in rows_of[text])
    return chosen
