"""Language modelling on token files that no memory holds."""

from dataclasses import dataclass, field

import numpy as np
import torch

from continua.data.shuffling import PERIOD, mixed_block, shares, shuffled
from continua.data.token_files import TokenFiles, Tokens
from continua.data.tokens import Tokeniser
from continua.errors import ConfigError
from continua.models import Batch
from continua.tasks.task import Example
from continua.tasks.text import NextToken, require_longer, spread_windows
from continua.typing import Tensor


@dataclass(frozen=True)
class StoredText(NextToken):
    """Windows of token files, shuffled: in an epoch each is met once, and which ones a step meets is a function of
    (seed, step). Ranks share the rows of a step, so no two meet the same window.

    Several ``sources`` are mixed by ``weights``, which hold over every 1,024 windows; a small source begins its next
    epoch while a large one is still in its first. Each epoch cuts the text at other places.
    """

    sources: tuple[TokenFiles, ...]
    weights: tuple[float, ...] = (1.0,)
    context: int = 128
    batch: int = 16
    limit: int | None = 512
    tokens: Tokeniser = field(init=False)

    def __post_init__(self) -> None:
        wrong = len(self.weights) != len(self.sources) or any(not 0.0 < weight < 1e9 for weight in self.weights)
        if not self.sources or wrong:
            got = f"{len(self.sources)} sources and the weights {self.weights}"
            raise ConfigError("a mixture has a weight for each source", got=got, remedy="Give one > 0 for each.")
        object.__setattr__(self, "tokens", self.sources[0].tokeniser)
        for source in self.sources:
            if source.tokeniser != self.tokens:
                remedy = "Build it with the tokeniser of the first: --tokenizer FOLDER."
                raise ConfigError("a mixture has one tokeniser", got=str(source.folder), remedy=remedy)
            require_longer(f"text of {source.folder}", len(source.train), 2 * self.context)
            require_longer(f"held-out text of {source.folder}", len(source.held_out), self.context)

    def example(self, seed: int, step: int) -> Example:
        """The windows of a step; each token's target is the one behind it."""
        rows = [self._window(seed, step * self.batch + row) for row in range(self.batch)]
        ids = torch.cat(rows)
        return Example(Batch(ids[:, :-1]), ids[:, 1:])

    def _window(self, seed: int, sample: int) -> Tensor:
        if len(self.sources) == 1:
            return self._of(0, seed, sample)
        block, place = divmod(sample, PERIOD)
        counts = shares(self.weights)
        sources, before = mixed_block(counts, seed, block)
        source = int(sources[place])
        return self._of(source, seed, block * counts[source] + int(before[place]))

    def _of(self, which: int, seed: int, sample: int) -> Tensor:
        """The sample-th window of a source."""
        train: Tokens = self.sources[which].train
        count = (len(train) - self.context) // self.context
        epoch, place = divmod(sample, count)
        offset = int(shuffled(np.zeros(1), self.context, "offset", seed, which, epoch)[0])
        window = int(shuffled(np.array([place]), count, "window", seed, which, epoch)[0])
        return train.windows([offset + window * self.context], self.context + 1)

    def held_out_windows(self) -> Tensor:
        """Windows of what is held out of each source, by its weight."""
        found = []
        for source, weight in zip(self.sources, self.weights, strict=True):
            limit = None if self.limit is None else max(1, round(self.limit * weight / sum(self.weights)))
            held: Tokens = source.held_out
            found.append(held.windows(spread_windows(len(held), self.context, limit), self.context + 1))
        return torch.cat(found)
