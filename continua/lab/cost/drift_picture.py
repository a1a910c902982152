"""A picture of what a model loses at other sizes: likeness over what each size costs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from continua.lab.figure import pyplot, save

BLUE = "#0072b2"
ORANGE = "#d55e00"


def draw(points: Sequence[Any], nats: bool, path: str | Path, title: str) -> Path:
    """Bars of likeness by size, and beside them what is left of FLOPs, of time and of the weights."""
    plt = pyplot()
    native = points[0]
    height = 1.5 + 0.5 * len(points)
    figure, panels = plt.subplots(1, 2, figsize=(11, height), layout="constrained", sharey=True, width_ratios=(1, 1.15))
    rows = range(len(points))
    _likeness(panels[0], points, nats)
    shares = (
        ("FLOPs", "o", BLUE, [point.flops / native.flops for point in points]),
        ("time of a held forward", "D", ORANGE, [point.seconds / native.seconds for point in points]),
        ("weights", "s", "0.45", [point.bytes / native.bytes for point in points]),
    )
    for row in rows:
        own = [share[row] for *_, share in shares]
        panels[1].plot([min(own), max(own)], [row, row], color="0.85", lw=2, zorder=1)
    for label, mark, colour, share in shares:
        panels[1].scatter(share, rows, s=44, marker=mark, color=colour, edgecolors="white", label=label, zorder=2)
    panels[1].axvline(1.0, color="0.6", lw=0.8, zorder=0)
    panels[1].set_xlim(0.0, 1.05 * max(1.0, *(max(share) for *_, share in shares)))
    panels[1].xaxis.set_major_formatter(plt.FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
    panels[1].set_xlabel("of the native size")
    panels[1].legend(fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    for panel in panels:
        panel.grid(axis="x", alpha=0.25)
        panel.set_axisbelow(True)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
    panels[0].invert_yaxis()
    figure.suptitle(title, fontsize=12)
    return save(plt, figure, path)


def _likeness(panel: Any, points: Sequence[Any], nats: bool) -> None:
    """A bar for each size, with its number."""
    values = [point.likeness for point in points]
    colours = [ORANGE if i == 0 else BLUE for i in range(len(points))]
    bars = panel.barh(range(len(points)), values, color=colours, height=0.62)
    panel.bar_label(bars, [f"{value:.3f}" for value in values], padding=4, fontsize=9)
    panel.set_yticks(range(len(points)), [point.name for point in points])
    panel.margins(x=0.14)
    if nats:
        panel.set_xlabel("KL(native ‖ size) in nats: 0 is the same")
    else:
        panel.set_xlim(min(0.0, *values), 1.12)
        panel.set_xlabel("cosine to the native embedding: 1 is the same")
