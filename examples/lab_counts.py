"""How many clusters: many runs beside the fastest mode.

    python examples/lab_counts.py      six seconds on one core; writes runs/lab/lab-counts.png

Independent tokens begin with all modes at once, so the fastest one does not always win: the mean count lies a little
below it, between 0.78 and 1.04 of it for up to 20,000 tokens.
"""

import argparse
from pathlib import Path

import torch

from continua.lab import Particles, SelfAttention, clusters, k_max, plot_counts, simulate

BETA, TOKENS, RUNS, UNTIL = 25.0, 300, 40, 16.0


def main() -> None:
    """Simulate all runs side by side, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lab"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # many small sums: more threads would wait for one another
    start = Particles.uniform(TOKENS, 2, torch.Generator().manual_seed(0), runs=RUNS)
    counts = clusters(simulate(SelfAttention(BETA), start, UNTIL, save=2)).count[-1]
    mean, expected = float(counts.double().mean()), k_max(BETA)
    print(
        f"{RUNS} runs of {TOKENS} tokens, β = {BETA:g}: {mean:.2f} clusters, {mean / expected:.2f} of the fastest mode"
    )
    assert 0.78 <= mean / expected <= 1.04
    title = f"β = {BETA:g}, t = {UNTIL:g}: {mean:.2f} clusters, {mean / expected:.2f} of the fastest mode"
    print(plot_counts(counts, chosen.out / "lab-counts.png", float(expected), title))


if __name__ == "__main__":
    main()
