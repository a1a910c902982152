"""Tokens on the circle: from everywhere to a few clusters, as many as the fastest mode has waves.

    python examples/lab_circle.py      five seconds on one core; writes runs/lab/lab-circle.png and .gif

The uniform measure is unstable; the mode that grows fastest has k waves, and k is about √(2β).
"""

import argparse
from pathlib import Path

import torch

from continua.lab import Particles, SelfAttention, clusters, film, k_max, plot_paths, simulate

BETA, TOKENS, UNTIL, FRAMES = 9.0, 300, 16.0, 65


def main() -> None:
    """Simulate, count, draw, film."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lab"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # many small sums: more threads would wait for one another
    start = Particles.uniform(TOKENS, 2, torch.Generator().manual_seed(0))
    found = simulate(SelfAttention(BETA), start, UNTIL, save=FRAMES)
    seen = clusters(found)
    count, expected = int(seen.count[-1]), k_max(BETA)
    print(f"{count} clusters at t = {UNTIL:g}; the fastest mode is {expected}")
    assert count == expected == 4
    title = f"{TOKENS} tokens, β = {BETA:g}: {count} clusters, and the fastest mode has {expected} waves"
    print(plot_paths(found, chosen.out / "lab-circle.png", seen.labels[-1], title))
    print(film(found, chosen.out / "lab-circle.gif", seen.labels[-1], inches=3.0))


if __name__ == "__main__":
    main()
