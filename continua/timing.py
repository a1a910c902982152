"""Seconds of things that are compared: every round asks all of them, so that a busy while meets them alike."""

import time
from collections.abc import Callable, Sequence

import torch


def interleaved(
    cases: Sequence[Callable[[], object]],
    rounds: int,
    device: torch.device | None = None,
    watch: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Seconds of each case in every round, after one that is not counted. ``watch`` hears how many rounds are done.

    >>> [len(seconds) for seconds in interleaved([lambda: 1, lambda: 2], rounds=3)]
    [3, 3]
    """
    seen: list[list[float]] = [[] for _ in cases]
    for number in range(rounds + 1):
        for case, seconds in zip(cases, seen, strict=True):
            took = seconds_of(case, device, clock)
            if number:
                seconds.append(took)
        if watch is not None:
            watch(number + 1, rounds + 1)
    return seen


def seconds_of(
    case: Callable[[], object], device: torch.device | None = None, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of one call, with what a graphics processor has still to do."""
    _wait(device)
    start = clock()
    case()
    _wait(device)
    return clock() - start


def own_clock(device: torch.device) -> Callable[[], float]:
    """Seconds of this thread, where it computes alone: then others on a busy machine do not count. Else all seconds."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time if alone else time.perf_counter


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
