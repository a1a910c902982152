"""Texts that are at hand without a network."""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from continua.errors import ConfigError


@dataclass(frozen=True)
class Corpus:
    """A text cut into a part to learn from and a part to be measured on."""

    name: str
    train: str
    validation: str

    @property
    def sha256(self) -> str:
        """Names the text: numbers measured on another one cannot be compared."""
        return hashlib.sha256((self.train + self.validation).encode()).hexdigest()


def cut(name: str, text: str, share: float = 0.95) -> Corpus:
    """The first ``share`` is learned from, the rest is held out."""
    if len(text) < 1000:
        remedy = "Give a text of at least a thousand characters."
        raise ConfigError("a text must be long enough to be cut", got=f"{len(text)} characters", remedy=remedy)
    place = int(len(text) * share)
    return Corpus(name, text[:place], text[place:])


def python_source() -> Corpus:
    """The source of Python's own standard library: its top-level files, sorted by path, in ASCII."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py"))
    if not files:
        raise ConfigError("Python's library has no source here", got=folder, remedy="Give a text: --text FILE.")
    text = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in files)
    return cut("python", text.encode("ascii", "ignore").decode("ascii"))


def from_file(path: str | Path) -> Corpus:
    """Any text file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} cannot be read as text", got=str(problem), remedy="Give a UTF-8 file.") from problem
    return cut(path.stem, text)
