"""Pictures of densities: over the circle in time, and on the sphere, beside the tokens that they are the limit of."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from continua.errors import ShapeError
from continua.lab.canvas.canvas import COLOURS, INK, TURN, Camera, bare, halves_of_pi, lighter, paint_ball
from continua.lab.figure import pyplot, save
from continua.lab.particles.simulate import Simulation
from continua.lab.theory.meanfield_sphere import SphereField
from continua.typing import Tensor

PIXELS = 180  # across a globe
CELLS = 180  # of the histogram of tokens over the circle
TICKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)


def plot_density(
    times: Tensor, density: Tensor, path: str | Path, particles: Simulation | None = None, title: str = ""
) -> Path:
    """ρ(t, θ) as an image, times to the right; beside it the histogram of the particles of a simulation.

    ``density`` is [k, m] at θ_j = 2πj/m; both images have one colour scale, a root of the density.
    """
    if density.dim() != 2 or len(density) != len(times):
        remedy = "Give one row of values for each time."
        raise ShapeError("an image over time needs [times, angles]", got=list(density.shape), remedy=remedy)
    images = [("mean field", times, density.double().numpy(force=True))]
    if particles is not None:
        images.insert(0, (f"{particles.x.shape[-2]:,} tokens", particles.times, _histogram(particles)))
    return _images(images, path, title)


def _images(images: Sequence[tuple[str, Tensor, numpy.ndarray]], path: str | Path, title: str) -> Path:
    plt = pyplot()
    figure, panels = plt.subplots(
        1, len(images), figsize=(1.2 + 4.3 * len(images), 4.2), layout="constrained", sharey=True, squeeze=False
    )
    top = max(float(numpy.quantile(values, 0.995)) for _, _, values in images)
    scale = _root(0.0, top)
    for panel, (name, times, values) in zip(panels[0], images, strict=True):
        clock = times.numpy(force=True)
        angles = (numpy.arange(values.shape[1] + 1) - 0.5) * TURN / values.shape[1]
        image = panel.pcolormesh(_edges(clock), angles, values.T, norm=scale, cmap="magma_r", rasterized=True)
        panel.set_title(name, fontsize=11)
        panel.set(xlabel="time t", xlim=(clock[0], clock[-1]))
        halves_of_pi(panel)
    panels[0][0].set_ylabel("angle θ")
    figure.colorbar(image, ax=panels, label="density ρ(t, θ)", pad=0.015, extend="max")
    figure.suptitle(title, fontsize=12)
    return save(plt, figure, path)


def plot_globe(
    field: SphereField, path: str | Path, particles: Simulation | None = None, frames: int = 4, title: str = ""
) -> Path:
    """ρ on the sphere S² at some of the times, as the eye sees it; below it the tokens of a simulation at these times.

    Tokens are as large as their weights.
    """
    plt = pyplot()
    rows = 1 + (particles is not None)
    chosen = torch.linspace(0, len(field.times) - 1, frames).round().long()
    figure, panels = plt.subplots(
        rows, frames, figsize=(1.7 * frames + 0.9, 1.75 * rows + 0.6), layout="constrained", squeeze=False
    )
    values, inside = _seen(field, chosen)
    low = max(0.0, float(values.min()))
    high = float(numpy.quantile(values, 0.999))
    for column, frame in enumerate(chosen.tolist()):
        panel = panels[0][column]
        image = numpy.full(inside.shape, numpy.nan)
        image[inside] = values[column]
        drawn = panel.imshow(
            image,
            extent=(-1, 1, -1, 1),
            origin="lower",
            cmap="magma_r",
            norm=_root(low, high),
            interpolation="bilinear",
        )
        bare(panel)
        panel.set_title(f"t = {float(field.times[frame]):.3g}", fontsize=10, color=INK)
        if particles is not None:
            _weighed(panels[1][column], particles, float(field.times[frame]))
    bar = figure.colorbar(drawn, ax=panels[0], label="ρ / uniform", shrink=0.9, pad=0.01, extend="max")
    bar.set_ticks([tick for tick in TICKS if low <= tick <= high], labels=[f"{t:g}" for t in TICKS if low <= t <= high])
    if title:
        figure.suptitle(title, fontsize=12)
    return lighter(save(plt, figure, path))


def _seen(field: SphereField, frames: Tensor) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The density beside the uniform one in each pixel of the front, [frames, pixels], and which pixels those are."""
    across = (numpy.arange(PIXELS) + 0.5) * 2 / PIXELS - 1
    u, v = numpy.meshgrid(across, across)
    inside = u**2 + v**2 < 1
    towards = numpy.sqrt(1 - u[inside] ** 2 - v[inside] ** 2)
    points = torch.from_numpy(numpy.stack([u[inside], v[inside], towards], -1) @ Camera().matrix)
    values = field.harmonics.evaluate(field.coefficients[frames], points) * (4 * math.pi)
    return values.numpy(force=True), inside


def _weighed(panel: Any, found: Simulation, time: float) -> None:
    """Tokens on the ball at the frame next to a time."""
    frame = int((found.times - time).abs().argmin())
    near = Camera().see(found.directions[frame].double().numpy(force=True))
    heavy = found.at(frame).masses.double().numpy(force=True)
    own = near[1] > 0
    paint_ball(panel, Camera())
    sizes = 6000 * heavy[own]
    panel.scatter(*near[0][own].T, s=sizes, color=COLOURS[0], alpha=0.7, linewidths=0, zorder=5)


def _root(low: float, high: float) -> Any:
    """A root scale: peaks must not bleach what is between them."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, vmin=low, vmax=high)


def _edges(clock: numpy.ndarray) -> numpy.ndarray:
    """Between the times, and as far outside at both ends."""
    middle = (clock[1:] + clock[:-1]) / 2
    return numpy.concatenate([[2 * clock[0] - middle[0]], middle, [2 * clock[-1] - middle[-1]]])


def _histogram(found: Simulation) -> numpy.ndarray:
    """The density of the first run's tokens in CELLS cells around θ_j = 2πj/CELLS: [k, CELLS]."""
    every = found.directions.detach()
    x = every.reshape(len(every), -1, *every.shape[-2:])[:, 0].double().numpy(force=True)
    weights = found.at(0).masses.reshape(-1, x.shape[1])[0].double().numpy(force=True)
    cells = numpy.rint(numpy.arctan2(x[..., 1], x[..., 0]) * CELLS / TURN).astype(int) % CELLS
    counted = [numpy.bincount(row, weights, minlength=CELLS) for row in cells]
    return numpy.stack(counted) * CELLS / TURN
