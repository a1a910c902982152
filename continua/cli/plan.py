"""``continua plan``: bytes and seconds of a training step on machines that one does not have yet."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from continua.cli.folders import open_model
from continua.errors import ConfigError
from continua.lab.cost.machines import GIGA, Machine, machine
from continua.lab.cost.plan import Job, Plan, draw_scaling, largest, largest_context, plans
from continua.models import zoo

SHOWN = 6
MANY = tuple(2**power for power in range(3, 13))
WIDTHS = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Wishes:
    """The options of the command; ``shape`` is (d, heads, depth, tokens) of a GPT."""

    device: str
    devices: int
    batch: int
    context: int
    shape: tuple[int, int, int, int]
    dtype: str
    optimiser: str
    efficiency: float
    memory: float | None
    out: Path | None


def run(folder: Path | None, wishes: Wishes) -> None:
    """Print the best meshes, what else would fit, and draw the picture."""
    console = Console()
    device = _device(wishes)
    job = _job(folder, wishes)
    if wishes.devices < 1:
        raise ConfigError("devices are counted from one", got=wishes.devices, remedy="Use --devices 1 or more.")
    found = plans(job, device, wishes.devices)
    parameters = job.cost(1).parameters
    console.print(
        f"{parameters / 1e6:,.1f} M parameters, {job.batch} samples of {job.context} tokens a step, "
        f"{wishes.devices} × {device.name} at {100 * device.efficiency:.0f} % of its FLOPs.",
        soft_wrap=True,
    )
    console.print("A simulation by published figures, no measurement.")
    console.print(_table(found))
    _say_largest(console, job, device, found[0], wishes)
    if wishes.out is not None:
        drawn = draw_scaling(_scaling(job, device), wishes.out, f"{parameters / 1e6:,.0f} M parameters, {device.name}")
        console.print(f"picture: {drawn}", markup=False, soft_wrap=True)


def _device(wishes: Wishes) -> Machine:
    if not 0.0 < wishes.efficiency <= 1.0:
        got = wishes.efficiency
        raise ConfigError("a share of the FLOPs is reached", got=got, remedy="Use 0 < --efficiency ≤ 1.")
    found = replace(machine(wishes.device), efficiency=wishes.efficiency)
    if wishes.memory is None:
        return found
    if wishes.memory <= 0:
        raise ConfigError("a device has some memory", got=wishes.memory, remedy="Give gigabytes > 0.")
    return replace(found, memory=wishes.memory * GIGA)


def _job(folder: Path | None, wishes: Wishes) -> Job:
    if wishes.dtype not in WIDTHS:
        raise ConfigError("numbers are bfloat16 or float32", got=wishes.dtype, remedy="Use --dtype bfloat16.")
    model = _gpt(wishes, wishes.shape[2]) if folder is None else open_model(folder).model
    return Job(model, wishes.batch, wishes.context, wishes.optimiser, WIDTHS[wishes.dtype])


def _gpt(wishes: Wishes, depth: int) -> Any:
    """A GPT of this shape without numbers."""
    d, heads, _, vocab = wishes.shape
    with torch.device("meta"):
        return zoo.gpt2(vocab=vocab, d=d, heads=heads, depth=depth, context=wishes.context)


def _table(found: list[Plan]) -> Table:
    table = Table(title="meshes, the quickest that fit first")
    for name in ("mesh", "parts of the samples", "GB a device", "fits", "s a step", "tokens/s"):
        table.add_column(name, justify="left" if name == "mesh" else "right")
    for name in ("computing", "tokens", "weights", "gradients"):
        table.add_column(f"% {name}", justify="right")
    for plan in found[:SHOWN]:
        parts = (plan.seconds.compute, plan.seconds.tokens, plan.seconds.weights, plan.seconds.gradients)
        shares = [f"{100 * part / plan.seconds.total:.0f}" for part in parts]
        total = f"{plan.bytes.total / GIGA:.1f}"
        fits = "yes" if plan.fits else "no"
        seconds = f"{plan.seconds.total:.3g}"
        table.add_row(
            str(plan.mesh), str(plan.accumulate), total, fits, seconds, f"{plan.tokens_per_second:,.0f}", *shares
        )
    return table


def _say_largest(console: Console, job: Job, device: Machine, best: Plan, wishes: Wishes) -> None:
    longest = largest_context(job, device, best.mesh)
    console.print(f"On {best.mesh}: the longest context that fits, one sample at a time, is {longest:,} tokens.")
    if not best.fits:
        short = best.bytes.total / device.memory
        console.print(f"Nothing fits: {short:.1f} times the memory would. Use more devices, or a smaller model.")

    def fits(depth: int) -> bool:
        deeper = replace(job, model=_gpt(wishes, depth))
        return plans(deeper, device, wishes.devices)[0].fits

    if best.fits and next(job.model.parameters()).is_meta:
        layers = largest(fits)
        console.print(f"The deepest GPT of width {wishes.shape[0]} that fits has {layers:,} layers.")


def _scaling(job: Job, device: Machine) -> list[Plan]:
    """The best mesh of each number of devices that divides the job."""
    found = []
    for count in MANY:
        try:
            found.append(plans(job, device, count)[0])
        except ConfigError:
            continue
    if not found:
        got = f"{job.batch} samples of {job.context} tokens"
        raise ConfigError("no number of devices from 8 on divides the job", got=got, remedy="Use a larger --batch.")
    return found
