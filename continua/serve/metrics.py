"""Counts of what a server did, as the text that Prometheus reads."""

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from continua.serve.front import Front
    from continua.serve.jobs import Job


class Metrics:
    """Numbers that only grow, and two that say how full the server is. The engine and the web server both write."""

    def __init__(self) -> None:
        self.waiting = 0
        self.active = 0
        self.switched = 0
        self.reread = 0
        self.failures = 0
        self.answers: Counter[int] = Counter()  # by status
        self.finishes: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()  # by size
        self.steps: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.in_time = 0
        self.too_late = 0
        self._lock = threading.Lock()

    def answered(self, status: int) -> None:
        """An answer went out."""
        with self._lock:
            self.answers[status] += 1

    def stepped(self, size: str, samples: int, seconds: float) -> None:
        """One token of so many texts was written."""
        self.tokens[size] += samples
        self.steps[size] += 1
        self.seconds[size] += seconds

    def finished(self, job: "Job", front: "Front") -> None:
        """A text is over."""
        self.finishes[job.finish or "unknown"] += 1
        if not math.isinf(job.deadline) and job.finish in ("stop", "length", "late"):
            if job.finish != "late" and job.ended is not None and job.ended <= job.deadline:
                self.in_time += 1
            else:
                self.too_late += 1

    def text(self) -> str:
        """The exposition format, version 0.0.4."""
        lines: list[str] = []

        def say(name: str, kind: str, words: str, values: "dict[str, float]") -> None:
            lines.append(f"# HELP continua_{name} {words}")
            lines.append(f"# TYPE continua_{name} {kind}")
            lines.extend(f"continua_{name}{label} {value:g}" for label, value in values.items())

        say("queue_length", "gauge", "Texts that wait.", {"": self.waiting})
        say("active", "gauge", "Texts that are being written.", {"": self.active})
        say("answers_total", "counter", "Answers by status.", _labelled("status", self.answers))
        say("texts_total", "counter", "Texts by how they ended.", _labelled("finish", self.finishes))
        say("tokens_total", "counter", "Tokens by size.", _labelled("size", self.tokens))
        say("steps_total", "counter", "Passes by size.", _labelled("size", self.steps))
        say("step_seconds_total", "counter", "Seconds of passes by size.", _labelled("size", self.seconds))
        say("deadline_met_total", "counter", "Texts within their deadline.", {"": self.in_time})
        say("deadline_missed_total", "counter", "Texts behind their deadline.", {"": self.too_late})
        say("size_switches_total", "counter", "Texts that went on at another size.", {"": self.switched})
        say("rereads_total", "counter", "Texts whose tokens were read again.", {"": self.reread})
        say("failures_total", "counter", "Passes that failed.", {"": self.failures})
        return "\n".join(lines) + "\n"


def _labelled(label: str, counts: "Mapping[str, float] | Mapping[int, int]") -> dict[str, float]:
    return {f'{{{label}="{key}"}}': float(value) for key, value in sorted(counts.items(), key=lambda kv: str(kv[0]))}
