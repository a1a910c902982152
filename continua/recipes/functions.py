"""Operator learning: maps between functions, learned on one grid and used on any."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from continua.axes import at
from continua.data.field_files import FieldFiles
from continua.data.pairs import Pairs
from continua.data.store import generated
from continua.errors import ConfigError
from continua.lab.canvas.functions import draw_functions, draw_resolution
from continua.models import Batch, Transformer, zoo
from continua.models.latent import Latent
from continua.optim import AdamW, ByRole, Cosine, Muon
from continua.recipes.recipe import Bundle, shipped
from continua.settings import NonNegative, Positive, Range, Seed, Size, checked
from continua.tasks.functions import Functions, predict, relative, scattered
from continua.tasks.stored_functions import StoredFunctions
from continua.training import Training
from continua.training.progress import share_bar

SCHEDULE = Cosine(floor=0.0)  # errors of a few thousandths are the noise of the last steps: these end at zero


@checked
@dataclass(frozen=True)
class OperatorSettings:
    """``d``, ``m``, ``heads`` and ``depth`` are the native size of a model from functions to functions.

    ``modes`` counts the waves of the convolution along each direction; ``attention`` adds attention to each step,
    ``sharp`` says that inputs have jumps. Matrices are trained by Muon at ``matrix_lr``, everything else by AdamW at
    ``lr``; ``order`` 1 is the loss in H¹. ``batch`` functions make a step. ``weights`` is the seed of the first
    weights.
    """

    d: Size = 64
    m: Size = 64
    heads: Size = 4
    depth: Size = 4
    modes: Size = 17
    attention: bool = False
    sharp: bool = False
    batch: Size = 20
    lr: NonNegative = 2e-3
    matrix_lr: NonNegative = 6e-3
    order: Annotated[int, Range(0, 1)] = 1
    weights: Seed = 0


@checked
@dataclass(frozen=True)
class FunctionSettings(OperatorSettings):
    """``train`` functions on a grid of ``nodes`` along each direction, ``held_out`` others to be measured on.

    Data are generated on ``fine`` nodes once and kept. ``draws`` is the seed of the data. The others are of
    ``OperatorSettings``.
    """

    train: Size = 1024
    held_out: Size = 200
    nodes: Size = 64
    fine: Size = 1024
    draws: Seed = 0


@checked
@dataclass(frozen=True)
class BurgersSettings(FunctionSettings):
    """Those of ``FunctionSettings``, for a circle; ``viscosity`` is that of the flow."""

    modes: Size = 24
    viscosity: Positive = 0.01


@checked
@dataclass(frozen=True)
class DarcySettings(FunctionSettings):
    """Those of ``FunctionSettings``, for a square: of ``fine`` nodes along each side every fifth is learned on."""

    train: Size = 900
    held_out: Size = 100
    nodes: Size = 29
    fine: Size = 141
    d: Size = 32
    m: Size = 64
    modes: Size = 14
    sharp: bool = True


@checked
@dataclass(frozen=True)
class VorticitySettings(FunctionSettings):
    """Those of ``FunctionSettings``, for a torus: the vorticity of one time and of one unit later.

    Each flow is looked at ``times`` times and gives a pair less; those that are held out are of other flows.
    ``viscosity`` is that of the fluid.
    """

    train: Size = 1900
    held_out: Size = 100
    times: Size = 11
    nodes: Size = 32
    fine: Size = 64
    d: Size = 32
    m: Size = 64
    modes: Size = 10
    viscosity: Positive = 1e-3


@checked
@dataclass(frozen=True)
class FieldSettings(OperatorSettings):
    """``folder`` is one of ``continua data fields``; a field is mapped to the one ``lag`` times later in its path.

    ``limit`` held-out windows are measured on. The others are of ``OperatorSettings``.
    """

    folder: str | None = None
    lag: Size = 1
    limit: Size = 200
    modes: Size = 12


@shipped
def fields(settings: FieldSettings) -> Bundle:
    """Fields on disk of any number: from one time to a later one."""
    if settings.folder is None:
        remedy = "Build one: continua data fields ARRAYS --out FOLDER; then --set folder=FOLDER."
        raise ConfigError("fields are read from a folder", got="none", remedy=remedy)
    source = FieldFiles.open(settings.folder)
    source.require_unchanged()
    task = StoredFunctions(source, settings.lag, settings.batch, settings.order, settings.limit)
    return Bundle(
        model=model_of(task.functions, settings),
        task=task,
        optimiser=optimiser_of(settings),
        schedule=SCHEDULE,
        training=Training(steps=3000, evaluate_every=300, clip=None),
        about={"data": {"name": source.folder.name, "sha256": source.sha256}},
        report=lambda model, folder: report(model, task.functions, task.functions.held_out, folder),
    )


@shipped
def burgers(settings: BurgersSettings) -> Bundle:
    """Burgers' equation: from u at time 0 to u at time 1."""
    return bundle_of("burgers", settings, viscosity=settings.viscosity)


@shipped
def darcy(settings: DarcySettings) -> Bundle:
    """Flow through porous ground: from its permeability to its pressure."""
    return bundle_of("darcy", settings)


@shipped
def navier_stokes(settings: VorticitySettings) -> Bundle:
    """A stirred fluid: from its vorticity to that of one time unit later."""
    return bundle_of("navier-stokes", settings, viscosity=settings.viscosity, times=settings.times)


def bundle_of(name: str, settings: FunctionSettings, **data: float) -> Bundle:
    """All that a fit of one equation needs."""
    with share_bar(f"functions of {name}") as watch:
        count = settings.train + settings.held_out
        whole = generated(name, count, watch, None, n=settings.fine, seed=settings.draws, **data)
    task = task_of(whole, settings)
    return Bundle(
        model=model_of(task, settings),
        task=task,
        optimiser=optimiser_of(settings),
        schedule=SCHEDULE,
        training=Training(steps=3000, evaluate_every=300, clip=None),
        about={"data": {"name": name, "sha256": whole.sha256}},
        report=lambda model, folder: report(model, task, whole.part(slice(settings.train, None)), folder),
    )


def task_of(whole: Pairs, settings: FunctionSettings) -> Functions:
    """The first functions on the coarse grid to learn from, the others to be measured on."""
    coarse = whole.every(stride_of(whole, settings.nodes))
    train = coarse.part(slice(0, settings.train))
    held_out = coarse.part(slice(settings.train, None))
    return Functions(train, held_out, settings.batch, settings.order)


def stride_of(whole: Pairs, nodes: int) -> int:
    """Which of the fine nodes make a grid of ``nodes`` along each direction."""
    for stride in range(1, whole.shape[0] + 1):
        if len(range(0, whole.shape[0], stride)) == nodes:
            return stride
    known = sorted({len(range(0, whole.shape[0], stride)) for stride in range(1, 17)}, reverse=True)
    remedy = f"Choose one of {', '.join(map(str, known))}."
    raise ConfigError(f"{whole.shape[0]} nodes cannot be thinned to this number", got=nodes, remedy=remedy)


def model_of(task: Functions, settings: OperatorSettings) -> Transformer:
    """The model of these settings with fresh weights, scaled to the training functions."""
    inputs, outputs = task.train.flat()
    torch.manual_seed(settings.weights)
    native = at(d=settings.d, h=settings.heads, m=settings.m, z=settings.depth)
    model = zoo.function_map(
        task.train.axis,
        task.train.rule,
        channels=inputs.shape[-1],
        out=outputs.shape[-1],
        at=native,
        modes=settings.modes,
        attention=settings.attention,
        sharp=settings.sharp,
        input_mean=float(inputs.mean()),
        input_spread=float(inputs.std()),
        output_spread=float(outputs.std()),
    )
    if isinstance(model.embed, Latent):
        model.embed.prior(inputs)
    return model


def optimiser_of(settings: OperatorSettings) -> ByRole:
    """Muon for matrices, AdamW for the amplitudes of waves, tables and gains."""
    rest = AdamW(settings.lr, decay=0.0)
    return ByRole(Muon(settings.matrix_lr, decay=0.0, others=rest), table=rest)


def report(model: Any, task: Functions, fine: Pairs, folder: Path) -> Iterator[str]:
    """Errors of held-out functions on three kinds of grids, and two pictures."""
    strides = [s for s in (1, 2, 4, 8, 16) if len(range(0, fine.shape[0], s)) >= 8]
    curve = {}
    for stride in reversed(strides):
        pairs = fine.every(stride)
        curve[pairs.shape[0]] = float(task.errors(model, pairs).mean())
    own = task.held_out.shape[0]
    curve[own] = float(task.errors(model).mean())
    shape = "×".join(["{}"] * fine.axis.dim)
    yield "relative L2 error of functions never seen:"
    for nodes, error in sorted(curve.items()):
        note = "  (the grid it was trained on)" if nodes == own else ""
        yield f"  {shape.format(*[nodes] * fine.axis.dim):>12} uniform nodes   {error:.4f}{note}"
    points = some_points(fine, 256 if fine.axis.dim == 1 else 1000)
    inputs, outputs, grid = scattered(fine, points)
    answer = predict(model, Batch(inputs, grid=grid))
    error = float(relative(answer, outputs.to(answer), grid.weights.to(answer)).mean())
    yield f"  {len(grid):>12} random points    {error:.4f}"
    yield f"pictures: {draw_functions(model, fine, folder / 'functions.png', points)}"
    yield f"          {draw_resolution(curve, own, (len(grid), error), folder / 'resolution.png')}"


def some_points(fine: Pairs, count: int) -> torch.Tensor:
    """Random points of the fine lattice, the same for every run."""
    flat = fine.points.reshape(-1, fine.axis.dim)
    chosen = torch.randperm(len(flat), generator=torch.Generator().manual_seed(0))[:count]
    return flat[chosen.sort().values]
