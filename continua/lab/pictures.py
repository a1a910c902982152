"""Pictures of the dynamics of tokens: paths, growth rates, densities, staircases, counts and phase diagrams."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from continua.errors import ShapeError
from continua.lab.canvas import (
    COLOURS,
    FAINT,
    INK,
    Camera,
    in_space,
    paint_ball,
    paint_tokens,
    paint_trails,
    shown,
    tints,
)
from continua.lab.plots import pyplot, save
from continua.lab.simulate import Simulation
from continua.typing import Tensor

CELLS = 180  # of the histogram of tokens over the circle
TURN = 2 * math.pi
PIES = ((0, "0"), (math.pi / 2, "π/2"), (math.pi, "π"), (3 * math.pi / 2, "3π/2"), (TURN, "2π"))


@dataclass(frozen=True)
class Stay:
    """A stretch of time in which little happens: its begin, its end, and what to write there."""

    start: float
    end: float
    label: str = ""


def plot_paths(
    found: Simulation, path: str | Path, groups: Tensor | Sequence[int] | None = None, title: str = ""
) -> Path:
    """Where each token went: its angle over time on the circle, its way over the sphere otherwise.

    Tokens have the colour of their group. A sphere is seen from two opposite sides.
    """
    tokens, kept = shown(found)
    colours = tints(groups, kept)
    if tokens.shape[-1] == 2:
        return _angles(found.times, tokens, colours, path, title)
    plt = pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(8.4, 4.7 if title else 4.3))
    figure.subplots_adjust(0.005, 0.01, 0.995, 0.86 if title else 0.93, 0.01, 0)
    where = in_space(tokens)
    for panel, camera, side in zip(panels, (Camera(30.0), Camera(210.0, -22.0)), ("front", "back"), strict=True):
        paint_ball(panel, camera)
        paint_trails(panel, where, colours, camera)
        paint_tokens(panel, where[-1], colours, camera, 30.0)
        panel.set_title(side, fontsize=10, color=INK)
    figure.suptitle(title, fontsize=12)
    return save(plt, figure, path)


def _angles(times: Tensor, tokens: numpy.ndarray, colours: Sequence[Any], path: str | Path, title: str) -> Path:
    from matplotlib.collections import LineCollection

    plt = pyplot()
    figure, panel = plt.subplots(figsize=(7.4, 4.4), layout="constrained")
    theta = numpy.unwrap(numpy.arctan2(tokens[..., 1], tokens[..., 0]), axis=0)
    clock = numpy.broadcast_to(times.numpy(force=True)[:, None], theta.shape)
    lines, tones = [], []
    for shift in (-TURN, 0.0, TURN):  # a token that passes 2π comes in again at 0
        inside = ((theta + shift > 0) & (theta + shift < TURN)).any(0)
        lines += list(numpy.stack([clock, theta + shift], -1).transpose(1, 0, 2)[inside])
        tones += [colour for colour, one in zip(colours, inside, strict=True) if one]
    width = 1.0 if len(colours) <= 80 else 0.5
    panel.add_collection(LineCollection(lines, colors=tones, linewidths=width, alpha=0.7))
    panel.set(xlim=(float(times[0]), float(times[-1])), xlabel="time t", ylabel="angle θ of a token")
    _pies(panel)
    panel.set_title(title or "Tokens on the circle", fontsize=11)
    return save(plt, figure, path)


def plot_growth(
    rates: Mapping[str, Tensor], measured: Mapping[str, tuple[Tensor, Tensor]], path: str | Path, title: str = ""
) -> Path:
    """λ_l over l as the theory gives them (lines), simulated ones on them (rings), and below by how much they differ.

    ``rates`` are λ_0, λ_1, … under a name; ``measured`` has under the same name the degrees l and the rates found.
    """
    plt = pyplot()
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(7.4, 5.6), layout="constrained", sharex=True, height_ratios=(2.6, 1)
    )
    for (name, theory), colour in zip(rates.items(), _cycle(len(rates)), strict=True):
        curve = theory.real.double().numpy(force=True)
        upper.plot(range(1, len(curve)), curve[1:], "-", color=colour, lw=1.6, label=name, zorder=2)
        if name not in measured:
            continue
        degrees, values = (one.double().numpy(force=True) for one in measured[name])
        upper.plot(degrees, values, "o", color=colour, mfc="white", ms=6.5, mew=1.5, zorder=3)
        known = curve[degrees.astype(int)]
        off = numpy.abs(values - known) / numpy.abs(known)
        lower.semilogy(degrees, numpy.maximum(off, 1e-16), "o", color=colour, ms=4.5)
    upper.axhline(0, color=FAINT, lw=0.8, zorder=1)
    upper.plot([], [], "o", color=INK, mfc="white", mew=1.5, label="simulated")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    upper.set(ylabel=r"growth rate $\lambda_\ell$")
    lower.set(xlabel=r"degree $\ell$ of the mode", ylabel="relative\ndeviation")
    lower.xaxis.get_major_locator().set_params(integer=True)
    for panel in (upper, lower):
        panel.grid(alpha=0.25)
    upper.set_title(title or "How fast modes grow on the uniform measure", fontsize=11)
    return save(plt, figure, path)


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
    from matplotlib.colors import PowerNorm

    plt = pyplot()
    figure, panels = plt.subplots(
        1, len(images), figsize=(1.2 + 4.3 * len(images), 4.2), layout="constrained", sharey=True, squeeze=False
    )
    top = max(float(numpy.quantile(values, 0.995)) for _, _, values in images)
    scale = PowerNorm(0.5, vmin=0.0, vmax=top)  # a root: peaks must not bleach what is between them
    for panel, (name, times, values) in zip(panels[0], images, strict=True):
        clock, angles = times.numpy(force=True), (numpy.arange(values.shape[1] + 1) - 0.5) * TURN / values.shape[1]
        image = panel.pcolormesh(_edges(clock), angles, values.T, norm=scale, cmap="magma_r", rasterized=True)
        panel.set_title(name, fontsize=11)
        panel.set(xlabel="time t", xlim=(clock[0], clock[-1]))
        _pies(panel)
    panels[0][0].set_ylabel("angle θ")
    figure.colorbar(image, ax=panels, label="density ρ(t, θ)", pad=0.015, extend="max")
    figure.suptitle(title, fontsize=12)
    return save(plt, figure, path)


def plot_staircase(
    times: Tensor, energy: Tensor, path: str | Path, counts: Tensor | None = None, stays: Sequence[Stay] = (),
    title: str = "",
) -> Path:  # fmt: skip
    """The energy over time, the stretches where it rests, and below how many clusters there are.

    The clock is logarithmic unless the times are evenly spaced.
    """
    plt = pyplot()
    rows = 1 if counts is None else 2
    figure, panels = plt.subplots(
        rows, 1, figsize=(7.6, 3.2 + 1.6 * (rows - 1)), layout="constrained", sharex=True, squeeze=False,
        height_ratios=(2.2, 1)[:rows],
    )  # fmt: skip
    clock, height = times.numpy(force=True), energy.double().numpy(force=True)
    top = panels[0][0]
    top.plot(clock, height, "-", color=COLOURS[0], lw=2)
    top.set(ylabel=r"energy $E_\beta$, 1 at consensus" if float(height.max()) <= 1 + 1e-9 else r"energy $E_\beta$")
    if counts is not None:
        low = panels[1][0]
        low.step(clock, counts.double().numpy(force=True), where="mid", color=COLOURS[1], lw=1.8)
        low.set(ylabel="clusters", ylim=(0.5, min(12.5, float(counts.max()) + 0.5)))
        low.yaxis.get_major_locator().set_params(integer=True)
    room = float(height.max() - height.min()) or 1.0
    top.set_ylim(height.min() - 0.06 * room, height.max() + 0.16 * room)
    even = len(clock) < 3 or bool(numpy.allclose(numpy.diff(clock), clock[1] - clock[0]))
    first = clock[0] if even else max(clock[0], clock[1] / 2)
    for panel in panels[:, 0]:
        panel.set(xscale="linear" if even else "log", xlim=(first, clock[-1]))
        panel.grid(alpha=0.25)
        for stay in stays:
            panel.axvspan(max(stay.start, first), stay.end, color=COLOURS[4], alpha=0.16, lw=0)
    for stay in stays:
        begin = max(stay.start, first)
        middle = (begin + stay.end) / 2 if even else math.sqrt(begin * stay.end)
        level = float(numpy.interp(middle, clock, height))
        top.annotate(
            stay.label, (middle, level), (0, 5), textcoords="offset points", ha="center", fontsize=9, color=INK
        )
    panels[-1][0].set_xlabel("time t")
    top.set_title(title or "The energy climbs a staircase", fontsize=11)
    return save(plt, figure, path)


def plot_counts(counts: Tensor, path: str | Path, expected: float | None = None, title: str = "") -> Path:
    """How often each number of clusters was found, their mean, and the number that the theory expects."""
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    found = counts.reshape(-1).double()
    values, often = torch.unique(found, return_counts=True)
    bars = panel.bar(values.tolist(), often.tolist(), width=0.72, color=COLOURS[5], edgecolor=COLOURS[0])
    panel.bar_label(bars, label_type="center", fontsize=10, color=INK)
    mean = float(found.mean())
    panel.axvline(mean, color=COLOURS[1], lw=2, alpha=0.8, label=f"mean {mean:.2f}")
    if expected is not None:
        panel.axvline(expected, color=INK, lw=1.6, ls="--", label=f"fastest mode {expected:g}")
    panel.set(xlabel="clusters", ylabel=f"runs of {len(found)}", ylim=(0, 1.15 * float(often.max())))
    panel.set_xticks(range(int(values.min()), int(values.max()) + 1))
    panel.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    panel.set_title(title or "How many clusters", fontsize=11)
    return save(plt, figure, path)


def plot_phase(
    values: Tensor, columns: Sequence[float | int], rows: Sequence[float | int], path: str | Path,
    names: tuple[str, str, str] = ("β", "d", "clusters"), title: str = "",
) -> Path:  # fmt: skip
    """A table as a heat map: values [rows, columns] with their numbers in the cells; what is not known is white."""
    if tuple(values.shape) != (len(rows), len(columns)):
        got = f"{list(values.shape)} for {len(rows)} rows and {len(columns)} columns"
        raise ShapeError("a phase diagram is a full table", got=got, remedy="Give values [rows, columns].")
    plt = pyplot()
    table = values.double().numpy(force=True)
    figure, panel = plt.subplots(figsize=(2.2 + 0.62 * len(columns), 1.7 + 0.5 * len(rows)), layout="constrained")
    image = panel.imshow(table, cmap="viridis", origin="lower", aspect="auto", vmin=min(1.0, numpy.nanmin(table)))
    middle = (image.norm.vmin + image.norm.vmax) / 2
    for (row, column), value in numpy.ndenumerate(table):
        if math.isfinite(value):
            text = f"{value:.0f}" if value >= 9.95 or value == round(value) else f"{value:.1f}"
            panel.text(
                column, row, text, ha="center", va="center", fontsize=9, color="white" if value < middle else INK
            )
    panel.set_xticks(range(len(columns)), [f"{c:g}" for c in columns])
    panel.set_yticks(range(len(rows)), [f"{r:g}" for r in rows])
    panel.set(xlabel=names[0], ylabel=names[1])
    panel.tick_params(length=0)
    figure.colorbar(image, ax=panel, label=names[2], pad=0.02)
    panel.set_title(title or "Phase diagram", fontsize=11)
    return save(plt, figure, path)


def _cycle(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def _pies(panel: Any) -> None:
    panel.set_ylim(0, TURN)
    panel.set_yticks([at for at, _ in PIES], [name for _, name in PIES])


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
