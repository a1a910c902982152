"""Metastability: clusters form, rest for long, and merge; the energy climbs a staircase.

    python examples/lab_staircase.py      eight seconds on one core; writes runs/lab/lab-staircase.png

150 tokens on the sphere S² under softmax attention. In theory they all end in one place; on the way they rest in more
and more clusters, each rest longer than the one before: the clock is logarithmic.
"""

import argparse
from pathlib import Path

import torch

from continua.lab import Particles, SelfAttention, clusters, energies, energy, plateaus, simulate
from continua.lab.canvas.pictures import Stay, plot_staircase

BETA, TOKENS, UNTIL, SEED = 16.0, 150, 1e4, 0
COUNTS = [8, 7, 6, 5, 4, 3]


def main() -> None:
    """Simulate, find the rests, and draw tokens, energy and counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lab"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # many small sums: more threads would wait for one another
    start = Particles.uniform(TOKENS, 3, torch.Generator().manual_seed(SEED))
    times = torch.cat([torch.zeros(1), torch.logspace(-0.5, 4, 145)]).double()
    found = simulate(SelfAttention(BETA), start, UNTIL, save=times)
    climb = energies(found) / energy(Particles.polygon(1), BETA)
    assert bool((climb.diff() > -1e-9).all()), "the energy never falls"
    rests = plateaus(found)
    print("clusters:", ", ".join(f"{rest.count} for t = {rest.start:.0f} to {rest.end:.0f}" for rest in rests))
    assert [rest.count for rest in rests] == COUNTS
    stays = [Stay(rest.start, rest.end, str(rest.count)) for rest in rests]
    title = (
        f"{TOKENS} tokens on the sphere, softmax attention with β = {BETA:g}: {len(rests)} plateaus, 8 to 3 clusters"
    )
    groups = clusters(found.at(int((times - rests[0].end).abs().argmin())), 0.5 / BETA**0.5).labels
    counts = clusters(found).count
    print(plot_staircase(times, climb, chosen.out / "lab-staircase.png", counts, stays, title, found, groups))


if __name__ == "__main__":
    main()
