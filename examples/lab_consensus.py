"""Orthogonal tokens on their way to consensus: simulations on the curves of one small equation.

    python examples/lab_consensus.py      three seconds on one core; writes runs/lab/lab-consensus.png

n orthogonal tokens keep equal cosines γ, and γ' is one equation (Geshkovski, Letrouit, Polyanskiy, Rigollet 2023). In
the end 1 − γ falls as e^{−2t} with softmax attention, as e^{−2 exp(β) t} without its normaliser, and with pre-norm,
where tokens grow long and turn slowly, only as 1/t².
"""

import argparse
import math
from pathlib import Path

import torch

from continua.flow import Adaptive
from continua.lab import (
    Particles,
    SelfAttention,
    Simulation,
    Unnormalised,
    equiangular,
    equiangular_pre_norm,
    free,
    simulate,
)
from continua.lab.figure import pyplot, save

TOKENS, BETA, CLOSE = 32, 1.0, 1e-6
TAILS = {"softmax": 2.0, "unnormalised": 2 * math.exp(BETA), "softmax, pre-norm": 2.0}
COLOURS = {"softmax": "#0072b2", "unnormalised": "#d55e00", "softmax, pre-norm": "#009e73"}


def gap(found: Simulation) -> torch.Tensor:
    """1 − γ of the first two tokens, without cancellation."""
    return (found.directions[:, 0] - found.directions[:, 1]).square().sum(-1) / 2


def times_until(end: float) -> torch.Tensor:
    late = torch.logspace(math.log10(0.25), math.log10(end), 30, dtype=torch.float64)
    late[-1] = end
    return torch.cat([torch.zeros(1, dtype=torch.float64), late])


def main() -> None:
    """Three ways to consensus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lab"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # many small sums: more threads would wait for one another
    start, exact = Particles.orthogonal(TOKENS), Adaptive(rtol=1e-10, atol=1e-13)
    short, middle, long = times_until(5.0), times_until(12.0), times_until(300.0)
    simulated = {
        "softmax": simulate(SelfAttention(BETA), start, 12.0, save=middle, control=exact),
        "unnormalised": simulate(Unnormalised(BETA), start, 5.0, save=short, control=exact),
        "softmax, pre-norm": free(SelfAttention(BETA), start, 300.0, save=long),
    }
    theory = {
        "softmax": equiangular(TOKENS, BETA, middle),
        "unnormalised": equiangular(TOKENS, BETA, short, interaction="USA"),
        "softmax, pre-norm": equiangular_pre_norm(TOKENS, BETA, long),
    }
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(7.4, 4.6), layout="constrained")
    worst = 0.0
    for name, found in simulated.items():
        known, seen, t = theory[name].gap, gap(found), found.times
        off = float(((seen - known) / known).abs().max())
        last = (seen[-4].log() - seen[-1].log()) / (t[-1].log() - t[-4].log() if "pre" in name else t[-1] - t[-4])
        tail = f"t^(−{float(last):.2f})" if "pre" in name else f"e^(−{float(last):.2f} t)"
        print(f"{name}: simulation and equation differ by {off:.0e}; in the end as {tail}")
        assert abs(float(last) / TAILS[name] - 1) < 0.02, name
        worst = max(worst, off)
        panel.loglog(t[1:], known[1:], "-", color=COLOURS[name], lw=1.6, label=f"{name}: in the end {tail}")
        panel.loglog(t[1:], seen[1:], "o", color=COLOURS[name], mfc="white", ms=5, mew=1.3)
    assert worst < CLOSE
    panel.plot([], [], "o", color="#22252a", mfc="white", mew=1.3, label="simulated")
    panel.set(xlabel="time t", ylabel="1 − γ", ylim=(1e-10, 2))
    panel.grid(alpha=0.25)
    panel.legend(frameon=False, fontsize=9, loc="lower left")
    panel.set_title(f"{TOKENS} orthogonal tokens, β = {BETA:g}: within {worst:.0e} of the equation", fontsize=11)
    print(save(plt, figure, chosen.out / "lab-consensus.png"))


if __name__ == "__main__":
    main()
