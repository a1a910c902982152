"""Byte pairs as OpenAI's files list them (``gpt2.tiktoken``): each line has some bytes in base 64, and their rank."""

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from continua.errors import CheckpointError
from continua.files import read_bytes

LARGEST = 32 * 2**20  # bytes; the largest that is known has four million
REMEDY = "Copy the file again; it comes with the package openai-whisper (whisper/assets)."


@dataclass(frozen=True)
class ByteRanks:
    """Tokens by their bytes; a token's number is its rank, and pairs of the lowest rank are joined first."""

    tokens: tuple[bytes, ...]

    @cached_property
    def ranks(self) -> dict[bytes, int]:
        """The number of each token."""
        return {token: rank for rank, token in enumerate(self.tokens)}

    def text(self, ids: Iterable[int]) -> str:
        """What tokens say; numbers beyond the list are those of special tokens and say nothing."""
        count = len(self.tokens)
        return b"".join(self.tokens[i] for i in ids if 0 <= i < count).decode("utf-8", "replace")

    def parts(self, text: str) -> list[int]:
        """The tokens of a short word: bytes, of which the pair with the lowest rank is joined until none is known.

        >>> ByteRanks((b"a", b"b", b"ab", b"aba")).parts("abab")
        [2, 2]
        """
        parts = [bytes([byte]) for byte in text.encode()]
        while len(parts) > 1:
            joined = [self.ranks.get(left + right) for left, right in pairwise(parts)]
            known = [rank for rank in joined if rank is not None]
            if not known:
                break
            place = joined.index(min(known))
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return [self.ranks[part] for part in parts if part in self.ranks]


def read_byte_ranks(file: Path) -> ByteRanks:
    """The tokens of a file, in the order of their ranks."""
    try:
        lines = read_bytes(file.resolve(), LARGEST).split(b"\n")
        pairs = [line.split() for line in lines if line.strip()]
        found = {int(rank): _bytes(token) for token, rank in pairs}
    except (OSError, ValueError, binascii.Error) as problem:
        got = f"{type(problem).__name__} in {file}"
        raise CheckpointError("this file lists no byte pairs", got=got, remedy=REMEDY) from problem
    if not found or sorted(found) != list(range(len(pairs))):
        got = f"{len(pairs)} lines with gaps between ranks in {file}"
        raise CheckpointError("byte pairs have the ranks 0, 1, …", got=got, remedy=REMEDY)
    return ByteRanks(tuple(found[rank] for rank in range(len(found))))


def _bytes(said: bytes) -> bytes:
    """Base 64; OpenAI's file for many languages has one token without bytes, written as a sign of equality."""
    return b"" if said == b"=" else base64.b64decode(said, validate=True)
