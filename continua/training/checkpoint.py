"""Checkpoints that are whole or not there: written aside, flushed to the disk, then named."""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from continua.errors import CheckpointError
from continua.typing import Tensor

STATE = "state.json"
PREFIX = "step-"


def write(root: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], texts: Mapping[str, Any]) -> Path:
    """Write ``<name>.safetensors`` and ``<name>.json`` files as the checkpoint of a step.

    Everything goes into a folder aside. Its list of checksums is written last, every file is flushed, and only then
    the folder gets its name: a crash at any moment leaves the checkpoint whole or invisible.
    """
    target = place(root, step)
    aside = root / f".{target.name}.partial"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        for name, group in tensors.items():
            save_file({k: v.detach().contiguous() for k, v in group.items()}, aside / f"{name}.safetensors")
        for name, value in texts.items():
            (aside / f"{name}.json").write_text(json.dumps(value, indent=1), encoding="utf-8")
        sums = {path.name: _sum(path) for path in sorted(aside.iterdir())}
        (aside / STATE).write_text(json.dumps({"step": step, "files": sums}, indent=1), encoding="utf-8")
        for path in aside.iterdir():
            _flush(path)
        _flush(aside)
        _swap(aside, target)
        _flush(root)
    except SafetensorError as problem:  # its own name for a disk that is full or cannot be written
        raise OSError(str(problem)) from problem
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _swap(aside: Path, target: Path) -> None:
    """Give ``aside`` its name; one of the same step (a run went back) makes way at once, not file by file."""
    if target.exists():
        before = target.with_name(f".{target.name}.before.partial")
        shutil.rmtree(before, ignore_errors=True)
        os.rename(target, before)
        os.rename(aside, target)
        shutil.rmtree(before, ignore_errors=True)
    else:
        os.rename(aside, target)


def place(root: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return root / f"{PREFIX}{step:09d}"


def step_of(path: Path) -> int:
    """The step of a checkpoint."""
    return int(path.name.removeprefix(PREFIX))


def prune(root: Path, keep: int, spare: set[str]) -> None:
    """Remove all but the newest ``keep`` checkpoints and those named in ``spare``, and what a crash left half done."""
    for path in [*(p for p in found(root)[keep:] if p.name not in spare), *root.glob(".*.partial")]:
        shutil.rmtree(path, ignore_errors=True)


def found(root: Path) -> list[Path]:
    """The checkpoints of a folder, the newest first."""
    named = [path for path in root.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdigit()]
    return sorted(named, key=step_of, reverse=True)


def newest(root: Path) -> Path | None:
    """The newest checkpoint that is whole; damaged ones are passed over with a warning."""
    for path in found(root):
        fault = damage(path)
        if fault is None:
            return path
        warnings.warn(f"{path} is damaged ({fault}): the checkpoint before it is used.", stacklevel=2)
    return None


def set_aside(root: Path, whole: Path | None) -> None:
    """Rename the damaged checkpoints that are newer than ``whole``, so that they do not count as kept ones."""
    for path in found(root):
        if path == whole:
            return
        aside = path.with_name(f"damaged-{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or ``None``."""
    try:
        listed = json.loads((path / STATE).read_text(encoding="utf-8"))["files"]
        listed = {str(name): str(wanted) for name, wanted in listed.items()}
    except FileNotFoundError:
        return f"{STATE} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        return f"{STATE}: {type(problem).__name__}"
    for name, wanted in listed.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if _sum(file) != wanted:
            return f"{name} has changed"
    return None


def read_tensors(path: Path, name: str) -> dict[str, Tensor]:
    """Read one group of tensors."""
    try:
        return load_file(path / f"{name}.safetensors")
    except (SafetensorError, OSError) as problem:
        remedy = "Resume from an older checkpoint: remove this one."
        raise CheckpointError(f"{name} in {path} cannot be read", got=str(problem), remedy=remedy) from problem


def read_text(path: Path, name: str) -> Any:
    """Read one JSON file."""
    return json.loads((path / f"{name}.json").read_text(encoding="utf-8"))


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
