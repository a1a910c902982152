"""Bytes of tensors, from the allocator's own log."""

import gc
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


def peak_bytes(work: Callable[[], object]) -> int:
    """The most tensor bytes alive at once during ``work`` over those before it.

    On a CPU read from the log of ``torch.profiler``, so the number is exact and repeats to the byte, where the resident
    size of a process depends on what malloc keeps.
    """
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        if (used := torch.cuda.max_memory_allocated() - before) > 0:
            return used
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with silent(), uncollected(), torch.profiler.profile(activities=kinds, profile_memory=True) as log:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        log.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    alive = most = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        alive += change
        most = max(most, alive)
    return most


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect garbage now and not in the middle, where it would be missing from what is alive, each time elsewhere.

    Inside another one nothing is collected in the middle anyway: who measures many sizes collects once.
    """
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def silent() -> Iterator[None]:
    """The profiler writes to the file descriptor of stderr itself, where no logging level reaches it."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
