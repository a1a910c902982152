"""Training steps on 8 to 4,096 devices, simulated by published figures: tables and a picture for the docs.

    python benchmarks/plan_scaling.py         # about a minute; nothing is measured

Three GPTs on the best mesh of each number of devices: a batch that grows with the devices (weak), one that does not
(strong), and a long context. The figures of devices are those of the makers' data sheets (``lab.cost.machines``).
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from common import Row, environment, write

import continua as ct
from continua.cli.plan import MANY
from continua.lab.cost.job import Job
from continua.lab.cost.machines import PUBLISHED, Machine
from continua.lab.cost.plan import MeshCost, largest_context, plans
from continua.lab.cost.plan_picture import draw_scaling

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "plan.png"
COLUMNS = ("", "tokens a second (simulated)", "", "mesh; GB and seconds of a step; where the time goes")


@dataclass(frozen=True)
class Case:
    """A GPT and its batch; ``each`` samples for every device, or ``batch`` in all."""

    name: str
    device: str
    d: int
    heads: int
    depth: int
    context: int
    batch: int = 0
    each: int = 0

    def job(self, devices: int) -> Job:
        with torch.device("meta"):
            model = ct.zoo.gpt2(vocab=50257, d=self.d, heads=self.heads, depth=self.depth, context=self.context)
        return Job(model, self.batch or self.each * devices, self.context, half=True)


CASES = (
    Case("1.6 B, 8 samples of 2,048 a device", "h100", 1600, 25, 48, 2048, each=8),
    Case("1.6 B, 4,096 samples of 2,048", "h100", 1600, 25, 48, 2048, batch=4096),
    Case("3 B, 64 samples of 131,072", "h200", 2560, 32, 36, 131072, batch=64),
)


def shares(plan: MeshCost) -> str:
    """Where the time goes, in per cent."""
    seconds = plan.seconds
    parts = {
        "computing": seconds.compute,
        "waiting for keys": seconds.tokens,
        "gathering weights": seconds.weights,
        "summing gradients": seconds.gradients,
        "optimiser": seconds.optimiser,
    }
    told = {name: round(100 * part / seconds.total) for name, part in parts.items()}
    return ", ".join(f"{name} {share} %" for name, share in told.items() if share)


def line(case: Case, plan: MeshCost, machine: Machine) -> Row:
    """One number of devices."""
    size = f"{plan.bytes.total / 1e9:.1f} of {machine.memory / 1e9:.0f} GB{'' if plan.fits else ' (does not fit)'}"
    parts = f" in {plan.accumulate} parts" if plan.accumulate > 1 else ""
    return Row(
        f"{case.name}, {plan.mesh.devices:,} × {machine.name}",
        plan.tokens_per_second / 1e6,
        unit="million",
        note=f"{plan.mesh}{parts}; {size}, {plan.seconds.total:.3g} s; {shares(plan)}",
    )


def main() -> None:
    rows = []
    for index, case in enumerate(CASES):
        machine = PUBLISHED[case.device]
        found = [plans(case.job(count), machine, count)[0] for count in MANY]
        rows += [line(case, plan, machine) for plan in found]
        if index == 1:
            draw_scaling(found, PICTURE, f"GPT of {case.name} tokens a step, {machine.name}")
    for device in PUBLISHED.values():
        job = CASES[1].job(64)
        best = plans(job, device, 64)[0]
        longest = largest_context(job, device, best.mesh)
        one = line(CASES[1], best, device)
        rows.append(replace(one, name=f"kinds of devices: {one.name}", note=f"{one.note}; longest context {longest:,}"))
    for row in rows:
        print(f"{row.name:70} {row.value:>10.3g} {row.note}", flush=True)
    write("plan_scaling", rows, environment=environment(), columns=COLUMNS)


if __name__ == "__main__":
    main()
