"""``continua predict RUN --mesh FILE``: answer at the nodes of a mesh."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from continua.axes import Grid
from continua.cli.out import refuse_unwritable, writing
from continua.cli.sizes import check_which
from continua.data.mesh import MANY
from continua.data.mesh_features import EQUATIONS, STRENGTH, Equation, features
from continua.data.mesh_files import Boundary, Placed, read_mesh, refuse_format, write_answer
from continua.data.simplices import Numbers
from continua.errors import ConfigError, GridError
from continua.lab.canvas.meshes import draw_answer
from continua.lab.canvas.solids import draw_solid
from continua.models import Batch, Observations
from continua.tasks.functions import predict
from continua.training import Run


def run(
    folder: Path,
    mesh: Path,
    out: Path | None,
    picture: Path | None,
    boundary: str,
    fit: bool,
    which: str,
    device: torch.device,
) -> None:
    """Read the mesh, answer, write and draw."""
    console = Console()
    check_which(which)
    out = out or folder / f"{mesh.stem}-answer.vtu"
    refuse_format(out)
    refuse_unwritable(out)
    if picture is not None:
        refuse_picture(picture)
    model = Run.open(folder).model(which).to(device)
    equation = equation_of(model, folder)
    placed = read_mesh(mesh, boundary_of(boundary), fit)
    placed = fitting(placed, equation)
    answer = answered(model, placed)
    with writing(out):
        write_answer(out, placed, answer)
    cells = f"{len(placed.mesh.cells)} {MANY[equation.dimension]}"
    between = f"u from {answer.min():.4g} to {answer.max():.4g}"
    console.print(f"{len(answer)} nodes, {cells}: {between}", highlight=False)
    console.print(f"written: {out}", highlight=False, markup=False)
    if picture is not None:
        with writing(picture):
            if equation.dimension == 3:
                draw_solid(placed.mesh, answer[:, 0], picture)
            else:
                draw_answer(placed.mesh, answer, picture)
        console.print(f"picture: {picture}", highlight=False, markup=False)


def equation_of(model: Any, folder: Path) -> Equation:
    """Which equation a run has learned."""
    if isinstance(model.embed, Observations):
        known = (model.axes.t.dim, model.embed.channels)
        for equation in EQUATIONS:
            if known == (equation.dimension, equation.channels):
                return equation
    remedy = "Use a run of continua fit poisson, elasticity or diffusion3d."
    raise GridError("this run is not one of meshes", got=folder, remedy=remedy)


def fitting(placed: Placed, equation: Equation) -> Placed:
    """A mesh of the dimension and with a source of the components that were learned."""
    if placed.mesh.dimension != equation.dimension:
        got = f"{MANY[placed.mesh.dimension]} of {placed.mesh.dimension} dimensions"
        remedy = f"Give a mesh of {MANY[equation.dimension]}, or use a run of another equation."
        raise GridError(f"this run has learned on {MANY[equation.dimension]}", got=got, remedy=remedy)
    given = placed.source.shape[1]
    plane_vector = given == 3 and equation.components == 2 and not placed.source[:, 2].any()
    if given != equation.components and not plane_vector:
        remedy = "Give f as a scalar." if equation.components == 1 else "Give f as a vector of the plane."
        raise GridError(f"f has {equation.components} component(s) at each node", got=given, remedy=remedy)
    return replace(placed, source=placed.source[:, : equation.components])


def boundary_of(name: str) -> Boundary:
    """What ``--boundary`` says."""
    if name not in list(Boundary):
        remedy = "Use tagged (as the file says), or held (u = 0 on all of it)."
        raise ConfigError("a boundary is tagged or held", got=name, remedy=remedy)
    return Boundary(name)


def refuse_picture(path: Path) -> None:
    """A picture is a .png."""
    if path.suffix != ".png":
        remedy = f"Write --picture {path.stem or 'answer'}.png."
        raise ConfigError("pictures are written as .png", got=repr(path.name), remedy=remedy)
    refuse_unwritable(path)


def answered(model: Any, placed: Placed) -> Numbers:
    """u [n, components] at the nodes.

    The equations are linear in f, and in a domain L times larger u is L² times as large, so a source is brought to the
    size of those that were learned from, and a domain to the unit square or cube; the answer is scaled back.
    """
    mesh = placed.mesh
    size = float(np.sqrt(np.average((placed.source**2).mean(1), weights=mesh.weights)))
    if size == 0.0:
        return np.zeros_like(placed.source)
    values = torch.from_numpy(features(mesh, placed.source * (STRENGTH / size))).float()
    grid = Grid(torch.from_numpy(mesh.points).float()[None], torch.from_numpy(mesh.weights).float()[None])
    answer = predict(model, Batch(values[None], grid=grid))[0].cpu().double().numpy()
    found: Numbers = answer * (size / STRENGTH * placed.length**2)
    return found
