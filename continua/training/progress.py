"""Progress of trainings and of other long work: a bar on a terminal, a line now and then elsewhere."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from continua.data.generation import ShareDone

SOON = 2.0  # seconds of silence before anything is shown of work that is no training


class Progress(NamedTuple):
    """Where a run is."""

    step: int
    steps: int
    loss: float
    scores: Mapping[str, float]
    note: str = ""


OnProgress = Callable[[Progress], None]


@runtime_checkable
class Closing(Protocol):
    """What is told of progress and has something to put away at the end."""

    def close(self) -> None:
        """Put it away."""
        ...


@dataclass
class Bar:
    """A bar with loss, speed and time left."""

    every: float = 10.0  # seconds between lines where there is no terminal
    _bar: Any = None
    _task: Any = None
    _first: tuple[int, float] | None = None
    _last: float = 0.0
    _scores: dict[str, float] = field(default_factory=dict)

    def __call__(self, at: Progress) -> None:
        """Show where the run is."""
        self._scores.update(at.scores)
        now = time.monotonic()
        if self._first is None:
            self._first = (at.step, now)
        first_step, first_time = self._first
        speed = (at.step - first_step) / (now - first_time) if now > first_time else 0.0
        said = f"loss {at.loss:.4f}" + "".join(f"  {name} {value:.4f}" for name, value in self._scores.items())
        if sys.stderr.isatty():
            self._draw(at, f"{said}  {speed:.1f} steps/s")
        elif at.note or now - self._last >= self.every or at.step == at.steps:
            self._last = now
            left = f", {(at.steps - at.step) / speed:.0f} s left" if speed else ""
            sys.stderr.write(f"step {at.step}/{at.steps}  {said}  {speed:.1f} steps/s{left}  {at.note}".rstrip() + "\n")

    def _draw(self, at: Progress, said: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Drawn

        if self._bar is None:
            columns = (
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            self._bar = Drawn(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(said, total=at.steps)
        self._bar.update(self._task, completed=at.step, description=said)
        if at.note:
            self._bar.console.print(at.note)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@contextmanager
def share_bar(what: str) -> Iterator[ShareDone]:
    """Yield a function that is told which share is done; on a terminal a bar, elsewhere a line every ten seconds."""
    from rich.console import Console
    from rich.progress import Progress

    begun = said = time.monotonic()
    terminal = sys.stderr.isatty()
    drawn = Progress(console=Console(stderr=True), transient=True) if terminal else None
    task = None

    def tell(share: float) -> None:
        nonlocal said, task
        now = time.monotonic()
        if now - begun < SOON:
            return
        if drawn is not None:
            if task is None:
                drawn.start()
                task = drawn.add_task(what, total=1.0)
            drawn.update(task, completed=share)
        elif now - said >= 10.0:
            said = now
            sys.stderr.write(f"{what}: {100 * share:.0f} %\n")

    try:
        yield tell
    finally:
        if drawn is not None and task is not None:
            drawn.stop()


def wrong(terms: Mapping[str, float]) -> float:
    """What a step got wrong: the loss, or what the lessons of other sizes did where the native one has none to learn.

    >>> wrong({"loss": 0.0, "elastic": 0.25})
    0.25
    """
    loss = terms.get("loss", math.nan)
    return terms.get("elastic", loss) if loss == 0.0 else loss
