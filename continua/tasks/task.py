"""What a task is: examples as a function of (seed, step), a loss, and a measure on held-out data."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn

from continua.axes import Grid, Sharded
from continua.data.generation import generator_for
from continua.errors import ConfigError
from continua.models import Batch, View
from continua.typing import Tensor

__all__ = ["Coarsens", "Example", "Score", "Task", "device_of", "divergence", "generator_for"]


@dataclass(frozen=True)
class Example:
    """A batch and what is to be answered; ``counted`` marks the answers that count (all, if None)."""

    batch: Batch
    target: Tensor
    counted: Tensor | None = None

    @property
    def samples(self) -> int:
        """How many samples."""
        return len(self.target)

    @property
    def count(self) -> int:
        """How many answers count: losses are averaged over these, whoever computes them."""
        return int(self.counted.sum()) if self.counted is not None else self._answers()

    def _answers(self) -> int:
        return self.target.numel()

    def rows(self, part: slice) -> "Example":
        """Some of the samples: the share of one process, or one micro-batch."""
        if part.indices(self.samples) == (0, self.samples, 1):
            return self
        batch = _rows(self.batch, part, self.samples)
        return Example(batch, self.target[part], None if self.counted is None else self.counted[part])

    def first(self, tokens: int) -> "Example":
        """The same sequences up to a number of tokens: a shorter context."""
        values = self.batch.values
        plain = replace(self.batch, values=None) == Batch()
        if not plain or not isinstance(values, Tensor) or self.target.shape[:2] != values.shape[:2]:
            remedy = "Leave t out where tokens have stamps, a source, or share an answer."
            got = f"answers {list(self.target.shape)}"
            raise ConfigError("only bare sequences with an answer at each token are cut", got=got, remedy=remedy)
        counted = None if self.counted is None else self.counted[:, :tokens]
        return Example(replace(self.batch, values=values[:, :tokens]), self.target[:, :tokens], counted)

    def to(self, device: torch.device) -> "Example":
        """The same example on another device."""

        def move(value: Any) -> Any:
            if isinstance(value, Batch):
                return replace(value, **{f.name: move(getattr(value, f.name)) for f in fields(value)})
            if isinstance(value, Grid):
                return value.to(torch.empty((), dtype=value.weights.dtype, device=device))
            return value.to(device) if isinstance(value, Tensor) else value

        return Example(move(self.batch), self.target.to(device), move(self.counted))


def _rows(batch: Batch, part: slice, samples: int) -> Batch:
    """Some samples of a batch. Stamps, flags and pairs that all samples share stay whole, however many there are."""
    tokens = batch.values.shape[1] if isinstance(batch.values, Tensor) else None

    def own(name: str, value: Tensor) -> bool:
        """Whether each sample has its own entry: by the number of dimensions, since t may be as large as b."""
        shared = {"times": 1 if value.dim() == 2 and value.shape[1] == tokens else 2, "observed": 1, "types": 1}
        return len(value) == samples and value.dim() > {**shared, "pairs": 2, "cross_pairs": 2}.get(name, 0)

    changed: dict[str, Any] = {}
    for name, value in ((f.name, getattr(batch, f.name)) for f in fields(batch)):
        if isinstance(value, Batch):
            changed[name] = _rows(value, part, samples)
        elif isinstance(value, Grid):
            cut: dict[str, Any] = {
                k: _grid_rows(getattr(value, k), part, samples, k) for k in ("nodes", "weights", "left")
            }
            changed[name] = replace(value, **cut)
        elif isinstance(value, Tensor) and value.dim() > 0 and own(name, value):
            changed[name] = value[part]
    return replace(batch, **changed)


def _grid_rows(value: Tensor | None, part: slice, samples: int, name: str) -> Tensor | None:
    """Nodes [b, n, k] and weights [b, n] of each sample; those without the leading dimension are everybody's."""
    if value is None or value.dim() == (2 if name == "nodes" else 1) or len(value) != samples:
        return value
    return value[part]


class Score(NamedTuple):
    """What an evaluation says: named numbers, the first of which is to be made small."""

    values: Mapping[str, float]

    @property
    def main(self) -> float:
        """The number that decides which checkpoint is best."""
        return next(iter(self.values.values()))


@runtime_checkable
class Task(Protocol):
    """Data, loss and metric. Examples are a function of (seed, step): a resumed run meets the same ones."""

    def example(self, seed: int, step: int) -> Example:
        """The training batch of a step, whole: every process draws the same and takes its rows."""
        ...

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        """The sum of the losses of the answers that count."""
        ...

    def evaluate(self, model: Any) -> Score:
        """Measure a model, or a view of one, on held-out data."""
        ...


@runtime_checkable
class SumsOverTokens(Protocol):
    """A task whose loss is a sum over tokens, those with the target −100 left out: parts of it add up."""

    sums_over_tokens: ClassVar[bool]


@runtime_checkable
class SumsInLoss(Protocol):
    """A task whose loss is made of sums over the tokens of a sample: in parts these are one sum over the processes."""

    def loss_of_parts(self, answer: Tensor, example: Example, tokens: Sharded) -> Tensor | None:
        """The whole loss, on every process, from the own answers; None where it needs all of them."""
        ...


@runtime_checkable
class Coarsens(Protocol):
    """A task whose examples have coarser ones: training may begin on these."""

    def coarsened(self, example: Example, count: int) -> Example:
        """The same example on ``count`` nodes along each direction of t; refuses what it cannot be thinned to."""
        ...


def device_of(model: nn.Module | View) -> torch.device:
    """Where the weights of a model are, or those of the model behind a view."""
    module: nn.Module = model.model if isinstance(model, View) else model
    return next(module.parameters()).device


def divergence(answer: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher ‖ answer) = Σ p log(p/q) of the classes in the last dimension, where both are logits."""
    exact = torch.promote_types(answer.dtype, torch.float32)
    p, q = (torch.log_softmax(logits.to(exact), -1) for logits in (teacher, answer))
    return (p.exp() * (p - q)).sum(-1)
