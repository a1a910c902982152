"""Texts that a command calibrates with and measures on: lines of a file, or sentences that every machine has."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continua.convert.calibrate import batches_of
from continua.data import docstrings, sentences, spread
from continua.data.tokens import Tokeniser
from continua.errors import ConfigError
from continua.models import Batch

CALIBRATION = 1024
HELD_OUT = 128
EACH = 4  # every fourth line of a file is held out
FEWEST = 8  # lines of a file
ROWS = 8  # texts in a batch that is measured: answers of a language model are wide


@dataclass(frozen=True)
class Texts:
    """Some to calibrate with, others to measure on, and where they are from."""

    source: str
    calibration: tuple[str, ...]
    held_out: tuple[str, ...]


def read_texts(file: Path | None, tokens: Tokeniser) -> Texts:
    """Lines of a file, a text each; without one, sentences of the docstrings of Python's own library."""
    if file is None:
        docs = docstrings()
        train = _known(sentences(docs.train), tokens)
        others = _known(sentences(docs.validation, without=train), tokens)
        if min(len(train), len(others)) < 2:
            remedy = "Give texts that the model knows: --texts FILE, one on each line."
            raise ConfigError("the tokeniser knows no docstring of Python", got="none", remedy=remedy)
        return Texts("docstrings of Python", _some(train, CALIBRATION), _some(others, HELD_OUT))
    lines = [line for line in lines_of(file) if len(tokens.encode(line))]
    train = tuple(line for number, line in enumerate(lines) if number % EACH != EACH - 1)
    others = tuple(dict.fromkeys(line for line in lines[EACH - 1 :: EACH] if line not in set(train)))
    if len(train) < FEWEST or len(others) < 2:
        got = f"{len(lines)} of them, {len(others)} to be held out"
        remedy = "Give a few hundred texts of the kind the model will read, one on each line."
        raise ConfigError(f"{file} has too few texts", got=got, remedy=remedy)
    return Texts(str(file), _some(train, CALIBRATION), _some(others, HELD_OUT))


def lines_of(file: Path) -> list[str]:
    """The lines of a text file that are not empty."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        remedy = "Give a UTF-8 file with a text on each line: --texts FILE."
        raise ConfigError(f"{file} cannot be read as text", got=str(problem), remedy=remedy) from problem
    return [line.strip() for line in text.splitlines() if line.strip()]


def batches(texts: Sequence[str], tokens: Tokeniser, model: Any, device: Any, rows: int = ROWS) -> list[Batch]:
    """Padded batches, short texts first so that little is padded."""
    ordered = sorted(texts, key=len)
    made = []
    for start in range(0, len(ordered), rows):
        for batch in batches_of(ordered[start : start + rows], tokens, model):
            there = batch.observed.to(device)  # type: ignore[union-attr]
            made.append(Batch(batch.values.to(device), observed=there))  # type: ignore[union-attr]
    return made


def _known(texts: Sequence[str], tokens: Tokeniser) -> tuple[str, ...]:
    """Those that can be read: an alphabet may be small."""
    return tuple(text for text in texts if _is_known(text, tokens))


def _is_known(text: str, tokens: Tokeniser) -> bool:
    try:
        return len(tokens.encode(text)) > 0
    except ConfigError:
        return False


def _some(texts: tuple[str, ...], count: int) -> tuple[str, ...]:
    return texts if len(texts) <= count else spread(texts, count)
