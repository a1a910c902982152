"""What processes do with checkpoints in shards, inside of a launch that they share with other tests."""

import math
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from continua.errors import ContinuaError
from continua.models.store import description
from continua.optim import AdamW, ByRole, Muon
from continua.training import Run, stored, tokens
from continua.training.distributed import World, whole, wrapped
from continua.training.keeping import ShardKeeper, keeper
from continua.training.recalling import load_optimisers, newest_checkpoint
from continua.training.settings import Training
from continua.typing import Tensor
from tests.runs import states, tiny_model

CHOSEN = ByRole(AdamW(2e-3), kernel=Muon(0.01))


def tiny() -> Any:
    """The model of the tests."""
    return tiny_model(steps=1, double=True)


def laid_out(world: World, path: Path, make: Callable[[], Any] = tiny) -> tuple[Any, Any]:
    """A model on these processes, and its optimisers, that go on from a checkpoint."""
    model = make()
    wrapped(nn.Sequential(model), world, sharded=True)
    optimisers = CHOSEN.make(model)
    like = dict(model.named_parameters())
    model.load_state_dict(stored.tensors(path, "model", like.get))
    load_optimisers(optimisers, path, like)
    return model, optimisers


def all_of(model: Any, optimisers: Any) -> dict[str, Tensor]:
    """Every number of both, brought together."""
    held = {f"model/{name}": value for name, value in model.state_dict().items()}
    held |= {f"optimiser/{name}": value for name, value in optimisers.state()[0].items()}
    return {name: value.detach().clone() for name, value in whole(held).items()}


def state_of(model: Any, optimisers: Any, step: int) -> dict[str, Any]:
    """What a fit gives to be kept."""
    progress = {"step": step, "best_score": None, "waited": 0, "salt": 0}
    return {
        "model": model.state_dict(),
        "optimiser": optimisers.state(),
        "config": description(model),
        "progress": progress,
    }


def written(world: World, model: Any, optimisers: Any, folder: Path) -> ShardKeeper:
    """Write what all processes have into ``folder``, brought together and in shards, while training goes on."""
    had = all_of(model, optimisers)
    run = Run(folder / "again")
    if world.leads:
        save_file({name: value.contiguous() for name, value in had.items()}, folder / "had.safetensors")
        run = Run.create(folder / "again", {})
    keeps = keeper(run, world, Training(sharded=True))
    assert isinstance(keeps, ShardKeeper)
    keeps.begin(7, state_of(model, optimisers, 7), is_best=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    assert keeps.settle() == 7
    assert keeps.settle() is None
    return keeps


def resharded(world: World, path: Path, folder: Path) -> None:
    """Go on from a checkpoint, and write it again."""
    model, optimisers = laid_out(world, path)
    keeps = written(world, model, optimisers, folder)
    _ruined(world, keeps, model, optimisers)
    if world.leads:
        run = keeps.run
        assert [one.name for one in run.checkpoints.iterdir()] == ["step-000000007"], "nothing half is left"


def _ruined(world: World, keeps: ShardKeeper, model: Any, optimisers: Any) -> None:
    """A state that is not finite on the last process is refused on all, and said when it is settled."""
    with torch.no_grad():
        for parameter in model.parameters():
            own = parameter.to_local()
            if world.rank == world.size - 1 and own.numel():
                own.view(-1)[0] = math.nan
    keeps.begin(8, state_of(model, optimisers, 8), is_best=False)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert keeps.settle() is None
    said = [str(one.message) for one in heard if "step 8 was not written" in str(one.message)]
    assert len(said) == int(world.leads)
    assert all(f"process {world.size - 1}: a checkpoint must be finite" in one for one in said)


def refusals(world: World, run: Path, folder: Path, begun: Callable[..., object]) -> list[str]:
    """What each process says of a shard that one of them does not see, of a run that is there, and of other code."""
    copy = folder / f"seen-{world.rank}"
    shutil.copytree(run, copy)
    if world.rank == 1:
        next(next(states(copy)).glob("shard-00002-*")).unlink()

    def other_code() -> None:
        real = tokens._code
        tokens._code = lambda: f"other on {world.rank}"
        try:
            begun(folder / "other")
        finally:
            tokens._code = real

    tries: list[Callable[[], object]] = [
        lambda: newest_checkpoint(Run.open(copy), world),
        lambda: begun(run),
        other_code,
    ]
    said = []
    for one in tries:
        try:
            one()
            said.append("nothing")
        except ContinuaError as wrong:
            said.append(str(wrong))
    return said


def kept(path: Path) -> dict[str, Tensor]:
    """Every number of a checkpoint, read by one process."""
    return {
        f"{kind}/{name}": value for kind in ("model", "optimiser") for name, value in stored.tensors(path, kind).items()
    }


def one_file(path: Path) -> dict[str, Tensor]:
    """The same of a checkpoint in one file, read with nothing of the library."""
    return {
        f"{kind}/{name}": value
        for kind in ("model", "optimiser")
        for name, value in load_file(path / f"{kind}.safetensors").items()
    }


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    """Whether all numbers are the same, to the bit."""
    return set(found) == set(wanted) and all(torch.equal(found[name], value) for name, value in wanted.items())
