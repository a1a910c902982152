"""The demo's figure: refinement curves, and one field read on three grids."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from continua.axes import Discretisation, Midpoint
from continua.models import Batch, Transformer
from continua.models.refine import Refinement, smooth_input


def draw(found: Sequence[Refinement], model: Transformer, path: Path) -> None:
    """Left: errors over nodes for every axis. Right: X(Z, t) on a coarse, an irregular and a fine grid."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    for curve, colour in zip(found, plt.colormaps["tab20"].colors, strict=False):  # type: ignore[attr-defined]
        order = "spectral" if math.isinf(curve.declared) else f"slope {curve.slope:.2f}"
        left.loglog(
            curve.sizes, curve.errors, "o-", color=colour, ms=4, lw=1.2, label=f"{curve.letter}: {curve.name}, {order}"
        )
    left.set(xlabel="nodes or steps along the axis", ylabel="error", title="Refine one axis, the answer settles")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", fontsize=7, ncols=4, frameon=False)
    left.grid(alpha=0.3, which="both")
    field = Transformer(model.axes, model.native, model.embed, model.block, None)
    stamps = torch.rand(14, generator=torch.Generator().manual_seed(1), dtype=torch.float64).sort().values
    shown = (
        ("256 uniform nodes", Batch(smooth_input), Discretisation(t=Midpoint(256)), "-"),
        ("12 uniform nodes", Batch(smooth_input), Discretisation(t=Midpoint(12)), "o"),
        ("14 irregular stamps", Batch(smooth_input, times=stamps), Discretisation(), "x"),
    )
    with torch.no_grad():
        for name, batch, at, mark in shown:
            state = field(batch, at=replace(field.native, t=at.t))[0]
            t = stamps if batch.times is not None else (torch.arange(at.t.n) + 0.5) / at.t.n  # type: ignore[union-attr]
            for coordinate, colour in ((2, "C0"), (12, "C1"), (21, "C2")):
                label = name if colour == "C0" else None
                right.plot(t, state[:, coordinate], mark, color=colour, ms=5, lw=1.2, label=label)
    right.set(xlabel="token time t", ylabel="X(Z, t, d) at three d", title="One model, three token grids (causal)")
    right.legend(fontsize=8)
    right.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    plt.close(figure)
