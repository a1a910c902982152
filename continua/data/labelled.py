"""Texts with a label each, from a table of comma-separated values."""

import csv
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continua.errors import ConfigError
from continua.files import fault_of, read_bytes

TEXTS = ("text", "sentence", "content", "document", "review", "comment", "message", "question", "title", "input")
LABELS = ("label", "labels", "class", "category", "target", "sentiment", "topic", "intent", "output")
SEPARATORS = (",", ";", "\t")


@dataclass(frozen=True)
class LabelledTexts:
    """Texts and the numbers of their labels; ``labels`` are the names, in the order of their numbers."""

    name: str
    texts: tuple[str, ...]
    numbers: tuple[int, ...]
    labels: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Names the data: numbers measured on others cannot be compared."""
        rows = "".join(f"{number} {text}\n" for number, text in zip(self.numbers, self.texts, strict=True))
        return hashlib.sha256((repr(self.labels) + rows).encode()).hexdigest()


@dataclass(frozen=True)
class Columns:
    """The columns of a table that hold the text and the label."""

    text: str
    label: str


def labelled_texts(file: str | Path, text: str | None = None, label: str | None = None) -> LabelledTexts:
    """Read a .csv (or .tsv) with a header; ``text`` and ``label`` name its columns, which are found where it is plain.

    Labels that are whole numbers are in their order, others in that of the alphabet.
    """
    file = Path(file)
    rows = _rows(file)
    names = [name for name in rows[0] if name is not None] if rows else []
    columns = _columns(file, names, rows, text, label)
    texts = []
    named_labels = []
    for number, row in enumerate(rows, start=2):  # the header is line one
        if None in row:
            remedy = "Put quotes around texts with commas in them."
            what = f"row {number} of {file.name} has more values than columns"
            raise ConfigError(what, got=f"{len(row) - 1} columns", remedy=remedy)
        found = (row.get(columns.text) or "").strip()
        named = (row.get(columns.label) or "").strip()
        if not found and not named:
            continue
        if not found or not named:
            missing = columns.label if found else columns.text
            remedy = "Fill it, or drop the row."
            raise ConfigError(f"row {number} of {file.name} is empty in {missing!r}", got="no value", remedy=remedy)
        texts.append(found)
        named_labels.append(named)
    labels = tuple(sorted(set(named_labels), key=_order(named_labels)))
    if len(labels) < 2:
        got = f"{len(texts)} rows of {labels[0]!r}" if labels else "no rows"
        remedy = f"Give rows of two labels at least in the column {columns.label!r}, or name another one."
        raise ConfigError(f"{file.name} has nothing to tell apart", got=got, remedy=remedy)
    numbers = {name: number for number, name in enumerate(labels)}
    return LabelledTexts(file.stem, tuple(texts), tuple(numbers[name] for name in named_labels), labels)


def _rows(file: Path) -> list[dict[str, str]]:
    fault = fault_of(file)
    if fault is not None:
        raise ConfigError("there is no such table", got=f"{file} {fault}", remedy="Give a .csv with a header.")
    try:
        text = read_bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        remedy = "Save it as UTF-8."
        raise ConfigError(f"{file.name} is no text in UTF-8", got=str(problem), remedy=remedy) from problem
    if not text.strip():
        raise ConfigError(f"{file.name} is empty", got="no header", remedy="Give a header and a row for each text.")
    head = text.lstrip().split("\n", 1)[0]
    separator = max(SEPARATORS, key=head.count)  # the first of them where there is none
    try:
        return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except csv.Error as problem:
        remedy = "Save it as plain comma-separated values, with quotes around texts."
        raise ConfigError(f"{file.name} is no table", got=str(problem), remedy=remedy) from problem


def _columns(
    file: Path, names: Sequence[str], rows: Sequence[Mapping[str, str]], text: str | None, label: str | None
) -> Columns:
    if not rows:
        remedy = "Give a header and a row for each text."
        raise ConfigError(f"{file.name} has no rows", got="a header alone", remedy=remedy)
    for named in (text, label):
        if named is not None and named not in names:
            remedy = "Name one of these."
            raise ConfigError(f"{file.name} has no column {named!r}", got=", ".join(map(str, names)), remedy=remedy)
    found_text = text if text is not None else _known(names, TEXTS, label)
    found_label = label if label is not None else _known(names, LABELS, text)
    if len(names) == 2 and (found_text is None) != (found_label is None):  # the other one
        found_text = found_text or next(name for name in names if name != found_label)
        found_label = found_label or next(name for name in names if name != found_text)
    if found_text is None or found_label is None:
        missing = "text" if found_text is None else "label"
        remedy = f"Name it: {missing}=… (--{missing} on the command line)."
        got = ", ".join(map(str, names))
        raise ConfigError(f"which column of {file.name} is the {missing} cannot be told", got=got, remedy=remedy)
    if found_text == found_label:
        raise ConfigError("text and label are two columns", got=repr(found_text), remedy="Name two of them.")
    return Columns(found_text, found_label)


def _known(names: Sequence[str], usual: Sequence[str], taken: str | None) -> str | None:
    """The first of the usual names that the table has."""
    spelt = {str(name).strip().lower(): name for name in names if name != taken}
    return next((spelt[name] for name in usual if name in spelt), None)


def _order(names: Sequence[str]) -> Callable[[str], Any]:
    """Whole numbers by their value, others by the alphabet."""
    return int if all(name.removeprefix("-").isdecimal() for name in names) else str
