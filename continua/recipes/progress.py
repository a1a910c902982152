"""A bar for work that takes a while and is no training: generating data, predicting."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SOON = 2.0  # seconds of silence, before anything is shown


@contextmanager
def bar(what: str) -> Iterator[Callable[[float], None]]:
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
