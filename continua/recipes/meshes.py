"""Operator learning on meshes of any shape: equations on random polygons with holes, and in random solids."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from continua.axes import at
from continua.data.mesh_features import DIFFUSION, ELASTICITY, POISSON, Equation
from continua.data.mesh_pairs import MeshPairs
from continua.data.mesh_store import generated_meshes
from continua.lab.canvas.meshes import draw_meshes
from continua.lab.canvas.solids import draw_solids
from continua.models import Transformer
from continua.models.zoo.meshes import LatentAttention, mesh_map
from continua.optim import AdamW, ByRole, Muon
from continua.recipes.functions import SCHEDULE
from continua.recipes.recipe import Bundle, shipped
from continua.settings import NonNegative, Seed, Size, Whole, checked
from continua.tasks.meshes import OnMeshes
from continua.training import Training
from continua.training.progress import share_bar

COARSE, FINE, HELD_OUT, TEST = range(4)  # kinds of domains: each seed of the data has four of its own


@checked
@dataclass(frozen=True)
class MeshSettings:
    """``train`` domains are learned from, and ``held_out`` other ones measured on.

    ``d``, ``m``, ``heads`` and ``depth`` are the native size, ``modes`` counts the waves of the convolution along each
    direction (0: none), ``attention`` is slices, gates or none, through ``tokens`` latent tokens. Matrices are trained
    by Muon at ``matrix_lr``, everything else by AdamW at ``lr``; ``batch`` meshes make a step. ``draws`` is the seed of
    the data, ``weights`` that of the first weights.
    """

    train: Size = 300
    held_out: Size = 60
    d: Size = 32
    m: Size = 64
    heads: Size = 4
    depth: Size = 4
    modes: Whole = 8
    attention: LatentAttention = LatentAttention.NONE
    tokens: Size = 32
    batch: Size = 4
    lr: NonNegative = 3e-3
    matrix_lr: NonNegative = 1.2e-2
    draws: Seed = 0
    weights: Seed = 0


@checked
@dataclass(frozen=True)
class PoissonSettings(MeshSettings):
    """Those of ``MeshSettings``: ``train`` polygons in meshes of ``coarse`` nodes, as many others of ``fine`` nodes.

    Held-out polygons are in meshes of ``nodes`` nodes, and the report asks them in meshes four times finer too.
    """

    coarse: Size = 500
    fine: Size = 1000
    nodes: Size = 700


@checked
@dataclass(frozen=True)
class ElasticitySettings(PoissonSettings):
    """Those of ``PoissonSettings``, for forces and displacements."""


@checked
@dataclass(frozen=True)
class DiffusionSettings(MeshSettings):
    """Those of ``MeshSettings`` for solids: a solid is learned from at ``points`` nodes of its mesh.

    The report draws held-out solids in meshes of ``finer`` nodes, and measures there.
    """

    train: Size = 100
    held_out: Size = 16
    modes: Whole = 4
    batch: Size = 2
    points: Size = 2000
    finer: Size = 32_768


@shipped
def poisson(settings: PoissonSettings) -> Bundle:
    """Poisson's equation on polygons with holes: from its source and boundary to its solution."""
    return _on_polygons(POISSON, settings)


@shipped
def elasticity(settings: ElasticitySettings) -> Bundle:
    """Plane strain on polygons with holes: from a force and the clamped boundary to the displacement."""
    return _on_polygons(ELASTICITY, settings)


@shipped
def diffusion3d(settings: DiffusionSettings) -> Bundle:
    """Diffusion in random solids: from its source and boundary to its solution in space."""
    task = solids_of(settings)
    return Bundle(
        model=model_of(task, settings, DIFFUSION),
        task=task,
        optimiser=optimiser_of(settings),
        schedule=SCHEDULE,
        training=Training(steps=1000, evaluate_every=200, clip=None),
        about=_about(DIFFUSION, task),
        report=lambda model, folder: report_solids(model, task, settings, folder),
    )


def _on_polygons(equation: Equation, settings: PoissonSettings) -> Bundle:
    task = task_of(settings, equation)
    return Bundle(
        model=model_of(task, settings, equation),
        task=task,
        optimiser=optimiser_of(settings),
        schedule=SCHEDULE,
        training=Training(steps=2000, evaluate_every=200, clip=None),
        about=_about(equation, task),
        report=lambda model, folder: report(model, task, settings, equation, folder),
    )


def _about(equation: Equation, task: OnMeshes) -> dict[str, Any]:
    return {"data": {"name": equation.name, "sha256": [pairs.sha256 for pairs in task.train]}}


def task_of(settings: PoissonSettings, equation: Equation = POISSON) -> OnMeshes:
    """Two sets of meshes to learn from, and polygons that are in neither to be measured on."""
    coarse = _made("polygons to learn from", settings.train, settings.coarse, seed_of(settings, COARSE), equation)
    fine = _made("as many others in finer meshes", settings.train, settings.fine, seed_of(settings, FINE), equation)
    return OnMeshes((coarse, fine), held_out(settings, settings.nodes, equation), settings.batch)


def solids_of(settings: DiffusionSettings) -> OnMeshes:
    """Solids to learn from at some of their points, and others to be measured on."""
    few = settings.points
    train = _made("solids to learn from", settings.train, few, seed_of(settings, COARSE), DIFFUSION)
    others = _made("solids to be measured on", settings.held_out, few, seed_of(settings, HELD_OUT), DIFFUSION)
    return OnMeshes((train,), others, settings.batch)


def _made(said: str, count: int, nodes: int, seed: int, equation: Equation) -> MeshPairs:
    with share_bar(said) as watch:
        return generated_meshes(count, nodes, seed, watch, equation=equation)


def seed_of(settings: MeshSettings, kind: int) -> int:
    """The seed of one kind of domains: none is of two kinds, and none belongs to two seeds of the data."""
    return 4 * settings.draws + kind


def held_out(settings: PoissonSettings, nodes: int, equation: Equation = POISSON) -> MeshPairs:
    """The polygons that are held out, in meshes of any size."""
    said = f"polygons to be measured on, {nodes} nodes"
    return _made(said, settings.held_out, nodes, seed_of(settings, HELD_OUT), equation)


def model_of(task: OnMeshes, settings: MeshSettings, equation: Equation = POISSON) -> Transformer:
    """The model of these settings with fresh weights, scaled to the training functions."""
    torch.manual_seed(settings.weights)
    every = torch.cat([pairs.outputs.flatten() for pairs in task.train])
    return mesh_map(
        equation.axis,
        channels=equation.channels,
        out=equation.components,
        at=at(d=settings.d, h=settings.heads, m=settings.m, z=settings.depth),
        modes=settings.modes,
        attention=settings.attention,
        tokens=settings.tokens,
        output_spread=float(every.std()),
    )


def optimiser_of(settings: MeshSettings) -> ByRole:
    """Muon for matrices, AdamW for the amplitudes of waves, tables and gains."""
    rest = AdamW(settings.lr, decay=0.0)
    return ByRole(Muon(settings.matrix_lr, decay=0.0, others=rest), table=rest)


def report(model: Any, task: OnMeshes, settings: PoissonSettings, equation: Equation, folder: Path) -> Iterator[str]:
    """Errors on unseen polygons in meshes of two sizes, and a picture."""
    own = float(task.errors(model).mean())
    finer = held_out(settings, 4 * settings.nodes, equation)
    there = float(task.errors(model, finer).mean())
    yield "relative L2 error on polygons never seen:"
    yield f"  {settings.nodes:>8} nodes   {own:.4f}"
    yield f"  {4 * settings.nodes:>8} nodes   {there:.4f}  ({there / own:.2f} of the one above)"
    yield f"picture: {draw_meshes(model, task.held_out, folder / 'polygons.png')}"


def report_solids(model: Any, task: OnMeshes, settings: DiffusionSettings, folder: Path) -> Iterator[str]:
    """Errors on unseen solids at some points and in fine meshes, and a picture of these cut open."""
    own = float(task.errors(model).mean())
    yield "relative L2 error in solids never seen:"
    yield f"  {settings.points:>8} points of a mesh   {own:.4f}"
    drawn = draw_solids(model, settings.finer, seed_of(settings, HELD_OUT), folder / "solids.png")
    for nodes, error in drawn.errors:
        yield f"  {nodes:>8} nodes, one solid    {error:.4f}"
    yield f"picture: {drawn.path}"
