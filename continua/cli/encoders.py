"""``continua classify`` and ``continua embed``: what an encoder says of texts."""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from continua.cli.folders import Opened, open_model
from continua.cli.out import refuse_unwritable, writing
from continua.cli.sizes import parse_at
from continua.cli.texts import ROWS, lines_of
from continua.convert.calibrate import batches_of
from continua.convert.labels import usual
from continua.errors import ConfigError, nearest
from continua.models import Batch, Tokens, Transformer, TwoTowers
from continua.models.embed import apply_once
from continua.models.readout import first_of
from continua.models.structure import behind_the_last
from continua.operators import LayerNorm, RMSNorm
from continua.tasks.sentences import pooled as mean_of
from continua.typing import Tensor

POOLS = ("mean", "first", "last")


def classify(folder: Path, texts: Path, out: Path | None, at: str, device: torch.device) -> None:
    """Read the texts, answer, show or write."""
    if out is not None:
        _refuse_other(out, ".csv")
    opened = open_model(folder)
    readout = getattr(opened.model, "readout", None)
    if readout is None or not readout.out or readout.answers_each_token or _is_tower(opened.model):
        got = f"{folder}, which answers {'otherwise' if readout is not None else 'with states'}"
        remedy = "Give a model with a classifier of texts, such as a …ForSequenceClassification."
        raise ConfigError("there are no classes of texts", got=got, remedy=remedy)
    lines = _lines(texts)
    labels = readout.labels or usual(readout.out)
    model = opened.model.to(device).eval()
    view = model.at(parse_at(at)) if at else model
    with torch.no_grad():
        answers = torch.cat([view(batch).float().cpu() for batch in _batches(opened, lines, device)])
    scores = answers.softmax(-1).numpy() if len(labels) > 1 else answers.numpy()
    if out is None:
        _show(lines, labels, scores)
    else:
        _write(out, lines, labels, scores)


def _show(lines: list[str], labels: tuple[str, ...], scores: Any) -> None:
    console = Console()
    for line, row in zip(lines, scores, strict=True):
        best = int(row.argmax())
        console.print(f"{labels[best]}  {row[best]:.3f}  {line}", highlight=False, markup=False, soft_wrap=True)


def _write(out: Path, lines: list[str], labels: tuple[str, ...], scores: Any) -> None:
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["label", *labels, "text"])
            for line, row in zip(lines, scores, strict=True):
                rows.writerow([labels[int(row.argmax())], *(f"{score:.6g}" for score in row), line])
    Console().print(f"{len(lines)} texts written: {out}", highlight=False, markup=False)


def embed(folder: Path, texts: Path, out: Path, pool: str, at: str, normalise: bool, device: torch.device) -> None:
    """Read the texts, pool the states, write."""
    if pool not in POOLS:
        raise ConfigError("--pool is mean, first or last", got=repr(pool), remedy=nearest(pool, list(POOLS)))
    _refuse_other(out, ".npz")
    opened = open_model(folder)
    if isinstance(opened.model, TwoTowers):
        opened = replace(opened, model=opened.model.texts)
    opened.tokens()  # refuses what reads no text
    lines = _lines(texts)
    model = opened.model.to(device).eval()
    with torch.no_grad():
        found = [pooled(model, batch, at, pool) for batch in _batches(opened, lines, device)]
    vectors = torch.cat(found).float()
    vectors = torch.nn.functional.normalize(vectors, dim=-1) if normalise else vectors
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        np.savez(out, embeddings=vectors.numpy(), texts=np.array(lines))
    told = f"{len(vectors)} texts, {vectors.shape[1]} numbers each: {out}"
    Console().print(told, highlight=False, markup=False)


def pooled(model: Any, batch: Batch, at: str, pool: str) -> Tensor:
    """A vector for each text [b, d]: the states behind the last layer and the norms that stand there, pooled.

    A tower of CLIP pools itself: its vector is its answer.
    """
    wish = model.settle(parse_at(at)) if at else None
    if _is_tower(model):
        answer: Tensor = model(batch, wish)
        return answer.cpu()
    _, path, t = model.run(batch, wish)
    structure = model.structure(wish)
    grids = structure.grids.placed(t, structure.behind, None)
    x = path.final
    before = () if model.readout is None else tuple(getattr(model.readout, "before", ()))
    if all(isinstance(operator, LayerNorm | RMSNorm) for operator in before):
        for operator in before:
            x = apply_once(operator, operator.read(grids), grids, x)
    if pool == "first":
        return first_of(x, t).cpu()
    if pool == "last":
        return behind_the_last(x, grids)[0][:, 0].cpu()
    return mean_of(x, t.observed.expand(x.shape[:2])).cpu()


def _is_tower(model: Any) -> bool:
    """Whether it answers with a vector that was trained to be compared."""
    return isinstance(model, Transformer) and isinstance(model.embed, Tokens) and model.embed.end is not None


def _refuse_other(out: Path, suffix: str) -> None:
    if out.suffix != suffix:
        remedy = f"Write --out {out.stem or 'out'}{suffix}."
        raise ConfigError(f"a {suffix} is written", got=repr(out.name), remedy=remedy)
    refuse_unwritable(out)


def _lines(texts: Path) -> list[str]:
    found = lines_of(texts)
    if not found:
        raise ConfigError(f"{texts} has no text", got="empty lines alone", remedy="Write a text on each line.")
    return found


def _batches(opened: Opened, lines: list[str], device: torch.device) -> Iterator[Batch]:
    """In the order of the lines; texts longer than the model reads are cut."""
    for batch in batches_of(lines, opened.tokens(), opened.model, ROWS):
        ids: Any = batch.values
        there: Any = batch.observed  # type: ignore[union-attr]
        yield Batch(ids.to(device), observed=there.to(device))
