"""The mean field: the density of infinitely many tokens, solved as a transport equation, beside tokens that carry it.

    python examples/lab_meanfield.py      four seconds on one core; writes runs/lab/lab-meanfield.png

Both start from the same density: the tokens at its quantiles, each with the same share of its mass. They begin as
close as so many tokens can be to a density, π/2n, and stay that close while the clusters form.
"""

import argparse
import math
from pathlib import Path

import torch

from continua.lab import Density, Particles, SelfAttention, circle_wasserstein, plot_density, simulate
from continua.lab.theory.meanfield import circle_nodes, mean_field

BETA, NODES, TOKENS, UNTIL, FRAMES = 9.0, 768, 4000, 5.0, 81


def main() -> None:
    """Solve both, and measure how far apart they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lab"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # many small sums: more threads would wait for one another
    theta, attention = circle_nodes(NODES), SelfAttention(BETA)
    start = Density.of(1 + 0.2 * (4 * theta + 0.3).cos() + 0.14 * (3 * theta + 1).cos() + 0.14 * (2 * theta + 2).cos())
    density = mean_field(attention, start, UNTIL, save=FRAMES)
    quantiles = start.quantiles((torch.arange(TOKENS, dtype=torch.float64) + 0.5) / TOKENS)
    tokens = simulate(attention, Particles.circle(quantiles), UNTIL, save=FRAMES)
    apart = [float(circle_wasserstein(tokens.at(i).angles, density.at(i))) for i in range(0, FRAMES, 8)]
    mass = float((density.mass - 1).abs().max())
    print(f"Wasserstein distance {apart[0]:.1e} at the start, {max(apart):.1e} at most; mass kept to {mass:.0e}; "
          f"least density {float(density.least.min()):.0e}")  # fmt: skip
    assert abs(apart[0] - math.pi / (2 * TOKENS)) < 1e-7, "the start: a quarter of the mean gap, on average"
    assert max(apart) <= 1.01 * apart[0], "and it does not grow"
    assert mass < 1e-12
    title = f"β = {BETA:g}: at most {max(apart):.1e} radians apart (W₁)"
    picture = plot_density(density.times, density.density, chosen.out / "lab-meanfield.png", tokens, title)
    print(picture)


if __name__ == "__main__":
    main()
