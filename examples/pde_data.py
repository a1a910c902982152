"""Data of operator learning: a few pairs of each generated set, drawn, and checked against what is known.

    python examples/pde_data.py      half a minute on one core; writes runs/pde-data/pde-data.png

Burgers' equation is checked against Cole and Hopf, Darcy flow against its own balance, Navier–Stokes by stepping on
from a kept field. A second call finds the sets in the cache ($CONTINUA_CACHE, or ~/.cache/continua).
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import torch
from rich.progress import Progress

from continua.data.burgers import cole_hopf
from continua.data.darcy import darcy, flux_balance
from continua.data.navier_stokes import navier_stokes, usual_forcing
from continua.data.pairs import Pairs
from continua.data.store import generated
from continua.lab.canvas import COLOURS, FAINT, INK

matplotlib.use("Agg")
import matplotlib.pyplot as plt

TIMES = 26  # of a path: 0 … 25


def made(progress: Progress, name: str, count: int, **settings: Any) -> Pairs:
    """A set, with a bar while it is being made."""
    task = progress.add_task(name, total=1.0)
    watch: Callable[[float], None] = lambda share: progress.update(task, completed=share)  # noqa: E731
    pairs = generated(name, count, watch, **settings)
    progress.update(task, completed=1.0)
    return pairs


def check(burgers: Pairs, media: Pairs, flow: Pairs) -> None:
    """Each set against something that did not make it."""
    exact = cole_hopf(burgers.inputs[..., 0], 0.01, 1.0)
    error = float(((burgers.outputs[..., 0] - exact).norm(dim=1) / exact.norm(dim=1)).max())
    print(f"Burgers: {error:.1e} from Cole and Hopf")
    assert error < 1e-6
    a = media.inputs[..., 0].double()
    left = float((flux_balance(a, darcy(a)[:, 1:-1, 1:-1]) - 1).square().mean().sqrt())
    print(f"Darcy: what flows out of a cell differs from its source by {left:.1e}")
    assert left < 1e-9
    again = navier_stokes(flow.inputs[-1:, ..., 0], 1e-3, 1.0, usual_forcing(flow.shape[0]), steps=256)
    error = float((again - flow.outputs[-1, ..., 0]).norm() / again.norm())
    print(f"Navier–Stokes: {error:.1e} from a walk with eight times as many steps")
    assert error < 1e-6


def draw(burgers: Pairs, media: Pairs, flow: Pairs, path: Path) -> Path:
    """One row of panels for each equation."""
    figure, panels = plt.subplots(3, 5, figsize=(12.5, 7.2), layout="constrained")
    figure.suptitle("Pairs of functions: what an operator is learned from", color=INK)
    x = torch.cat([burgers.points[:, 0], torch.ones(1)])
    for panel, start, end in zip(panels[0], burgers.inputs[..., 0], burgers.outputs[..., 0], strict=True):
        panel.plot(x, torch.cat([start, start[:1]]), color=FAINT, label="u(x, 0)")
        panel.plot(x, torch.cat([end, end[:1]]), color=COLOURS[0], label="u(x, 1)")
        panel.set(xlim=(0, 1), xticks=[0, 0.5, 1], xlabel="x")
    panels[0, 4].legend(frameon=False, fontsize=8, loc="upper left", borderpad=0.1)
    shown = [media.inputs[0], media.outputs[0], media.inputs[1], media.outputs[1], media.inputs[2]]
    for panel, values, name in zip(panels[1], shown, ("a", "u", "a", "u", "a"), strict=True):
        _field(figure, panel, values[..., 0], "Greys" if name == "a" else "viridis", f"{name}(x, y)")
    moments = [0, 5, 10, 15, TIMES - 2]
    for panel, time in zip(panels[2], moments, strict=True):
        values = flow.inputs[time, ..., 0]
        top = float(values.abs().max())
        _field(figure, panel, values, "RdBu_r", f"t = {time}", (-top, top))
    for panel, name in zip(
        panels[:, 0], ("Burgers, ν = 0.01", "Darcy, a = 3 or 12", "vorticity, ν = 0.001"), strict=True
    ):
        panel.set_ylabel(name, fontsize=11, color=INK, labelpad=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _field(
    figure: Any, panel: Any, values: torch.Tensor, colours: str, name: str, ends: tuple[float, float] | None = None
) -> None:
    """A function on the square: x to the right, y upwards."""
    low, high = ends or (float(values.min()), float(values.max()))
    image = panel.imshow(values.T, origin="lower", extent=(0, 1, 0, 1), cmap=colours, vmin=low, vmax=high)
    bar = figure.colorbar(image, ax=panel, shrink=0.8)
    bar.ax.tick_params(labelsize=7)
    panel.set_title(name, fontsize=9, color=INK)
    panel.set(xticks=[0, 1], yticks=[0, 1])


def main() -> None:
    """Make, check, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/pde-data"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with Progress(transient=True) as progress:
        burgers = made(progress, "burgers", 5)
        media = made(progress, "darcy", 3)
        flow = made(progress, "navier-stokes", TIMES - 1, times=TIMES)
    check(burgers, media, flow)
    print(draw(burgers, media, flow, chosen.out / "pde-data.png"))


if __name__ == "__main__":
    main()
