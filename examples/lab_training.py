"""Dynamics along training: a ViT of handwritten digits learns to gather its tokens, layer by layer.

    python examples/lab_training.py      half a minute on one core; writes runs/lab/lab-training.png and .gif

The probes look at the same 32 held-out images every ten steps of a fit. The table, the curves and the film are what
they saw; ``dynamics.jsonl`` in the run's folder has every number. The digits come with scikit-learn
('continua-ml[series]').
"""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

import torch

import continua as ct
from continua.lab import History, ProbeEvery
from continua.models import Batch, Pixels, Scaled, initialise
from continua.optim import AdamW, ByRole, Muon
from continua.tasks import digits

STEPS, EVERY = 300, 10
SHOWN = ("cosine", "centred cosine", "rank", "energy", "jump")


def main() -> None:
    """Train with a watcher, and say what it saw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lab"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # many small sums: more threads would wait for one another
    folder = chosen.out / "training-run"
    shutil.rmtree(folder, ignore_errors=True)
    task = replace(digits(shift=1), held_out=0.4)
    model = ct.zoo.vit(Pixels(8, 8, 1, patch=(2, 2)), d=48, heads=4, depth=6, m=96, labels=task.classes)
    initialise(model, Scaled(), torch.Generator().manual_seed(0))
    probing = ProbeEvery(model, Batch(task.pixels[-32:]), run=folder, every=EVERY)
    done = ct.fit(model, task, run=folder, watch=probing, steps=STEPS, optimiser=ByRole(AdamW(3e-3), kernel=Muon(0.02)),
                  evaluate_every=STEPS, save_every=STEPS)  # fmt: skip
    history = probing.history
    assert History.load(folder) == history, "what is in the folder is what was seen"
    print("step  depth  " + "  ".join(f"{name:>14s}" for name in SHOWN))
    for row in history.rows():
        if row["step"] in (0, 50, 100, STEPS) and row["layer"] in (0, 1, 3, 6):
            values = ("" if row[name] is None else f"{row[name]:.3f}" for name in SHOWN)
            print(f"{row['step']:4d}  {row['z']:5g}  " + "  ".join(f"{value:>14s}" for value in values))
    said(history, done.history[-1]["validation_accuracy"], chosen.out)


def said(history: History, accuracy: float, out: Path) -> None:
    """The numbers of the caption, and the pictures."""
    cosine, centred, rank = (history.curve(name, 6)[1] for name in ("cosine", "centred cosine", "rank"))
    early, late = (history.curve("jump", layer)[1] for layer in (0, 5))
    for name, values in (("cosine at the end of depth", cosine), ("centred cosine there", centred),
                         ("effective rank there", rank), ("jump in the first layer", early),
                         ("jump in the last layer", late)):  # fmt: skip
        print(f"{name}: {values[0]:.2f} → {values[-1]:.2f}, between {min(values):.2f} and {max(values):.2f}")
    print(f"{100 * accuracy:.0f} % of the held-out digits are right")
    assert accuracy > 0.7
    assert cosine[-1] < cosine[0] - 0.03, "the direction that all tokens share is unlearned …"
    assert centred[-1] > centred[0] + 0.1, "… and tokens gather by what they show"
    assert max(centred[3:20]) > centred[-1] + 0.03, "most of all on the way"
    assert rank[-1] > rank[0] + 0.7, "with more directions, not fewer"
    assert early[-1] > early[0] + 0.15 > late[0] + 0.15 > late[-1] + 0.15, "the first layer turns most, the last less"
    title = f"A ViT of digits along training: tokens gather by what they show ({centred[0]:.2f} → {centred[-1]:.2f})"
    print(history.plot(out / "lab-training.png", title))
    print(history.film(out / "lab-training.gif"))


if __name__ == "__main__":
    main()
