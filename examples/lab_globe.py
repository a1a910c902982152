"""The mean field on the sphere S²: modes of many degrees grow together, in spherical harmonics and with tokens.

    python examples/lab_globe.py      nine seconds on one core; writes runs/lab/lab-globe.png

A density of random modes up to degree six is solved as a transport equation. 2,000 tokens on a Fibonacci lattice carry
it as weights. Their moments, the coefficients a_lm of what they carry, are compared with those of the density.
"""

import argparse
import math
from pathlib import Path

import torch

from continua.lab import Harmonics, Particles, SelfAttention, plot_globe, simulate, sphere_mean_field

BETA, DEGREE, MODES, TOKENS, UNTIL, CLOSE = 9.0, 52, 6, 2000, 3.3, 1e-3


def lattice(n: int) -> torch.Tensor:
    """Points of equal area: a spiral with the golden angle."""
    i = torch.arange(n, dtype=torch.float64) + 0.5
    z, phi = 1 - 2 * i / n, math.pi * (1 + math.sqrt(5)) * i
    return torch.stack([(1 - z * z).sqrt() * phi.cos(), (1 - z * z).sqrt() * phi.sin(), z], -1)


def main() -> None:
    """Solve both, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lab"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # many small sums: more threads would wait for one another
    y, generator = Harmonics(DEGREE), torch.Generator().manual_seed(0)
    start = torch.zeros(DEGREE + 1, DEGREE + 1, dtype=torch.complex128)
    start[0, 0] = 1 / math.sqrt(4 * math.pi)
    for l in range(1, MODES + 1):
        real, imaginary = 0.006 * torch.randn(2, l + 1, generator=generator, dtype=torch.float64)
        imaginary[0] = 0.0
        start[l, : l + 1] = torch.complex(real, imaginary)
    field = sphere_mean_field(SelfAttention(BETA), start, UNTIL, save=13)
    x = lattice(TOKENS)
    carried = y.evaluate(start, x)
    tokens = simulate(SelfAttention(BETA), Particles(x, carried / carried.sum()), UNTIL, save=13)
    low = Harmonics(8)
    apart = [float((low.moments(at, tokens.weights) - a).abs().max())
             for at, a in zip(tokens.x, field.coefficients[:, :9, :9], strict=True)]  # fmt: skip
    largest = float(field.coefficients[-1, 1:9, :9].abs().max())
    mass = float((field.mass - 1).abs().max())
    print(f"moments up to degree 8 differ by {max(apart):.1e} at most, the largest is {largest:.2f}")
    assert max(apart) < CLOSE
    assert mass < 1e-12
    title = f"Mean field and {TOKENS:,} tokens on S², β = {BETA:g}: moments within {max(apart):.0e}"
    print(plot_globe(field, chosen.out / "lab-globe.png", tokens, title=title))


if __name__ == "__main__":
    main()
