"""From text to token numbers and back without torch: characters, or whatever the ``tokenizers`` library describes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from continua.errors import CheckpointError, ConfigError, install

PIECE = 1 << 18  # characters that are encoded at once
TORN = "\ufffd"  # what the first bytes of a character look like before the others are there
LONGEST = 4  # tokens of one byte that a character can take
CHARACTERS = "characters"
LIBRARY = "tokenizers"

Ids = NDArray[np.int64]


@runtime_checkable
class Reading(Protocol):
    """Reads and writes text as token numbers."""

    def encode(self, text: str) -> Ids:
        """Token numbers [n]."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text."""
        ...


@dataclass(frozen=True)
class Alphabet:
    """One token a character.

    >>> Alphabet("ab").decode(Alphabet("ab").encode("abba"))
    'abba'
    """

    characters: str

    @cached_property
    def _places(self) -> Ids:
        """The number of each character by its code point, −1 for those that have none."""
        codes = _codes(self.characters)
        places = np.full(int(codes.max(initial=0)) + 2, -1)
        places[codes] = np.arange(len(codes))
        return places

    def encode(self, text: str) -> Ids:
        """Token numbers [n]; a character that is not in the alphabet is named."""
        found = np.empty(len(text), dtype=np.int64)
        for start in range(0, len(text), PIECE):  # all codes at once would be as large as the answer
            codes = _codes(text[start : start + PIECE]).clip(max=len(self._places) - 1)
            found[start : start + PIECE] = self._places[codes]
        if len(text) and found.min() < 0:
            remedy = "Use characters of the training text, or train on text that has this one."
            unknown = repr(text[int(found.argmin())])
            raise ConfigError("the model does not know this character", got=unknown, remedy=remedy)
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """The text."""
        return "".join(self.characters[int(i)] for i in ids)


@dataclass(frozen=True)
class Described:
    """A tokeniser of the ``tokenizers`` library; ``whole`` keeps special tokens in what is decoded."""

    made: Any
    whole: bool

    def encode(self, text: str) -> Ids:
        """Token numbers [n]."""
        return np.array(self.made.encode(text).ids, dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """The text."""
        return str(self.made.decode([int(i) for i in ids], skip_special_tokens=not self.whole))


def reading(described: Mapping[str, str]) -> Reading:
    """The tokeniser that a file describes."""
    kind = described.get("kind")
    if kind == CHARACTERS:
        return Alphabet(described.get("alphabet", ""))
    if kind != LIBRARY:
        raise CheckpointError("a tokeniser is characters or tokenizers", got=kind, remedy="Export the model again.")
    try:
        from tokenizers import Tokenizer
    except ImportError as missing:
        remedy = f"Install it: {install('text')}, or give token numbers."
        raise ConfigError("this text is read by the tokenizers library", got=str(missing), remedy=remedy) from missing
    try:
        made = Tokenizer.from_str(described.get("json", ""))
    except Exception as unreadable:  # the package raises bare Exception
        remedy = "Export the model again."
        raise CheckpointError("the tokeniser of this file is damaged", got=unreadable, remedy=remedy) from unreadable
    made.no_padding()
    made.no_truncation()
    return Described(made, described.get("whole") == "yes")


def texts(decode: Callable[[list[int]], str], ids: Iterable[int]) -> Iterator[str]:
    """The text of each token as it comes; bytes of one character wait for one another."""
    pending: list[int] = []
    for token in ids:
        pending.append(token)
        text = decode(pending)
        if text.endswith(TORN) and len(pending) < LONGEST:
            continue
        yield text
        pending = []
    if pending:
        yield decode(pending)


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
