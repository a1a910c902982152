"""Pictures of one checkpoint at many sizes: loss over what each costs."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from continua.lab.cost.beside import Beside, line_through
from continua.lab.cost.point import Point
from continua.lab.figure import pyplot, save

CLOSE = 1.4  # ratio of costs whose names would touch
NEAR = 0.06  # of the range of losses: the same
BLUE = "#0072b2"
ORANGE = "#d55e00"
MEGA = 1e-6
MARGIN = 0.06  # of the range of losses, above and below
REACH = 1.6  # losses further above the least than this times the highest trained one are drawn at the upper edge
NAMED = 6  # about so many sizes of the front have their names written


def draw(
    points: Sequence[Point],
    over_time: Sequence[Point],
    over_flops: Sequence[Point],
    path: str | Path,
    title: str,
    nats: bool,
) -> Path:
    """Loss over time and over FLOPs, with the fronts; orange is the first of the points, the native size."""
    plt = pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharey=True)
    for panel, front, cost, unit, label in (
        (panels[0], over_time, "seconds", 1e3, "milliseconds for one sample"),
        (panels[1], over_flops, "flops", MEGA, "million FLOPs for one sample"),
    ):
        panel.plot([getattr(p, cost) * unit for p in front], [p.loss for p in front], color="0.75", zorder=1)
        for i, point in enumerate(points):
            fill = "white" if point.trained is False else BLUE if i else ORANGE
            edge = BLUE if i else ORANGE
            panel.scatter(getattr(point, cost) * unit, point.loss, s=46, color=fill, edgecolors=edge, zorder=2)
        _name(panel, points, front, cost, unit)
        panel.margins(x=0.3)
        _axes(plt, panel, label)
    panels[0].set_ylabel("held-out loss")
    if nats:
        _perplexity(panels[1])
    figure.suptitle(f"{title}  (orange: native; hollow: never trained)", fontsize=12)
    return save(plt, figure, path)


def draw_many(
    points: Sequence[Point],
    front: Sequence[Point],
    path: str | Path,
    title: str,
    nats: bool,
    beside: Sequence[Beside] = (),
) -> Path:
    """Loss over FLOPs of many sizes, coloured by their steps, with the front and the line through other models.

    Hollow marks are sizes that training never drew; what lies far above the others is a triangle at the upper edge.
    """
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(10, 6), layout="constrained")
    steps = sorted({point.steps for point in points})
    colours = dict(
        zip(
            steps,
            plt.get_cmap("viridis")([0.92 * (1 - i / max(1, len(steps) - 1)) for i in range(len(steps))]),
            strict=True,
        )
    )
    top = _top(points, beside)
    for kind, trained in (("o", True), ("^", True), ("o", False), ("^", False)):
        own = [p for p in points if (p.trained is not False) is trained and (p.loss > top) is (kind == "^")]
        edges = [colours[p.steps] for p in own]
        panel.scatter(
            [p.flops * MEGA for p in own],
            [min(p.loss, top) for p in own],
            s=30,
            marker=kind,
            facecolors=edges if trained else "none",
            edgecolors=edges,
            linewidths=1.1,
            zorder=2,
            clip_on=kind == "o",
        )
    panel.plot([p.flops * MEGA for p in front], [p.loss for p in front], color="0.2", lw=1.4, zorder=3)
    native = points[0]
    panel.scatter(native.flops * MEGA, native.loss, s=190, marker="*", color=ORANGE, edgecolors="white", zorder=5)
    _draw_beside(panel, beside)
    least = min(_losses(points, beside))
    panel.set_ylim(least - MARGIN * (top - least), top)
    _name_front(panel, [point for point in front if point.loss < top - 0.1 * (top - least)])
    _axes(plt, panel, "million FLOPs for one sample (forward)")
    panel.set_ylabel("held-out loss" + (" (nats)" if nats else ""))
    if nats:
        _perplexity(panel)
    _legend(plt, panel, colours, points, top, bool(beside))
    panel.set_title(f"{title} ({len(points)})", fontsize=12)
    return save(plt, figure, path)


def _top(points: Sequence[Point], beside: Sequence[Beside]) -> float:
    """Where the picture ends: sizes that do not work at all would press the others together."""
    losses = _losses(points, beside)
    least = min(losses)
    trained = [point.loss for point in points if point.trained]
    reach = max(trained) - least if len(trained) > 1 else statistics.median(losses) - least
    highest = max(losses)
    room = MARGIN * (highest - least)
    return min(highest + room, least + REACH * reach) if reach > 0 else highest + max(room, 0.1)


def _losses(points: Sequence[Point], beside: Sequence[Beside]) -> list[float]:
    return [point.loss for point in points] + [model.loss for model in beside]


def _draw_beside(panel: Any, beside: Sequence[Beside]) -> None:
    """Other models as numbered diamonds, with the line through them and their names in a corner."""
    for number, model in enumerate(sorted(beside, key=lambda model: model.flops), 1):
        place = (model.flops * MEGA, model.loss)
        panel.scatter(*place, s=95, marker="D", color="white", edgecolors="black", linewidths=0.9, zorder=6)
        panel.annotate(str(number), place, fontsize=7, ha="center", va="center_baseline", zorder=7)
    names = [f"{i}  {model.name}" for i, model in enumerate(sorted(beside, key=lambda model: model.flops), 1)]
    panel.text(0.015, 0.02, "\n".join(names), transform=panel.transAxes, fontsize=8, color="0.25", va="bottom")
    line = line_through(beside)
    if line is not None:
        ends = [min(model.flops for model in beside), max(model.flops for model in beside)]
        many = [ends[0] * (ends[1] / ends[0]) ** (i / 50) for i in range(51)]
        panel.plot([x * MEGA for x in many], [line(x) for x in many], color="black", lw=1.1, ls="--", zorder=1)


def _name_front(panel: Any, front: Sequence[Point]) -> None:
    """The names of some sizes of the front, evenly along the logarithm of their cost, above the line."""
    from matplotlib import patheffects

    last = -math.inf
    width = math.log(front[-1].flops / front[0].flops) / NAMED if front else 0.0
    for point in front:
        if math.log(point.flops) - last >= width:
            last = math.log(point.flops)
            place = (point.flops * MEGA, point.loss)
            panel.annotate(
                point.name,
                place,
                (14, 22),
                textcoords="offset points",
                fontsize=7.5,
                zorder=5,
                arrowprops={"arrowstyle": "-", "lw": 0.6, "color": "0.4", "shrinkA": 0, "shrinkB": 3},
                path_effects=[patheffects.withStroke(linewidth=2.5, foreground="white")],
            )


def _legend(plt: Any, panel: Any, colours: dict[int, Any], points: Sequence[Point], top: float, beside: bool) -> None:
    """What colours, marks and lines mean."""
    mark = {"ls": "", "marker": "o", "ms": 6}
    marks = [plt.Line2D([], [], color=c, label=f"{n} step{'s' if n > 1 else ''}", **mark) for n, c in colours.items()]
    if any(point.trained is False for point in points):
        marks.append(plt.Line2D([], [], mec="0.4", mfc="none", label="never trained", color="0.4", **mark))
    higher = sum(point.loss > top for point in points)
    if higher:
        marks.append(plt.Line2D([], [], color="0.4", ls="", marker="^", ms=6, label=f"{higher} higher than shown"))
    marks.append(plt.Line2D([], [], color=ORANGE, ls="", marker="*", ms=12, label="native"))
    marks.append(plt.Line2D([], [], color="0.2", lw=1.4, label="the front"))
    if beside:
        marks.append(plt.Line2D([], [], color="black", ls="--", marker="D", mfc="white", label="separate models"))
    panel.legend(handles=marks, fontsize=8, frameon=False, loc="upper right")


def _axes(plt: Any, panel: Any, label: str) -> None:
    panel.set(xlabel=label, xscale="log")
    panel.xaxis.set_major_formatter(plt.FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(plt.FuncFormatter(lambda value, _: _round(value)))
    panel.tick_params(axis="x", which="both", labelsize=8)
    panel.grid(alpha=0.25)


def _perplexity(panel: Any) -> None:
    """The exponentials of the losses, on the right."""
    right = panel.secondary_yaxis("right", functions=(lambda y: np.exp(np.clip(y, -50, 50)), _logarithms))
    right.set_ylabel("perplexity")


def _logarithms(x: Any) -> Any:
    return np.log(np.maximum(x, 1e-20))


def _name(panel: Any, points: Sequence[Point], front: Sequence[Point], cost: str, unit: float) -> None:
    """Names to the left below their marks; to the right above where that of the neighbour is in the way."""
    losses = [p.loss for p in points]
    near = NEAR * (max(losses) - min(losses))
    moved = False
    for before, p in zip([None, *front], front, strict=False):
        touch = before is not None and getattr(p, cost) < CLOSE * getattr(before, cost)
        moved = not moved and touch and before is not None and before.loss - p.loss < near
        shift, side = ((6, 5), "left") if moved else ((-5, -9), "right")
        place = (getattr(p, cost) * unit, p.loss)
        panel.annotate(p.name, place, shift, textcoords="offset points", fontsize=7, ha=side)


def _round(value: float) -> str:
    """2, 3 and 5 of each decade are named, the others would touch."""
    return f"{value:g}" if f"{value:e}"[0] in "235" else ""
