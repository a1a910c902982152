"""Growth rates: each mode of the uniform measure grows as the formula says, in a simulation of nonlinear tokens.

    python examples/lab_growth.py      four seconds on one core; writes runs/lab/lab-growth.png

Equally spaced tokens are pushed by one millionth of sin(kθ), one mode at a time, all modes side by side. What the
push has become after the time 1/λ_max gives the rate.
"""

import argparse
import math
from pathlib import Path

import torch

from continua.flow import Adaptive
from continua.lab import Particles, SelfAttention, growth_rates, k_max, plot_growth, simulate

BETAS, TOKENS, PUSH, CLOSE = (1.0, 9.0, 25.0, 64.0), 192, 1e-6, 1e-6


def measured(beta: float, rates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The modes that grow at a hundredth of the fastest or more, and how fast they were seen to grow."""
    modes = (rates > 0.01 * rates.max()).nonzero()[:, 0]
    spaced = torch.arange(TOKENS, dtype=torch.float64) * (2 * math.pi / TOKENS)
    wave = torch.sin(modes[:, None] * spaced)
    until = 1 / float(rates.max())
    exact = Adaptive(rtol=1e-11, atol=1e-14)
    found = simulate(SelfAttention(beta), Particles.circle(spaced + PUSH * wave), until, save=2, control=exact)
    moved = torch.remainder(torch.atan2(found.x[..., 1], found.x[..., 0]) - spaced + math.pi, 2 * math.pi) - math.pi
    size = (moved * wave).sum(-1)
    return modes, (size[-1] / size[0]).log() / until


def main() -> None:
    """Theory, simulation, and by how much they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lab"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # many small sums: more threads would wait for one another
    theory, simulated, worst = {}, {}, 0.0
    for beta in BETAS:
        name = f"β = {beta:g}, fastest mode {k_max(beta)}"
        theory[name] = growth_rates(beta, modes=20)
        simulated[name] = measured(beta, theory[name])
        modes, rates = simulated[name]
        off = float(((rates - theory[name][modes]) / theory[name][modes]).abs().max())
        assert int(modes[rates.argmax()]) == k_max(beta) == round(math.sqrt(2 * beta))
        print(f"{name}: {len(modes)} modes, simulation and formula differ by {off:.1e} at most")
        worst = max(worst, off)
    assert worst <= CLOSE
    title = f"Softmax attention on the circle: simulated rates within {worst:.0e} of the formula"
    print(plot_growth(theory, simulated, chosen.out / "lab-growth.png", title))


if __name__ == "__main__":
    main()
