"""Long sequences: one operator, many kernels, error against time.

    python examples/long_attention.py      ten seconds on one core; writes runs/long/long-attention.png

4,096 observations of a smooth process at irregular times. The same attention operator, with the same weights, is given
one kernel after the other; exact attention is the reference. ``Attention(kernel=…)`` is the only switch. Errors of
kernels that draw are root mean squares of four draws.
"""

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from continua.axes import (
    Axes,
    Counting,
    Depths,
    GaussLegendre,
    Grids,
    Interval,
    Lattice,
    MonteCarlo,
    Points,
    Samples,
    Sobol,
    Times,
    grid_on,
)
from continua.fields import counted
from continua.operators import Attention, FewSources, Nystrom, PositiveFeatures, Softmax

TOKENS, CLOSE = 4096, 1e-2
AXES = Axes(t=Times(), d=Points(32), h=Points(4), e=Points(8), m=Points(32), z=Interval())
FAMILIES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "Gauss nodes": (lambda m: FewSources(GaussLegendre(m)), (8, 16, 32, 64)),
    "Nyström": (lambda m: Nystrom(GaussLegendre(m)), (8, 16, 32, 64)),
    "lattice": (lambda m: FewSources(Lattice(m)), (16, 64, 256)),
    "Sobol": (lambda m: FewSources(Sobol(m)), (16, 64, 256)),
    "Monte Carlo": (lambda m: FewSources(MonteCarlo(m)), (16, 64, 256)),
    "Monte Carlo, 32 controls": (lambda m: FewSources(MonteCarlo(m), control=32), (16, 64, 256)),
    "positive features": (lambda m: PositiveFeatures(m), (16, 64, 256)),
}


def setting() -> tuple[Attention, Grids, torch.Tensor]:
    """An operator, its grids, and a smooth state at irregular times."""
    torch.manual_seed(0)
    steps = 0.1 + torch.rand(TOKENS, dtype=torch.float64)
    times = (steps.cumsum(0) / steps.sum()).float()
    operator = Attention(counted(AXES))
    grids = {k: grid_on(AXES[k], Counting(AXES[k].n)) for k in "dhem"}
    grids = Grids(**grids, t=Samples().on(AXES.t, times), z=Depths((0.0,)))
    waves = 2 * math.pi * torch.linspace(0.2, 3.1, 32)
    return operator, grids, torch.cos(times[:, None] * waves + torch.arange(32))[None]


def measured(operator: Attention, kernel: Any, grids: Grids, x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The answer, and the median of three CPU times of binding and attending, after a first try."""
    operator.kernel = kernel
    used = []
    for _ in range(4):
        start = time.process_time()
        f, args = operator.bind(grids)
        answer = f(0.0, x, args)
        used.append(time.process_time() - start)
    return answer, statistics.median(used[1:])


def drawn(found: dict[str, list[tuple[int, float, float]]], exact: float, path: Path) -> Path:
    """Error against time, one line for each family."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from continua.lab.canvas.canvas import COLOURS, INK, LINE

    figure, axes = pyplot.subplots(figsize=(7.6, 4.8), dpi=150, layout="constrained")
    markers = "osD^vPX"
    for (name, points), colour, marker in zip(found.items(), COLOURS, markers, strict=False):
        seconds, errors = [1e3 * p[1] for p in points], [p[2] for p in points]
        axes.plot(seconds, errors, marker=marker, color=colour, label=name, linewidth=1.4, markersize=5)
        for m, used, off in points[:: len(points) - 1]:
            axes.annotate(
                f"{m}", (1e3 * used, off), textcoords="offset points", xytext=(5, 4), fontsize=7, color=colour
            )
    axes.axvline(1e3 * exact, color=INK, linewidth=1.2, linestyle=":", label="exact attention")
    axes.axhline(CLOSE, color=LINE, linewidth=1.0, zorder=0)
    axes.set(xscale="log", yscale="log", xlabel="CPU time of the operator (ms)", ylabel="relative error")
    axes.set_xticks([ms for ms in (2, 5, 10, 20, 50, 100, 200) if ms < 1.5e3 * exact], minor=False)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_title(f"{TOKENS:,} tokens of a smooth field at irregular times", color=INK, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
    return path


@torch.no_grad()
def main() -> None:
    """Measure every family, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/long"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    operator, grids, x = setting()
    wanted, exact = measured(operator, Softmax(), grids, x)
    bias = operator.bo.coefficients.squeeze()
    wanted = wanted - bias
    found: dict[str, list[tuple[int, float, float]]] = {}
    for name, (make, sizes) in FAMILIES.items():
        for m in sizes:
            kernel = make(m)
            draws = [kernel.fresh(step) for step in range(1, 5)] if hasattr(kernel, "fresh") else [kernel]
            answers = [measured(operator, one, grids, x) for one in draws]
            squares = [float((answer - bias - wanted).square().sum() / wanted.square().sum()) for answer, _ in answers]
            used, off = statistics.median(seconds for _, seconds in answers), statistics.mean(squares) ** 0.5
            found.setdefault(name, []).append((m, used, off))
            print(f"{name}, {m}: {used / exact:.3f} of the time of exact attention, error {off:.1e}")
    best = {name: min(point[2] for point in points) for name, points in found.items()}
    assert best["Gauss nodes"] < CLOSE
    assert best["Nyström"] < CLOSE
    assert best["Sobol"] < best["Monte Carlo"], "quasi-random sources are better than random ones on a smooth field"
    assert best["Monte Carlo, 32 controls"] < best["Monte Carlo"], "and control variates help"
    print(drawn(found, exact, chosen.out / "long-attention.png"))


if __name__ == "__main__":
    main()
