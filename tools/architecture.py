"""Draw docs/images/architecture.png: the way of a batch through the files.

python tools/architecture.py [FILE]
"""

import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

OUT = Path(__file__).resolve().parents[1] / "docs" / "images" / "architecture.png"
ONCE, EACH, WEIGHTS, PALE = "#dbe9f6", "#fdebd3", "#e2f0dc", "#f6f6f6"


@dataclass(frozen=True)
class Box:
    """A rectangle by its centre, with a title and the files where it happens."""

    x: float
    y: float
    title: str
    files: str
    colour: str
    width: float = 20.0
    height: float = 11.0

    def draw(self, panel: Any) -> None:
        corner = (self.x - self.width / 2, self.y - self.height / 2)
        style = "round,pad=0,rounding_size=1"
        patch = FancyBboxPatch(corner, self.width, self.height, boxstyle=style, fc=self.colour, ec="0.35", lw=1.0)
        panel.add_patch(patch)
        lines = self.files.count("\n")
        panel.text(self.x, self.y + 2.4 + 0.3 * lines, self.title, ha="center", va="center", fontsize=10.5)
        panel.text(
            self.x, self.y - 2.2, self.files, ha="center", va="center", fontsize=8.4, family="monospace", color="0.25"
        )


BOXES = {
    "sizes": Box(16.5, 72, "at(d=64, h=2, z=3)", "axes/discretisation.py", ONCE),
    "rules": Box(43, 72, "nodes, quadrature weights", "axes/rules.py\naxes/nodes.py", ONCE, 23),
    "steps": Box(71, 72, "steps, depths, lengths", "flow/controls/\nflow/stepping.py", ONCE, 22),
    "structure": Box(100, 72, "Structure", "models/structure.py\nconstants.py", ONCE, 22),
    "fields": Box(15, 44, "weight fields", "fields/field.py", WEIGHTS, 17),
    "read": Box(40, 44, "read", "operators/weights.py", WEIGHTS, 20),
    "place": Box(66, 44, "place", "operators/operator.py\nattention/plan.py", WEIGHTS, 21),
    "function": Box(95, 44, "f(z, x, args)", "attention/heads.py, fused.py\npointwise.py, norm.py", WEIGHTS, 26),
    "batch": Box(15, 14, "Batch", "models/batch.py", EACH, 17),
    "prepare": Box(40, 14, "prepare: lay, place", "models/batch.py\naxes/grids.py", EACH, 20),
    "embed": Box(63, 14, "embed: X(0)", "models/embed.py", EACH, 17),
    "solve": Box(86, 14, "solve: X(0) → X(Z)", "flow/stepping.py\nflow/solvers/", EACH, 19),
    "answer": Box(105.5, 14, "answer", "models/readout.py", EACH, 16),
}
FLOWS = [
    ("sizes", "rules"),
    ("rules", "steps"),
    ("steps", "structure"),
    ("batch", "prepare"),
    ("prepare", "embed"),
    ("embed", "solve"),
    ("solve", "answer"),
    ("fields", "read"),
    ("read", "place"),
    ("place", "function"),
]
BANDS = [  # bottom, height, words and where they stand
    (63, 19, "decided once for each discretisation, device and dtype: plain numbers, and constants", 80),
    (33.5, 19, "bind = read + place; a held view (models/view.py) keeps both", 36),
    (
        3,
        19,
        "each call: Transformer.forward (models/transformer.py); one graph under torch.compile",
        5.5,
    ),
]
BENT = [  # corners of a line, what goes along it, and where that is written
    (((96, 66.5), (96, 58), (40, 58), (40, 49.5)), "width grids, depths, lengths of steps", (68, 59.5)),
    (((40, 58), (3, 58), (3, 28), (35, 28), (35, 19.5)), "width grids", (19, 29.5)),
    (((104, 66.5), (104, 58), (116.5, 58), (116.5, 28), (92, 28), (92, 19.5)), "steps, solver", (105, 29.5)),
    (((45, 19.5), (45, 28), (66, 28), (66, 38.5)), "Grids with the tokens", (55.5, 29.5)),
    (((86, 38.5), (86, 19.5)), "field, args", (79.5, 29.5)),
]


def arrow(panel: Any, *corners: tuple[float, float]) -> None:
    """Straight from corner to corner, with a head at the last."""
    for begin, end in pairwise(corners[:-1]):
        panel.plot(*zip(begin, end, strict=True), color="0.3", lw=1.2, solid_capstyle="round")
    style = {"arrowstyle": "-|>", "mutation_scale": 13, "color": "0.3", "lw": 1.2}
    panel.add_patch(FancyArrowPatch(*corners[-2:], **style, shrinkA=0, shrinkB=1))


def drawn() -> Any:
    figure, panel = plt.subplots(figsize=(12, 8), layout="constrained")
    panel.set(xlim=(0, 120), ylim=(2, 83))
    panel.axis("off")
    for y, height, words, line in BANDS:
        style = "round,pad=0,rounding_size=1"
        panel.add_patch(FancyBboxPatch((5, y), 110, height, boxstyle=style, fc=PALE, ec="0.85", lw=1.0, zorder=0))
        panel.text(6.5, line, words, va="center", fontsize=10, color="0.3", style="italic")
    for one in BOXES.values():
        one.draw(panel)
    for start, end in FLOWS:
        a = BOXES[start]
        b = BOXES[end]
        arrow(panel, (a.x + a.width / 2, a.y), (b.x - b.width / 2, b.y))
    for corners, words, where in BENT:
        arrow(panel, *corners)
        panel.text(*where, words, ha="center", va="center", fontsize=8.6, color="0.25")
    return figure


if __name__ == "__main__":
    drawn().savefig(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT, dpi=100)
