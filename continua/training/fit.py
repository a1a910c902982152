"""One readable way to train a model, alone or among many processes, that can be killed at any moment."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from continua.axes import Discretisation
from continua.config import to_plain
from continua.errors import ConfigError
from continua.flow import Adjoint
from continua.optim import ByRole, Cosine, Schedule
from continua.tasks import Task, as_task
from continua.training.afterwards import Afterwards
from continua.training.discretisations import Discretisations
from continua.training.distributed import World, joined
from continua.training.elastic import Elastic
from continua.training.growth import Growth
from continua.training.loop import Fitted, Loop
from continua.training.penalty import Penalties, Penalty
from continua.training.progress import OnProgress
from continua.training.run import Run, RunHeader
from continua.training.settings import Training
from continua.training.tokens import require_same_run

__all__ = ["Fitted", "fit", "train"]


def fit(
    model: nn.Module,
    task: Task | DataLoader[Any],
    *,
    run: Run | str | Path | None = None,
    optimiser: ByRole = ByRole(),  # noqa: B008  (frozen)
    schedule: Schedule = Cosine(),  # noqa: B008
    penalties: Penalty | Penalties | Sequence[Penalty | Penalties] | None = None,
    watch: OnProgress | None = None,
    device: str = "auto",
    steps: int = Training.steps,
    seed: int = Training.seed,
    accumulate: int = Training.accumulate,
    clip: float | None = Training.clip,
    precision: str = Training.precision,
    evaluate_every: int = Training.evaluate_every,
    save_every: int = Training.save_every,
    patience: int | None = Training.patience,
    adjoint: Adjoint | None = Training.adjoint,
    at: Discretisation | Discretisations | None = Training.at,
    elastic: Elastic | None = Training.elastic,
    grow: Growth | None = Training.grow,
    afterwards: Afterwards | None = Training.afterwards,
    compile: bool = Training.compile,
    sharded: bool = Training.sharded,
    shard_tokens: int = Training.shard_tokens,
    tensorboard: bool = Training.tensorboard,
    time_limit: float = Training.time_limit,
) -> Fitted:
    """Train ``model`` on ``task``: minimise J(θ) = mean loss + ∫ running costs + penalties of the weights.

    A ``DataLoader`` of (input, target) is a task too (``FromLoader``). ``run`` names a new folder, or is an opened
    ``Run`` to go on with, to the same bits. ``optimiser`` is by roles, ``watch`` is told of each step, ``device`` is
    auto, cpu, cuda or mps. What follows is a setting of ``Training``.
    """
    training = Training(
        steps=steps,
        seed=seed,
        accumulate=accumulate,
        clip=clip,
        precision=precision,
        evaluate_every=evaluate_every,
        save_every=save_every,
        patience=patience,
        adjoint=adjoint,
        at=at,
        elastic=elastic,
        grow=grow,
        afterwards=afterwards,
        compile=compile,
        sharded=sharded,
        shard_tokens=shard_tokens,
        tensorboard=tensorboard,
        time_limit=time_limit,
    )
    return train(
        model, task, training,
        run=run, optimiser=optimiser, schedule=schedule, penalties=penalties, watch=watch, device=device,
    )  # fmt: skip


def train(
    model: nn.Module,
    task: Task | DataLoader[Any],
    training: Training,
    *,
    run: Run | str | Path | None = None,
    optimiser: ByRole = ByRole(),  # noqa: B008  (frozen)
    schedule: Schedule = Cosine(),  # noqa: B008
    penalties: Penalty | Penalties | Sequence[Penalty | Penalties] | None = None,
    watch: OnProgress | None = None,
    device: str = "auto",
) -> Fitted:
    """``fit`` with its settings as one object. Under ``torchrun`` the same call trains on all processes."""
    task = as_task(task)
    _check_model(model)
    with joined(device, training.time_limit, training.shard_tokens) as world:
        about = {"training": to_plain(training), "optimiser": to_plain(optimiser), "schedule": to_plain(schedule)}
        if world.size > 1:
            require_same_run(world, model, task, training, about)
        opened = _opened(run, about, world)
        loop = Loop(model, task, training, opened, world)
        try:
            return loop.run(optimiser, schedule, penalties, watch)
        finally:
            if opened is not None and world.leads:
                opened.abandon()  # nothing, if a step was done
                opened.release()


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module) or not hasattr(model, "run"):
        remedy = "Give a Transformer, a zoo model or from_hf(…); a view (model.at(…)) is trained as fit(model, at=…)."
        raise ConfigError("fit trains a model of Continua", got=type(model).__name__, remedy=remedy)


def _opened(run: Run | str | Path | None, about: Mapping[str, Any], world: World) -> Run | None:
    with world.as_one():
        made = run if run is None or isinstance(run, Run) else _planned(Path(run), about, world)
        if made is not None and world.leads:
            made.lock()
    return made


def _planned(folder: Path, about: Mapping[str, Any], world: World) -> Run:
    return Run.planned(folder, RunHeader(about, new=True)) if world.leads else Run(folder)
