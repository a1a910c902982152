"""A phase diagram: clusters over β and the dimension, at one time.

    python examples/lab_phase.py      six seconds on one core; writes runs/lab/lab-phase.png

On the circle there are about √(2β) clusters. At small β all tokens meet, in every dimension; where both β and d are
large, tokens hardly see one another and each stays alone. With --cells FOLDER each cell is kept as soon as it is done,
and the next sweep goes on from there.
"""

import argparse
from pathlib import Path

import torch

from continua.lab import k_max, phase_diagram, plot_phase

BETAS, DIMENSIONS, TOKENS, RUNS, UNTIL = (1.0, 2.0, 4.0, 9.0, 16.0, 25.0), (2, 3, 4, 8, 16), 128, 6, 16.0


def main() -> None:
    """Sweep, compare with what is known, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lab"))
    parser.add_argument("--cells", type=Path, default=None)
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # many small sums: more threads would wait for one another
    found = phase_diagram(BETAS, DIMENSIONS, [TOKENS], UNTIL, RUNS, folder=chosen.cells)
    counts = found.values("count")[:, :, 0]
    waves = torch.tensor([k_max(beta) for beta in found.axis("beta")])
    ratio = float((counts[:, 0] / waves).mean())
    alone = float(counts[-1, -1])
    print(f"β = 1: one cluster in every dimension; the circle: {ratio:.2f} of the fastest mode; "
          f"β = 25, d = 16: {alone:.1f} clusters of {TOKENS} tokens")  # fmt: skip
    assert bool((counts[0] == 1).all())
    assert 0.78 <= ratio <= 1.04
    assert alone > 0.95 * TOKENS
    title = f"Clusters of {TOKENS} tokens at t = {UNTIL:g}, mean of {RUNS} runs"
    print(plot_phase(counts.mT, found.axis("beta"), found.axis("d"), chosen.out / "lab-phase.png", title=title))


if __name__ == "__main__":
    main()
