"""The engine of the server alone, on the clock of its own thread: what else a busy machine does is no part of it.

    python benchmarks/serve_engine.py                        # about ten CPU minutes
    python benchmarks/serve_engine.py --seconds 8 --seeds 2  # shorter

The bursts of ``benchmarks/serve.py`` (the same arrivals, deadlines and bound of the loss) without the web: texts are
handed to the engine when its clock reaches their time. The clock counts the CPU time of this thread, which computes
alone, and jumps where nothing is asked. Its rows stand in ``serve.json`` beside the others.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from common import Row, environment, estimate, row, write
from large import large_run, with_losses
from rich.console import Console
from serve import PATIENCE, PLACES, PROMPT, TOKENS, WAVES, WORST, Side, arrivals, compared

from continua.cli.folders import open_model
from continua.cli.serve import served_of
from continua.serve import Ask, Engine, Job, Limits, Metrics, Said
from continua.serve.service import Rules, Service

console = Console()


@dataclass
class OwnTime:
    """Seconds of this thread, and those that were jumped."""

    jumped: float = 0.0

    def __call__(self) -> float:
        return time.thread_time() + self.jumped

    def jump(self, to: float) -> None:
        """Go on at that time, if it is ahead."""
        self.jumped += max(0.0, to - self())


def unheard(said: Said) -> None:
    """Nobody listens: jobs are looked at when they are over."""


class Driven:
    """One engine, driven by who asks."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.clock = OwnTime()
        self.engine = Engine(service.decoder, service.front, Limits(PLACES, 1200), Metrics(), None, self.clock)
        self.ids = tuple(service.served.tokens.encode(PROMPT).tolist())

    def submit(self, at: float, latency: float | None, size: str | None) -> Job:
        """Hand a text in."""
        job = Job(Ask(self.ids, TOKENS, latency=latency, size=size), unheard, arrived=at)
        self.engine.submit(job)
        return job

    @property
    def is_busy(self) -> bool:
        """Whether texts are written or wait."""
        return bool(self.engine.active or self.engine.metrics.waiting)

    def at(self, times: Sequence[float], latency: float | None, size: str | None) -> list[Job]:
        """Texts that come at given times, until all are over."""
        start = self.clock()
        jobs: list[Job] = []
        while len(jobs) < len(times) or self.is_busy:
            while len(jobs) < len(times) and start + times[len(jobs)] <= self.clock():
                jobs.append(self.submit(start + times[len(jobs)], latency, size))
            if self.is_busy:
                self.engine.round()
            else:
                self.clock.jump(start + times[len(jobs)])
        return jobs

    def capacity(self, size: str) -> float:
        """Texts a second when all places are taken all the time, by texts that began one by one."""
        live: list[Job] = []
        ends: list[float] = []
        while len(ends) < WAVES * PLACES:
            if len(live) < 2 * PLACES:
                live.extend(self.submit(self.clock(), None, size) for _ in range(2))
            self.engine.round()
            for job in [each for each in live if each.ended is not None]:
                live.remove(job)
                ends.append(job.ended or 0.0)
                live.append(self.submit(self.clock(), None, size))
        return (WAVES - 1) * PLACES / (ends[WAVES * PLACES - 1] - ends[PLACES - 1])


def side(service: Service, times: list[float], deadline: float, size: str | None, since: float) -> Side:
    """One way on one seed."""
    jobs = Driven(service).at(times, deadline, size)
    counted = [job for job, at in zip(jobs, times, strict=True) if at >= since]
    good = [job for job in counted if job.finish == "length" and (job.ended or 0.0) <= job.deadline]
    losses = [service.held_out_loss(job.sizes) or 0.0 for job in good]
    return Side(len(good), len(counted), statistics.fmean(losses), Counter(job.main_size for job in good))


def bursts(service: Service, seconds: float, seeds: int) -> list[Row]:
    """Both ways, on the same arrivals."""
    native = service.front.native.name
    free: list[Side] = []
    fixed: list[Side] = []
    capacities: list[float] = []
    for seed in range(seeds):
        lone = [Driven(service).at([0.0], None, native)[0] for _ in range(8)]
        deadline = PATIENCE * statistics.median((job.ended or 0.0) - job.arrived for job in lone)
        most = Driven(service).capacity(native)
        capacities.append(most)
        times = arrivals(most, seconds, "bursts", seed)
        fixed.append(side(service, times, deadline, native, seconds))
        free.append(side(service, times, deadline, None, seconds))
        ours = free[-1]
        theirs = fixed[-1]
        console.print(
            f"seed {seed}: deadline {1e3 * deadline:.0f} ms, native capacity {most:.1f}/s; in time of {ours.asked}:"
            f" {ours.good}, with the native size {theirs.good}; loss {100 * (ours.loss / theirs.loss - 1):+.1f} %,"
            f" sizes {dict(ours.sizes.most_common(4))}",
            markup=False,
        )
    name = "engine alone, bursts"
    return [
        row(f"{name}: native capacity", estimate(capacities), unit="requests/s"),
        *compared(name, free, fixed, f"{seeds} × {seconds:g} s of its own time"),
    ]


def main() -> None:
    """Time the sizes, ask, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=None, help="an elastic run with a pareto.json")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each burst, and of the quiet before it")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="no result is written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    opened = open_model(options.run or with_losses(large_run()))
    served = served_of(opened, "large", torch.device("cpu"))
    service = Service(served, Limits(PLACES, 1200), Rules(worst=WORST / 100))
    rows = bursts(service, options.seconds, options.seeds)
    for each in rows:
        console.print(f"{each.name}: {each.shown} {each.target} {each.verdict} {each.note}")
    if not options.quick:
        console.print(f"written: {write('serve', rows, part=True, environment=environment())}")


if __name__ == "__main__":
    main()
