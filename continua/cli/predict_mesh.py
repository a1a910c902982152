"""``continua predict RUN --mesh FILE``: answer at the nodes of a mesh."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from continua.axes import Grid
from continua.cli.out import refuse_unwritable, writing
from continua.cli.sizes import check_which
from continua.data.mesh import Numbers
from continua.data.mesh_files import Boundary, Placed, read_mesh, refuse_format, write_answer
from continua.data.poisson import CHANNELS, STRENGTH, features
from continua.errors import ConfigError, GridError
from continua.lab.canvas.meshes import draw_answer
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
    if not isinstance(model.embed, Observations) or model.embed.channels != len(CHANNELS):
        raise GridError("this run is not one of meshes", got=folder, remedy="Use a run of continua fit poisson.")
    placed = read_mesh(mesh, boundary_of(boundary), fit)
    answer = answered(model, placed)
    with writing(out):
        write_answer(out, placed, answer)
    console.print(
        f"{len(answer)} nodes, {len(placed.mesh.triangles)} triangles: u from {answer.min():.4g} to {answer.max():.4g}",
        highlight=False,
    )
    console.print(f"written: {out}", highlight=False, markup=False)
    if picture is not None:
        with writing(picture):
            draw_answer(placed.mesh, answer, picture)
        console.print(f"picture: {picture}", highlight=False, markup=False)


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
    """u at the nodes.

    The equation is linear in f and −Δu = f in a domain L times larger has L² times the solution, so a source is brought
    to the size of those that were learned from, and a domain to the unit square; the answer is scaled back.
    """
    size = float(np.sqrt(np.average(placed.source**2, weights=placed.mesh.weights)))
    if size == 0.0:
        return np.zeros(len(placed.mesh))
    values = torch.from_numpy(features(placed.mesh, placed.source * (STRENGTH / size))).float()
    grid = Grid(torch.from_numpy(placed.mesh.points).float()[None], torch.from_numpy(placed.mesh.weights).float()[None])
    answer = predict(model, Batch(values[None], grid=grid))[0, :, 0].cpu().double().numpy()
    found: Numbers = answer * (size / STRENGTH * placed.length**2)
    return found
