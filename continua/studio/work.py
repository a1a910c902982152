"""Fits that the page starts: the command of the command line, in a process of its own, one at a time."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from continua.errors import ConfigError, nearest
from continua.recipes import SHIPPED
from continua.recipes.listing import settings_listed

MOST_SETTINGS = 32
GRACE = 30.0  # seconds that a fit has to save itself
TAIL = 2000  # characters of what it said last
WIDTH = "100"


@dataclass
class Process:
    """A command that runs, the run it works on, and what it says."""

    run: Path
    words: tuple[str, ...]
    child: subprocess.Popen[bytes]
    said: IO[bytes]

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self.child.poll()

    def close(self) -> None:
        """Forget what it said, when it is over."""
        self.said.close()

    def tail(self) -> str:
        """The end of what it said."""
        with contextlib.suppress(OSError, ValueError):
            size = self.said.seek(0, os.SEEK_END)
            self.said.seek(max(0, size - TAIL))
            return self.said.read().decode("utf-8", "replace").replace("\r", "\n").strip()
        return ""


@dataclass
class Work:
    """Starts and stops fits in a folder of runs."""

    folder: Path
    current: Process | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_busy(self) -> bool:
        """Whether a fit is running."""
        return self.current is not None and self.current.code is None

    def is_on(self, run: Path) -> bool:
        """Whether a fit is running on this run."""
        return self.is_busy and self.current is not None and self.current.run == run

    def start(self, recipe: str, settings: Mapping[str, Any]) -> Process:
        """``continua fit RECIPE --set …`` into a new folder, whose name is ours."""
        words = [recipe_of(recipe), *settings_of(recipe, settings)]
        with self._lock:
            self._refuse_second()
            place = self._free(recipe)
            return self._begin(place, ["fit", *words, "--folder", str(place)])

    def resume(self, run: Path) -> Process:
        """``continua fit --resume RUN``."""
        with self._lock:
            self._refuse_second()
            return self._begin(run, ["fit", "--resume", str(run)])

    def stop(self) -> bool:
        """Ask the fit to end: it saves itself, and can be resumed."""
        with self._lock:
            if not self.is_busy or self.current is None:
                return False
            self.current.child.send_signal(signal.SIGINT)
            return True

    def close(self) -> None:
        """End with the server; what runs saves itself first."""
        if self.current is None:
            return
        if self.stop():
            try:
                self.current.child.wait(GRACE)
            except subprocess.TimeoutExpired:
                self.current.child.kill()
        self.current.close()

    def _refuse_second(self) -> None:
        if self.is_busy and self.current is not None:
            remedy = "Stop it, or wait until it ends."
            raise ConfigError("one fit runs at a time", got=self.current.run.name, remedy=remedy)

    def _free(self, recipe: str) -> Path:
        number = 1
        while (place := self.folder / f"{recipe}-{number}").exists():
            number += 1
        return place

    def _begin(self, run: Path, words: Sequence[str]) -> Process:
        said = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the process)
        child = subprocess.Popen(
            [sys.executable, "-m", "continua", *words],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if self.current is not None:
            self.current.close()
        self.current = Process(run, tuple(words), child, said)
        return self.current


def recipe_of(name: str) -> str:
    """A shipped recipe; files are not run for a page."""
    if name not in SHIPPED:
        remedy = f"{nearest(name[:40], list(SHIPPED))} Others are started by continua fit."
        raise ConfigError("the page starts recipes that are shipped", got=name[:40], remedy=remedy)
    return name


def settings_of(recipe: str, settings: Mapping[str, Any]) -> list[str]:
    """Settings as the command takes them: known names, and numbers alone, so that none of them is a path."""
    known = {one.name for part in settings_listed(recipe) for one in part}
    if len(settings) > MOST_SETTINGS:
        got = len(settings)
        raise ConfigError(f"up to {MOST_SETTINGS} settings can be changed", got=got, remedy="Change fewer.")
    words = []
    for name, value in settings.items():
        if name not in known:
            raise ConfigError("the recipe has no such setting", got=name[:40], remedy=nearest(name[:40], sorted(known)))
        if not isinstance(value, int | float):
            remedy = "Give a number, or true or false; continua fit takes the others."
            raise ConfigError(f"the page sets numbers alone, {name} is none", got=type(value).__name__, remedy=remedy)
        words += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return words


def inspected(run: Path, patience: float = 300.0) -> str:
    """What ``continua inspect RUN`` prints."""
    surroundings = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    words = [sys.executable, "-m", "continua", "inspect", str(run)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=patience, check=False, env=surroundings, stdin=subprocess.DEVNULL
    )
    return (done.stdout or done.stderr).strip()
