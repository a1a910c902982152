"""The dynamics lab in numbers: growth rates against simulations, speed and memory of sums over tokens, cluster counts.

    python benchmarks/lab.py                       # about ten minutes on two cores
    python benchmarks/lab.py --only speed memory   # some of growth, speed, memory, clusters
    python benchmarks/lab.py --quick               # a smoke run, nothing is written

Speeds are wall seconds of one field evaluation with as many threads as there are cores, medians of interleaved rounds;
what would take all pairs of a million tokens is extrapolated from the pairs of 16,384, measured in the same run.
"""

import argparse
import math
import os
import statistics
import time
from typing import Any

import numpy as np
import torch
from common import Row, environment, estimate, interleaved, ratio, write

from continua.flow import RK4, Fixed, OnSphere
from continua.geometry import sphere
from continua.lab import ByFourier, Dense, Fused, Particles, SelfAttention, Sinkhorn, Unnormalised, simulate
from continua.lab.cost.memory import peak_bytes
from continua.lab.particles.clusters import clusters
from continua.lab.theory.growth import growth_rates, k_max

BETAS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SMALL = 1e-6  # the displacement that is watched as it grows
RK4_STEPS = 60


def wall(work: Any) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# --- growth rates ----------------------------------------------------------------------------------------------------


def on_circle(kind: Any, beta: float, mode: int, n: int) -> float:
    """The rate at which a displacement ε sin(kφ) of a regular polygon grows, over half of the fastest rate's time."""
    phi = torch.arange(n, dtype=torch.float64) * (2 * math.pi / n)
    shape = torch.sin(mode * phi)
    rates = growth_rates(beta, 2, kind.name)
    until = 0.5 / float(rates.abs().max())
    path = simulate(kind(beta), Particles.circle(phi + SMALL * shape), until, save=2, solver=OnSphere(RK4()),
                    control=Fixed(RK4_STEPS))  # fmt: skip
    here = torch.stack([phi.cos(), phi.sin()], -1)
    along = torch.stack([-phi.sin(), phi.cos()], -1)
    moved = torch.atan2((path.x[-1] * along).sum(-1), (path.x[-1] * here).sum(-1))
    grown = float((moved * shape).sum() / (shape * shape).sum()) / SMALL
    return math.log(grown) / until


def on_ball(kind: Any, beta: float, degree: int, rings: int = 40) -> float:
    """The same on S² for a zonal harmonic: tokens on Gauss latitudes times equal longitudes weigh as these nodes do."""
    z, w = np.polynomial.legendre.leggauss(rings)
    turn = torch.arange(2 * rings, dtype=torch.float64) * (math.pi / rings)
    z, w = torch.tensor(z)[:, None].expand(-1, 2 * rings), torch.tensor(w)[:, None].expand(-1, 2 * rings)
    r = (1 - z * z).sqrt()
    x = torch.stack([r * turn.cos(), r * turn.sin(), z], -1).reshape(-1, 3)
    weights = (w / w.sum()).reshape(-1)
    slope = torch.tensor(np.polynomial.legendre.Legendre.basis(degree).deriv()(x[:, 2].numpy()))
    pole = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    shape = sphere.tangent(x, slope[:, None] * pole)
    until = 0.5 / float(growth_rates(beta, 3, kind.name).abs().max())
    start = Particles(sphere.retract(x + SMALL * shape), weights)
    path = simulate(kind(beta), start, until, save=2, solver=OnSphere(RK4()), control=Fixed(RK4_STEPS // 2))
    before, after = (
        float((weights[:, None] * (frame - x) * shape).sum() / (weights[:, None] * shape * shape).sum())
        for frame in (start.x, path.x[-1])
    )
    return math.log(after / before) / until


def growth(quick: bool) -> list[Row]:
    """Simulated rates against the formulas."""
    rows = []
    betas = BETAS[:2] if quick else BETAS
    for kind in (SelfAttention, Unnormalised, Sinkhorn):
        worst, count = 0.0, 0
        for beta in betas:
            rates = growth_rates(beta, 2, kind.name)
            for mode in sorted({1, k_max(beta), 2 * k_max(beta)}):
                found = on_circle(kind, beta, mode, 160 if kind is Sinkhorn else 400)
                worst = max(worst, abs(found / float(rates[mode]) - 1))
                count += 1
        note = f"β from {betas[0]:g} to {betas[-1]:g}, {count} modes"
        rows.append(Row(f"growth on the circle, {kind.name}: simulated against formula", worst, target="≤ 1e-6",
                        held=worst <= 1e-6, note=note))  # fmt: skip
    for kind in (SelfAttention, Unnormalised):
        worst, found = 0.0, []
        for beta in (1.0,) if quick else (1.0, 4.0, 9.0):
            for degree in (1, 2, 4):
                one = on_ball(kind, beta, degree) / float(growth_rates(beta, 3, kind.name)[degree])
                found.append(one)
                worst = max(worst, abs(one - 1))
        rows.append(Row(f"growth on S², {kind.name}: simulated against formula", worst, target="≤ 1e-5",
                        held=worst <= 1e-5, note=f"β from 1 to 9, {len(found)} modes"))  # fmt: skip
    equal = sum(k_max(float(beta)) == round(math.sqrt(2 * beta)) for beta in range(1, 101))
    rows.append(Row("k_max equals round(√(2β)), β = 1 … 100", equal, unit="of 100", target="100", held=equal == 100))
    return rows


# --- speed and memory ------------------------------------------------------------------------------------------------


def softmax_of_pairs(x: torch.Tensor, beta: float) -> torch.Tensor:
    """What one writes first: the whole matrix."""
    return torch.softmax(beta * (x @ x.mT), -1) @ x


def loop_over_tokens(x: np.ndarray, beta: float) -> np.ndarray:
    """A numpy loop over tokens, vectorised over the sources."""
    found = np.empty_like(x)
    for i in range(len(x)):
        weights = np.exp(beta * (x @ x[i]))
        pull = weights @ x / weights.sum()
        found[i] = pull - (x[i] @ pull) * x[i]
    return found


def speed(quick: bool) -> list[Row]:
    """One field evaluation, ours and the plain ways, interleaved."""
    rounds, beta, rows = (1 if quick else 7), 9.0, []
    million, many = (20_000, 2048) if quick else (1_000_000, 16_384)
    generator = torch.Generator().manual_seed(0)
    large, some = sphere.uniform((million, 2), generator), sphere.uniform((many, 2), generator)
    ours = SelfAttention(beta)
    seen = interleaved({"circle": lambda: wall(lambda: ours.velocity(large)),
                        "pairs": lambda: wall(lambda: softmax_of_pairs(some, beta))}, rounds, 1)  # fmt: skip
    pairs = [t * (million / many) ** 2 for t in seen["pairs"]]
    found = ratio(seen["circle"], pairs)
    gap = float((ByFourier().mean(_query(some, beta)) - Dense().mean(_query(some, beta))).abs().max())
    rows.append(Row(f"circle, {million:,} tokens / all pairs, extrapolated from {many:,}", found.median, found.low,
                    found.high, target="≤ 0.001", held=found.median <= 1e-3,
                    note=f"{estimate(seen['circle']).median:.2f} s; equal to all pairs to {gap:.0e}"))  # fmt: skip
    for d in (3, 16):
        x = sphere.uniform((many, d), generator)
        way = SelfAttention(beta)
        seen = interleaved({"ours": lambda: wall(lambda: way.velocity(x)),  # noqa: B023
                            "pairs": lambda: wall(lambda: softmax_of_pairs(x, beta))}, rounds, 1)  # fmt: skip # noqa: B023
        found = ratio(seen["pairs"], seen["ours"])
        rows.append(Row(f"d={d}, {many:,} tokens: softmax of pairs / ours", found.median, found.low, found.high, "×",
                        "≥ 4", found.median >= 4))  # fmt: skip
    x = sphere.uniform((1000 if quick else 4000, 8), generator)
    plain = x.numpy()
    seen = interleaved({"ours": lambda: wall(lambda: SelfAttention(beta).velocity(x)),
                        "numpy": lambda: wall(lambda: loop_over_tokens(plain, beta))}, rounds, 1)  # fmt: skip
    found = ratio(seen["numpy"], seen["ours"])
    gap = float(np.abs(loop_over_tokens(plain, beta) - SelfAttention(beta).velocity(x).numpy()).max())
    rows.append(Row(f"d=8, {len(x):,} tokens: numpy loop over tokens / ours", found.median, found.low, found.high, "×",
                    "≥ 5", found.median >= 5, f"equal to {gap:.0e}"))  # fmt: skip
    return rows


def _query(x: torch.Tensor, beta: float) -> Any:
    from continua.lab.particles.sums import Query

    return Query(x, x, None, beta, False, 1.0, 1.0)


def memory(quick: bool) -> list[Row]:
    """Peak bytes of one evaluation over the number of tokens."""
    rows = []
    for name, d, way in (("circle", 2, ByFourier()), ("any d, fused", 16, Fused()), ("any d, USA", 16, None)):
        sizes = (2048, 4096) if quick else (8192, 32_768)
        kind = Unnormalised if way is None else SelfAttention
        bytes_ = []
        for n in sizes:
            x = sphere.uniform((n, d), torch.Generator().manual_seed(0))
            bytes_.append(peak_bytes(lambda: kind(9.0, sums=way or Fused()).velocity(x)))  # noqa: B023
        slope = math.log(bytes_[1] / bytes_[0]) / math.log(sizes[1] / sizes[0])
        rows.append(Row(f"memory over tokens, {name}: slope", slope, target="≤ 1.1", held=slope <= 1.1,
                        note=f"{bytes_[1] / 2**20:.0f} MiB at {sizes[1]:,} tokens"))  # fmt: skip
    return rows


def cluster_counts(quick: bool) -> list[Row]:
    """60 runs of 2,000 iid tokens on the circle, SA, β=9, at t=16."""
    runs, n = (2, 400) if quick else (60, 2000)
    counts: list[float] = []
    for run in range(runs):
        start = Particles.uniform(n, 2, torch.Generator().manual_seed(run))
        path = simulate(SelfAttention(9.0), start, 16.0, save=2)
        counts.append(float(clusters(path.final, gap=0.5 / 3.0).count))
    mean = statistics.mean(counts)
    error = statistics.stdev(counts) / math.sqrt(len(counts))
    return [Row("clusters of 2,000 tokens, SA, β=9", mean, mean - 2 * error, mean + 2 * error, target="3.77 ± 0.3",
                held=abs(mean - 3.77) <= 0.3, note=f"{runs} runs, gap 0.5/√β; k_max = {k_max(9.0)}")]  # fmt: skip


PARTS = {"growth": growth, "speed": speed, "memory": memory, "clusters": cluster_counts}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=[])
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    for name, part in PARTS.items():
        if not chosen.only or name in chosen.only:
            torch.set_num_threads(os.cpu_count() or 1 if name == "speed" else 1)
            rows = part(chosen.quick)
            for line in rows:
                print(f"{line.name}: {line.shown}  {line.target} {line.verdict}  {line.note}", flush=True)
            if not chosen.quick:
                write("lab", rows, environment=environment(), part=True)


if __name__ == "__main__":
    main()
