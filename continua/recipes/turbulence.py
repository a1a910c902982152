"""A stirred fluid: its equation is learned from pairs of states, and rolled out."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from continua.data.store import generated
from continua.lab.canvas.rollouts import draw_rollout
from continua.models import Batch, Transformer, zoo
from continua.optim import AdamW, ByRole
from continua.recipes.functions import SCHEDULE
from continua.recipes.recipe import Bundle, shipped
from continua.settings import NonNegative, Positive, Range, Seed, Size, checked
from continua.tasks.functions import Functions
from continua.tasks.rollouts import bounded, correlation_time, rollout, spectrum_error
from continua.training import Training
from continua.training.progress import share_bar


@checked
@dataclass(frozen=True)
class TurbulenceSettings:
    """``flows`` stirred fluids, looked at ``times`` times, ``dt`` apart, on ``nodes`` nodes along each side.

    ``held_out`` other flows are measured on; ``viscosity`` is that of all of them. The slope is ``conserving``:
    transport and damping, which keep roll-outs bounded, or else has ``products`` free products; its waves go up to
    ``modes``, and a unit of time takes ``depth`` steps. It is trained by AdamW at ``lr`` with ``noise`` on its
    inputs, as a share of their spread. ``batch`` states make a step. ``draws`` is the seed of the data, ``weights`` is
    that of the first weights.
    """

    flows: Size = 48
    held_out: Size = 8
    times: Size = 41
    nodes: Size = 32
    viscosity: Positive = 1e-3
    dt: Positive = 0.2
    modes: Size = 15
    conserving: bool = True
    products: Size = 4
    depth: Size = 8
    batch: Size = 8
    lr: NonNegative = 2e-2
    noise: Annotated[float, Range(0.0, 0.5)] = 0.01
    draws: Seed = 0
    weights: Seed = 0


@shipped
def turbulence(settings: TurbulenceSettings) -> Bundle:
    """A stirred fluid for ever: from its vorticity and force to its vorticity a short time later, rolled out."""
    each = settings.times - 1
    count = (settings.flows + settings.held_out) * each
    data = {"viscosity": settings.viscosity, "dt": settings.dt, "times": settings.times, "seed": settings.draws}
    with share_bar("stirred flows") as watch:
        whole = generated("turbulence", count, watch, None, n=settings.nodes, **data)
    cut = settings.flows * each
    task = Functions(whole.part(slice(0, cut)), whole.part(slice(cut, None)), settings.batch, noise=settings.noise)
    return Bundle(
        model=model_of(task, settings),
        task=task,
        optimiser=ByRole(AdamW(settings.lr, decay=0.0)),
        schedule=SCHEDULE,
        training=Training(steps=1000, evaluate_every=250, clip=1.0),
        about={"data": {"name": "turbulence", "sha256": whole.sha256}},
        report=lambda model, folder: report(model, task, each, folder),
    )


def model_of(task: Functions, settings: TurbulenceSettings) -> Transformer:
    """The model of these settings with fresh weights, scaled to the flows."""
    torch.manual_seed(settings.weights)
    spreads = tuple(float(s) for s in task.train.flat()[0].std((0, 1)))
    return zoo.evolution(
        task.train.axis,
        task.train.rule,
        spreads=spreads,
        modes=settings.modes,
        products=settings.products,
        steps=settings.depth,
        conserving=settings.conserving,
    )


def report(model: Any, task: Functions, steps: int, folder: Path) -> Iterator[str]:
    """How long roll-outs of flows never seen stay with the truth, and a picture of one."""
    inputs, outputs = (part.unflatten(0, (-1, steps)) for part in task.held_out.flat())
    truth = outputs.transpose(0, 1)
    states = rollout(model, Batch(inputs[:, 0], grid=task.held_out.grid), steps).states.cpu()
    side = task.held_out.shape
    late = [x[steps // 2 :, ..., 0].unflatten(-1, side) for x in (states, truth)]
    times = correlation_time(states, truth)
    yield f"roll-outs of {truth.shape[1]} flows never seen, {steps} steps:"
    yield f"  correlation above 0.8 for {float(times.mean()):.1f} steps ({int(times.min())} to {int(times.max())})"
    stable = float(bounded(states, truth).double().mean())
    yield f"  spectrum off by {float(spectrum_error(*late)):.3f} decades, {stable:.0%} of them bounded"
    shown, true = (x[:, 0, :, 0].unflatten(-1, side) for x in (states, truth))
    yield f"picture: {draw_rollout(shown, true, folder / 'rollout.png')}"
