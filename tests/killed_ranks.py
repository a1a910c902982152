"""Runs of two processes under ``torchrun``, of which one is killed again and again: each ends as one left alone.

A life ends at a random moment: while processes start, between steps, or while a checkpoint is written. ``torchrun``
ends the other process and starts both anew, and they go on from the newest whole checkpoint.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continua.training import Run
from tests.runs import states, timeless, tiny_text
from tests.shards import kept, same

ROOT = Path(__file__).resolve().parent.parent
SMALL = {"d": 8, "heads": 2, "depth": 1, "context": 8, "batch": 4, "steps": 60, "evaluate_every": 30, "save_every": 2}
STARTING = 12.0  # seconds from a start within which half of the kills fall, processes that start among them
STEPPING = 2.0  # seconds from a life's first step within which the others fall
PATIENCE = 300.0  # seconds


@dataclass(frozen=True)
class Kill:
    """One kill: the rank, whether a step of that life was done and a checkpoint half written, and the others' end."""

    rank: int
    stepping: bool
    writing: bool
    seconds: float


@dataclass(frozen=True)
class Killed:
    """What was seen: all kills, and how many runs ended otherwise than the one left alone."""

    kills: list[Kill]
    runs: int
    other: int


@contextmanager
def training(run: Path, text: Path, restarts: int) -> Iterator[subprocess.Popen[bytes]]:
    """Two processes that share weights and tokens, started by ``torchrun``; each start goes on with the run."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "continua", "fit", "text"]
    words += ["--text", str(text), "--folder", str(run), "--again", "resume", "--shard-tokens", "2"]
    changes = {**SMALL, "sharded": True, "compile": False}
    words += [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    said = run.with_suffix(".log")
    with said.open("wb") as log:
        job = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=alone, stdout=log, stderr=log)
        try:
            yield job
            job.wait(PATIENCE)
        finally:
            begun = children(job.pid)
            job.kill()
            job.wait()
            for process in begun:
                os.kill(process, signal.SIGKILL)
    if job.returncode:
        raise AssertionError(said.read_text()[-4000:])


def killed(count: int, seed: int, kills_a_run: int = 5, tick: Callable[[Kill], object] = lambda kill: None) -> Killed:
    """Kill one of two processes ``count`` times, over as many runs as that needs."""
    draw = random.Random(seed)
    kills: list[Kill] = []
    runs = 0
    other = 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        text = place / "text.txt"
        text.write_text(tiny_text(), encoding="utf-8")
        with training(place / "calm", text, 0):
            pass
        wanted = left(place / "calm")
        while len(kills) < count and runs < 3 * count:  # a run may be done before it is killed
            run = place / f"run-{runs}"
            runs += 1
            with training(run, text, kills_a_run + 1) as job:
                for _ in range(min(kills_a_run, count - len(kills))):
                    kill = killed_once(job, run, draw)
                    if kill is None:
                        break
                    kills.append(kill)
                    tick(kill)
            other += not alike(left(run), wanted)
    return Killed(kills, runs, other)


def killed_once(job: subprocess.Popen[bytes], run: Path, draw: random.Random) -> Kill | None:
    """Kill one of the processes at a random moment, and wait for the end of the other; None where the run was done."""
    if not waited(lambda: job.poll() is not None or len(children(job.pid)) == 2):
        raise AssertionError("torchrun started no processes")
    begun = children(job.pid)
    if job.poll() is not None or len(begun) != 2:
        return None
    steps = lines(run)
    before = half(run)
    if draw.random() < 0.5:
        time.sleep(draw.uniform(0.0, STARTING))
    else:
        waited(lambda: job.poll() is not None or lines(run) != steps)
        time.sleep(draw.uniform(0.0, STEPPING))
    rank = draw.randrange(2)
    stepping = lines(run) != steps
    writing = bool(half(run) - before)
    if not alive(begun[rank]):
        return None
    os.kill(begun[rank], signal.SIGKILL)
    began = time.monotonic()
    if not waited(lambda: not any(alive(one) for one in begun)):
        raise AssertionError("a process was left waiting")
    return Kill(rank, stepping, writing, time.monotonic() - began)


def left(run: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a run leaves: every number of its last checkpoint, and its history without times."""
    return kept(next(states(run))), timeless(Run.open(run).history())


def alike(found: tuple[Any, Any], wanted: tuple[Any, Any]) -> bool:
    """Whether two runs left the same, to the bit."""
    return same(found[0], wanted[0]) and found[1] == wanted[1]


def lines(run: Path) -> int:
    """How long the history is, in bytes: it changes with each step, and at a resume."""
    try:
        return (run / "metrics.jsonl").stat().st_size
    except FileNotFoundError:
        return 0


def half(run: Path) -> set[tuple[str, int]]:
    """Checkpoints that are being written, or that a kill left half."""
    found: set[tuple[str, int]] = set()
    for path in (run / "checkpoints").glob(".*.partial"):
        with suppress(FileNotFoundError):
            found.add((path.name, path.stat().st_ctime_ns))
    return found


def waited(happened: Callable[[], bool]) -> bool:
    """Whether something happens soon enough."""
    until = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def children(process: int) -> list[int]:
    """The processes that a process started and that live."""
    try:
        words = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except FileNotFoundError:
        return []
    return sorted(int(word) for word in words if alive(int(word)))


def alive(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
