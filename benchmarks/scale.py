"""Tokens in parts: how exact, how many bytes a process, and how long.

    python benchmarks/scale.py                   # exactness and bytes; about a minute on one core
    python benchmarks/scale.py --cases nystrom   # exactness of some models alone
    python benchmarks/scale.py --only ring       # exactness where keys are many, beside that of one process
    python benchmarks/scale.py --only bytes      # bytes a process alone
    python benchmarks/scale.py --time            # two processes against one with two threads, on a quiet machine
    python benchmarks/scale.py --only resume     # checkpoints of two processes on one and on four
    python benchmarks/scale.py --only loader     # files on disk against training, in CPU seconds; a minute
    python benchmarks/scale.py --only kills      # one of two processes killed at twenty random moments; ten minutes

Exactness: answers and gradients of whole models on 2 and 4 processes of gloo against one process, ‖Δ‖/‖whole‖; the
models are those of ``tests/models/test_sharded.py``. Few keys are gathered; the rows of the ring send them round, and
say how far one process in float32 is from float64. Bytes: the most tensor bytes alive at once in a forward and
backward pass of GPT-2's shape, beside weights and their gradients. Time: the same pass.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import argparse
import copy
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from common import Row, environment, ratio, row, write
from rich.console import Console
from rich.table import Table
from scale_checkpoints import kills, resumed
from scale_loader import loader

from continua.axes import Sharded, counting
from continua.axes.sharded import Layout
from continua.lab.cost.memory import peak_bytes
from continua.models import Batch, zoo
from continua.operators import Window
from continua.operators.attention import ring
from continua.operators.attention.parts import surroundings
from continua.training.distributed import joined
from tests.forked import together
from tests.models.sharded_cases import Case
from tests.models.sharded_kernels import NAMES as KERNELS
from tests.models.sharded_kernels import kernels
from tests.models.test_sharded import CLOSE, NAMES, Alone, cases, compared, flat, gradients, relative

SHOWN = (*NAMES, *KERNELS)
TOKENS = 4096
WINDOW = 64.0
LONG = 16384
SHARE = 0.30
SLOWER = 1.10
QUIET = 0.1  # of the processors, used by others: beyond it a time says nothing
FEWEST = 5
CORES = 2
WARM = 1
ROUNDS = 7


def passing(tokens: int, sharded: Sharded | None) -> Any:
    """A forward and backward pass; gradients are there before, and their bytes are not counted."""
    torch.manual_seed(0)
    model = zoo.gpt2(vocab=64, d=64, heads=4, depth=4, context=tokens)
    model.execution.check = False
    ids = torch.randint(0, 64, (1, tokens))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def work() -> None:
        answer = model(ids) if sharded is None else model.at(t=sharded)(ids)
        answer.square().mean().backward()

    return work


def exact(folder: Path, shown: tuple[str, ...]) -> None:
    """Gaps of some models, written by each process."""
    from torch.distributed.device_mesh import init_device_mesh

    with joined() as world:
        sharded = Sharded(init_device_mesh("cpu", (world.size,)))
        found: dict[str, float] = {}
        for precision in CLOSE:
            dtype = getattr(torch, precision)
            for case in (*cases(dtype), *kernels(dtype)):
                if case[0] in shown:
                    found[f"{case[0]}, {precision}"] = compared(case, sharded, dtype)
        (folder / f"{world.rank}.json").write_text(json.dumps(found))


def bytes_of(folder: Path) -> None:
    """The peak of each process."""
    from torch.distributed.device_mesh import init_device_mesh

    with joined() as world:
        work = passing(TOKENS, Sharded(init_device_mesh("cpu", (world.size,))))
        work()  # buffers that are made once
        (folder / f"{world.rank}.json").write_text(json.dumps(peak_bytes(work)))


def seconds_of(folder: Path) -> None:
    """Seconds of rounds, in turns: one process with two threads while the other waits, and both with one each."""
    from torch.distributed.device_mesh import init_device_mesh

    with joined() as world:
        whole = passing(LONG, None)
        parts = passing(LONG, Sharded(init_device_mesh("cpu", (world.size,))))

        def alone() -> None:
            if world.leads:
                torch.set_num_threads(2)
                whole()
                torch.set_num_threads(1)

        seen: dict[str, list[float]] = {"alone": [], "parts": [], "others": []}
        for index in range(WARM + ROUNDS):
            before = busy()
            used = time.process_time()
            took = (met(world, alone), met(world, parts))
            own = world.sum(torch.tensor(time.process_time() - used))
            if index >= WARM:
                seen["alone"].append(took[0])
                seen["parts"].append(took[1])
                seen["others"].append((busy() - before - float(own)) / sum(took) / CORES)
        (folder / f"{world.rank}.json").write_text(json.dumps(seen))


def met(world: Any, work: Any) -> float:
    """Seconds until all have done it."""
    world.wait()
    start = time.perf_counter()
    work()
    world.wait()
    return time.perf_counter() - start


def busy() -> float:
    """Seconds that all processors of this machine have worked."""
    words = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    ticks = [int(word) for word in words]
    idle = ticks[3] + ticks[4]
    return (sum(ticks[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def on(count: int, work: Any, *given: Any) -> list[Any]:
    """What each of ``count`` processes wrote."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        together(work, folder, *given, folder=folder, count=count)
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def exactness(shown: tuple[str, ...] = SHOWN) -> list[Row]:
    """The largest gap among the processes."""
    rows = []
    for count in (2, 4):
        found = on(count, exact, shown)
        for name in found[0]:
            close = CLOSE[name.rpartition(", ")[-1]]
            gap = max(own[name] for own in found)
            rows.append(Row(f"{name}, {count} processes", gap, target=f"≤ {close:g}", held=gap <= close))
    return rows


def walked() -> Iterator[Case]:
    """Models of the test whose keys go round the ring in float32, and two with so many tokens that they must."""
    for name, model, batch, more in cases(torch.float32):
        if name in ("gpt2", "llama", "first"):
            yield name, model, batch, more
    torch.manual_seed(0)
    ids = Batch(torch.randint(0, 64, (1, TOKENS)))
    yield f"gpt2, {TOKENS:,} tokens", zoo.gpt2(vocab=64, d=64, heads=4, depth=4, context=TOKENS), ids, None
    yield f"llama, {TOKENS:,} tokens", zoo.llama(vocab=64, d=64, heads=4, depth=4, groups=2), ids, None


def round_the_ring(folder: Path) -> None:
    """Gaps of the models above, written by each process."""
    from torch.distributed.device_mesh import init_device_mesh

    ring.FEW = 0
    with joined() as world:
        sharded = Sharded(init_device_mesh("cpu", (world.size,)))
        found = {case[0]: compared(case, sharded, torch.float32) for case in walked()}
        (folder / f"{world.rank}.json").write_text(json.dumps(found))


def rounding(model: Any, batch: Batch) -> float:
    """How far the gradients of one process in float32 are from those in float64."""
    wide = copy.deepcopy(model).double()
    values: Any = batch.values
    fine = replace(batch, values=values.double() if values.is_floating_point() else values)
    answer = model(batch)
    loss = torch.randn(answer.shape, generator=torch.Generator().manual_seed(3))
    (answer * loss).sum().backward()
    (wide(fine) * loss.double()).sum().backward()
    return relative(flat(gradients(model, None)).double(), flat(gradients(wide, None)))


def ring_alone() -> list[Row]:
    """The largest gap where keys go round, beside what one process has lost to float32.

    The few keys of small models go round only here: nothing is promised of these.
    """
    own = {name: rounding(copy.deepcopy(model), batch) for name, model, batch, _ in walked()}
    rows = []
    for count in (2, 4):
        found = on(count, round_the_ring)
        for name, lost in own.items():
            note = f"one process is itself {lost:.1e} from float64"
            gap = max(one[name] for one in found)
            many = "tokens" in name
            target = f"≤ {CLOSE['float32']:g}" if many else ""
            held = gap <= CLOSE["float32"] if many else None
            told = f"round the ring: {name}, float32, {count} processes"
            rows.append(Row(told, gap, target=target, held=held, note=note))
    return rows


def travel() -> list[Row]:
    """What comes to the busiest process under a window, over what comes where all keys are gathered."""
    share = 0.0
    for rank in range(4):
        layout = Layout(Alone(4, rank), TOKENS)
        t = counting(TOKENS, torch.zeros(())).in_parts(layout)
        if t.shard is not None:
            wanted = surroundings(layout, t.shard.whole, Window(WINDOW))
            share = max(share, wanted.travelling / (TOKENS - 2 * layout.chunk))
    name = f"keys that travel, window of {WINDOW:g} among {TOKENS:,} tokens, 4 processes / all gathered"
    return [Row(name, share)]


def memory() -> list[Row]:
    """Bytes of the hungriest of four processes over those of one."""
    whole = passing(TOKENS, None)
    whole()
    alone = peak_bytes(whole)
    most = max(on(4, bytes_of))
    share = most / alone
    note = f"{most / 2**20:.1f} of {alone / 2**20:.1f} MiB"
    name = f"bytes a process, {TOKENS:,} tokens, 4 processes / 1"
    return [Row(name, share, target=f"≤ {SHARE}", held=share <= SHARE, note=note)]


def duration() -> list[Row]:
    """Two processes of one thread over one process of two threads, in rounds in which nobody else works."""
    name = f"time, {LONG:,} tokens, 2 processes / 1 with 2 threads"
    seen = on(CORES, seconds_of)[0]
    triples = list(zip(seen["parts"], seen["alone"], seen["others"], strict=True))
    for parts, alone, others in triples:
        print(f"  {parts:.3f} s / {alone:.3f} s, others {100 * others:.0f} % of the processors", flush=True)
    quiet = [(parts, alone) for parts, alone, others in triples if others <= QUIET]
    if len(quiet) < FEWEST:
        note = f"not measured: others worked in {len(triples) - len(quiet)} of {len(triples)} rounds"
        return [Row(name, float("nan"), target=f"≤ {SLOWER}", note=note)]
    got = ratio([parts for parts, _ in quiet], [alone for _, alone in quiet])
    note = f"{len(quiet)} of {len(triples)} rounds were quiet"
    return [row(name, got, target=f"≤ {SLOWER}", held=got.median <= SLOWER, note=note)]


PARTS = {"resume": resumed, "kills": kills, "loader": loader, "ring": ring_alone, "bytes": memory}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", action="store_true", help="measure the time alone")
    parser.add_argument("--only", choices=list(PARTS), help="one part alone")
    parser.add_argument("--cases", nargs="+", choices=SHOWN, metavar="CASE", help="exactness of these models alone")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.cases is not None:
        rows = exactness(tuple(chosen.cases))
    elif chosen.only is not None:
        rows = PARTS[chosen.only]()
    else:
        rows = duration() if chosen.time else [*exactness(), *travel(), *memory()]
    rows = [one for one in rows if one.value == one.value] or rows
    table = Table("tokens in parts", "measured", "target", "", "")
    for one in rows:
        table.add_row(one.name, one.shown, one.target, one.verdict, one.note)
    Console().print(table)
    told = [one for one in rows if one.value == one.value]
    if told:
        write("scale", told, part=True, environment=environment())
    return 0 if all(one.held is not False for one in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
