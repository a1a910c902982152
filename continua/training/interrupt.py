"""Ctrl-C between steps, not in the middle of one: what is saved then is a whole step."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """While entered, the first SIGINT asks to stop after the step; a second one stops at once.

    Outside the main thread, where Python lets nobody handle signals, it changes nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *problem: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
