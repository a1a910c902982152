"""Checkpoints that are whole or not there: written aside, flushed to the disk, then named."""

import json
import os
import re
import shutil
import stat
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from continua.errors import CheckpointError
from continua.files import fault_of, flush, read_bytes, sha256_of
from continua.models.store import WEIGHTS, not_finite
from continua.typing import Tensor

STATE = "state.json"
PREFIX = "step-"
NEEDED = (WEIGHTS, "config.json", "progress.json")  # what every checkpoint of a run has
UNLISTED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # what an unreadable list raises
SHARD = "shard-"  # what files of several processes begin with, instead of one with all weights


def write(root: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], texts: Mapping[str, Any]) -> Path:
    """Write ``<name>.safetensors`` and ``<name>.json`` files as the checkpoint of a step.

    Everything goes into a folder aside. Its list of checksums is written last, every file is flushed, and only then
    the folder gets its name: a crash at any moment leaves the checkpoint whole or invisible. Tensors that are not
    finite are refused: the checkpoints before stay the ones to go back to.
    """
    for kind, values in tensors.items():
        refuse_ruined(kind, values)
    try:
        aside = begin(root, step)
        for name, group in tensors.items():
            save_file({k: v.detach().contiguous() for k, v in group.items()}, aside / f"{name}.safetensors")
        return complete(root, step, texts, {path.name: _sum(path) for path in sorted(aside.iterdir())})
    except SafetensorError as problem:  # its own name for a disk that is full or cannot be written
        raise OSError(str(problem)) from problem
    finally:
        give_up(root, step)


def refuse_ruined(kind: str, values: Mapping[str, Tensor]) -> None:
    """Say which tensor is not finite."""
    ruined = not_finite(values)
    if ruined is not None:
        remedy = "The checkpoints before it stay."
        raise CheckpointError("a checkpoint must be finite", got=f"{ruined} of the {kind} is not", remedy=remedy)


def partial(root: Path, step: int) -> Path:
    """Where the checkpoint of a step is written."""
    return root / f".{place(root, step).name}.partial"


def begin(root: Path, step: int) -> Path:
    """An empty folder aside for the files of a step."""
    give_up(root, step)
    root.mkdir(exist_ok=True)  # not its parents: a run that was moved away is not begun again where it was
    aside = partial(root, step)
    aside.mkdir()
    return aside


def complete(root: Path, step: int, texts: Mapping[str, Any], sums: Mapping[str, str]) -> Path:
    """Add texts and the list of checksums to the tensors that lie aside, and give the folder its name."""
    aside = partial(root, step)
    listed = dict(sums)
    for name, value in texts.items():
        file = aside / f"{name}.json"
        file.write_text(json.dumps(value, indent=1), encoding="utf-8")
        listed[file.name] = _sum(file)
    (aside / STATE).write_text(json.dumps({"step": step, "files": listed}, indent=1), encoding="utf-8")
    mode = stat.S_IMODE((aside / STATE).stat().st_mode)
    for path in aside.iterdir():
        os.chmod(path, mode)  # safetensors writes files for their owner alone
        _flush(path)
    _flush(aside)
    target = place(root, step)
    _swap(aside, target)
    _flush(root)
    return target


def give_up(root: Path, step: int) -> None:
    """Remove what lies aside for a step."""
    shutil.rmtree(partial(root, step), ignore_errors=True)


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
    return sorted((path for path in root.glob(f"{PREFIX}*") if is_name(path.name)), key=step_of, reverse=True)


def is_name(name: object) -> bool:
    """Whether this is what a checkpoint is called: nothing that leads anywhere else."""
    return isinstance(name, str) and re.fullmatch(PREFIX + "[0-9]{9,18}", name) is not None


def best_of(path: Path) -> str | None:
    """The name of the best checkpoint, as this one knows it; what is no name of a checkpoint is passed over."""
    progress = read_text(path, "progress")
    best = progress.get("best") if isinstance(progress, dict) else None
    if best is None or is_name(best):
        return best
    warnings.warn(f"{path} calls {best!r} the best checkpoint, which is none: it is passed over.", stacklevel=2)
    return None


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
    """What is wrong with a checkpoint, or ``None``.

    Its files are those that its list names, plain ones inside its folder; each has its SHA-256, and the weights are
    finite. Shards are read with their headers, so none lies there that is not in the list.
    """
    if path.is_symlink():
        return "it is a link"
    try:
        listed = _listed(path)
    except UNLISTED as problem:
        fault = fault_of(path / STATE)
        return f"{STATE} {fault}" if fault else f"{STATE}: {type(problem).__name__}"
    shards = any(is_shard(name) for name in listed)
    needed = [name for name in NEEDED if not (shards and name == WEIGHTS)]
    strays = [file.name for file in path.glob("*.safetensors" if shards else f"{SHARD}*")]
    for name in dict.fromkeys([*listed, *needed, *strays]):
        if name not in listed:
            return f"{name} is not in its list"
        if Path(name).name != name:
            return f"{name} is not in its folder"
        fault = _fault(path / name, listed[name])
        if fault is not None:
            return f"{name} {fault}"
    return None


def missing(path: Path) -> str | None:
    """The first file of a checkpoint that cannot be seen from here, or None."""
    try:
        listed = _listed(path)
    except UNLISTED:
        return STATE
    return next((name for name in listed if fault_of(path / name) is not None), None)


def _listed(path: Path) -> dict[str, str]:
    """The files of a checkpoint and the SHA-256 of each."""
    listed = json.loads(read_bytes(path / STATE))["files"]
    return {str(name): str(wanted) for name, wanted in listed.items()}


def _fault(file: Path, wanted: str) -> str | None:
    """What is wrong with a file of a checkpoint."""
    fault = fault_of(file)
    if fault is not None:
        return fault
    try:
        if _sum(file) != wanted:
            return "has changed"
        ruined = not_finite(load_file(file)) if file.suffix == ".safetensors" else None
    except (OSError, SafetensorError) as problem:
        return f"cannot be read: {problem}"
    return None if ruined is None else f"is not finite in {ruined}"


def is_shard(name: str) -> bool:
    """Whether a file holds what one of several processes had."""
    return name.startswith(SHARD) and name.endswith(".safetensors")


def is_sharded(path: Path) -> bool:
    """Whether the tensors of a checkpoint lie in the shards of several processes."""
    return path.is_dir() and any(is_shard(file.name) for file in path.iterdir())


def read_tensors(path: Path, name: str) -> dict[str, Tensor]:
    """Read one group of tensors."""
    try:
        return load_file(path / f"{name}.safetensors")
    except (SafetensorError, OSError) as problem:
        raise _unreadable(path, name, problem) from problem


def read_text(path: Path, name: str) -> Any:
    """Read one JSON file."""
    try:
        return json.loads(read_bytes(path / f"{name}.json"))
    except (OSError, ValueError, RecursionError) as problem:
        raise _unreadable(path, name, problem) from problem


def _unreadable(path: Path, name: str, problem: Exception) -> CheckpointError:
    remedy = "Resume from an older checkpoint: remove this one."
    return CheckpointError(f"{name} in {path} cannot be read", got=str(problem), remedy=remedy)


_sum = sha256_of
_flush = flush
