"""Tokens on the sphere, filmed: softmax attention gathers them into a few clusters.

    python examples/lab_sphere.py      five seconds on one core; writes runs/lab/lab-sphere.gif and .png

The colour of a token says in which cluster it ends.
"""

import argparse
from pathlib import Path

import torch

from continua.lab import Particles, SelfAttention, clusters, energies, film, plot_paths, simulate

BETA, TOKENS, UNTIL, FRAMES, COUNT = 9.0, 120, 12.0, 49, 5


def main() -> None:
    """Simulate, count, film."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lab"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # many small sums: more threads would wait for one another
    start = Particles.uniform(TOKENS, 3, torch.Generator().manual_seed(2))
    found = simulate(SelfAttention(BETA), start, UNTIL, save=FRAMES)
    seen = clusters(found)
    sizes = sorted((TOKENS * seen.sizes[-1, :COUNT]).round().int().tolist())
    print(f"{int(seen.count[-1])} clusters at t = {UNTIL:g}, of {', '.join(map(str, sizes))} tokens")
    assert int(seen.count[-1]) == COUNT
    assert bool((energies(found).diff() > 0).all()), "the energy climbs"
    own = seen.labels[-1]
    print(film(found, chosen.out / "lab-sphere.gif", own, inches=3.0))
    title = f"{TOKENS} tokens, softmax attention with β = {BETA:g}: {COUNT} clusters at t = {UNTIL:g}"
    print(plot_paths(found, chosen.out / "lab-sphere.png", own, title))


if __name__ == "__main__":
    main()
