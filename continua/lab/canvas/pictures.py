"""Pictures of the dynamics of tokens: paths, growth rates, staircases, counts of clusters and phase diagrams."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from continua.errors import ShapeError
from continua.lab.canvas.canvas import (
    COLOURS,
    FAINT,
    INK,
    TURN,
    Camera,
    halves_of_pi,
    in_space,
    lighter,
    paint_ball,
    paint_ring,
    paint_tokens,
    paint_trails,
    shown,
    time_label,
    tints,
)
from continua.lab.figure import pyplot, save
from continua.lab.particles.simulate import Simulation
from continua.typing import Tensor


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
    figure, panels = plt.subplots(1, 2, figsize=(7.6, 4.3 if title else 3.9))
    figure.subplots_adjust(0.005, 0.01, 0.995, 0.86 if title else 0.93, 0.01, 0)
    where = in_space(tokens)
    for panel, camera, side in zip(panels, (Camera(30.0), Camera(210.0, -22.0)), ("front", "back"), strict=True):
        paint_ball(panel, camera)
        paint_trails(panel, where, colours, camera)
        paint_tokens(panel, where[-1], colours, camera, 30.0)
        panel.set_title(side, fontsize=10, color=INK)
    figure.suptitle(title, fontsize=12)
    return lighter(save(plt, figure, path))


def _angles(times: Tensor, tokens: numpy.ndarray, colours: Sequence[Any], path: str | Path, title: str) -> Path:
    from matplotlib.collections import LineCollection

    plt = pyplot()
    figure, panel = plt.subplots(figsize=(7.4, 4.4), layout="constrained")
    theta = numpy.unwrap(numpy.arctan2(tokens[..., 1], tokens[..., 0]), axis=0)
    clock = numpy.broadcast_to(times.numpy(force=True)[:, None], theta.shape)
    lines = []
    tones = []
    for shift in (-TURN, 0.0, TURN):  # a token that passes 2π comes in again at 0
        inside = ((theta + shift > 0) & (theta + shift < TURN)).any(0)
        lines += list(numpy.stack([clock, theta + shift], -1).transpose(1, 0, 2)[inside])
        tones += [colour for colour, one in zip(colours, inside, strict=True) if one]
    width = 1.0 if len(colours) <= 80 else 0.5
    panel.add_collection(LineCollection(lines, colors=tones, linewidths=width, alpha=0.7))
    panel.set(xlim=(float(times[0]), float(times[-1])), xlabel="time t", ylabel="angle θ of a token")
    halves_of_pi(panel)
    panel.set_title(title or "Tokens on the circle", fontsize=11)
    return lighter(save(plt, figure, path))


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


def plot_staircase(
    times: Tensor,
    energy: Tensor,
    path: str | Path,
    counts: Tensor | None = None,
    stays: Sequence[Stay] = (),
    title: str = "",
    tokens: Simulation | None = None,
    groups: Tensor | Sequence[int] | None = None,
) -> Path:
    """The energy over time, the stretches where it rests, and below how many clusters there are.

    With a simulation its tokens are shown above, first and in the middle of each stretch, in their groups' colours. The
    clock is logarithmic unless the times are evenly spaced.
    """
    plt = pyplot()
    above = tokens is not None and len(stays) > 0
    below = counts is not None
    ratios = [1.1] * above + [2.0] + [0.9] * below
    wide = 10.0 if above else 7.6
    figure = plt.figure(figsize=(wide, 1.0 + 1.3 * sum(ratios)), layout="constrained")
    grid = figure.add_gridspec(len(ratios), 1 + len(stays), height_ratios=ratios)
    top = figure.add_subplot(grid[int(above), :])
    panels = [top, figure.add_subplot(grid[-1, :], sharex=top)] if below else [top]
    clock = times.numpy(force=True)
    height = energy.double().numpy(force=True)
    even = len(clock) < 3 or bool(numpy.allclose(numpy.diff(clock), clock[1] - clock[0]))
    first = clock[0] if even else max(clock[0], clock[1] / 2)
    top.plot(clock, height, "-", color=COLOURS[0], lw=2)
    relative = float(height.max()) <= 1 + 1e-9
    top.set(ylabel="energy E, 1 at consensus" if relative else r"energy $E_\beta$")
    room = float(height.max() - height.min()) or 1.0
    top.set_ylim(height.min() - 0.06 * room, height.max() + 0.16 * room)
    if counts is not None:
        panels[1].step(clock, counts.double().numpy(force=True), where="mid", color=COLOURS[1], lw=1.8)
        panels[1].set(ylabel="clusters", ylim=(0.5, min(12.5, float(counts.max()) + 0.5)))
        panels[1].yaxis.get_major_locator().set_params(integer=True)
        top.tick_params(labelbottom=False)
    for panel in panels:
        panel.set(xscale="linear" if even else "log", xlim=(first, clock[-1]))
        panel.grid(alpha=0.25)
        for stay in stays:
            panel.axvspan(max(stay.start, first), stay.end, color=COLOURS[4], alpha=0.16, lw=0)
    middles = [
        (b + stay.end) / 2 if even else math.sqrt(b * stay.end) for stay in stays for b in [max(stay.start, first)]
    ]
    for stay, middle in zip(stays, middles, strict=True):
        place = (middle, float(numpy.interp(middle, clock, height)))
        top.annotate(stay.label, place, (0, 5), textcoords="offset points", ha="center", fontsize=9, color=INK)
    panels[-1].set_xlabel("time t")
    if tokens is not None and above:
        _resting(figure, grid, tokens, groups, [float(clock[0]), *middles])
    figure.suptitle(title or "The energy climbs a staircase", fontsize=12)
    return lighter(save(plt, figure, path))


def _resting(
    figure: Any, grid: Any, found: Simulation, groups: Tensor | Sequence[int] | None, middles: Sequence[float]
) -> None:
    """Tokens at the frames next to some times, side by side in the first row."""
    tokens, kept = shown(found)
    colours = tints(groups, kept)
    for column, middle in enumerate(middles):
        frame = int((found.times - middle).abs().argmin())
        panel = figure.add_subplot(grid[0, column])
        if tokens.shape[-1] == 2:
            paint_ring(panel, tokens[frame], colours)
        else:
            paint_ball(panel, Camera())
            paint_tokens(panel, in_space(tokens)[frame], colours, Camera(), 20.0)
        panel.set_title(f"t = {time_label(float(found.times[frame]))}", fontsize=10, color=INK)


def plot_counts(counts: Tensor, path: str | Path, expected: float | None = None, title: str = "") -> Path:
    """How often each number of clusters was found, with their mean and the number that the theory expects above."""
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    found = counts.reshape(-1).double()
    values, often = torch.unique(found, return_counts=True)
    bars = panel.bar(values.tolist(), often.tolist(), width=0.72, color=COLOURS[5], edgecolor=COLOURS[0])
    panel.bar_label(bars, label_type="center", fontsize=10, color=INK)
    mean = float(found.mean())
    top = float(often.max())
    panel.plot(mean, 1.1 * top, "v", color=COLOURS[1], ms=11, label=f"mean {mean:.2f}")
    if expected is not None:
        panel.plot(expected, 1.1 * top, "v", color=INK, mfc="none", mew=1.6, ms=11, label=f"fastest mode {expected:g}")
    panel.set(xlabel="clusters", ylabel=f"runs of {len(found)}", ylim=(0, 1.2 * top))
    marks = [*values.tolist(), *([] if expected is None else [expected])]
    panel.set_xticks(range(math.floor(min(marks)), math.ceil(max(marks)) + 1))
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
    low = min(1.0, float(numpy.nanmin(table)))
    high = float(numpy.nanmax(table))
    wide = low > 0 and high > 20 * low  # then equal colours are equal ratios
    image = panel.imshow(table, cmap="viridis", origin="lower", aspect="auto", norm=_scale(low, high, wide))
    for (row, column), value in numpy.ndenumerate(table):
        if math.isfinite(value):
            text = f"{value:.0f}" if value >= 9.95 or value == round(value) else f"{value:.1f}"
            panel.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=9,
                color="white" if image.norm(value) < 0.55 else INK,
            )
    panel.set_xticks(range(len(columns)), [f"{c:g}" for c in columns])
    panel.set_yticks(range(len(rows)), [f"{r:g}" for r in rows])
    panel.set(xlabel=names[0], ylabel=names[1])
    panel.tick_params(length=0)
    bar = figure.colorbar(image, ax=panel, label=names[2], pad=0.02)
    if wide:
        bar.ax.yaxis.set_major_formatter(plt.FuncFormatter(lambda value, _: f"{value:g}"))
    panel.set_title(title or "Phase diagram", fontsize=11)
    return save(plt, figure, path)


def _scale(low: float, high: float, wide: bool) -> Any:
    from matplotlib.colors import LogNorm, Normalize

    return (LogNorm if wide else Normalize)(low, max(high, 1.001 * low))


def _cycle(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]
