"""Runs for the page: which there are, how they go, and how two of them differ. Folders are never named by a client."""

import asyncio
import hashlib
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from continua.errors import ConfigError
from continua.training import Run
from continua.training.run import METRICS
from continua.training.summaries import Summary, differences, is_busy, main_score, places, summary

MOST_RUNS = 200
MOST_POINTS = 2000  # of a curve
BEAT = 0.25  # seconds between two looks at a run
CHUNK = 1 << 20  # bytes that are read of a history at once


@dataclass(frozen=True)
class Line:
    """A run as the page lists it; ``id`` stands for its folder."""

    id: str
    name: str
    recipe: str
    done: int
    planned: int | None
    best: float | None
    last_loss: float | None
    changed: float
    state: str


@dataclass(frozen=True)
class Beat:
    """One step of a curve."""

    step: int
    loss: float | None
    held_out: float | None


@dataclass(frozen=True)
class Runs:
    """The runs of one folder, by numbers that are made here."""

    folder: Path

    def table(self) -> dict[str, Path]:
        """Every run by its number."""
        found = places(self.folder)[:MOST_RUNS] if self.folder.is_dir() else []
        return {hashlib.sha256(str(place).encode()).hexdigest()[:16]: place for place in found}

    def find(self, number: str) -> Path:
        """The folder of a number; there is none but those of the table."""
        place = self.table().get(number)
        if place is None:
            raise ConfigError("there is no such run", got=number[:20], remedy="Look at the list again.")
        return place

    def lines(self) -> list[Line]:
        """All of them, the newest first."""
        made = [self._line(number, summary(place)) for number, place in self.table().items()]
        return sorted(made, key=lambda line: -line.changed)

    def _line(self, number: str, own: Summary) -> Line:
        name = own.folder.name if own.folder == self.folder else own.folder.relative_to(self.folder).as_posix()
        return Line(number, name, own.recipe, own.done, own.planned, own.best, own.last_loss, own.changed, own.state)

    def describe(self, number: str) -> dict[str, Any]:
        """A run, its settings and its curve."""
        place = self.find(number)
        opened = Run.open(place)
        curve = thinned([beat for line in opened.history() if (beat := beat_of(line)) is not None])
        changes = opened.about.get("changes")
        return {
            "line": asdict(self._line(number, summary(place))),
            "changes": changes if isinstance(changes, dict) else {},
            "curve": [asdict(beat) for beat in curve],
        }

    def compare(self, first: str, second: str) -> dict[str, Any]:
        """What two runs say differently, and both."""
        opened = [Run.open(self.find(number)) for number in (first, second)]
        rows = differences(*(one.about for one in opened))
        shown = [[key, *("–" if value is None else str(value)[:80] for value in values)] for key, *values in rows]
        return {"differences": shown[:100], "runs": [self.describe(first), self.describe(second)]}


def beat_of(line: Mapping[str, Any]) -> Beat | None:
    """A line of a history as a step of a curve."""
    step = line.get("step")
    if "note" in line or not isinstance(step, int):
        return None
    loss = line.get("loss")
    known = isinstance(loss, int | float) and math.isfinite(loss)
    return Beat(step, float(loss) if known and loss is not None else None, main_score(line))


def thinned(beats: list[Beat]) -> list[Beat]:
    """Few enough to draw; steps with a held-out number stay."""
    stride = max(1, len(beats) // MOST_POINTS)
    return [beat for place, beat in enumerate(beats) if place % stride == 0 or beat.held_out is not None]


async def watched(place: Path, is_started: Callable[[], bool]) -> AsyncIterator[str]:
    """The history of a run as server-sent events, from its beginning and as it grows, until nobody trains it.

    ``is_started`` says whether a process of ours works on it, which may not have come to its first step.
    """
    read = 0
    rest = b""
    still = 0
    while True:
        busy = is_started() or await asyncio.to_thread(is_busy, place)
        more = await asyncio.to_thread(_read, place / METRICS, read)
        read += len(more)
        *lines, rest = (rest + more).split(b"\n")
        beats = thinned([beat for line in lines if (beat := _parsed(line)) is not None])
        if beats:
            yield event("beats", [asdict(beat) for beat in beats])
        if len(more) == CHUNK:
            continue
        if not busy:
            still += 1
            if still > 1:  # once more than it takes to write the last line
                yield event("end", {})
                return
        await asyncio.sleep(BEAT)
        if not beats and busy:
            yield ": still here\n\n"


def _read(path: Path, start: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(CHUNK)
    except OSError:
        return b""


def _parsed(line: bytes) -> Beat | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return beat_of(said) if isinstance(said, dict) else None


def event(kind: str, content: object) -> str:
    """One server-sent event."""
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n"
