"""``continua plan``: bytes and seconds of a training step on machines that one does not have yet."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from continua.cli.folders import open_model
from continua.errors import ConfigError
from continua.lab.cost.job import Job, Mesh
from continua.lab.cost.machines import GIGA, PUBLISHED, Machine, machine
from continua.lab.cost.plan import MeshCost, deepest, largest_context, plans
from continua.lab.cost.plan_picture import draw_scaling
from continua.lab.cost.steps import Seconds
from continua.models import zoo

SHOWN = 6
TERA = 1e12
MANY = tuple(2**power for power in range(3, 13))
PRECISIONS = {"bfloat16": True, "float32": False}
SOURCE = {True: "by published figures", False: "by the figures given"}


@dataclass(frozen=True)
class Figures:
    """What the options say of a device beside its name: gigabytes, TFLOP/s, gigabytes a second."""

    efficiency: float | None
    memory: float | None
    tflops: float | None
    node: int | None
    inside: float | None
    outside: float | None


@dataclass(frozen=True)
class Shape:
    """A GPT that is made where no folder is named."""

    d: int
    heads: int
    depth: int
    vocab: int


@dataclass(frozen=True)
class Wishes:
    """The other options of the command."""

    device: str
    devices: int
    batch: int
    context: int
    precision: str
    optimiser: str
    out: Path | None


def run(folder: Path | None, wishes: Wishes, shape: Shape, figures: Figures) -> None:
    """Print the best meshes, what else would fit, and draw the picture."""
    console = Console()
    device = _device(wishes.device, figures)
    if wishes.devices < 1:
        raise ConfigError("devices are counted from one", got=wishes.devices, remedy="Use --devices 1 or more.")
    job = _job(folder, wishes, shape)
    found = plans(job, device, wishes.devices)
    parameters = job.cost(1).parameters
    console.print(
        f"{parameters / 1e6:,.1f} M parameters, {job.batch} samples of {job.context} tokens a step,\n"
        f"{wishes.devices} × {device.name} at {100 * device.efficiency:.0f} % of its FLOPs: "
        f"a simulation {SOURCE[device.name in {one.name for one in PUBLISHED.values()}]}.",
        highlight=False,
    )
    console.print(table(found[:SHOWN]))
    if not all(plan.fits for plan in found[:SHOWN]):
        console.print("* does not fit")
    best = found[0]
    longest = largest_context(job, device, best.mesh)
    console.print(f"Longest context that fits on {best.mesh}, one sample at a time: {longest:,} tokens.")
    if not best.fits:
        short = best.bytes.total / device.memory
        console.print(f"Nothing fits: {short:.1f} times the memory would. Use more devices, or a smaller model.")
    elif folder is None:
        _say_deepest(console, job, device, wishes, shape)
    if wishes.out is not None:
        drawn = draw_scaling(scaling(job, device), wishes.out, f"{parameters / 1e6:,.0f} M parameters, {device.name}")
        console.print(f"picture: {drawn}", markup=False, soft_wrap=True)


def _device(name: str, figures: Figures) -> Machine:
    """The device of that name or file, with what the options say instead of its own figures."""
    found = machine(name)
    own = (figures.memory, figures.tflops, figures.node, figures.inside, figures.outside)
    return replace(
        found,
        name=found.name if all(figure is None for figure in own) else f"{found.name} (changed)",
        efficiency=_first(figures.efficiency, found.efficiency),
        memory=_first(figures.memory, found.memory / GIGA) * GIGA,
        flops=_first(figures.tflops, found.flops / TERA) * TERA,
        full=found.full if figures.tflops is None else None,  # what is given is meant for either precision
        node=found.node if figures.node is None else figures.node,
        inside=_first(figures.inside, found.inside / GIGA) * GIGA,
        outside=_first(figures.outside, found.outside / GIGA) * GIGA,
    )


def _first(said: float | None, own: float) -> float:
    return own if said is None else said


def _job(folder: Path | None, wishes: Wishes, shape: Shape) -> Job:
    if wishes.precision not in PRECISIONS:
        remedy = "Use --precision bfloat16."
        raise ConfigError("a step is computed in bfloat16 or float32", got=wishes.precision, remedy=remedy)
    model = _gpt(shape, wishes.context) if folder is None else open_model(folder).model
    return Job(model, wishes.batch, wishes.context, wishes.optimiser, PRECISIONS[wishes.precision])


def _gpt(shape: Shape, context: int) -> Any:
    """A GPT of this shape without numbers."""
    with torch.device("meta"):
        return zoo.gpt2(vocab=shape.vocab, d=shape.d, heads=shape.heads, depth=shape.depth, context=context)


def table(found: list[MeshCost]) -> Table:
    """Meshes with their bytes and seconds, in 80 columns."""
    made = Table(title="meshes, the quickest that fit first", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    made.add_column("data × tokens", no_wrap=True)
    for name in ("parts", "GB", "s/step", "tokens/s"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("where the time goes")
    for plan in found:
        mark = "" if plan.fits else " *"
        made.add_row(
            _short(plan.mesh),
            str(plan.accumulate),
            f"{plan.bytes.total / GIGA:.1f}{mark}",
            f"{plan.seconds.total:.3g}",
            _rate(plan.tokens_per_second),
            _shares(plan.seconds),
        )
    return made


def _short(mesh: Mesh) -> str:
    return f"{mesh.data} × {mesh.tokens}{', sharded' if mesh.sharded else ''}"


def _rate(number: float) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _shares(seconds: Seconds) -> str:
    """The parts of a step in words, those under half a per cent left out."""
    parts = {
        "computing": seconds.compute,
        "keys": seconds.tokens,
        "weights": seconds.weights,
        "gradients": seconds.gradients,
        "optimiser": seconds.optimiser,
    }
    told = {name: round(100 * part / seconds.total) for name, part in parts.items()}
    return ", ".join(f"{name} {share}%" for name, share in told.items() if share)


def _say_deepest(console: Console, job: Job, device: Machine, wishes: Wishes, shape: Shape) -> None:
    def of_depth(depth: int) -> Job:
        return replace(job, model=_gpt(replace(shape, depth=depth), wishes.context))

    one, two = of_depth(1), of_depth(2)
    layers = deepest(one, two, device, wishes.devices)
    first = one.cost(1).parameters
    size = first + (layers - 1) * (two.cost(1).parameters - first)
    console.print(f"Deepest GPT of width {shape.d} that fits: {layers:,} layers, {size / 1e9:.3g} billion parameters.")


def scaling(job: Job, device: Machine) -> list[MeshCost]:
    """The best mesh of each number of devices from 8 to 4,096 that divides the job."""
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
