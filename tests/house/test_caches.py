"""Caches are bounded by the bytes of what they hold, not by its number alone."""

import copy
import pickle
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from continua import constants
from continua.axes import Interval, Midpoint
from continua.axes.rules import quadrature
from continua.constants import BYTES, Cache, bounded, bytes_of


class Held(NamedTuple):
    nodes: Any
    weights: Any


@pytest.mark.finding("D11")
def test_a_cache_lets_go_of_the_oldest_when_its_bytes_are_used_up() -> None:
    cache = Cache(100, most=1000)
    for key in range(20):
        cache.get(key, lambda: Held(torch.zeros(25), np.zeros(25)))
        assert cache.bytes <= 1000
    assert len(cache) == 3
    made: list[int] = []
    for key in (19, 18, 17, 0):
        cache.get(key, lambda: made.append(1) or torch.zeros(1))  # type: ignore[func-returns-value, unused-ignore]
    assert len(made) == 1, "the newest were kept"
    cache.get("large", lambda: torch.zeros(10_000))
    assert len(cache) == 1, "one that is larger than the bound is held alone"
    cache.get("small", lambda: torch.zeros(1))
    assert cache.bytes == 4
    assert len(copy.deepcopy(cache)) == len(pickle.loads(pickle.dumps(cache))) == 0


def test_bytes_are_those_of_arrays_and_tensors_wherever_they_are() -> None:
    held = {"a": (torch.zeros(3), [np.zeros(2)]), "b": Held(torch.zeros(1, dtype=torch.float64), None), "c": "text"}
    assert bytes_of(held) == 12 + 16 + 8


@pytest.mark.finding("D11")
def test_many_large_rules_do_not_fill_the_memory() -> None:
    kept = next(cell.cell_contents for cell in quadrature.__closure__ if isinstance(cell.cell_contents, Cache))
    for n in range(200_000, 200_040):
        quadrature(Interval(), Midpoint(n))
    assert kept.bytes <= BYTES
    assert len(kept) < 40


def test_threads_may_share_one() -> None:
    failed: list[Exception] = []

    @bounded(8, most=4000)
    def made(key: int) -> np.ndarray:
        return np.full(100, key)

    def work() -> None:
        try:
            for i in range(2000):
                assert made(i % 17)[0] == i % 17
        except Exception as problem:
            failed.append(problem)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert constants.KEPT == 1024
