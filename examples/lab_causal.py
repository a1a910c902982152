"""Causal attention: every token ends where the first one is.

    python examples/lab_causal.py      three seconds on one core; writes runs/lab/lab-causal.png

The first token sees only itself, so it does not move; each later one is drawn to those before it. For V = I and almost
every start they all meet at the first token (Karagodin, Polyanskiy, Rigollet 2024). Near it token i sees i tokens
alike, itself among them, so by itself it comes nearer as e^{−(1 − 1/i) t}: the second one as e^{−t/2}.
"""

import argparse
import math
from pathlib import Path

import torch

from continua.flow import Adaptive
from continua.geometry.sphere import distance
from continua.lab import Particles, SelfAttention, plot_paths, simulate

BETA, TOKENS, UNTIL = 1.0, 96, 24.0


def main() -> None:
    """Follow them, and measure how far from the first token the farthest still is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lab"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # many small sums: more threads would wait for one another
    angles = 2 * math.pi * torch.rand(TOKENS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    angles[0] = math.pi
    start = Particles.circle(angles)
    found = simulate(SelfAttention(BETA, causal=True), start, UNTIL, save=121, control=Adaptive(rtol=1e-8, atol=1e-11))
    first = found.x[:, :1]
    assert float((first - first[0]).abs().max()) < 1e-12, "the first token does not move"
    away = distance(found.x, first)
    farthest = away.amax(-1)
    rate = float((away[-41, 1] / away[-1, 1]).log() / (found.times[-1] - found.times[-41]))
    print(f"farthest token: {float(farthest[0]):.2f} radians at t = 0, {float(farthest[-1]):.1e} at t = {UNTIL:g}; "
          f"the second one comes as e^(−{rate:.4f} t)")  # fmt: skip
    assert float(farthest[-1]) < 5e-3
    assert abs(rate - 0.5) < 2e-3
    title = f"Causal attention, β = {BETA:g}: all end at the first token (dark), {float(farthest[-1]):.0e} radians away"
    print(plot_paths(found, chosen.out / "lab-causal.png", torch.arange(TOKENS) / TOKENS, title))


if __name__ == "__main__":
    main()
