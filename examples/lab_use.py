"""What the dynamics are good for: classes come apart along depth, two controls steer it, and too much of it forgets.

    python examples/lab_use.py      half a minute on one core; writes runs/lab/lab-use.png

A ViT of handwritten digits is trained, then looked at on digits it never saw: how well a linear map tells the classes
from the class token, how far the classes are apart, and how much of the patches its tokens still recall. Then every
head is made hotter or colder, the residual larger or smaller, and the whole depth is run again and again. The digits
come with scikit-learn ('continua-ml[series]').
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import continua as ct
from continua.lab.figure import pyplot, save
from continua.lab.probes import Level, controlled, first_token, overclustered, separation
from continua.models import Batch, Pixels, Scaled, initialise
from continua.optim import AdamW, ByRole, Muon
from continua.tasks import Example, digits

TEMPERATURES, SKIPS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0), (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
REPEATS = 5
LINES = {
    "answers": ("the model's own answers", "#d55e00", "s-"),
    "probe": ("linear probe of the class token", "#0072b2", "o-"),
    "recall": ("what tokens recall of their patches", "#009e73", "^-"),
    "cosine": ("mean cosine of two tokens", "0.55", "--"),
}
Table = dict[float, Level]


def main() -> None:
    """Train, look, steer, overdo it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lab"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # many small sums: more threads would wait for one another
    task = replace(digits(shift=1), held_out=0.4)
    model = ct.zoo.vit(Pixels(8, 8, 1, patch=(2, 2)), d=48, heads=4, depth=6, m=96, labels=task.classes)
    initialise(model, Scaled(), torch.Generator().manual_seed(0))
    ct.fit(model, task, steps=350, evaluate_every=350, optimiser=ByRole(AdamW(3e-3), kernel=Muon(0.02)))
    held = round(len(task.labels) * task.held_out)
    unseen = Example(Batch(task.pixels[-held:]), task.labels[-held:])

    found = separation(model, unseen, pool=first_token)
    depth = {level.z: level for level in found.levels}
    hot = {t: separation(controlled(model, t), unseen, pool=first_token).levels[-1] for t in TEMPERATURES}
    kept = {s: separation(controlled(model, skip=s), unseen, pool=first_token).levels[-1] for s in SKIPS}
    far = overclustered(model, unseen, REPEATS, layers=6, pool=first_token)
    again = {float(i): level for i, level in enumerate(far.levels)}
    tables = {"depth z": depth, "temperature": hot, "skip": kept, "whole depths run again": again}
    for name, table in tables.items():
        show(name, table)
    lost = far.lost()
    print("lost by running on: " + ", ".join(f"{name} {lost[name]:.3f}" for name in ("answers", "probe", "recall")))
    check(tables)
    print(draw(tables, found.chance, chosen.out / "lab-use.png"))


def show(name: str, table: Table) -> None:
    """One line for each value."""
    columns = ("answers", "probe", "separation", "rank", "cosine", "token_rank", "recall")
    print(f"\n{name:>24s}  " + "  ".join(f"{column:>10s}" for column in columns))
    for value, level in table.items():
        numbers = [getattr(level, column) for column in columns]
        print(f"{value:24g}  " + "  ".join(f"{'' if number is None else f'{number:.3f}':>10s}" for number in numbers))


def check(tables: dict[str, Table]) -> None:
    """What the caption says."""
    depth, hot, kept, again = tables.values()
    first, last, end = depth[1.0], depth[6.0], again[float(REPEATS)]
    own = right(last)
    claims = {
        "all class tokens start alike": depth[0.0].separation == 0.0,
        "a linear map tells the classes better and better": last.probe > max(0.8, first.probe + 0.08),
        "they come apart": last.separation > 2 * first.separation,
        "while patches are forgotten": last.recall < first.recall - 0.1,
        "ones change nothing": hot[1.0] == kept[1.0] == last,
        "heads answer best at the temperature they learned": all(right(hot[t]) < own - 0.05 for t in hot if t != 1.0),
        "8 times as hot, the readout is at a loss": right(hot[8.0]) < own - 0.4,
        "but the classes can be told": hot[8.0].probe > 0.6,
        "without a skip all tokens of an image are one": kept[0.0].cosine > 0.99 and kept[0.0].token_rank < 1.2,
        "which recalls nothing": kept[0.0].recall < 0.1,
        "and tells the classes worse": kept[0.0].probe < last.probe - 0.2,
        "twice the skip keeps tokens apart": kept[2.0].cosine < last.cosine - 0.15,
        "and recalls more": kept[2.0].recall > last.recall + 0.05,
        "run on, tokens gather": end.token_rank < last.token_rank - 1.5,
        "and forget": end.recall < last.recall - 0.1,
        "where the readout does not know them": right(end) < own - 0.25,
        "but a linear map still does": last.probe - 0.1 < end.probe,
    }
    for words, held in claims.items():
        assert held, words


def right(level: Level) -> float:
    """The share of right answers."""
    return level.answers or 0.0


def draw(tables: dict[str, Table], chance: float, path: Path) -> Path:
    """Four panels with the same lines."""
    plt = pyplot()
    figure, panels = plt.subplots(1, 4, figsize=(14, 3.9), layout="constrained", sharey=True)
    titles = ("along depth", "temperature of every head", "skip factor of every layer", "depth run on")
    for panel, title, (name, table) in zip(panels, titles, tables.items(), strict=True):
        for column, (words, colour, mark) in LINES.items():
            shown = [(value, getattr(level, column)) for value, level in table.items()]
            points = [(value, number) for value, number in shown if number is not None]
            if len(points) > 1:
                panel.plot(*zip(*points, strict=True), mark, color=colour, ms=4.5, lw=1.6, label=words)
        panel.axhline(chance, color="0.7", lw=1.0, ls=":")
        panel.set(xlabel=name, title=title, ylim=(-0.03, 1.05))
        panel.grid(alpha=0.25)
        own = {"temperature": 1.0, "skip": 1.0}.get(name)
        if own is not None:
            panel.axvline(own, color="0.7", lw=1.0)
    scaled(panels[1])
    figure.legend(
        *panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9.5
    )
    best = max(level.probe for level in tables["depth z"].values())
    figure.suptitle(f"Digits in a ViT: a linear map tells {100 * best:.0f} % by the class token (dotted: chance)")
    return save(plt, figure, path)


def scaled(panel: Any) -> None:
    """Powers of two."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(TEMPERATURES, [f"{t:g}" for t in TEMPERATURES])


if __name__ == "__main__":
    main()
