"""Pictures of learned maps between functions: given, true and answered, and the error over grids."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from continua.data.pairs import Pairs
from continua.lab.canvas.canvas import COLOURS, FAINT, INK
from continua.models import Batch
from continua.tasks.functions import predict, relative, scattered
from continua.typing import Tensor

SHOWN = 3  # functions in a picture


def draw_functions(model: Any, pairs: Pairs, path: Path, points: Tensor | None = None) -> Path:
    """Some functions of a set: input, truth and answer on its grid, and the answer from scattered points alone."""
    few = pairs.part(slice(0, min(SHOWN, len(pairs))))
    inputs, outputs = few.flat()
    answer = predict(model, Batch(inputs, grid=few.grid))
    errors = relative(answer, outputs.to(answer), few.grid.weights.to(answer)).tolist()
    draw = _lines if pairs.axis.dim == 1 else _maps
    return draw(model, few, (answer.cpu(), errors), path, points)


def _figure(rows: int, columns: int, size: tuple[float, float]) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=(size[0] * columns, size[1] * rows), layout="constrained", squeeze=False)


def _saved(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _lines(model: Any, few: Pairs, found: tuple[Tensor, list[float]], path: Path, points: Tensor | None) -> Path:
    answer, errors = found
    figure, axes = _figure(2, len(few), (4.2, 2.3))
    x = few.points[:, 0].numpy()
    seen = None
    if points is not None:
        seen = scattered(few, points)
    for i in range(len(few)):
        top = axes[0][i]
        bottom = axes[1][i]
        top.plot(x, few.inputs[i, :, 0], color=FAINT, lw=1.2, label="given")
        top.plot(x, few.outputs[i, :, 0], color=INK, lw=1.6, label="true")
        top.plot(x, answer[i, :, 0], "--", color=COLOURS[1], lw=1.4, label="answered")
        top.set_title(f"relative error {errors[i]:.4f}", fontsize=9)
        bottom.plot(x, answer[i, :, 0] - few.outputs[i, :, 0], color=COLOURS[1], lw=1.0, label="error on the grid")
        if seen is not None:
            inputs, outputs, grid = seen
            there = predict(model, Batch(inputs[i : i + 1], grid=grid)).cpu()[0, :, 0] - outputs[i, :, 0]
            order = grid.nodes[:, 0].argsort()
            label = f"error from {len(grid)} random points"
            bottom.plot(grid.nodes[order, 0], there[order], ".", ms=3, color=COLOURS[0], label=label)
        bottom.axhline(0, color=FAINT, lw=0.6)
        bottom.set_xlabel("x")
    axes[0][0].legend(fontsize=8, frameon=False)
    axes[1][0].legend(fontsize=8, frameon=False)
    return _saved(figure, path)


def _maps(model: Any, few: Pairs, found: tuple[Tensor, list[float]], path: Path, points: Tensor | None) -> Path:
    answer, errors = found
    figure, axes = _figure(len(few), 4, (2.7, 2.4))
    box = [0.0, 1.0, 0.0, 1.0]
    for i in range(len(few)):
        truth = few.outputs[i, ..., 0]
        said = answer[i, :, 0].reshape(truth.shape)
        low = float(truth.min())
        high = float(truth.max())
        wide = float((said - truth).abs().max())
        panels: list[tuple[Tensor, str, str, float | None, float | None]] = [
            (few.inputs[i, ..., 0], "given", "cividis", None, None),
            (truth, "true", "viridis", low, high),
            (said, "answered", "viridis", low, high),
            (said - truth, f"error, relative {errors[i]:.4f}", "RdBu_r", -wide, wide),
        ]
        for axis, (values, title, colours, least, most) in zip(axes[i], panels, strict=True):
            shown = axis.imshow(values.T, origin="lower", extent=box, cmap=colours, vmin=least, vmax=most)
            axis.set_title(title, fontsize=9)
            axis.set_xticks([])
            axis.set_yticks([])
            figure.colorbar(shown, ax=axis, shrink=0.8)
    return _saved(figure, path)


def draw_resolution(curve: Mapping[int, float], own: int, cloud: tuple[int, float], path: Path) -> Path:
    """Error over the nodes along one direction; the training grid and scattered points are marked."""
    figure, ((axis,),) = _figure(1, 1, (5.2, 3.4))
    nodes = sorted(curve)
    axis.plot(nodes, [curve[n] for n in nodes], "o-", color=COLOURS[0], label="uniform grids")
    axis.plot([own], [curve[own]], "o", ms=11, mfc="none", color=COLOURS[1], label="the grid it was trained on")
    axis.axhline(cloud[1], ls=":", color=COLOURS[2], label=f"{cloud[0]} random points")
    axis.set_xscale("log", base=2)
    axis.set_xticks(nodes, [str(n) for n in nodes])
    axis.set_ylim(0, 1.25 * max([*curve.values(), cloud[1]]))
    axis.set(xlabel="nodes along one direction", ylabel="relative L2 error", title="One model, any grid")
    axis.legend(frameon=False, fontsize=8)
    return _saved(figure, path)


def draw_path(truth: Tensor, answer: Tensor, path: Path) -> Path:
    """A roll-out [times, n, n] beside the truth, and its relative error over time."""
    times = len(truth)
    columns = min(5, times)
    chosen = torch.linspace(0, times - 1, columns).round().long().tolist()
    figure, axes = _figure(2, columns, (2.3, 2.3))
    for column, t in enumerate(chosen):
        high = float(truth[t].abs().max())
        for row, values in enumerate((truth[t], answer[t])):
            axes[row][column].imshow(values.T, origin="lower", cmap="RdBu_r", vmin=-high, vmax=high)
            axes[row][column].set_xticks([])
            axes[row][column].set_yticks([])
        error = float((answer[t] - truth[t]).norm() / truth[t].norm())
        axes[0][column].set_title(f"step {t + 1}", fontsize=9)
        axes[1][column].set_title(f"error {error:.3f}", fontsize=9)
    axes[0][0].set_ylabel("true")
    axes[1][0].set_ylabel("rolled out")
    return _saved(figure, path)
