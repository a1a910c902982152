"""Learning maps between fields that no memory holds."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from continua.axes import Sharded
from continua.data.field_files import FieldFiles, Paths
from continua.data.shuffling import shuffled
from continua.errors import ConfigError
from continua.models import Batch
from continua.tasks.functions import Functions
from continua.tasks.task import Example, Score
from continua.typing import Tensor

LOOKED_AT = 64  # windows that say how wide inputs and outputs are


@dataclass(frozen=True, eq=False)
class StoredFunctions:
    """Windows of field files: from a field to the one ``lag`` times later.

    In an epoch each window is met once, in an order that the seed decides; which ones a step meets is a function of
    (seed, step). Ranks share the rows of a step, so no two meet the same window. Losses are those of ``Functions``;
    ``limit`` windows of held-out paths are measured on.
    """

    source: FieldFiles
    lag: int = 1
    batch: int = 20
    order: int = 1
    limit: int = 200

    def __post_init__(self) -> None:
        times = self.source.kind.times
        if not 0 < self.lag < times:
            got = f"lag={self.lag} in paths of {times} times"
            remedy = f"Use a lag from 1 to {times - 1}." if times > 1 else "Build paths of two times or more."
            raise ConfigError("a window fits into a path", got=got, remedy=remedy)
        count = self.source.train.windows(self.lag)
        if not 0 < self.batch <= count:
            raise ConfigError(f"there are {count} windows", got=self.batch, remedy="Use a smaller batch.")

    @cached_property
    def functions(self) -> Functions:
        """A few windows to learn from and those that are measured on, in memory: what losses are taken with."""
        few = self.source.pairs(self.source.train, self._spread(self.source.train, LOOKED_AT), self.lag)
        held = self.source.pairs(self.source.held_out, self._spread(self.source.held_out, self.limit), self.lag)
        return Functions(few, held, batch=1, order=self.order)

    def _spread(self, paths: Paths, limit: int) -> NDArray[Any]:
        """At most ``limit`` windows, as far apart as they can be."""
        count = paths.windows(self.lag)
        return np.unique(np.linspace(0, count - 1, min(limit, count)).astype(np.int64))

    def numbers(self, seed: int, step: int) -> NDArray[Any]:
        """Which windows a step meets."""
        count = self.source.train.windows(self.lag)
        found = []
        for sample in range(step * self.batch, (step + 1) * self.batch):
            epoch, place = divmod(sample, count)
            found.append(shuffled(np.array([place]), count, "fields", seed, epoch)[0])
        return np.array(found)

    def example(self, seed: int, step: int) -> Example:
        """The windows of a step."""
        inputs, outputs = self.source.train.read(self.numbers(seed, step), self.lag)
        target = outputs.to(torch.float32).flatten(1, -2)
        batch = Batch(inputs.to(torch.float32).flatten(1, -2), grid=self.functions.train.grid)
        return Example(batch, target, torch.ones(len(target), dtype=torch.bool))

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        """The sum over samples of the relative distance."""
        return self.functions.loss(answer, example)

    def loss_of_parts(self, answer: Tensor, example: Example, tokens: Sharded) -> Tensor | None:
        """The same from a part of the nodes, where no slopes are asked for."""
        return self.functions.loss_of_parts(answer, example, tokens)

    def coarsened(self, example: Example, count: int) -> Example:
        """The same fields at every k-th node."""
        return self.functions.coarsened(example, count)

    def evaluate(self, model: Any) -> Score:
        """Mean relative L² distance of held-out windows."""
        return self.functions.evaluate(model)

    def imitation(self, answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
        """The same distance to what another size answers."""
        return self.functions.imitation(answer, teacher, example)
