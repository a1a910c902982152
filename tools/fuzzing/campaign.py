"""Many cases on a few processes: outcomes, causes, and for each cause the smallest case that shows it."""

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing.case import WAITING, Outcome
from fuzzing.expected import owner_of
from fuzzing.family import family_of

PATIENCE = WAITING + 8  # a worker that does not even answer its alarm
SCRIPT = Path(__file__).resolve().parents[1] / "fuzz.py"


class Worker:
    """A process that is started again when it dies or hangs."""

    def __init__(self, library: Path) -> None:
        self.library = library
        self.process: subprocess.Popen[str] | None = None
        self.answered = 0
        self.lost = 0

    def ask(self, seed: int, only: Sequence[str] | None = None) -> Outcome:
        """The outcome of one case, whatever it does to the process."""
        first = self.process is None
        process = self._alive()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"seed": seed, "only": None if only is None else list(only)}) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], PATIENCE + (60 if first else 0))
            line = process.stdout.readline() if ready else ""
        except BrokenPipeError:
            line, ready = "", [1]
        if line:
            self.answered += 1
            return Outcome(**json.loads(line))
        kind = "crash" if ready else "hang"
        self.close()
        self.lost += 1
        if self.lost > 5 and self.answered < self.lost:
            raise RuntimeError(f"the workers of {self.library} do not start: python tools/fuzz.py --worker")
        return Outcome(seed, family_of(seed), kind, cause=f"{kind} of the process", detail="it gave no answer")

    def _alive(self) -> "subprocess.Popen[str]":
        if self.process is None or self.process.poll() is not None:
            words = [sys.executable, str(SCRIPT), "--worker", "--against", str(self.library)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(self.library)}
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        return self.process

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            if self.process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self.process.stdin.close()
            try:
                self.process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None


@dataclass
class Finding:
    """A cause, how often it was met, and a small case of it."""

    cause: str
    owner: str | None
    count: int
    smallest: Outcome
    only: list[str] | None = None

    @property
    def again(self) -> str:
        """The line that shows it."""
        only = "" if self.only is None else f" --only '{','.join(self.only)}'"
        return f"python tools/fuzz.py --case {self.smallest.seed}{only}"


@dataclass
class Report:
    """What a campaign found."""

    library: str
    first: int
    cases: int
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    families: dict[str, Counter[str]] = field(default_factory=dict)
    accepted: int = 0
    slowest: float = 0.0
    times: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def unexpected(self) -> list[Finding]:
        """Findings that are not on the list of known ones."""
        return [finding for finding in self.findings if finding.owner is None]

    @property
    def failed(self) -> int:
        """How many cases ended in anything but a right answer or a refusal with a remedy."""
        return self.cases - self.kinds["right"] - self.kinds["refused"] - self.kinds["unmade"]

    def plain(self) -> dict[str, Any]:
        """As numbers and words."""
        return {
            "first": self.first,
            "cases": self.cases,
            "seconds": round(self.seconds, 1),
            "outcomes": dict(self.kinds),
            "families": {name: dict(kinds) for name, kinds in sorted(self.families.items())},
            "past validation": round(self.accepted / max(1, self.cases), 4),
            "failed": round(self.failed / max(1, self.cases), 4),
            "slowest case, seconds": self.slowest,
            "findings": [
                {
                    "cause": f.cause,
                    "owner": f.owner,
                    "count": f.count,
                    "again": f.again,
                    "case": f.smallest.said,
                    "spoilt": f.smallest.spoilt,
                    "detail": f.smallest.detail,
                }
                for f in self.findings
            ],
        }


def run(library: Path, first: int, cases: int, jobs: int, family: str | None, progress: bool) -> Report:
    """Run ``cases`` cases from the seed ``first`` on."""
    started = time.monotonic()
    report = Report(str(library), first, cases)
    seeds = _seeds(first, cases, family)
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in seeds:
        waiting.put(seed)
    outcomes: list[Outcome] = []
    workers = [Worker(library) for _ in range(jobs)]
    threads = [threading.Thread(target=_work, args=(worker, waiting, outcomes), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        threads[0].join(1.0 if threads[0].is_alive() else 0.0)
        if progress:
            bad = sum(not outcome.good for outcome in outcomes[:])
            print(
                f"\r{len(outcomes)} of {cases}, {bad} findings, {time.monotonic() - started:.0f} s",
                end="",
                file=sys.stderr,
            )
        if not threads[0].is_alive():
            time.sleep(0.2)
    if progress:
        print(file=sys.stderr)
    _count(report, outcomes)
    report.findings = _findings(workers[0], outcomes)
    for worker in workers:
        worker.close()
    report.seconds = time.monotonic() - started
    return report


def _seeds(first: int, cases: int, family: str | None) -> list[int]:
    if family is None:
        return list(range(first, first + cases))
    seeds: list[int] = []
    seed = first
    while len(seeds) < cases:
        if family_of(seed) == family:
            seeds.append(seed)
        seed += 1
    return seeds


def _work(worker: Worker, waiting: "queue.SimpleQueue[int]", outcomes: list[Outcome]) -> None:
    while True:
        try:
            seed = waiting.get_nowait()
        except queue.Empty:
            return
        outcomes.append(worker.ask(seed))


def _count(report: Report, outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        report.kinds[outcome.kind] += 1
        report.families.setdefault(outcome.family, Counter())[outcome.kind] += 1
        report.accepted += outcome.accepted
        report.slowest = max(report.slowest, outcome.seconds)
        report.times[outcome.family] = report.times.get(outcome.family, 0.0) + outcome.seconds


def _findings(worker: Worker, outcomes: list[Outcome], most: int = 60) -> list[Finding]:
    """One finding for each cause, the most frequent first; each with its smallest case."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if not outcome.good:
            groups.setdefault(outcome.cause, []).append(outcome)
    findings = []
    for cause, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        chosen = min(group, key=lambda outcome: (len(outcome.spoilt), outcome.seed))
        finding = Finding(cause, owner_of(chosen), len(group), chosen)
        if len(findings) < most and chosen.kind != "hang" and len(chosen.spoilt) > 1:
            finding = _smaller(worker, finding)
        findings.append(finding)
    return findings


def _smaller(worker: Worker, finding: Finding) -> Finding:
    """Leave out spoilt decisions one by one while the cause stays."""
    kept = list(finding.smallest.spoilt)
    best = finding.smallest
    for name in list(kept):
        fewer = [other for other in kept if other != name]
        tried = worker.ask(best.seed, fewer)
        if tried.cause == finding.cause:
            best = tried
            kept = fewer
    return Finding(finding.cause, finding.owner, finding.count, best, kept)


def show(library: Path, seed: int, only: list[str] | None) -> int:
    """Run one case and print all that is known of it."""
    worker = Worker(library)
    outcome = worker.ask(seed, only)
    worker.close()
    for name, value in outcome.plain().items():
        print(f"{name:9} {value}")
    return 0 if outcome.good else 1


def tell(report: Report, quiet: bool) -> None:
    """Print the findings, and unless ``quiet`` the counts."""
    plain = report.plain()
    if not quiet:
        counts = ", ".join(f"{kind} {count}" for kind, count in report.kinds.most_common())
        print(f"{report.cases} cases in {report.seconds:.0f} s: {counts}")
        print(
            f"past validation {plain['past validation']:.1%}, failed {plain['failed']:.1%}, "
            f"slowest {report.slowest:.1f} s"
        )
        for name, kinds in plain["families"].items():
            print(f"  {name:8} {report.times[name]:5.1f} s  {kinds}")
    for finding in report.findings:
        if quiet and finding.owner is not None:
            continue
        mine = "" if finding.owner is None else f" (known: {finding.owner})"
        print(f"{finding.count:5} × {finding.cause}{mine}")
        print(f"        {finding.again}")
        print(f"        {finding.smallest.said[:300]}")
        print(f"        {finding.smallest.detail[:300]}")
