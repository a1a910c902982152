"""Training with tokens in parts: each process has a share of the loss."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from continua.axes import Discretisation, Sharded, at
from continua.axes.sharded import digest
from continua.errors import ConfigError
from continua.models import Batch
from continua.models.store import description
from continua.tasks import Example, Task
from continua.tasks.loader import IGNORED
from continua.tasks.task import SumsInLoss, SumsOverTokens
from continua.training.distributed import World
from continua.training.penalty import Penalties
from continua.training.settings import Training
from continua.typing import Tensor


def in_parts(where: Discretisation | None, tokens: Sharded | None) -> Discretisation | None:
    """The same discretisation with tokens in parts."""
    if tokens is None:
        return where
    return at(t=tokens) if where is None else where.replace(t=Sharded(tokens.mesh, where.t))


def loss_of(task: Task, answer: Tensor, example: Example, tokens: Sharded | None) -> Tensor:
    """This process's share of the loss: the shares of those that have the tokens of a sample add up to it.

    A sum over tokens is cut as the answers are; a loss made of such sums takes one sum over the processes; for any
    other the answers are brought together. Of these two each process has an equal share, as it has where all of them
    have the same answer.
    """
    if tokens is None:
        return task.loss(answer, example)
    mine = _is_part(answer, example, tokens)
    if mine and isinstance(task, SumsOverTokens) and example.counted is None:
        return task.loss(answer, Example(example.batch, tokens.part(example.target, 1, IGNORED)))
    made = task.loss_of_parts(answer, example, tokens) if mine and isinstance(task, SumsInLoss) else None
    if made is not None:
        return made / tokens.mesh.size()
    return task.loss(brought_together(answer, example, tokens), example) / tokens.mesh.size()


def brought_together(answer: Tensor, example: Example, tokens: Sharded | None) -> Tensor:
    """The answers for all tokens, where this process has those of a part."""
    if tokens is None or not _is_part(answer, example, tokens):
        return answer
    return tokens.gather(answer, example.target.shape[1])


def _is_part(answer: Tensor, example: Example, tokens: Sharded) -> bool:
    target = example.target
    each = target.dim() > 1 and answer.dim() == 3
    return each and len(tokens.layout(target.shape[1]).own) == answer.shape[1]


def refuse_running(tokens: Sharded | None, penalties: Penalties) -> Sharded | None:
    """Costs along the path are those of all tokens."""
    if tokens is not None and (penalties.running_terms or penalties.sampled_terms):
        remedy = "Leave them out, or shard_tokens."
        raise ConfigError("penalties of the path need all tokens", got="shard_tokens", remedy=remedy)
    return tokens


def require_same_run(world: World, model: Any, task: Task, training: Training, about: Mapping[str, Any]) -> None:
    """Refuse processes of other code, settings, weights or data before the first step."""
    world.require_same("code", f"{_code()} and torch {torch.__version__}")
    world.require_same("settings", repr(about))
    world.require_same("model", repr(description(model)))
    world.require_same("weights", _digest(model.state_dict()))
    example = task.example(training.seed, 0)
    world.require_same("data", _digest({"target": example.target, **_tensors(example.batch)}))


def _code() -> str:
    """What the files of this package are."""
    made = hashlib.sha256()
    for path in sorted(Path(__file__).resolve().parents[1].rglob("*.py")):
        made.update(path.read_bytes())
    return made.hexdigest()


def _tensors(batch: Batch) -> dict[str, Tensor]:
    return {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}


def _digest(tensors: Mapping[str, Tensor]) -> str:
    return digest([part for named in tensors.items() for part in named])
