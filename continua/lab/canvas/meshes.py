"""Pictures of functions on meshes."""

from pathlib import Path
from typing import Any

import numpy as np

from continua.data.mesh import Mesh
from continua.data.mesh_pairs import MeshPairs
from continua.data.simplices import Numbers
from continua.lab.figure import pyplot, save
from continua.models import Batch
from continua.tasks.functions import predict, relative

SHOWN = 4  # meshes in a picture


def draw_meshes(model: Any, pairs: MeshPairs, path: Path) -> Path:
    """Some meshes of a set: the source with the mesh, the truth, the answer and its error.

    Of vectors (a force, a displacement) the first component of the source and the lengths of the others are drawn.
    """
    few = pairs.part(slice(0, min(SHOWN, len(pairs))))
    answer = predict(model, Batch(few.inputs, grid=few.grid())).cpu()
    errors = relative(answer, few.outputs, few.weights).tolist()
    plt = pyplot()
    size = (2.6 * len(few), 2.4 * 4)
    figure, axes = plt.subplots(4, len(few), figsize=size, layout="constrained", squeeze=False)
    for i in range(len(few)):
        x, y = few.points[i].double().numpy().T
        triangles = few.cells_of(i).numpy()
        truth = _scalar(few.outputs[i].numpy())
        said = _scalar(answer[i].numpy())
        off = _scalar((answer - few.outputs)[i].numpy())
        limits = {"vmin": truth.min(), "vmax": truth.max()}
        _field(axes[0][i], x, y, triangles, few.inputs[i, :, 0].numpy(), "RdBu_r")
        axes[0][i].triplot(x, y, triangles, color="k", lw=0.15)
        _field(axes[1][i], x, y, triangles, truth, "viridis", **limits)
        _field(axes[2][i], x, y, triangles, said, "viridis", **limits)
        most = float(abs(truth).max())
        _field(axes[3][i], x, y, triangles, off, "RdBu_r", vmin=-0.1 * most, vmax=0.1 * most)
        axes[3][i].set_title(f"relative error {errors[i]:.3f}", fontsize=9)
    for row, title in zip(axes, ("source and mesh", "true", "answered"), strict=False):
        row[0].set_title(title, fontsize=9, loc="left")
    return save(plt, figure, path)


def draw_answer(mesh: Mesh, answer: Numbers, path: Path) -> Path:
    """One function [n, components] on a mesh, with its mesh: a vector by its length, on the mesh that it moves."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(5.5, 4.8), layout="constrained")
    shown = _scalar(answer)
    moved = mesh.points
    title = f"u at {len(mesh)} nodes"
    if answer.shape[1] == 2:
        moved = mesh.points + 0.08 * answer / max(float(shown.max()), np.finfo(np.float64).tiny)
        title = f"|u| at {len(mesh)} nodes, moved by u (not to scale)"
    drawn = _field(axis, moved[:, 0], moved[:, 1], mesh.cells, shown, "viridis")
    axis.triplot(moved[:, 0], moved[:, 1], mesh.cells, color="k", lw=0.1)
    figure.colorbar(drawn, ax=axis, shrink=0.85)
    axis.set_title(title, fontsize=9)
    return save(plt, figure, path)


def _scalar(values: Any) -> Any:
    """A number as it is, a vector by its length."""
    return values[:, 0] if values.shape[1] == 1 else np.sqrt((values**2).sum(-1))


def _field(axis: Any, x: Numbers, y: Numbers, triangles: Any, values: Any, colours: str, **limits: float) -> Any:
    drawn = axis.tripcolor(x, y, triangles, values, cmap=colours, shading="gouraud", **limits)
    axis.set_aspect("equal")
    axis.set_axis_off()
    return drawn
