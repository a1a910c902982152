"""``continua predict``: its options, and which of its two forms is meant."""

from pathlib import Path
from typing import Annotated

import typer

from continua.cli.options import Device, Threads, ready
from continua.errors import ConfigError


def predict(
    run: Annotated[
        Path, typer.Argument(help="A run of functions: continua fit burgers, darcy, navier-stokes, poisson, …")
    ],
    grid: Annotated[
        Path | None, typer.Option(help="An .npz with points and inputs, or a .csv of coordinates and values.")
    ] = None,
    asked: Annotated[
        Path | None, typer.Option(help="Points at which to answer; by default those of --grid themselves.")
    ] = None,
    mesh: Annotated[
        Path | None, typer.Option(help="For runs on meshes: one that meshio reads (.vtu, .vtk, .msh, …).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where the answer goes (.npz or .csv; .vtu or .vtk of a mesh). By default in RUN."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the answer on the mesh into this .png.")] = None,
    boundary: Annotated[str, typer.Option(help="tagged: as the mesh says; held: u = 0 on all of it.")] = "tagged",
    fit: Annotated[bool, typer.Option("--fit", help="Move and scale the mesh into the unit box, u back.")] = False,
    *,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Apply the map so often, each time to its own answer: a roll-out.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Of a roll-out of turbulence: choose time steps by this error of each.")
    ] = None,
    which: Annotated[str, typer.Option(help="best or last")] = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Answer functions that were observed at any points, or at the nodes of a mesh."""
    if (grid is None) == (mesh is None):
        got = "neither" if grid is None else "both"
        raise ConfigError("predict takes --grid FILE or --mesh FILE", got=got, remedy="Give one of them.")
    if mesh is not None:
        if steps is not None or tolerance is not None:
            raise ConfigError("roll-outs start from functions on a grid", got="--mesh", remedy="Use --grid FILE.")
        from continua.cli.predict_mesh import run as on_mesh

        on_mesh(run, mesh, out, picture, boundary, fit, which, ready(device, threads))
        return
    from continua.cli.predict import Repeated
    from continua.cli.predict import run as go

    go(run, grid, asked, out, which, ready(device, threads), Repeated(steps, tolerance))  # type: ignore[arg-type]
