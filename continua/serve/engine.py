"""Continuous batching: texts join and leave between tokens, and the size of the next token follows the slack.

One thread owns the model. Between two tokens it takes in what came, drops what nobody waits for, chooses a size for the
texts that did not name one, and writes one token of each.
"""

import bisect
import heapq
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from continua.axes import Discretisation
from continua.models import Greedy
from continua.serve.choice import Lately, Load, Pace, by_slack
from continua.serve.decoder import Decoder
from continua.serve.front import Front, SizeCost
from continua.serve.jobs import Job
from continua.serve.metrics import Metrics
from continua.typing import Tensor

PATIENT = 60.0  # seconds after which a text without a deadline counts as urgent as those with one
PINNED = 16  # sizes that texts may name beside those of the table: each holds its weights
DOWN = 0.5  # seconds between changes to a quicker family of sizes
UP = 3.0  # and to a better one
TOGETHER = 0.5  # of the time in which texts are read one by one: so long they take together
HOPE = 0.9  # of the time that a text is expected to take: below that it is given up
SURE = 1.15  # of the same: below that it is not even begun
JOIN = 1.05  # of what is left of those under way: where that is too long, nobody joins them
LATE = "no size is quick enough any more"
IDLE = 0.5  # seconds between looks at the clock when nothing is asked


@dataclass(frozen=True)
class Limits:
    """How many texts are written at once and how many may wait."""

    batch: int = 32
    queue: int = 256


class Full(Exception):
    """No place in the queue; ``seconds`` is when there may be one."""

    def __init__(self, seconds: float) -> None:
        super().__init__("the queue is full")
        self.seconds = seconds


class Engine:
    """Writes texts. ``choose`` picks the size of those that name none: by slack, or always the same one.

    ``start`` lets a thread do so; who has a ``clock`` of their own can also ask for one ``round`` after the other.
    """

    def __init__(
        self,
        decoder: Decoder,
        front: Front,
        limits: Limits,
        metrics: Metrics,
        choose: "Callable[[Front, Load], SizeCost] | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.decoder = decoder
        self.front = front
        self.limits = limits
        self.metrics = metrics
        self.choose = by_slack if choose is None else choose
        self.active: list[Job] = []
        self._waiting: list[Job] = []
        self._pinned: dict[str, SizeCost] = {}
        self._free = [*range(decoder.samples)]  # a heap: texts in a row are read without copies
        self._news = threading.Condition()
        self._stops = False
        self._drains = True
        self._size: SizeCost = front.native
        self._next: list[Job] = []  # the most urgent of those that wait
        self._lately = Lately()
        self.pace = Pace()
        self._families: dict[str, tuple[Any, ...]] = {}  # by the names of sizes
        self._changed = -math.inf  # when texts were last read again for another size
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # --- called from other threads ------------------------------------------------------------------------------------

    def start(self) -> "Engine":
        """Begin to work."""
        self._thread.start()
        return self

    def submit(self, job: Job) -> None:
        """Put a job into the queue, or raise ``Full``."""
        with self._news:
            if self._stops or len(self._waiting) >= self.limits.queue:
                raise Full(self._relief())
            self._waiting.append(job)
            self._lately.add(job)
            self.metrics.waiting = len(self._waiting)
            self._news.notify()

    def stop(self, drain: bool = True, timeout: float = 30.0) -> None:
        """End: after what is under way (``drain``), or at once."""
        with self._news:
            self._stops = True
            self._drains = drain
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    @property
    def is_alive(self) -> bool:
        """Whether it works."""
        return self._thread.is_alive() and not self._stops

    def _relief(self) -> float:
        """Seconds until about one text is done."""
        tokens = sum(job.left for job in self.active) / max(1, len(self.active))
        return max(1.0, tokens * self.front.fastest.seconds(max(1, len(self.active))))

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._goes_on():
            try:
                self.round()
            except Exception as problem:  # one bad batch must not end the server
                self.metrics.failures += 1
                for job in self.active:
                    job.end("failed", f"{type(problem).__name__}: {problem}")
                    self._release(job)
                self.active = []
        for job in [*self.active, *self._waiting]:
            job.end("failed", "the server stops")

    def _goes_on(self) -> bool:
        """Wait for work; False when all is done that is to be done."""
        with self._news:
            while not self._waiting and not self.active:
                if self._stops:
                    return False
                self._news.wait(IDLE)
            return not self._stops or self._drains

    def round(self) -> None:
        """One token of every text."""
        began = self.clock()
        self.pace.forget(began)
        self._let_go()
        self._admit()
        if not self.active:
            return
        self._close_gaps()
        self._choose(self.clock())
        groups: dict[str, list[Job]] = {}
        for job in self.active:
            groups.setdefault(job.ask.size or self._size.name, []).append(job)
        expected = sum(self.size(name).seconds(len(jobs)) for name, jobs in groups.items())
        again = self.metrics.reread
        for name, jobs in groups.items():
            jobs.sort(key=lambda job: job.slot)
            self._write(self.size(name), jobs)
        self._let_go()
        if again == self.metrics.reread and groups.keys().isdisjoint(self._pinned):  # those are not timed
            self.pace.learn((self.clock() - began) / expected)

    def _choose(self, now: float) -> None:
        """The size of the texts that named none."""
        free = [job for job in self.active if job.ask.size is None]
        if free:
            demand = self._lately.demand(now)
            again = self._reading_again(free)
            load = Load(free, self._next, now, self.pace.value, self.limits.batch, demand, again)
            self._size = self._settled(self.choose(self.front, load), free, now)

    def _reading_again(self, jobs: Sequence[Job]) -> dict[str, float]:
        """Seconds in which texts that have keys of another family are read again, for each size."""
        lengths: dict[tuple[Any, ...], int] = {}
        for job in jobs:
            if job.size:
                family = self._family(job.size)
                lengths[family] = lengths.get(family, 0) + job.length
        total = sum(lengths.values())
        return {
            size.name: TOGETHER * size.reading * (total - lengths.get(self._family(size.name), 0))
            for size in self.front.sizes
        }

    def size(self, name: str) -> SizeCost:
        """A size of the table, or one that somebody named."""
        return self._pinned[name] if name in self._pinned else self.front[name]

    def pin(self, name: str, at: Discretisation, loss: float | None = None) -> bool:
        """Let texts name a size that is not in the table; False where too many others were named before.

        It is not timed: until it is, it counts as quick as the native one.
        """
        if name in self.front or name in self._pinned:
            return True
        if len(self._pinned) >= PINNED:
            return False
        self._pinned[name] = replace(self.front.native, name=name, at=at, loss=loss)
        return True

    def _settled(self, wish: SizeCost, jobs: Sequence[Job], now: float) -> SizeCost:
        """The size that is wished for, unless texts would be read again too often.

        Another family costs a pass over every text. So a quicker one is taken half a second after the last change, a
        better one after three and where nobody waits.
        """
        present = self._size
        family = self._family(wish.name)
        if all(not job.size or self._family(job.size) == family for job in jobs):
            return wish
        is_quicker = wish.seconds(len(jobs)) < present.seconds(len(jobs))
        if now - self._changed < (DOWN if is_quicker else UP) or (self._next and not is_quicker):
            return present
        self._changed = now
        return wish

    def _family(self, name: str) -> tuple[Any, ...]:
        """What decides the keys of a size; once for each, since it is asked at every token."""
        if name not in self._families:
            self._families[name] = self.decoder.family(self.size(name).at)
        return self._families[name]

    def _let_go(self) -> None:
        """Drop what is done, what nobody waits for, and what cannot be in time any more."""
        kept = []
        now = self.clock()
        for job in self.active:
            if job.is_cancelled and job.finish is None:
                job.end("cancelled")
            if job.finish is None and self._is_late(job, now):
                job.end("late", LATE)
            if job.finish is None:
                kept.append(job)
            else:
                self._release(job)
        self.active = kept
        self.metrics.active = len(kept)

    def _release(self, job: Job) -> None:
        job.ended = self.clock()
        if job.slot >= 0:
            heapq.heappush(self._free, job.slot)
            job.slot = -1
        self.metrics.finished(job, self.front)

    def _admit(self) -> None:
        """Take the most urgent ones in; what can no longer be in time gives its place to others."""
        with self._news:
            waiting = [job for job in self._waiting if not job.is_cancelled]
            gone = [job for job in self._waiting if job.is_cancelled]
            waiting.sort(key=_urgency)
            room = min(self.limits.batch - len(self.active), len(self._free))
            now = self.clock()
            late = [job for job in waiting if self._is_late(job, now)]
            hopeful = [job for job in waiting if job not in late] if late else waiting
            taken = hopeful[: self._room_among(hopeful[: max(0, room)], now)]
            self._waiting = hopeful[len(taken) :]
            self._next = self._waiting[: self.limits.batch]
            self.metrics.waiting = len(self._waiting)
        for job in gone:
            job.end("cancelled")
            self._release(job)
        for job in late:
            job.end("late", LATE)
            self._release(job)
        for job in taken:
            job.slot = heapq.heappop(self._free)
            job.began = now
            self.active.append(job)

    def _close_gaps(self) -> None:
        """Move the last texts into slots that others left: those in a row are read without copies."""
        self.active.sort(key=lambda job: job.slot)
        while self.active[-1].slot >= len(self.active):
            job = self.active.pop()
            slot = heapq.heappop(self._free)
            if job.size:
                self.decoder.move(self.size(job.size).at, job.slot, slot, job.length)
            heapq.heappush(self._free, job.slot)
            job.slot = slot
            bisect.insort(self.active, job, key=lambda each: each.slot)

    def _room_among(self, coming: Sequence[Job], now: float) -> int:
        """How many of those that wait can join so that all who are being written stay in time."""
        there = [job for job in self.active if not math.isinf(job.deadline)]
        reading = 0.0
        for count, job in enumerate(coming):
            samples = len(self.active) + count + 1
            reading += self._quickest(job, len(job.ask.ids), 0, samples)
            for own in there:
                takes = reading + self._quickest(own, 0, own.left, samples)
                if now + JOIN * self.pace.value * takes > own.deadline:
                    return count
        return len(coming)

    def _quickest(self, job: Job, reading: int, tokens: int, samples: int) -> float:
        """Seconds of a text among others, at the quickest size that it may have."""
        size = self.front.quickest(samples) if job.ask.size is None else self.size(job.ask.size)
        return size.whole(reading, tokens, samples)

    def _is_late(self, job: Job, now: float) -> bool:
        """Whether even the quickest size, among the others and at the pace of the machine, comes too late."""
        if math.isinf(job.deadline):
            return False
        is_begun = job.slot >= 0
        waiting = 0 if is_begun else max(1, len(self._waiting))  # they will be written together
        samples = min(self.limits.batch, max(1, len(self.active) + waiting))
        reading = 0 if job.new else len(job.ask.ids)
        quickest = self._quickest(job, reading, job.left, samples)
        return now + (HOPE if is_begun else SURE) * self.pace.value * quickest > job.deadline

    def _write(self, size: SizeCost, jobs: list[Job]) -> None:
        """One token of each: those whose keys are of another family, or of none, are read first."""
        family = self._family(size.name)
        fresh = [job for job in jobs if not job.size or self._family(job.size) != family]
        going = [job for job in jobs if job not in fresh] if fresh else jobs
        start = self.clock()
        self.metrics.reread += sum(1 for job in fresh if job.size)  # before anybody hears that a text is done
        self.metrics.switched += sum(1 for job in jobs if job.size and job.size != size.name)
        if fresh:
            texts = [[*job.ask.ids, *job.new] for job in fresh]
            self._take(fresh, self.decoder.begin(size.at, texts, [job.slot for job in fresh]), size)
        if going:
            last = [job.new[-1] for job in going]
            lengths = [job.length - 1 for job in going]
            self._take(going, self.decoder.step(size.at, last, lengths, [job.slot for job in going]), size)
        for job in jobs:
            job.size = size.name
        self.metrics.stepped(size.name, len(jobs), self.clock() - start)

    def _take(self, jobs: Sequence[Job], logits: Tensor, size: SizeCost) -> None:
        """Choose a token of each."""
        if all(job.ask.sampling == _GREEDY for job in jobs):
            for job, token in zip(jobs, logits.argmax(-1).tolist(), strict=True):
                job.take(token, size.name)
            return
        for row, job in zip(logits, jobs, strict=True):
            if job.ask.sampling.repetition_penalty != 1.0 and job.seen is None:
                job.seen = torch.zeros(1, len(row), dtype=torch.bool, device=row.device)
                job.seen[0, torch.tensor([*job.ask.ids, *job.new], device=row.device)] = True
            token = job.ask.sampling.choose(row[None].cpu(), job.seen, job.generator())
            job.take(int(token), size.name)


_GREEDY = Greedy()


def _urgency(job: Job) -> float:
    return job.arrived + PATIENT if math.isinf(job.deadline) else job.deadline
