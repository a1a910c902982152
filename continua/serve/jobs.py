"""What is asked of the engine, and what it says: one job a text."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from continua.models import Greedy, Sampling
from continua.typing import Tensor


@dataclass(frozen=True)
class Ask:
    """A text to write: the prompt, how much, how, by when (``latency`` in seconds) and at which size."""

    ids: tuple[int, ...]
    tokens: int
    sampling: Sampling = Greedy()  # noqa: RUF009  (frozen)
    stop: frozenset[int] = frozenset()
    seed: int | None = None
    latency: float | None = None
    size: str | None = None  # the name of a size of the table


@dataclass(frozen=True)
class Said:
    """News of a job: a token, or the end of it (``finish`` is stop, length, cancelled, late or failed)."""

    token: int | None = None
    finish: str | None = None
    problem: str = ""


@dataclass(eq=False)
class Job:
    """An ask under way. The engine writes ``new``; ``tell`` is called from its thread, with tokens if ``streams``."""

    ask: Ask
    tell: Callable[[Said], None]
    streams: bool = False
    arrived: float = field(default_factory=time.monotonic)
    new: list[int] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  # tokens that each size wrote
    size: str = ""  # the one whose keys it has
    slot: int = -1
    finish: str | None = None
    began: float | None = None
    ended: float | None = None
    seen: Tensor | None = None
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _generator: torch.Generator | None = None

    @property
    def deadline(self) -> float:
        """When it has to be done, in seconds of ``time.monotonic``."""
        return math.inf if self.ask.latency is None else self.arrived + self.ask.latency

    @property
    def left(self) -> int:
        """How many tokens it may still write."""
        return self.ask.tokens - len(self.new)

    @property
    def length(self) -> int:
        """Tokens so far, the prompt among them."""
        return len(self.ask.ids) + len(self.new)

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Nobody waits any more; the engine drops it before the next token."""
        self._cancelled.set()

    @property
    def main_size(self) -> str:
        """The size that wrote most of it."""
        return max(self.sizes, key=lambda name: self.sizes[name], default=self.size)

    def generator(self) -> torch.Generator:
        """Its own draws: a text does not depend on what else is in the batch."""
        if self._generator is None:
            self._generator = torch.Generator()
            if self.ask.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(self.ask.seed)
        return self._generator

    def take(self, token: int, size: str) -> None:
        """One token more."""
        self.new.append(token)
        self.sizes[size] = self.sizes.get(size, 0) + 1
        if self.seen is not None:
            self.seen[0, token] = True
        if token in self.ask.stop:
            self.finish = "stop"
        elif self.left == 0:
            self.finish = "length"
        if self.streams or self.finish is not None:
            self.tell(Said(token, self.finish))

    def end(self, finish: str, problem: str = "") -> None:
        """Say that it is over without another token."""
        self.finish = finish
        self.tell(Said(None, finish, problem))
