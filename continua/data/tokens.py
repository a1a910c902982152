"""From text to token numbers and back: characters, or byte pairs."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch

from continua.config import register
from continua.errors import ConfigError, install
from continua.session.tokens import Alphabet
from continua.typing import Tensor


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
    def _numbers(self) -> Alphabet:
        return Alphabet(self.alphabet)

    def encode(self, text: str) -> Tensor:
        """Token numbers [n]; a character that is not in the alphabet is named."""
        return torch.from_numpy(self._numbers.encode(text))

    def decode(self, ids: Tensor) -> str:
        """The text."""
        return self._numbers.decode(ids.tolist())


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
