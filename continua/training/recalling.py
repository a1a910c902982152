"""What a fit goes on from: the newest whole checkpoint, if its weights are those of the model."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from continua.errors import RunError
from continua.optim import Optimisers
from continua.training import checkpoint, stored
from continua.training.distributed import World
from continua.training.run import Run


def refuse_misfit(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    """Say which weights of a checkpoint are not those of the model that is to go on."""
    remedy = "Leave what makes the model (its sizes and kinds) as it was, or start a new run for another one."
    for name in dict.fromkeys([*wanted, *found]):
        shapes = [list(tensors[name].shape) if name in tensors else "none" for tensors in (found, wanted)]
        if shapes[0] != shapes[1]:
            got = f"{name}: {shapes[0]} in the checkpoint, {shapes[1]} in the model"
            raise RunError("the weights of this run do not fit these settings", got=got, remedy=remedy)


def other_optimiser(problem: Exception) -> RunError:
    """What a checkpoint kept of an optimiser serves no other."""
    remedy = "Go on with the optimiser it was started with, or start a new run."
    return RunError("this run was started with another optimiser", got=repr(problem), remedy=remedy)


def newest_checkpoint(folder: Run, world: World) -> Path | None:
    """The checkpoint that the leading process finds whole; all processes have to see it."""
    step = -1
    if world.leads and not folder.is_new:
        path = folder.newest()
        try:
            checkpoint.set_aside(folder.checkpoints, path)
        except OSError as problem:
            warnings.warn(f"a damaged checkpoint could not be set aside ({problem}).", stacklevel=2)
        step = -1 if path is None else checkpoint.step_of(path)
    step = world.told(step)
    if step < 0:
        return None
    path = checkpoint.place(folder.checkpoints, step)
    with world.as_one():
        _refuse_unseen(path, world.rank)
    return path


def _refuse_unseen(path: Path, rank: int) -> None:
    """A checkpoint lies where every process reads it: on another machine the folder may be another one."""
    missing = checkpoint.missing(path)
    if missing is not None:
        remedy = "Keep runs in a folder that all machines share, or copy the checkpoint to each of them."
        got = f"{missing} is missing on process {rank}"
        raise RunError(f"every process reads all of {path.name}", got=got, remedy=remedy)


def load_optimisers(made: Optimisers, path: Path, like: Mapping[str, torch.Tensor]) -> None:
    """Go on with what a checkpoint kept of the optimisers."""
    tensors = stored.tensors(path, "optimiser", lambda name: like.get(name.split("/")[0]))
    try:
        made.load(tensors, checkpoint.read_text(path, "optimiser"))
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as problem:
        raise other_optimiser(problem) from problem
