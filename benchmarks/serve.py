"""The server under load: requests in time with a size that follows the load, over those with the native size.

    python benchmarks/serve.py                        # everything, about 25 minutes
    python benchmarks/serve.py --only overhead bursts # some parts: also connections, Poisson
    python benchmarks/serve.py --run RUN --seconds 8 --seeds 2 --calm 20   # another run, shorter

The model is that of ``benchmarks/large.py``, made by ``continua fit elastic`` (trained here where it is not there).
Loopback only. The server is ``continua serve RUN --threads 1 --worst 5`` in a process of its own: sizes whose held-out
loss is more than 5 % above the native one are not chosen. This process asks over plain sockets.

*bursts*: after as many quiet seconds, at a quarter of the capacity, comes a burst at twice the capacity of the native
size, which is its requests a second where all places are taken all the time; what arrives in the burst counts. With
*Poisson* arrivals come at that rate from the first second on. The deadline is three times the latency of the native
size without load. Both are measured anew before each seed. Both ways see the same arrivals, in turns: free requests,
and requests that pin the native size; the engine lets texts in, and gives up what can no longer be in time, by the same
rules both ways. *overhead*: one request after the other, against bare ``generate`` in this process, interleaved.
*connections*: 1,000 streams at once, of which a tenth hangs up, again and again.
"""

import argparse
import asyncio
import json
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import math
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import Row, environment, estimate, ratio, row, write
from large import large_run, with_losses
from rich.console import Console

import continua as ct
from continua.recipes import tokens_of
from continua.training import Run

TOKENS = 64
PROMPT = "def main("
PATIENCE = 3.0  # the deadline over the latency without load
OVERLOAD = 2.0
QUIET = 0.25  # of the capacity, before a burst
WORST = 5.0  # percent
PLACES = 32  # texts that are written at once: what continua serve takes where nothing is said
WAVES = 3  # times that all places are taken, while the capacity is measured
CONNECTIONS = 1000
console = Console()


@dataclass(frozen=True)
class Answer:
    """What came back: the status (0: nothing), seconds, the held-out loss of what wrote it, and its main size."""

    status: int
    seconds: float
    loss: float | None = None
    size: str = ""


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
    words += ["--worst", str(WORST), "--queue", str(queue)]
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
    size = re.search(r"x-continua-size: (\S+)", head)
    seconds = time.perf_counter() - start
    return Answer(status, seconds, None if loss is None else float(loss[1]), "" if size is None else size[1])


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


async def capacity(place: Place) -> float:
    """Requests a second of the native size, when all places are taken all the time, by texts that began one by one."""
    done: list[float] = []
    alone = (await ask(place, pin=":native")).seconds

    async def again(number: int) -> None:
        await asyncio.sleep(alone * 2 * number / PLACES)  # about the time that a full batch takes
        while len(done) < WAVES * PLACES:
            answer = await ask(place, pin=":native")
            if answer.status == 200:
                done.append(time.perf_counter())

    await asyncio.gather(*(again(number) for number in range(2 * PLACES)))
    return (WAVES - 1) * PLACES / (done[WAVES * PLACES - 1] - done[PLACES - 1])


def arrivals(most: float, seconds: float, kind: str, seed: int) -> list[float]:
    """Seconds of arrival: at twice the capacity ``most`` for so long, before bursts as long at a quarter of it."""
    draws = random.Random(seed)
    quiet = seconds if kind == "bursts" else 0.0
    found = []
    now = 0.0
    while True:
        now += draws.expovariate(most * (QUIET if now < quiet else OVERLOAD))
        if now > quiet + seconds:
            return found
        found.append(now)


async def under_load(place: Place, times: list[float], deadline: float, pin: str) -> list[Answer]:
    """Ask at given times."""
    start = time.perf_counter()

    async def one(at: float) -> Answer:
        await asyncio.sleep(max(0.0, at - (time.perf_counter() - start)))
        return await ask(place, deadline, pin)

    return list(await asyncio.gather(*(one(at) for at in times)))


@dataclass(frozen=True)
class Side:
    """One way on one seed: how many of those that arrived in the burst were in time, of how many, and their loss."""

    good: int
    asked: int
    loss: float
    sizes: Counter[str]

    @property
    def share(self) -> float:
        """In time, of all."""
        return self.good / self.asked


def side(place: Place, times: list[float], deadline: float, pin: str, since: float) -> Side:
    """Ask, and count what arrived since then."""
    answers = asyncio.run(under_load(place, times, deadline, pin))
    counted = [answer for answer, at in zip(answers, times, strict=True) if at >= since]
    good = [each for each in counted if each.status == 200 and each.seconds <= deadline]
    loss = statistics.fmean(each.loss for each in good if each.loss is not None) if good else math.nan
    return Side(len(good), len(counted), loss, Counter(each.size for each in good))


def loaded(place: Place, kind: str, seconds: float, seeds: int) -> list[Row]:
    """Both ways, on the same arrivals, in turns; what the native size can do is measured anew before each seed."""
    capacities: list[float] = []
    deadlines: list[float] = []
    free: list[Side] = []
    fixed: list[Side] = []
    since = seconds if kind == "bursts" else 0.0
    for seed in range(seeds):
        alone = [asyncio.run(ask(place, pin=":native")).seconds for _ in range(8)]
        deadline = PATIENCE * statistics.median(alone)
        most = asyncio.run(capacity(place))
        deadlines.append(1e3 * deadline)
        capacities.append(most)
        times = arrivals(most, seconds, kind, seed)
        ways = [(":native", fixed), ("", free)]
        for pin, sides in reversed(ways) if seed % 2 else ways:
            sides.append(side(place, times, deadline, pin, since))
            time.sleep(1.0)
        ours = free[-1]
        theirs = fixed[-1]
        console.print(
            f"{kind}, seed {seed}: deadline {1e3 * deadline:.0f} ms, native capacity {most:.1f}/s; in time of"
            f" {ours.asked}: {ours.good}, with the native size {theirs.good};"
            f" loss {100 * (ours.loss / theirs.loss - 1):+.1f} %, sizes {dict(ours.sizes.most_common(4))}",
            markup=False,
        )
    return [
        row(f"{kind}: native capacity", estimate(capacities), unit="requests/s"),
        row(f"{kind}: deadline", estimate(deadlines), unit="ms"),
        *compared(kind, free, fixed, f"{seeds} × {seconds:g} s"),
    ]


def compared(kind: str, free: list[Side], fixed: list[Side], lasted: str) -> list[Row]:
    """In time, and the loss of what was in time."""
    gain = estimate([ours.good / max(1, theirs.good) for ours, theirs in zip(free, fixed, strict=True)])
    rise = estimate([100 * (ours.loss / theirs.loss - 1) for ours, theirs in zip(free, fixed, strict=True)])
    shares = [statistics.fmean(each.share for each in sides) for sides in (free, fixed)]
    sizes = sum((each.sizes for each in free), Counter())
    told = ", ".join(f"{size} {100 * count / sizes.total():.0f} %" for size, count in sizes.most_common(3))
    note = f"{lasted}; in time {shares[0]:.2f} and {shares[1]:.2f} of what arrived"
    return [
        row(f"{kind}: in time by load / native", gain, target="≥ 2", held=gain.median >= 2, note=note),
        row(f"{kind}: held-out loss of the answers", rise, unit="%", target="≤ +5", held=rise.median <= 5,
            note=f"wrote: {told}"),
    ]  # fmt: skip


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


PARTS = ("overhead", "bursts", "connections", "Poisson")


def measured(part: str, place: Place, run: Path, options: argparse.Namespace) -> list[Row]:
    """The rows of one part."""
    if part == "overhead":
        return overhead(place, run)
    if part == "connections":
        return connected(place, options.calm)
    return loaded(place, part, options.seconds, options.seeds)


def main() -> None:
    """Start a server, ask, write; what is done is written at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=None, help="an elastic run with a pareto.json")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=None)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each burst, and of the quiet before it")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--calm", type=float, default=300.0, help="seconds of a thousand connections")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = options.run or with_losses(large_run())
    with serving(run) as place:
        for part in options.only or PARTS:
            rows = measured(part, place, run, options)
            for each in rows:
                console.print(f"{each.name}: {each.shown} {each.target} {each.verdict} {each.note}")
            goes_on = options.only is not None or part != PARTS[0]
            console.print(f"written: {write('serve', rows, part=goes_on, environment=environment())}")


if __name__ == "__main__":
    main()
