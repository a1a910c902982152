"""The picture of ``continua plan``: speed, parts of a step and bytes over the number of devices."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from continua.lab.cost.plan import MeshCost
from continua.lab.figure import pyplot, save


def draw_scaling(found: Sequence[MeshCost], path: str | Path, title: str) -> Path:
    """Tokens a second, the parts of a step and the bytes of a device over the number of devices."""
    plt = pyplot()
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    counts = [plan.mesh.devices for plan in found]
    _speed(panels[0], counts, found)
    _parts(panels[1], counts, found)
    panels[2].plot(counts, [plan.bytes.total / 1e9 for plan in found], marker="o")
    panels[2].axhline(found[0].memory / 1e9, color="0.7", linestyle="--")
    panels[2].annotate("memory of a device", (counts[0], found[0].memory / 1e9), va="bottom", color="0.4")
    panels[2].set(xscale="log", ylabel="gigabytes a device")
    panels[2].margins(y=0.12)  # room for the words above the line
    panels[2].set_ylim(bottom=0.0)
    for panel in panels:
        panel.set_xlabel("devices")
        panel.set_xticks(counts, [f"{count:,}" for count in counts], rotation=45)
        panel.minorticks_off()
    figure.suptitle(f"{title}: a simulation by published figures", fontsize=12)
    return save(plt, figure, path)


def _speed(panel: Any, counts: Sequence[int], found: Sequence[MeshCost]) -> None:
    first = found[0].tokens_per_second
    panel.plot(counts, [plan.tokens_per_second for plan in found], marker="o", label="planned")
    ideal = [first * count / counts[0] for count in counts]
    panel.plot(counts, ideal, color="0.7", linestyle="--", label="in proportion")
    panel.set(xscale="log", yscale="log", ylabel="tokens a second")
    panel.legend(frameon=False)


def _parts(panel: Any, counts: Sequence[int], found: Sequence[MeshCost]) -> None:
    parts = {
        "computing": [plan.seconds.compute for plan in found],
        "waiting for keys": [plan.seconds.tokens for plan in found],
        "gathering weights": [plan.seconds.weights for plan in found],
        "summing gradients": [plan.seconds.gradients for plan in found],
        "optimiser": [plan.seconds.optimiser for plan in found],
    }
    below = [0.0] * len(found)
    for name, seconds in parts.items():
        share = [100 * own / plan.seconds.total for own, plan in zip(seconds, found, strict=True)]
        above = [a + b for a, b in zip(below, share, strict=True)]
        panel.fill_between(counts, below, above, label=name, alpha=0.8)
        below = above
    panel.set(xscale="log", ylabel="% of a step", ylim=(0, 100))
    panel.legend(frameon=True, loc="lower left")
