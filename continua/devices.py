"""Where to compute: a device by name, and how many threads on the processor."""

import os
import platform
from typing import TYPE_CHECKING

from continua.errors import ConfigError, nearest

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cpu", "cuda", "mps")
FEW = 2  # small models gain nothing by more, and lose much where the machine is busy: benchmarks/threads.py


def find_device(name: str = "auto") -> "torch.device":
    """The device of that name; ``auto`` is the first GPU of CUDA where there is one, otherwise the processor.

    Apple's ``mps`` is taken when it is named: it has no float64.

    >>> find_device("cpu")
    device(type='cpu')
    """
    import torch

    kind, _, number = str(name).partition(":")
    if kind not in DEVICES or (number and not (kind == "cuda" and number.isdigit())):
        raise ConfigError("there is no such device", got=name, remedy=nearest(kind, [*DEVICES]))
    if kind == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}[kind]
    if int(number or 0) >= there:
        known = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        remedy = f"Use {' or '.join(known)}, or auto for the best there is."
        raise ConfigError("this machine has no such device", got=name, remedy=remedy)
    return torch.device(kind, int(number)) if number else torch.device(kind)


def cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def default_threads() -> int:
    """What ``--threads`` means when it is left out: ``OMP_NUM_THREADS`` where it is set, otherwise few."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else min(FEW, cores())


def use_threads(count: int | None = None) -> int:
    """Compute on ``count`` threads of the processor (None: ``default_threads()``); returns their number."""
    import torch

    chosen = default_threads() if count is None else count
    if chosen < 1:
        raise ConfigError("there is at least one thread", got=chosen, remedy="Leave --threads out for the default.")
    torch.set_num_threads(chosen)
    return chosen


def machine(device: "torch.device") -> str:
    """What times depend on, in one line: the processor or GPU, and the threads.

    >>> import torch
    >>> machine(torch.device("cpu")).endswith("thread") or machine(torch.device("cpu")).endswith("threads")
    True
    """
    import torch

    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    count = torch.get_num_threads()
    return f"{_processor()}, {device.type}, {count} thread{'s' if count > 1 else ''}"


def _processor() -> str:
    """The model name; ``platform.processor`` is empty on most Linux systems."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            named = (line.partition(":")[2].strip() for line in info if line.startswith("model name"))
            return next(named, "") or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()
