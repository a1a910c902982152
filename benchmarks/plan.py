"""What ``continua plan`` predicts of a training step, beside what is measured here on one, two and four gloo processes.

    python benchmarks/plan.py                 # bytes, and seconds on one and two processes
    python benchmarks/plan.py --only bytes    # bytes alone: they do not depend on what else the machine does

Bytes are those that torch allocates, from the profiler's log. Seconds are those of whole steps, on one process and on
two at once. What they are predicted from is measured in the same processes, in turns with the steps: FLOPs a second by
half of the samples without an optimiser, bytes a second by AdamW on a plain tensor, the link by all-reduces of plain
tensors. Nothing of a predicted step itself is put in.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import continua as ct
from continua.axes import Sharded
from continua.lab import predict
from continua.lab.cost.job import Job, Mesh
from continua.lab.cost.machines import Machine
from continua.lab.cost.memory import peak_bytes
from continua.lab.cost.plan import planned

sys.path.insert(0, str(Path(__file__).parent))
from common import Row, environment, ratio, row, write

SHAPE = {"vocab": 96, "d": 256, "heads": 8, "depth": 4, "context": 128}
BATCH = 16
PLAIN = 2**21  # numbers of a plain tensor
WARM = 2
ROUNDS = 15
BYTES = 0.1  # how far a prediction may be off
SECONDS = 0.2
MESHES = {1: (Mesh(),), 2: (Mesh(2), Mesh(2, sharded=True), Mesh(1, 2))}


def made() -> Any:
    torch.manual_seed(0)
    return ct.zoo.gpt2(**SHAPE)


class Steps:
    """Training steps of one process: weights copied or sharded among all, samples whole or their tokens in parts."""

    def __init__(self, mesh: Mesh) -> None:
        self.model = made()
        self.run: Any = self.model
        if mesh.sharded:
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.model)
        elif mesh.devices > 1:
            self.run = DistributedDataParallel(self.model)
        self.optimiser = torch.optim.AdamW(self.model.parameters())
        self.ids = torch.randint(SHAPE["vocab"], (BATCH // mesh.data, SHAPE["context"]))
        self.target = self.ids
        self.at: Any = None
        if mesh.tokens > 1:
            tokens = Sharded(init_device_mesh("cpu", (mesh.tokens,)))
            self.at = ct.at(t=tokens)
            self.target = tokens.part(self.ids, fill=-100)

    def __call__(self) -> None:
        self.optimiser.zero_grad()
        answer = self.run(self.ids, self.at)
        cross_entropy(answer.flatten(0, 1), self.target.flatten(), reduction="sum").backward()
        self.optimiser.step()

    def bytes(self) -> int:
        for _ in range(3):  # copies lay their buckets out anew in the second step
            self()
        held = [*self.model.parameters(), *(t for s in self.optimiser.state.values() for t in s.values())]
        stored = sum(_local(tensor).numel() * _local(tensor).element_size() for tensor in held)
        copied = sum(p.numel() * p.element_size() for p in self.model.parameters()) if self.run is not self.model else 0
        return stored + copied + peak_bytes(self)  # buckets of copies were made before


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@dataclass(frozen=True)
class Found:
    """One round: the seconds of steps on each mesh, and of what they are predicted from."""

    steps: tuple[float, ...]
    passes: float  # of half of the samples, forward and backward
    adamw: float  # of a plain tensor
    small: float  # an all-reduce of a few bytes
    large: float  # and of many


def timed(work: Callable[[], object]) -> float:
    """Seconds until all processes have done it."""
    dist.barrier()
    start = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - start


def rounds(ranks: int) -> list[dict[str, Any]]:
    """Everything in turns."""
    steps = [Steps(mesh) for mesh in MESHES[ranks]]
    half = Alone(BATCH // ranks // 2)
    plain = torch.zeros(PLAIN, requires_grad=True)
    plain.grad = torch.ones_like(plain)
    optimiser = torch.optim.AdamW([plain])
    small, large = torch.zeros(16), torch.zeros(PLAIN)
    found = []
    for index in range(WARM + ROUNDS):
        seen = Found(
            steps=tuple(timed(step) for step in steps),
            passes=timed(half),
            adamw=timed(optimiser.step),
            small=timed(lambda: dist.all_reduce(small)),
            large=timed(lambda: dist.all_reduce(large)),
        )
        if index >= WARM:
            found.append(asdict(seen))
    return found


class Alone:
    """Forward and backward passes of the same model that meet nobody."""

    def __init__(self, samples: int) -> None:
        self.model = made()
        self.ids = torch.randint(SHAPE["vocab"], (samples, SHAPE["context"]))

    def __call__(self) -> None:
        self.model.zero_grad()
        answer = self.model(self.ids)
        cross_entropy(answer.flatten(0, 1), self.ids.flatten(), reduction="sum").backward()


def worker(what: str, sharded: bool) -> None:
    """Measure in one of the processes of torchrun; the first one prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    found: Any = rounds(ranks) if what == "seconds" else Steps(Mesh(ranks, 1, sharded)).bytes()
    if dist.get_rank() == 0:
        print("FOUND", json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measured(what: str, ranks: int, sharded: bool = False) -> Any:
    """Start so many processes, and read what the first one found."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__]
    words += ["--worker", what, *(["--sharded"] if sharded else [])]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))
    return json.loads(line.removeprefix("FOUND"))


def here(found: Found, ranks: int) -> Machine:
    """This machine, by what was measured beside a step."""
    samples = BATCH // ranks // 2
    speed = predict(made(), samples, SHAPE["context"]).flops / found.passes
    touched = PLAIN * 4 * 7 / found.adamw  # three times weights or gradients, two states there and back
    sent = 4 * PLAIN / max(found.large - found.small, 1e-9)  # two turns of half of it each way
    return Machine("here", 1e12, speed, ranks, sent, sent, found.small / 2, found.small / 2, 1.0, bandwidth=touched)


def seconds(job: Job) -> list[Row]:
    """Predicted over measured of each round."""
    rows = []
    for ranks, chosen in MESHES.items():
        found = [Found(**one) for one in measured("seconds", ranks)]
        for index, mesh in enumerate(chosen):
            told = [planned(job, here(one, ranks), mesh).seconds.total for one in found]
            taken = [one.steps[index] for one in found]
            got = ratio(told, taken)
            rows.append(
                row(
                    f"seconds, {ranks} processes{_kind(mesh)}: planned / measured",
                    got,
                    target=f"1 ± {SECONDS}",
                    held=abs(got.median - 1) <= SECONDS,
                    note=f"planned {statistics.median(told):.4g}, measured {statistics.median(taken):.4g}",
                )
            )
            print(f"{rows[-1].name:60} {rows[-1].shown:8} {rows[-1].verdict}  {rows[-1].note}", flush=True)
    return rows


def _kind(mesh: Mesh) -> str:
    return (", tokens in parts" if mesh.tokens > 1 else "") + (", weights sharded" if mesh.sharded else "")


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--only", choices=["bytes", "seconds"])
    reader.add_argument("--worker", choices=["bytes", "seconds"], help=argparse.SUPPRESS)
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
            rows.append(counted(ranks, sharded, told, float(measured("bytes", ranks, sharded))))
    if options.only != "bytes":
        rows += seconds(job)
    write("plan", rows, part=options.only is not None, environment=environment(), shape=SHAPE, batch=BATCH)


def counted(ranks: int, sharded: bool, told: float, found: float) -> Row:
    """One line of bytes, printed too: planned over measured."""
    name = f"bytes, {ranks} processes{_kind(Mesh(ranks, 1, sharded))}: planned / measured"
    note = f"planned {told:.4g}, measured {found:.4g}"
    made = Row(name, told / found, target=f"1 ± {BYTES}", held=abs(told / found - 1) <= BYTES, note=note)
    print(f"{name:60} {made.shown:8} {made.verdict}  {note}", flush=True)
    return made


if __name__ == "__main__":
    main()
