"""What every benchmark shares: environment, interleaved rounds, medians with intervals, peak bytes, JSON results."""

import datetime
import gc
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import continua
from continua.lab.cost import memory as lab

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("torch", "numpy", "transformers", "safetensors")


def environment() -> dict[str, Any]:
    """The machine and the versions: a number without them says nothing."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2),  # a busy machine is seen here
        "versions": {
            "continua": continua.__version__,
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
    }


def _cpu() -> str:
    """The model name; ``platform.processor`` is empty on most Linux systems."""
    info = Path("/proc/cpuinfo")
    facts: dict[str, str] = {}
    for line in info.read_text(encoding="utf-8").splitlines() if info.is_file() else ():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    if "model name" not in facts:
        return platform.processor() or "unknown"
    return f"{facts['model name']} (family {facts.get('cpu family')}, model {facts.get('model')})"


# --- rounds ----------------------------------------------------------------------------------------------------------


def orders(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """Each order and then its mirror, rotated on: nobody always goes first or follows the same neighbour."""
    for i in range(rounds):
        shift = i // 2 % len(names)
        order = [*names[shift:], *names[:shift]]
        yield order[::-1] if i % 2 else order


def interleaved(
    cases: Mapping[str, Callable[[], float]], rounds: int, warmup: int, tick: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Each case once a round; a case returns its own measurement. The first ``warmup`` rounds are dropped."""
    seen: dict[str, list[float]] = {name: [] for name in cases}
    for order in orders(list(cases), warmup + rounds):
        for name in order:
            seen[name].append(cases[name]())
            tick()
    return {name: values[warmup:] for name, values in seen.items()}


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of this process for one call; a neighbour's waiting garbage is collected before, not during."""
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        work()
        return time.process_time() - start
    finally:
        gc.enable()


def pinned() -> int | None:
    """Stay on one core from now on, so that nothing cached is left behind on another; its number, where known."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def mirrored(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    rounds: int,
    warmup: int,
    tick: Callable[[], None] = lambda: None,
) -> tuple[list[float], list[float]]:
    """CPU seconds of both in many short rounds, each of the order A B B A: what drifts slowly cancels inside of one.

    Garbage is collected before the first round and waits for the last: a collection between two steps would take as
    long as they do, and leave the caches to the next one.
    """
    for _ in range(warmup):
        ours()
        theirs()
    seen: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            total = [0.0, 0.0]
            for which in (0, 1, 1, 0) if i % 2 else (1, 0, 0, 1):
                start = time.process_time()
                (ours, theirs)[which]()
                total[which] += time.process_time() - start
            for own, seconds in zip(seen, total, strict=True):
                own.append(seconds)
            tick()
    finally:
        gc.enable()
    return seen


@dataclass(frozen=True)
class Child:
    """What a finished process used and wrote."""

    code: int
    cpu: float
    wall: float
    errors: str


def run_child(command: Sequence[str]) -> Child:
    """Run a process to its end. ``wait4`` gives the CPU time of this very child (and of those it waited for)."""
    with tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        return Child(process.returncode, used.ru_utime + used.ru_stime, wall, errors.read())


def python(*arguments: str) -> list[str]:
    """A command line for this interpreter."""
    return [sys.executable, *arguments]


# --- numbers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A median and its 95 % interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def estimate(values: Sequence[float], resamples: int = 10_000, seed: int = 0) -> Estimate:
    """Median with a bootstrap percentile interval (Efron 1979); the seed makes the interval repeat for equal data."""
    data = np.asarray(values)
    draws = np.random.default_rng(seed).integers(0, len(data), (resamples, len(data)))
    low, high = np.quantile(np.median(data[draws], axis=1), [0.025, 0.975])
    return Estimate(statistics.median(values), float(low), float(high))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Median of the ratios of each round: what slows one round down slows both of its terms."""
    return estimate([a / b for a, b in zip(ours, theirs, strict=True)])


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Median of the differences of each round."""
    return estimate([a - b for a, b in zip(ours, theirs, strict=True)])


def peak_bytes(work: Callable[[], object]) -> int:
    """The most tensor bytes alive at once during ``work``; buffers that are made once are not part of it."""
    work()
    return lab.peak_bytes(work)


# --- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of a result. ``held`` is None where nothing was promised."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    unit: str = ""
    target: str = ""
    held: bool | None = None
    note: str = ""

    @property
    def shown(self) -> str:
        """The value with its interval."""
        interval = "" if self.low is None or self.high is None else f" [{_plain(self.low)}, {_plain(self.high)}]"
        return f"{_plain(self.value)}{interval}{self.unit and ' ' + self.unit}"

    @property
    def verdict(self) -> str:
        """PASS, MISS, or nothing."""
        return "" if self.held is None else "PASS" if self.held else "MISS"


def _plain(value: float) -> str:
    """Three decimals, or three digits of what would vanish in them."""
    return f"{value:.3f}" if value == 0 or abs(value) >= 1e-2 else f"{value:.3g}"


def row(name: str, got: Estimate, **rest: Any) -> Row:
    """A line from a median with its interval."""
    return Row(name, got.median, got.low, got.high, **rest)


def write(name: str, rows: Sequence[Row], part: bool = False, **rest: Any) -> Path:
    """Write ``results/<name>.json``: rows with verdicts, whatever else was measured, and where.

    A ``part`` replaces its own rows and leaves the others as they were.
    """
    RESULTS.mkdir(exist_ok=True)
    lines = [{key: _rounded(value) for key, value in asdict(r).items()} | {"verdict": r.verdict} for r in rows]
    path = RESULTS / f"{name}.json"
    content = {"benchmark": name, "rows": lines, **rest}
    if part and path.is_file():
        before, new = json.loads(path.read_text(encoding="utf-8")), {line["name"]: line for line in lines}
        content["rows"] = [new.pop(line["name"], line) for line in before["rows"]] + list(new.values())
        content = {**before, **content}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return round(value, 4) if abs(value) >= 0.1 else float(f"{value:.4g}")
