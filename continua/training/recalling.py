"""What a fit goes on from: the newest whole checkpoint, if its weights are those of the model."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from continua.errors import RunError
from continua.training import checkpoint
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
    """The checkpoint that the leading process finds whole."""
    step = -1
    if world.leads and not folder.is_new:
        path = folder.newest()
        try:
            checkpoint.set_aside(folder.checkpoints, path)
        except OSError as problem:
            warnings.warn(f"a damaged checkpoint could not be set aside ({problem}).", stacklevel=2)
        step = -1 if path is None else checkpoint.step_of(path)
    step = world.told(step)
    return None if step < 0 else checkpoint.place(folder.checkpoints, step)
