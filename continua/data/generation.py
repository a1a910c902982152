"""What generated sets share: seeds made of words, normal numbers in a stable order, chunks, checks."""

import hashlib
from collections.abc import Callable

import torch

from continua.errors import ConfigError, ShapeError
from continua.typing import Tensor

ShareDone = Callable[[float], None]  # is told which share of the work is done


def generator_for(*words: object) -> torch.Generator:
    """A generator seeded by a name: the same words give the same numbers on every machine."""
    digest = hashlib.sha256("/".join(map(str, words)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def normals(count: int, generator: torch.Generator) -> Tensor:
    """Normal numbers, of which a longer row begins with the shorter.

    Rows of ``torch.randn`` do not: it draws its last sixteen anew unless sixteen divides the length.
    """
    return torch.randn(-(-count // 16) * 16, generator=generator, dtype=torch.float64)[:count]


def in_chunks(
    count: int, size: int, make: Callable[[range], tuple[Tensor, ...]], watch: ShareDone | None
) -> tuple[Tensor, ...]:
    """Draws 0…count−1 made ``size`` at a time, in float32."""
    if count < 1:
        raise ConfigError("a set needs at least one draw", got=count, remedy="Ask for a count above zero.")
    found = []
    for start in range(0, count, size):
        found.append([part.float() for part in make(range(start, min(start + size, count)))])
        if watch is not None:
            watch(min(start + size, count) / count)
    return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


def check_finite(values: Tensor, what: str = "the field") -> None:
    """Refuse NaN and infinity before they spread over the whole domain."""
    if not bool(torch.isfinite(values).all()):
        bad = int((~torch.isfinite(values)).sum())
        raise ShapeError(f"{what} must be finite", got=f"{bad} NaN or infinite values", remedy="Leave them out.")
