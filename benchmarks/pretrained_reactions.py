"""rxnfp for ``pretrained.py``: masked tokens of reactions, at other sizes, no training.

No package has reactions to read, so they are composed: five common reactions, each with every pair from two lists
of groups. The model was trained on those of patents; these are like them, and easier.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from common import Row
from pretrained_peers import METHODS, Calibrated, pruned
from pretrained_texts import Tokens
from torch import Tensor

import continua as ct
from continua.data import spread
from tools import real_models

GROUPS = (
    "C", "CC", "CCC", "CCCC", "C(C)C", "CC(C)C", "C1CC1", "C1CCCC1", "C1CCCCC1", "Cc1ccccc1", "CCc1ccccc1",
    "Cc1ccncc1", "Cc1ccc(F)cc1", "Cc1ccc(OC)cc1", "CCOC", "CCN(C)C", "CCC(=O)OC",
)  # fmt: skip
RINGS = (
    "c1ccccc1", "c1ccc(F)cc1", "c1ccc(Cl)cc1", "c1ccc(OC)cc1", "c1ccc(C)cc1", "c1ccc(C(F)(F)F)cc1", "c1ccncc1",
    "c1cccnc1", "c1ccsc1", "c1ccco1", "c1ccc(C#N)cc1", "c1ccc(C(C)=O)cc1", "c1ccc([N+](=O)[O-])cc1", "c1ccc2ccccc2c1",
    "c1cccc(F)c1", "c1ccccc1C", "c1ccc(N(C)C)cc1",
)  # fmt: skip
REACTIONS = (
    "NX.O=C(O)Y.CN(C)C=O>>O=C(NX)Y",
    "OX.O=C(O)Y.O=S(=O)(O)O>>O=C(OX)Y",
    "BrX.OY.O=C([O-])[O-].[K+].[K+]>>O(X)Y",
    "NX.O=S(=O)(Cl)Y.c1ccncc1>>O=S(=O)(NX)Y",
    "NX.O=CY.CO.[BH4-].[Na+]>>C(NX)Y",
)
CALIBRATION = 256
HELD_OUT = 256
QUICK = 24
MASKED = 0.15
ROWS = 16
SIZES = {"½ feed-forward": {"m": 256}, "½ heads": {"h": 2}, "½ + ½": {"m": 256, "h": 2}}


def reactions() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Reactions to calibrate with and held-out ones: every third of the rings is in the latter only."""
    made: tuple[list[str], list[str]] = ([], [])
    for form, group, (place, ring) in itertools.product(REACTIONS, GROUPS, enumerate(RINGS)):
        made[place % 3 == 2].append(form.replace("X", group).replace("Y", ring))
    return tuple(made[0]), tuple(made[1])


def tokenised(folder: Path, texts: Sequence[str]) -> list[Tokens]:
    """The longest word of the vocabulary at each place, padded with zeros."""
    words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    number = {word: i for i, word in enumerate(words)}
    longest = max(map(len, words))
    read: list[list[int]] = []
    for text in texts:
        row = [number["[CLS]"]]
        place = 0
        while place < len(text):
            word = next(w for w in (text[place : place + n] for n in range(longest, 0, -1)) if w in number)
            row.append(number[word])
            place += len(word)
        read.append([*row, number["[SEP]"]])
    batches = []
    for start in range(0, len(read), ROWS):
        rows = [torch.tensor(row) for row in read[start : start + ROWS]]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=number["[PAD]"])
        there = torch.arange(ids.shape[1]) < torch.tensor([[len(row)] for row in rows])
        batches.append(Tokens(ids, there, torch.arange(start, start + len(rows))))
    return batches


def hidden(folder: Path, batches: Sequence[Tokens]) -> list[tuple[Tokens, Tensor, Tensor]]:
    """Batches with some tokens masked, which ones, and what stood there."""
    mask = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n").index("[MASK]")
    drawn = torch.Generator().manual_seed(0)
    made = []
    for batch in batches:
        inside = batch.there.clone()
        inside[:, 0] = False
        inside[torch.arange(len(inside)), batch.there.sum(1) - 1] = False
        chosen = (torch.rand(batch.ids.shape, generator=drawn) < MASKED) & inside
        masked = torch.where(chosen, mask, batch.ids)
        made.append((Tokens(masked, batch.there, batch.places), chosen, batch.ids[chosen]))
    return made


@torch.no_grad()
def right(logits: Callable[[Tensor, Tensor], Tensor], batches: Sequence[tuple[Tokens, Tensor, Tensor]]) -> float:
    """The share of masked tokens that come first."""
    hits = 0
    for batch, chosen, wanted in batches:
        hits += int((logits(batch.ids, batch.there)[chosen].argmax(-1) == wanted).sum())
    return hits / sum(len(wanted) for _, _, wanted in batches)


def accuracies(elastic: Callable[[Path, Sequence[Tokens]], Any], quick: bool) -> Iterator[Row]:
    """Rows of rxnfp."""
    from transformers import BertForMaskedLM

    folder = real_models.rxnfp("pretrained")
    train, test = reactions()
    count = QUICK if quick else CALIBRATION
    seen = tokenised(folder, spread(train, count))
    unseen = hidden(folder, tokenised(folder, spread(test, QUICK if quick else HELD_OUT)))
    model = BertForMaskedLM.from_pretrained(folder).eval()
    masked_too = [batch for batch, _, _ in hidden(folder, seen)]  # it is run with masks, so it is calibrated with them

    def run(bert: Any) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda ids, there: model.cls(bert(ids, attention_mask=there.long()).last_hidden_state)  # type: ignore[no-any-return]

    native = right(run(model.bert), unseen)
    tokens = sum(len(wanted) for _, _, wanted in unseen)
    yield Row("masked tokens right, rxnfp, native", native, note=f"{tokens} tokens of composed reactions")
    full = Calibrated.of(model.bert, masked_too)
    made = elastic(folder, masked_too)
    for name, sizes in SIZES.items():
        for method in METHODS:
            share = right(run(pruned(full, method, **sizes)), unseen) / native
            yield Row(f"masked tokens / native, rxnfp, {name}: {method.name}", share)
        view = made.at(**sizes).held()
        share = right(lambda ids, there, view=view: view(ct.Batch(ids, observed=there)), unseen) / native
        yield Row(f"masked tokens / native, rxnfp, {name}: ours", share)
