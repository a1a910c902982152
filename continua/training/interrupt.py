"""Ctrl-C and SIGTERM between steps, not in the middle of one: what is saved then is a whole step."""

import signal
import threading
from types import FrameType
from typing import Any

ASKING = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While entered, the first SIGINT or SIGTERM asks to stop after the step; a second one stops at once.

    Outside the main thread, where Python lets nobody handle signals, it changes nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in ASKING}
        return self

    def __exit__(self, *problem: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
