"""The server under load: requests in time with a size that follows the slack, over those with the native size.

    python benchmarks/serve.py --run RUN                  # everything, about 25 minutes; RUN is one of continua demo
    python benchmarks/serve.py --run RUN --only overhead  # or load, or connections
    python benchmarks/serve.py --run RUN --seconds 8 --seeds 2 --calm 20   # shorter

Loopback only. The server is ``continua serve RUN --threads 1`` in a process of its own; this process asks over plain
sockets. *load*: half of the seconds is quiet and half a burst at twice the capacity of the native size (bursts), or
arrivals come at that rate all the time (Poisson); the deadline is three times the latency of the native size without
load. Both ways see the same arrivals: free requests, whose size follows the slack, and requests that pin the native
size; the server drops what can no longer be in time, both ways. *overhead*: one request after the other, against bare
``generate`` in this process, interleaved. *connections*: 1,000 streams at once, of which a tenth hangs up, repeatedly.
"""

import argparse
import asyncio
import json
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import Row, environment, estimate, ratio, row, write
from rich.console import Console

import continua as ct
from continua.recipes import tokens_of
from continua.training import Run

TOKENS = 64
PROMPT = "def main("
PATIENCE = 3.0  # the deadline over the latency without load
OVERLOAD = 2.0
BATCH = 8
CONNECTIONS = 1000
console = Console()


@dataclass(frozen=True)
class Answer:
    """What came back: the status (0: nothing), seconds, and the held-out loss of the sizes that wrote it."""

    status: int
    seconds: float
    loss: float | None = None


@dataclass(frozen=True)
class Place:
    """A server that runs."""

    port: int
    pid: int
    name: str

    def rss(self) -> float:
        """Resident megabytes."""
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8"))
        return int(found[1]) / 1024 if found else 0.0


@contextmanager
def serving(run: Path, queue: int = 1200) -> Iterator[Place]:
    """A server in a process of its own; it ends with SIGTERM."""
    words = [sys.executable, "-m", "continua", "serve", str(run), "--port", "0", "--threads", "1"]
    words += ["--batch", str(BATCH), "--queue", str(queue)]
    job = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"})
    try:
        assert job.stderr is not None
        for line in job.stderr:
            console.print(line.rstrip(), markup=False, highlight=False)
            if "serving" in line:
                break
        port = int(line.rsplit(":", 1)[1].split("/")[0])
        yield Place(port, job.pid, run.resolve().name)
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait(60)


async def ask(place: Place, deadline: float | None = None, pin: str = "", tokens: int = TOKENS) -> Answer:
    """One request over a connection of its own."""
    said: dict[str, Any] = {"model": place.name + pin, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0}
    if deadline is not None:
        said["latency_ms"] = 1e3 * deadline
    start = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        writer.write(_post(said))
        answer = await reader.read()
        writer.close()
    except OSError:
        return Answer(0, time.perf_counter() - start)
    head = answer.split(b"\r\n\r\n")[0].decode("latin-1")
    status = int(head.split(" ")[1]) if head else 0
    loss = re.search(r"x-continua-loss: ([0-9.]+)", head)
    return Answer(status, time.perf_counter() - start, None if loss is None else float(loss[1]))


def _post(said: dict[str, Any]) -> bytes:
    body = json.dumps(said).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


# --- overhead ---------------------------------------------------------------------------------------------------------


def overhead(place: Place, run: Path, rounds: int = 25) -> list[Row]:
    """A request after the other, and bare generation in this process."""
    opened = Run.open(run)
    model = opened.model().eval()
    ids = tokens_of(opened).encode(PROMPT)[None]
    bare: list[float] = []
    served: list[float] = []
    for number in range(rounds + 3):
        start = time.perf_counter()
        ct.generate(model, ids, tokens=TOKENS)
        took = time.perf_counter() - start
        answer = asyncio.run(ask(place))
        assert answer.status == 200
        if number >= 3:
            bare.append(took)
            served.append(answer.seconds)
    got = ratio(served, bare)
    return [
        row("latency of the server at batch 1 / bare generate", got, target="≤ 1.10", held=got.median <= 1.10,
            note=f"{TOKENS} tokens, connection and JSON included"),
        Row("bare generate", 1e3 * statistics.median(bare), unit="ms"),
    ]  # fmt: skip


# --- load -------------------------------------------------------------------------------------------------------------


async def capacity(place: Place, seconds: float = 6.0) -> float:
    """Requests a second of the native size, when all places are taken all the time."""
    until = time.perf_counter() + seconds
    done = 0

    async def again() -> None:
        nonlocal done
        while time.perf_counter() < until:
            answer = await ask(place, pin=":native")
            done += answer.status == 200 and time.perf_counter() < until

    await asyncio.gather(*(again() for _ in range(2 * BATCH)))
    return done / seconds


def arrivals(rate: float, seconds: float, kind: str, seed: int) -> list[float]:
    """Seconds of arrival: Poisson at a rate, or only in the second half, with a quiet first."""
    draws = random.Random(seed)
    found = []
    now = 0.0
    while True:
        quiet = kind == "bursts" and now < seconds / 2
        now += draws.expovariate(rate / OVERLOAD / 4 if quiet else rate)
        if now > seconds:
            return found
        found.append(now)


async def under_load(place: Place, times: list[float], deadline: float, pin: str) -> list[Answer]:
    """Ask at given times."""
    start = time.perf_counter()

    async def one(at: float) -> Answer:
        await asyncio.sleep(max(0.0, at - (time.perf_counter() - start)))
        return await ask(place, deadline, pin)

    return list(await asyncio.gather(*(one(at) for at in times)))


def loaded(place: Place, seconds: float, seeds: int) -> list[Row]:
    """Both ways, on the same arrivals, in turns."""
    quiet = [asyncio.run(ask(place, pin=":native")).seconds for _ in range(20)]
    deadline = PATIENCE * statistics.median(quiet)
    most = asyncio.run(capacity(place))
    console.print(f"unloaded {1e3 * statistics.median(quiet):.0f} ms, native capacity {most:.1f} requests/s")
    rows = [Row("native capacity", most, unit="requests/s"), Row("deadline", 1e3 * deadline, unit="ms")]
    for kind in ("bursts", "Poisson"):
        gains: list[float] = []
        rises: list[float] = []
        shares: dict[str, list[float]] = {"": [], ":native": []}
        for seed in range(seeds):
            times = arrivals(OVERLOAD * most, seconds, kind, seed)
            counts: dict[str, int] = {}
            losses: dict[str, float] = {}
            for pin in ("", ":native") if seed % 2 else (":native", ""):
                answers = asyncio.run(under_load(place, times, deadline, pin))
                good = [each for each in answers if each.status == 200 and each.seconds <= deadline]
                counts[pin] = len(good)
                shares[pin].append(len(good) / len(times))
                losses[pin] = statistics.fmean(each.loss for each in good if each.loss is not None) if good else 0.0
                time.sleep(1.0)
            gains.append(counts[""] / max(1, counts[":native"]))
            rises.append(losses[""] / losses[":native"] - 1 if losses[":native"] else 0.0)
            console.print(f"{kind}, seed {seed}: {len(times)} asked, {counts} in time, loss {100 * rises[-1]:+.1f} %")
        gain = estimate(gains)
        rise = estimate([100 * each for each in rises])
        free, fixed = (statistics.fmean(shares[pin]) for pin in ("", ":native"))
        note = f"{seeds} seeds of {seconds:g} s; in time {free:.2f} and {fixed:.2f} of all"
        rows.append(row(f"{kind}: in time by slack / native", gain, target="≥ 2", held=gain.median >= 2, note=note))
        rows.append(row(f"{kind}: held-out loss of the answers", rise, unit="%", target="≤ +5", held=rise.median <= 5))
    return rows


# --- connections ------------------------------------------------------------------------------------------------------


async def stream(place: Place, hangs_up: bool) -> bool:
    """One stream to its end, or a look at its beginning; whether it was as it should be."""
    said = {"model": place.name, "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "stream": True}
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        writer.write(_post(said))
        if hangs_up:
            begun = await reader.read(32)
            writer.transport.abort()
            return begun.startswith(b"HTTP/1.1 200")
        answer = await reader.read()
        writer.close()
    except OSError:
        return False
    return answer.startswith(b"HTTP/1.1 200") and b"[DONE]" in answer


async def crowd(place: Place, seconds: float) -> tuple[int, int, list[float]]:
    """A thousand streams at once, again and again: how many, how many failed, and megabytes on the way."""
    until = time.perf_counter() + seconds
    count = 0
    failed = 0
    memory: list[float] = []
    while time.perf_counter() < until:
        results = await asyncio.gather(*(stream(place, i % 10 == 0) for i in range(CONNECTIONS)))
        count += len(results)
        failed += results.count(False)
        memory.append(place.rss())
        console.print(f"{count} streams, {failed} failed, {memory[-1]:.0f} MB")
    return count, failed, memory


def connected(place: Place, seconds: float) -> list[Row]:
    """No failure, no leak."""
    count, failed, memory = asyncio.run(crowd(place, seconds))
    third = max(1, len(memory) // 3)
    growth = statistics.fmean(memory[-third:]) / statistics.fmean(memory[third : 2 * third] or memory[:1]) - 1
    note = f"{CONNECTIONS} at once for {seconds:g} s, 10 % hang up"
    return [
        Row("streams that failed", failed, target="0", held=failed == 0, note=f"of {count}; {note}"),
        Row("growth of resident memory, last third over the second", 100 * growth, unit="%", target="≤ 2",
            held=growth <= 0.02, note=f"{memory[-1]:.0f} MB at the end"),
    ]  # fmt: skip


def main() -> None:
    """Start a server, ask, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--only", choices=("overhead", "load", "connections"), default=None)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load: bursts are half of it")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--calm", type=float, default=300.0, help="seconds of a thousand connections")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    with serving(options.run) as place:
        if options.only in (None, "overhead"):
            rows += overhead(place, options.run)
        if options.only in (None, "load"):
            rows += loaded(place, options.seconds, options.seeds)
        if options.only in (None, "connections"):
            rows += connected(place, options.calm)
    for each in rows:
        console.print(f"{each.name}: {each.shown} {each.target} {each.verdict} {each.note}")
    said = {"seconds": options.seconds, "seeds": options.seeds, "calm": options.calm}
    console.print(f"written: {write('serve', rows, part=options.only is not None, environment=environment(), **said)}")


if __name__ == "__main__":
    main()
