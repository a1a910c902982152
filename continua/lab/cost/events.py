"""Work on devices and links as events: who waits for whom, and when all of it is done.

A stream (a device, a link) does its works one after the other in the order in which they are given, as streams of GPUs
and queues of messages do; a work begins when its stream is free and all works that it waits for have ended.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from continua.errors import ConfigError


class WorkKind(Enum):
    """What a work is for."""

    COMPUTE = "computing"
    TOKENS = "keys and values"
    WEIGHTS = "gathering weights"
    GRADIENTS = "summing gradients"
    OPTIMISER = "optimiser"


@dataclass(frozen=True)
class Work:
    """``seconds`` on a ``stream``, when those works have ended ``after`` which it comes."""

    name: str
    stream: str
    seconds: float
    kind: WorkKind
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Span:
    """When a work was done, and what its stream waited for before, where it stood idle."""

    work: Work
    start: float
    end: float
    idle: float
    waited_for: WorkKind | None


@dataclass(frozen=True)
class Timeline:
    """Every work with its time, as given."""

    spans: tuple[Span, ...]

    @property
    def end(self) -> float:
        """When the last work has ended."""
        return max((span.end for span in self.spans), default=0.0)

    def busy(self, stream: str, kind: WorkKind) -> float:
        """Seconds that a stream spends on one kind of work."""
        return sum(
            span.end - span.start for span in self.spans if span.work.stream == stream and span.work.kind == kind
        )

    def idle(self, stream: str, kind: WorkKind) -> float:
        """Seconds that a stream stands still until a work of one kind has ended elsewhere."""
        return sum(span.idle for span in self.spans if span.work.stream == stream and span.waited_for == kind)


def simulated(works: Iterable[Work]) -> Timeline:
    """Let time pass until all works are done."""
    free: dict[str, float] = {}
    done: dict[str, Span] = {}
    for work in works:
        unknown = [name for name in work.after if name not in done]
        if unknown or work.name in done:
            got = f"{work.name!r} after {unknown[0]!r}" if unknown else f"{work.name!r} twice"
            remedy = "Name every work once, behind those it waits for."
            raise ConfigError("a work waits for works that come before it", got=got, remedy=remedy)
        ready = free.get(work.stream, 0.0)
        last = max((done[name] for name in work.after), key=lambda span: span.end, default=None)
        late = last is not None and last.end > ready
        start = last.end if last is not None and late else ready
        kind = last.work.kind if last is not None and late else None
        done[work.name] = Span(work, start, start + work.seconds, start - ready, kind)
        free[work.stream] = start + work.seconds
    return Timeline(tuple(done.values()))
