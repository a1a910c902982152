"""Images as functions on the square: trained at 8×8 pixels, read at any resolution and with pixels missing.

    python examples/vision.py      about a minute on one core; writes runs/vision/vision.png

The model never sees pixels, only what a few polynomials say of the picture in each of four cells, so it does not know
how many pixels there were. The digits come with scikit-learn ('continua-ml[series]').
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from continua.lab.canvas import COLOURS, INK
from continua.lab.figure import pyplot, save
from continua.models import Batch, Transformer
from continua.recipes.vision import VisionSettings, digits
from continua.tasks import Images, observed_pixels, resampled
from continua.tasks.task import generator_for
from continua.training import fit

SIDES = (5, 6, 8, 10, 12, 16, 24, 32)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
SHOWN = 4


def main() -> None:
    """Train, measure, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=Path("runs/vision"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # many small sums: more threads would wait for one another
    made = digits(VisionSettings())
    fit(made.model, made.task, optimiser=made.optimiser, steps=chosen.steps, evaluate_every=chosen.steps)
    made.model.eval()
    pixels, labels = made.task.held
    sizes = {side: right(made, resampled(pixels, side), labels) for side in SIDES}
    holes = {}
    for share in SHARES:
        flags = observed_pixels(len(pixels), 64, share, generator_for("example", share))
        holes[share] = right(made, pixels, labels, flags)
    for side, found in sizes.items():
        print(f"{side:2d}×{side:<2d} pixels                  {100 * found:5.1f} % right")
    for share, found in holes.items():
        print(f"{100 * share:3.0f} % of 64 pixels missing   {100 * found:5.1f} % right")
    if chosen.steps >= 1500:
        assert sizes[8] > 0.95
        assert sizes[16] > 0.93
        assert holes[0.5] > 0.8
    print(draw(made.model, made.task, sizes, holes, chosen.out / "vision.png"))


def right(made: Any, pixels: torch.Tensor, labels: torch.Tensor, flags: torch.Tensor | None = None) -> float:
    """The share of right answers."""
    return float(made.task.measure(made.model, pixels, labels, flags).values["accuracy"])


@torch.no_grad()
def seen(model: Transformer, image: torch.Tensor, flags: torch.Tensor | None = None) -> torch.Tensor:
    """What the polynomials of the cells say of one image, on 64×64 points."""
    tiling = model.embed.tiling
    laid = model.embed.lay(Batch(image, observed=flags))
    fine = tiling.pixels((64, 64)).nodes
    return tiling.evaluate(fine, laid.values[..., None, : tiling.size], blend=False)[0, :, 0].view(64, 64)


def draw(model: Transformer, task: Images, sizes: dict[int, float], holes: dict[float, float], path: Path) -> Path:
    """Four images as they are, as points of which half are missing, and as the model sees them; and the two curves."""
    plt = pyplot()
    figure = plt.figure(figsize=(11, 6.4), layout="constrained")
    left, curves = figure.subfigures(1, 2, width_ratios=(1.25, 1))
    panels = left.subplots(4, SHOWN)
    pixels, labels = (part[:SHOWN] for part in task.held)
    flags = observed_pixels(SHOWN, 64, 0.5, generator_for("example", "shown"))
    names = ("8×8 pixels", "in four cells", "half missing", "in four cells")
    answers = model(Batch(pixels)).argmax(-1), model(Batch(pixels, observed=flags)).argmax(-1)
    for i in range(SHOWN):
        image, there = pixels[i : i + 1], flags[i : i + 1]
        gaps = torch.where(there.view(8, 8), image[0, 0], torch.nan)
        pictures = (image[0, 0], seen(model, image), gaps, seen(model, image, there))
        for j, (panel, picture) in enumerate(zip(panels[:, i], pictures, strict=True)):
            panel.set_facecolor("#dbe7f3")
            panel.imshow(picture, cmap="Greys", vmin=-1, vmax=1, extent=(0, 1, 1, 0))
            panel.set(xticks=[], yticks=[])
            if i == 0:
                panel.set_ylabel(names[j], color=INK)
            if j in (1, 3):
                panel.axhline(0.5, color=COLOURS[0], lw=0.6)
                panel.axvline(0.5, color=COLOURS[0], lw=0.6)
                answer = int(answers[j // 2][i])
                colour = COLOURS[2] if answer == int(labels[i]) else COLOURS[1]
                panel.set_title(f"read as {answer}", fontsize=9, color=colour, pad=3)
    top, below = curves.subplots(2, 1)
    top.plot(list(sizes), [100 * v for v in sizes.values()], "o-", color=COLOURS[0])
    top.axvline(8, color="0.8", lw=1, zorder=0)
    top.set(xscale="log", xlabel="pixels in each direction (trained at 8)", ylabel="% right, held out", ylim=(0, 102))
    top.set_xticks(SIDES, [str(side) for side in SIDES], minor=False)
    top.minorticks_off()
    below.plot([100 * s for s in holes], [100 * v for v in holes.values()], "o-", color=COLOURS[1])
    below.set(xlabel="% of the 8×8 pixels missing", ylabel="% right, held out", ylim=(0, 102))
    return save(plt, figure, path)


if __name__ == "__main__":
    main()
