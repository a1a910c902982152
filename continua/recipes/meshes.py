"""Operator learning on meshes of any shape: Poisson's equation on random polygons with holes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from continua.axes import at
from continua.data.mesh_store import generated_meshes
from continua.data.poisson import CHANNELS, SQUARE, MeshPairs
from continua.lab.canvas.meshes import draw_meshes
from continua.models import Transformer
from continua.models.zoo.meshes import LatentAttention, mesh_map
from continua.optim import AdamW, ByRole, Muon
from continua.recipes.functions import SCHEDULE
from continua.recipes.recipe import Bundle, shipped
from continua.settings import NonNegative, Seed, Size, Whole, checked
from continua.tasks.meshes import OnMeshes
from continua.training import Training
from continua.training.progress import share_bar

COARSE, FINE, HELD_OUT, TEST = range(4)  # kinds of polygons: each seed of the data has four of its own


@checked
@dataclass(frozen=True)
class PoissonSettings:
    """``train`` polygons in meshes of ``coarse`` nodes and as many others in meshes of ``fine`` nodes.

    ``held_out`` other polygons in meshes of ``nodes`` nodes are measured on, and the report asks them in meshes four
    times finer too. ``d``, ``m``, ``heads`` and ``depth`` are the native size, ``modes`` counts the waves of the
    convolution along each direction (0: none), ``attention`` is slices, gates or none, through ``tokens`` latent
    tokens. Matrices are trained by Muon at ``matrix_lr``, everything else by AdamW at ``lr``; ``batch`` meshes make a
    step. ``draws`` is the seed of the data, ``weights`` that of the first weights.
    """

    train: Size = 300
    held_out: Size = 60
    coarse: Size = 500
    fine: Size = 1000
    nodes: Size = 700
    d: Size = 32
    m: Size = 64
    heads: Size = 4
    depth: Size = 4
    modes: Whole = 8
    attention: LatentAttention = LatentAttention.NONE
    tokens: Size = 32
    batch: Size = 4
    lr: NonNegative = 2e-3
    matrix_lr: NonNegative = 6e-3
    draws: Seed = 0
    weights: Seed = 0


@shipped
def poisson(settings: PoissonSettings) -> Bundle:
    """Poisson's equation on polygons with holes: from its source and boundary to its solution."""
    task = task_of(settings)
    return Bundle(
        model=model_of(task, settings),
        task=task,
        optimiser=optimiser_of(settings),
        schedule=SCHEDULE,
        training=Training(steps=2000, evaluate_every=200, clip=None),
        about={"data": {"name": "poisson", "sha256": [pairs.sha256 for pairs in task.train]}},
        report=lambda model, folder: report(model, task, settings, folder),
    )


def task_of(settings: PoissonSettings) -> OnMeshes:
    """Two sets of meshes to learn from, and polygons that are in neither to be measured on."""
    with share_bar("polygons to learn from") as watch:
        coarse = generated_meshes(settings.train, settings.coarse, seed_of(settings, COARSE), watch)
    with share_bar("as many others in finer meshes") as watch:
        fine = generated_meshes(settings.train, settings.fine, seed_of(settings, FINE), watch)
    return OnMeshes((coarse, fine), held_out(settings, settings.nodes), settings.batch)


def seed_of(settings: PoissonSettings, kind: int) -> int:
    """The seed of one kind of polygons: no polygon is of two kinds, and none belongs to two seeds of the data."""
    return 4 * settings.draws + kind


def held_out(settings: PoissonSettings, nodes: int) -> MeshPairs:
    """The polygons that are held out, in meshes of any size."""
    with share_bar(f"polygons to be measured on, {nodes} nodes") as watch:
        return generated_meshes(settings.held_out, nodes, seed_of(settings, HELD_OUT), watch)


def model_of(task: OnMeshes, settings: PoissonSettings) -> Transformer:
    """The model of these settings with fresh weights, scaled to the training functions."""
    torch.manual_seed(settings.weights)
    every = torch.cat([pairs.outputs.flatten() for pairs in task.train])
    return mesh_map(
        SQUARE,
        channels=len(CHANNELS),
        at=at(d=settings.d, h=settings.heads, m=settings.m, z=settings.depth),
        modes=settings.modes,
        attention=settings.attention,
        tokens=settings.tokens,
        output_spread=float(every.std()),
    )


def optimiser_of(settings: PoissonSettings) -> ByRole:
    """Muon for matrices, AdamW for the amplitudes of waves, tables and gains."""
    rest = AdamW(settings.lr, decay=0.0)
    return ByRole(Muon(settings.matrix_lr, decay=0.0, others=rest), table=rest)


def report(model: Any, task: OnMeshes, settings: PoissonSettings, folder: Path) -> Iterator[str]:
    """Errors on unseen polygons in meshes of two sizes, and a picture."""
    own = float(task.errors(model).mean())
    finer = held_out(settings, 4 * settings.nodes)
    there = float(task.errors(model, finer).mean())
    yield "relative L2 error on polygons never seen:"
    yield f"  {settings.nodes:>8} nodes   {own:.4f}"
    yield f"  {4 * settings.nodes:>8} nodes   {there:.4f}  ({there / own:.2f} of the one above)"
    yield f"picture: {draw_meshes(model, task.held_out, folder / 'polygons.png')}"
