"""Which size writes the next token: the best one that keeps up with what is asked, and with the most urgent text."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from continua.serve.front import Front, SizeCost
from continua.serve.jobs import Job

STEADY = 1.0  # share of the time that what is asked lately may take; heaps are what slack is for
CHANGE = 0.75  # the same for a size to which texts would have to be read again: it should last
CAREFUL = 0.85  # share of the slack that a plan may use: times are not the same twice
FADES = 1 / 3  # of the time that a text has: so long what it asked counts
SHORTEST = 1.0  # seconds, at least
REMEMBERED = 512  # texts
LEARNS = 0.1  # share of the last round in the pace
FORGETS = 2.0  # seconds in which the pace falls back to that of the table


@dataclass(frozen=True)
class Demand:
    """What was asked lately by texts with a deadline: tokens to read and to write a second."""

    reading: float = 0.0
    writing: float = 0.0


class Lately:
    """Counts what is asked: a text fades in a third of the time that it has, in a second at least."""

    def __init__(self) -> None:
        self._texts: deque[tuple[float, float, int, int]] = deque(maxlen=REMEMBERED)

    def add(self, job: Job) -> None:
        """A text came."""
        if job.ask.latency is not None and job.ask.size is None:
            fades = max(SHORTEST, FADES * job.ask.latency)
            self._texts.append((job.arrived, fades, len(job.ask.ids), job.ask.tokens))

    def demand(self, now: float) -> Demand:
        """Tokens a second."""
        reading = 0.0
        writing = 0.0
        for arrived, fades, read, written in [*self._texts]:
            weight = math.exp((arrived - now) / fades) / fades
            reading += weight * read
            writing += weight * written
        return Demand(reading, writing)


class Pace:
    """How many times longer a round takes just now than its passes took when they were measured."""

    def __init__(self) -> None:
        self.value = 1.0
        self._looked = -math.inf

    def learn(self, ratio: float) -> None:
        """Move towards what was seen, in proportion: one round that was stopped does not say much."""
        self.value = max(1.0, self.value * (ratio / self.value) ** LEARNS)

    def forget(self, now: float) -> None:
        """What was seen long ago says little: else a server that gives all texts up would never see another pace."""
        self.value = 1.0 + (self.value - 1.0) * math.exp((self._looked - now) / FORGETS)
        self._looked = now


@dataclass(frozen=True)
class Load:
    """What a size is chosen for: the texts that are written together, the most urgent ones that wait, the time, how
    many times longer passes take just now than when they were measured, how many texts can be written at once, and
    what was asked lately."""

    jobs: Sequence[Job]
    waiting: Sequence[Job]
    now: float
    pace: float
    places: int = 1
    demand: Demand = Demand()
    again: Mapping[str, float] = field(default_factory=dict)  # seconds in which a change to a size reads texts again


def by_slack(front: Front, load: Load) -> SizeCost:
    """The best size that keeps up with what is asked, and with which the most urgent text is in time.

    A text that waits takes the next place that is free: it needs the tokens of the one before it too. Where a change
    reads texts again, that time is theirs too, and the size should keep up for a while.
    """
    samples = len(load.jobs)
    place = _steady(front, load)
    left = sorted(job.left for job in load.jobs)
    for job in load.jobs:
        reading = 0 if job.size else len(job.ask.ids)
        place = _at_least(place, front, load, job.deadline, Work(reading, job.left, samples))
    for i, job in enumerate(load.waiting):
        before = left[i] if i < len(left) else left[-1]
        place = _at_least(place, front, load, job.deadline, Work(len(job.ask.ids), before + job.left, samples))
    return front.sizes[place]


@dataclass(frozen=True)
class Work:
    """Tokens to read, and to write among so many texts."""

    reading: int
    writing: int
    samples: int


def _steady(front: Front, load: Load) -> int:
    """Where the best size that keeps up stands in the front; the last where none does."""
    asked = load.demand
    if not asked.writing:
        return 0
    for place, size in enumerate(front.sizes):
        busy = asked.reading * size.reading + asked.writing * size.seconds(load.places) / load.places
        is_change = load.again.get(size.name, 0.0) > 0.0
        if busy * load.pace <= (CHANGE if is_change else STEADY):
            return place
    return len(front.sizes) - 1


def _at_least(place: int, front: Front, load: Load, deadline: float, work: Work) -> int:
    """The place in the front, or the next one with which a text is in time; the quickest where none is."""
    slack = (deadline - load.now) / load.pace
    if math.isinf(slack):
        return place
    needed: list[float] = []
    for size in front.sizes[place:]:
        needed.append(size.whole(work.reading, work.writing, work.samples) + load.again.get(size.name, 0.0))
        if needed[-1] <= CAREFUL * slack:
            return place + len(needed) - 1
    return place + needed.index(min(needed))


def always_native(front: Front, load: Load) -> SizeCost:
    """The native size, whatever the load: what the choice by slack is compared with."""
    return front.native
