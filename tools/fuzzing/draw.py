"""Decisions of a case, each drawn by its name: taking one away leaves all the others as they were."""

import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch


class Opaque:
    """An object that nothing knows."""

    def __repr__(self) -> str:
        return "object()"


# What people and files hand over where a number is wanted. Numbers of numpy are numbers.
ODD: tuple[Any, ...] = (
    0, -1, -7, 1, 3, 1.5, -0.5, 0.0, math.nan, math.inf, -math.inf, True, False, None, "8", "x", "", "None", "nan", [],
    [4], (4, 4), {}, {"kind": "Interval"}, {"kind": 3}, 10**9, 10**12, 2**63, -(2**63), 10**400, 1e308, 1e-320,
    np.int64(4), np.float32(2.0), np.float64(math.nan), np.int64(-2), np.bool_(True), np.array([1, 2]), 2 + 0j, b"8",
    Fraction(1, 2), torch.tensor(4), torch.tensor([1.0, 2.0]), Opaque(), "é\x00", "../x", set(),
)  # fmt: skip


class Draw:
    """All that is random in a case. ``only`` names the decisions that may be spoilt (None: any)."""

    def __init__(self, seed: int, only: Sequence[str] | None = None) -> None:
        self.seed = seed
        self.only = None if only is None else set(only)
        self.spoilt: dict[str, str] = {}
        self.rate = random.Random(f"{seed}/rate").choice((0.0, 0.0, 0.1, 0.2, 0.35, 0.35))

    def of(self, name: str) -> random.Random:
        """The random numbers of one decision."""
        return random.Random(f"{self.seed}/{name}")

    def pick(self, name: str, choices: Sequence[Any]) -> Any:
        """One of a few."""
        return self.of(name).choice(choices)

    def chance(self, name: str, probability: float) -> bool:
        """Whether something is done."""
        return self.of(name).random() < probability

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self.of(name).randint(low, high)

    def real(self, name: str, low: float, high: float) -> float:
        """A number."""
        return self.of(name).uniform(low, high)

    def tensors(self, name: str) -> torch.Generator:
        """A generator for tensors."""
        return torch.Generator().manual_seed(self.of(name).getrandbits(40))

    def numbers(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Normal numbers."""
        return torch.randn(*shape, generator=self.tensors(name), dtype=dtype)

    def ids(self, name: str, high: int, *shape: int) -> torch.Tensor:
        """Token numbers."""
        return torch.randint(high, shape, generator=self.tensors(name))

    def spoils(self, name: str, least: float = 0.0) -> bool:
        """Whether this decision is spoilt; it is noted if so."""
        if self.only is not None:
            wanted = name in self.only
        else:
            wanted = self.of(f"{name}/spoils").random() < max(self.rate, least if self.rate else 0.0)
        return wanted

    def note(self, name: str, value: Any) -> Any:
        """Say that ``name`` was spoilt with ``value``."""
        self.spoilt[name] = shown(value)
        return value

    def spoil(self, name: str, value: Any, bad: Sequence[Any] = ODD, least: float = 0.0) -> Any:
        """``value``, or now and then one of ``bad`` in its place."""
        if not self.spoils(name, least):
            return value
        return self.note(name, self.of(f"{name}/bad").choice(bad))


def shown(value: Any) -> str:
    """A value in a few words."""
    text = repr(value).replace("\n", " ")
    return text if len(text) < 100 else f"{text[:60]}…{text[-30:]}"


def call(name: str, **given: Any) -> str:
    """A call as one would write it."""
    return f"{name}({', '.join(f'{key}={shown(value)}' for key, value in given.items())})"
