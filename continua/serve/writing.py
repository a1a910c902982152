"""From tokens to text as they come: characters that are torn wait, and texts that end an answer are looked for."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from continua.data.tokens import Tokeniser
from continua.session.tokens import LONGEST, TORN

BEFORE = 4  # tokens that are read again with new ones: what a token looks like may depend on the one before


@dataclass
class TextWriter:
    """Turns tokens into pieces of text; ``stop`` texts end it and are not part of it."""

    tokens: Tokeniser
    stop: tuple[str, ...] = ()
    _ids: list[int] = field(default_factory=list)
    _read: int = 0  # tokens whose text is out, or held back
    _held: str = ""  # text that may be the beginning of a stop text
    stopped: bool = False

    def add(self, ids: Sequence[int]) -> str:
        """New tokens; the text that is sure."""
        self._ids.extend(ids)
        start = max(0, self._read - BEFORE)
        before = self._decode(self._ids[start : self._read])
        text = self._decode(self._ids[start:])
        if text.endswith(TORN) and len(self._ids) - self._read < LONGEST:
            return ""
        self._read = len(self._ids)
        return self._sure(text[len(before) :])

    def end(self) -> str:
        """What was held back."""
        start = max(0, self._read - BEFORE)
        rest = self._decode(self._ids[start:])[len(self._decode(self._ids[start : self._read])) :]
        self._read = len(self._ids)
        sure = self._sure(rest) if rest else ""
        held = "" if self.stopped else self._held
        self._held = ""
        return sure + held

    def _sure(self, new: str) -> str:
        """Cut at a stop text; hold back what may become one."""
        if self.stopped:
            return ""
        text = self._held + new
        places = [place for place in (text.find(stop) for stop in self.stop) if place >= 0]
        if places:
            self.stopped = True
            self._held = ""
            return text[: min(places)]
        keep = max((_overlap(text, stop) for stop in self.stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokens.decode(torch.tensor(ids)) if ids else ""


def _overlap(text: str, stop: str) -> int:
    """The longest end of a text that begins a stop text.

    >>> _overlap("one two", "works"), _overlap("ab", "xy")
    (2, 0)
    """
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
