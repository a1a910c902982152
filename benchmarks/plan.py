"""What ``continua plan`` predicts of a training step, beside what is measured here on one, two and four gloo processes.

    python benchmarks/plan.py                 # bytes, and seconds on one and two processes
    python benchmarks/plan.py --only bytes    # bytes alone: they do not depend on what else the machine does

Bytes are those that torch allocates, from the profiler's log. Seconds are medians of steps. The speed of the machine is
that of the same model at half the batch, its link that of an all-reduce of the weights between two processes:
nothing of a predicted step itself is put in.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import continua as ct
from continua.lab import predict
from continua.lab.cost.machines import Machine
from continua.lab.cost.memory import peak_bytes
from continua.lab.cost.plan import Job, Mesh, planned

sys.path.insert(0, str(Path(__file__).parent))
from common import Row, environment, write

SHAPE = {"vocab": 96, "d": 256, "heads": 8, "depth": 4, "context": 128}
BATCH = 16
ROUNDS = 9


def made() -> Any:
    torch.manual_seed(0)
    return ct.zoo.gpt2(**SHAPE)


class Steps:
    """Training steps of one process, copied or sharded among all."""

    def __init__(self, sharded: bool, samples: int) -> None:
        self.model = made()
        self.run: Any = self.model
        if dist.is_initialized() and dist.get_world_size() > 1:
            if sharded:
                from torch.distributed.fsdp import fully_shard

                fully_shard(self.model)
            else:
                self.run = DistributedDataParallel(self.model)
        self.optimiser = torch.optim.AdamW(self.model.parameters())
        self.ids = torch.randint(SHAPE["vocab"], (samples, SHAPE["context"]))

    def __call__(self) -> None:
        self.optimiser.zero_grad()
        answer = self.run(self.ids)
        cross_entropy(answer.flatten(0, 1), self.ids.flatten(), reduction="sum").backward()
        self.optimiser.step()

    def bytes(self) -> int:
        for _ in range(3):  # copies lay their buckets out anew in the second step
            self()
        held = [*self.model.parameters(), *(t for s in self.optimiser.state.values() for t in s.values())]
        stored = sum(_local(tensor).numel() * _local(tensor).element_size() for tensor in held)
        copied = sum(p.numel() * p.element_size() for p in self.model.parameters()) if self.run is not self.model else 0
        return stored + copied + peak_bytes(self)  # buckets of copies were made before

    def seconds(self) -> float:
        self()
        found = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            self()
            found.append(time.perf_counter() - start)
        return statistics.median(found)


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def link(size: int) -> float:
    """Seconds of an all-reduce of so many bytes."""
    values = torch.zeros(size // 4)
    dist.all_reduce(values)
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        dist.all_reduce(values)
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def worker(what: str, sharded: bool) -> None:
    """Measure in one of the processes of torchrun; the first one prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    found: float
    if what == "link":
        found = link(4 * predict(made(), 1, 1).parameters)
    else:
        steps = Steps(sharded, BATCH // ranks)
        found = steps.bytes() if what == "bytes" else steps.seconds()
    if dist.get_rank() == 0:
        print("FOUND", json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measured(what: str, ranks: int, sharded: bool = False) -> float:
    """Start so many processes, and read what the first one found."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__]
    words += ["--worker", what, *(["--sharded"] if sharded else [])]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))
    return float(json.loads(line.removeprefix("FOUND")))


def here() -> Machine:
    """This machine, by a smaller step and a bare all-reduce."""
    half = Steps(sharded=False, samples=BATCH // 2)
    speed = predict(half.model, BATCH // 2, SHAPE["context"]).flops / half.seconds()
    size = 4 * predict(half.model, 1, 1).parameters
    rate = size / measured("link", 2)  # two turns of half of it each way
    return Machine("here", 1e12, speed, 8, rate, rate, 0.0, 0.0, 1.0)


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--only", choices=["bytes", "seconds"])
    reader.add_argument("--worker", choices=["bytes", "seconds", "link"], help=argparse.SUPPRESS)
    reader.add_argument("--sharded", action="store_true", help=argparse.SUPPRESS)
    options = reader.parse_args()
    if options.worker:
        worker(options.worker, options.sharded)
        return
    torch.set_num_threads(1)
    job = Job(made(), BATCH, SHAPE["context"])
    rows = []
    if options.only != "seconds":
        nothing = Machine("bytes alone", 1e12, 1e9, 8, 1e9, 1e9)
        for ranks, sharded in ((1, False), (2, False), (4, False), (2, True), (4, True)):
            told = planned(job, nothing, Mesh(ranks, 1, sharded)).bytes.total
            rows.append(row("bytes", ranks, sharded, told, measured("bytes", ranks, sharded), 0.10))
    if options.only != "bytes":
        machine = here()
        for ranks in (1, 2):
            told = planned(job, machine, Mesh(ranks, 1)).seconds.total
            rows.append(row("seconds", ranks, False, told, measured("seconds", ranks), 0.20))
    write("plan", rows, part=options.only is not None, environment=environment(), shape=SHAPE, batch=BATCH)


def row(what: str, ranks: int, sharded: bool, told: float, found: float, bound: float) -> Row:
    """One line, printed too: planned over measured."""
    name = f"{what}, {ranks} processes{', weights sharded' if sharded else ''}: planned / measured"
    note = f"planned {told:.4g}, measured {found:.4g}"
    made = Row(name, told / found, target=f"1 ± {bound}", held=abs(told / found - 1) <= bound, note=note)
    print(f"{name:60} {made.shown:8} {made.verdict}  {note}", flush=True)
    return made


if __name__ == "__main__":
    main()
