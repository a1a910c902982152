"""Orders that are functions: the k-th of n shuffled rows, without a list of n, the same on every machine."""

import hashlib
from functools import lru_cache

import numpy as np

ROUNDS = 4
PERIOD = 1024  # samples in which a mixture keeps its shares


def shuffled(places: np.ndarray, count: int, *words: object) -> np.ndarray:
    """Where each place of 0 … count − 1 stands in a shuffled order that the words name.

    A Feistel network on the next power of four: a permutation for any round function. What falls beyond ``count`` is
    sent through once more, which keeps it one (cycle walking).
    """
    bits = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    keys = np.frombuffer(hashlib.sha256("/".join(map(str, words)).encode()).digest(), dtype=np.uint64)
    found = _turned(places.astype(np.uint64), bits, keys)
    while (outside := found >= count).any():
        found[outside] = _turned(found[outside], bits, keys)
    return found.astype(np.int64)


def _turned(numbers: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    mask = np.uint64((1 << bits) - 1)
    left = numbers >> np.uint64(bits)
    right = numbers & mask
    for key in keys[:ROUNDS]:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << np.uint64(bits)) | right


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def shares(weights: tuple[float, ...]) -> tuple[int, ...]:
    """How many of ``PERIOD`` samples each source gets: rounded, at least one, and ``PERIOD`` in all."""
    exact = np.array(weights, dtype=np.float64) / sum(weights) * PERIOD
    counts = np.maximum(1, np.floor(exact)).astype(int)
    order = np.argsort(counts - exact)
    for place in order[: max(0, PERIOD - int(counts.sum()))]:
        counts[place] += 1
    counts[int(counts.argmax())] -= int(counts.sum()) - PERIOD
    return tuple(int(count) for count in counts)


@lru_cache(maxsize=64)
def mixed_block(counts: tuple[int, ...], seed: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """For the samples of one period: the source of each, and how many of that source come before it in the period."""
    sources = np.repeat(np.arange(len(counts)), counts)
    sources = sources[shuffled(np.arange(PERIOD), PERIOD, "mixture", seed, block)]
    before = np.empty(PERIOD, dtype=np.int64)
    for source in range(len(counts)):
        own = sources == source
        before[own] = np.arange(int(own.sum()))
    return sources, before
