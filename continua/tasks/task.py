"""What a task is: examples as a function of (seed, step), a loss, and a measure on held-out data."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from continua.models import Batch
from continua.typing import Tensor


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

        def cut(value: Any) -> Any:
            if isinstance(value, Tensor) and value.dim() > 0 and len(value) == self.samples:
                return value[part]
            return replace(value, **_cut_fields(value)) if isinstance(value, Batch) else value

        def _cut_fields(batch: Batch) -> dict[str, Any]:
            return {f.name: cut(getattr(batch, f.name)) for f in fields(batch)}

        return Example(cut(self.batch), self.target[part], None if self.counted is None else self.counted[part])

    def to(self, device: torch.device) -> "Example":
        """The same example on another device."""

        def move(value: Any) -> Any:
            if isinstance(value, Batch):
                return replace(value, **{f.name: move(getattr(value, f.name)) for f in fields(value)})
            return value.to(device) if isinstance(value, Tensor) else value

        return Example(move(self.batch), self.target.to(device), move(self.counted))


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


def generator_for(*words: object) -> torch.Generator:
    """A generator seeded by a name: the same words give the same numbers on every machine."""
    digest = hashlib.sha256("/".join(map(str, words)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
