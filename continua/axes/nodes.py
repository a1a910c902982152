"""Nodes as plain numbers: what is decided before any tensor is made."""

import itertools

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Nodes:
    """A set of nodes [n, k] in float64. Equal sets are one object; its ``key`` is a number that stands for it.

    The key, unlike the object, can be told to a function whose result a compiler takes as constant.
    """

    __slots__ = ("key", "values")

    def __init__(self, values: Array, key: int) -> None:
        self.values = values
        self.key = key


_numbers = itertools.count(1)
_by_value: dict[tuple[int, bytes], Nodes] = {}
_by_key: dict[int, Nodes] = {}


def interned(values: Array) -> Nodes:
    """The one object for these nodes, equal up to rounding: 49·(1/49) is node 1 too."""
    values = np.ascontiguousarray(values, dtype=np.float64)
    name = rounded(values)
    known = _by_value.get(name)
    if known is None:
        known = Nodes(values, next(_numbers))
        _by_value[name] = known
        _by_key[known.key] = known
    return known


def rounded(values: Array) -> tuple[int, bytes]:
    """What nodes that are equal up to rounding have in common."""
    return values.shape[1], (np.round(values, 11) + 0.0).tobytes()  # + 0.0 turns −0.0 into 0.0


def known_key(values: Array) -> int | None:
    """The key of these nodes, where they have one."""
    known = _by_value.get(rounded(values))
    return None if known is None else known.key


def nodes_of(key: int) -> Nodes:
    """The nodes that a key stands for."""
    return _by_key[key]
