"""Runs in one line each: which there are in a folder, how they went, and how two of them differ. Nothing is written."""

import fcntl
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continua.errors import ContinuaError
from continua.files import fault_of
from continua.training.run import ABOUT, LOCK, METRICS, Run

HELD_OUT = "validation_"
UNSAID = ("format", "version", "files")  # of run.json: nothing that was chosen


@dataclass(frozen=True)
class Summary:
    """A run in one line."""

    folder: Path
    recipe: str
    done: int
    planned: int | None
    best: float | None
    best_step: int | None
    last_loss: float | None
    seconds: float | None
    changed: float
    bytes: int
    state: str


def places(folder: Path) -> list[Path]:
    """The run folders in a folder, up to two levels down, or the folder itself; links are not followed."""
    if (folder / ABOUT).is_file():
        return [folder]
    found = [path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{ABOUT}")]
    return sorted(place for place in found if not place.is_symlink() and not place.parent.is_symlink())


def summary(folder: Path) -> Summary:
    """What a run folder says of itself; one that cannot be read is listed as such."""
    changed = max((path.stat().st_mtime for path in (folder / ABOUT, folder / METRICS) if path.is_file()), default=0.0)
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    try:
        opened = Run.open(folder)
    except ContinuaError:
        return Summary(folder, "?", 0, None, None, None, None, None, changed, size, "unreadable")
    lines = [line for line in opened.history() if "note" not in line]
    done = max((line["step"] for line in lines), default=0)
    planned = _planned(opened.about)
    measured = [(score, line["step"]) for line in lines if (score := main_score(line)) is not None]
    best, step = min(measured, default=(None, None))
    losses = [line["loss"] for line in lines if is_number(line.get("loss"))]
    times = sorted(line["seconds"] for line in lines if is_number(line.get("seconds")))
    seconds = times[len(times) // 2] if times else None
    state = "training" if is_busy(folder) else "done" if planned is not None and done >= planned else "stopped"
    recipe = str(opened.about.get("recipe", "(from Python)"))
    return Summary(
        folder, recipe, done, planned, best, step, losses[-1] if losses else None, seconds, changed, size, state
    )


def _planned(about: Mapping[str, Any]) -> int | None:
    training = about.get("training")
    steps = training.get("steps") if isinstance(training, dict) else None
    return steps if isinstance(steps, int) else None


def main_score(line: Mapping[str, Any]) -> float | None:
    """The main held-out number of a line, if it is one."""
    first = next(iter(held_out_of(line).values()), None)
    return first if is_number(first) else None


def is_number(value: Any) -> bool:
    """Whether a value of a history is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_busy(folder: Path) -> bool:
    """Whether a process is training this run now."""
    lock = folder / LOCK
    if fault_of(lock) is not None:
        return False
    with lock.open() as held:
        try:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def held_out_of(line: Mapping[str, Any]) -> dict[str, float]:
    """What a line of a history says of held-out data, the main number first."""
    return {key.removeprefix(HELD_OUT): value for key, value in line.items() if key.startswith(HELD_OUT)}


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What two descriptions say differently: name, value of the first, value of the second (None: it says nothing).

    >>> differences({"recipe": "text", "changes": {"d": 8}}, {"recipe": "text", "changes": {"d": 16}})
    [('changes.d', 8, 16)]
    """
    left = _flat(first)
    right = _flat(second)
    keys = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    return [(key, left.get(key), right.get(key)) for key in keys if key.split(".")[0] not in UNSAID]


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(_flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value})
    return flat
