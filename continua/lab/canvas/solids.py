"""Pictures of functions in solids: cut open, so that the inside is seen."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from continua.axes import Grid
from continua.data.diffusion import SolidProblem, solid_problem
from continua.data.mesh import Mesh
from continua.data.mesh_features import features
from continua.data.simplices import Indices, Numbers, facets_of
from continua.lab.figure import pyplot, save
from continua.models import Batch
from continua.tasks.functions import predict, relative

SHOWN = 3  # solids in a picture


@dataclass(frozen=True)
class Drawn:
    """A picture, and for each solid in it the nodes and the relative error."""

    path: Path
    errors: tuple[tuple[int, float], ...]


def draw_solids(model: Any, nodes: int, seed: int, path: Path) -> Drawn:
    """Some solids of a seed in meshes of so many nodes: the truth, the answer and its error."""
    plt = pyplot()
    figure = plt.figure(figsize=(3.2 * SHOWN, 9.0), layout="constrained")
    errors = []
    for i in range(SHOWN):
        problem = solid_problem(nodes, seed, i)
        answer = answered_in(model, problem)
        weights = torch.from_numpy(problem.mesh.weights)
        error = float(relative(_batched(answer), _batched(problem.answer), weights))
        errors.append((len(problem.mesh), error))
        most = float(np.abs(problem.answer).max())
        limits = (float(problem.answer.min()), float(problem.answer.max()))
        rows = (
            (problem.answer, "viridis", limits, f"true, {len(problem.mesh)} nodes"),
            (answer, "viridis", limits, "answered"),
            (answer - problem.answer, "RdBu_r", (-0.1 * most, 0.1 * most), f"relative error {error:.3f}"),
        )
        for row, (values, colours, between, title) in enumerate(rows):
            axis = figure.add_subplot(3, SHOWN, row * SHOWN + i + 1, projection="3d")
            _cut(axis, problem.mesh, values, colours, between)
            axis.set_title(title, fontsize=9)
    return Drawn(save(plt, figure, path), tuple(errors))


def draw_solid(mesh: Mesh, answer: Numbers, path: Path) -> Path:
    """One function in a solid that is cut open."""
    plt = pyplot()
    figure = plt.figure(figsize=(5.8, 5.0), layout="constrained")
    axis = figure.add_subplot(projection="3d")
    limits = (float(answer.min()), float(answer.max()))
    drawn = _cut(axis, mesh, answer, "viridis", limits)
    figure.colorbar(drawn, ax=axis, shrink=0.7)
    axis.set_title(f"u at {len(mesh)} nodes, cut open", fontsize=9)
    return save(plt, figure, path)


def answered_in(model: Any, problem: SolidProblem) -> Numbers:
    """What a model says at the nodes of a problem."""
    mesh = problem.mesh
    values = torch.from_numpy(features(mesh, problem.source)).float()[None]
    grid = Grid(torch.from_numpy(mesh.points).float()[None], torch.from_numpy(mesh.weights).float()[None])
    found: Numbers = predict(model, Batch(values, grid=grid))[0, :, 0].cpu().double().numpy()
    return found


def _batched(values: Numbers) -> torch.Tensor:
    return torch.from_numpy(values)[None, :, None]


def _cut(axis: Any, mesh: Mesh, values: Numbers, colours: str, limits: tuple[float, float]) -> Any:
    """The faces of the half that lies behind the middle, coloured by the mean of their corners."""
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    middles = mesh.points[mesh.cells].mean(1)
    behind: Indices = mesh.cells[middles[:, 1] > np.median(mesh.points[:, 1])]
    faces, counts = facets_of(behind)
    faces = faces[counts == 1]
    made = Poly3DCollection(mesh.points[faces], cmap=colours, linewidths=0.0, antialiased=False)
    made.set_array(values[faces].mean(1))
    made.set_clim(*limits)
    axis.add_collection3d(made)
    low = mesh.points.min(0)
    high = mesh.points.max(0)
    side = float((high - low).max())
    for name, first, last in zip("xyz", low, high, strict=True):
        middle = 0.5 * (first + last)
        getattr(axis, f"set_{name}lim")(middle - 0.45 * side, middle + 0.45 * side)
    axis.set_box_aspect((1, 1, 1))
    axis.view_init(elev=18, azim=-75)
    axis.set_axis_off()
    return made
