"""From text to token numbers and back: characters, or byte pairs."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from continua.config import register
from continua.errors import ConfigError, install
from continua.typing import Tensor

PIECE = 1 << 18  # characters that are encoded at once


@runtime_checkable
class Tokeniser(Protocol):
    """A reversible map between text and whole numbers."""

    @property
    def size(self) -> int:
        """How many tokens there are."""
        ...

    def encode(self, text: str) -> Tensor:
        """Token numbers [n]."""
        ...

    def decode(self, ids: Tensor) -> str:
        """The text."""
        ...


@register
@dataclass(frozen=True)
class Characters:
    """One token a character of ``alphabet``."""

    alphabet: str

    @classmethod
    def of(cls, text: str) -> "Characters":
        """The characters that occur in a text."""
        return cls("".join(sorted(set(text))))

    @property
    def size(self) -> int:
        """The size of the alphabet."""
        return len(self.alphabet)

    @cached_property
    def _places(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """The number of each character by its code point, −1 for those that have none."""
        codes = _codes(self.alphabet)
        places = np.full(int(codes.max(initial=0)) + 2, -1)
        places[codes] = np.arange(len(codes))
        return places

    def encode(self, text: str) -> Tensor:
        """Token numbers [n]; a character that is not in the alphabet is named."""
        found = np.empty(len(text), dtype=np.int64)
        for start in range(0, len(text), PIECE):  # all codes at once would be as large as the answer
            codes = _codes(text[start : start + PIECE]).clip(max=len(self._places) - 1)
            found[start : start + PIECE] = self._places[codes]
        if len(text) and found.min() < 0:
            remedy = "Use characters of the training text, or train on text that has this one."
            unknown = repr(text[int(found.argmin())])
            raise ConfigError("the model does not know this character", got=unknown, remedy=remedy)
        return torch.from_numpy(found)

    def decode(self, ids: Tensor) -> str:
        """The text."""
        return "".join(self.alphabet[int(i)] for i in ids.tolist())


@register
@dataclass(frozen=True)
class BytePairs:
    """Byte pairs merged by frequency (Sennrich et al. 2016), as the ``tokenizers`` library trains them."""

    described: str  # the library's own JSON

    @classmethod
    def of(cls, text: str, size: int = 1024) -> "BytePairs":
        """Learn ``size`` tokens from a text."""
        library = _library()
        made = library.Tokenizer(library.models.BPE())
        made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = library.decoders.ByteLevel()
        alphabet = library.pre_tokenizers.ByteLevel.alphabet()
        trainer = library.trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet)
        made.train_from_iterator((text[i : i + 100_000] for i in range(0, len(text), 100_000)), trainer)
        return cls(json.dumps(json.loads(made.to_str()), ensure_ascii=False))

    @cached_property
    def _made(self) -> Any:
        return _library().Tokenizer.from_str(self.described)

    @property
    def size(self) -> int:
        """How many tokens were learned."""
        return int(self._made.get_vocab_size())

    def encode(self, text: str) -> Tensor:
        """Token numbers [n]."""
        return torch.tensor(self._made.encode(text).ids, dtype=torch.int64)

    def decode(self, ids: Tensor) -> str:
        """The text."""
        return str(self._made.decode([int(i) for i in ids], skip_special_tokens=False))


def _codes(text: str) -> "np.ndarray[Any, np.dtype[np.uint32]]":
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _library() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as missing:
        remedy = f"Install it: {install('text')}, or use characters."
        raise ConfigError("byte pairs need the tokenizers library", got=str(missing), remedy=remedy) from missing
    return tokenizers
