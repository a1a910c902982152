"""Propagation of chaos: how fast n independent tokens approach the mean field as n grows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from continua.errors import ConfigError
from continua.flow import Adaptive, Control
from continua.lab.particles.interaction import Interaction
from continua.lab.particles.particles import Particles
from continua.lab.particles.simulate import simulate
from continua.lab.progress import ReportShare
from continua.lab.theory.meanfield import mean_field
from continua.lab.theory.wasserstein import Density, circle_wasserstein
from continua.typing import Float, Tensor

CONTROL = Adaptive(rtol=1e-6, atol=1e-8, max_steps=100_000)
NORMAL = 1.959964  # 95 % of a Gaussian lie within so many standard deviations


@dataclass(frozen=True, eq=False)
class Chaos:
    """W_p(empirical measure, mean field) at one time: distances [size, run] for each of the ``counts`` n."""

    counts: tuple[int, ...]
    distances: Float[Tensor, "size run"]
    time: float

    @property
    def mean(self) -> Tensor:
        """The mean over the runs, for each n."""
        return self.distances.mean(-1)

    @property
    def rate(self) -> float:
        """The slope of log mean distance over log n; −1/2 is what independent samples of a density on a line give."""
        return float(self._levers @ self.mean.log())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of ``rate``, from the scatter of the runs."""
        runs = self.distances.shape[-1]
        variance = self.distances.var(-1) / runs / self.mean**2  # of the logarithm of a mean
        spread = NORMAL * math.sqrt(float((self._levers**2) @ variance))
        return self.rate - spread, self.rate + spread

    @property
    def _levers(self) -> Tensor:
        """The least-squares slope as weights of the observations."""
        x = torch.tensor(self.counts, dtype=self.distances.dtype).log()
        x = x - x.mean()
        return x / (x @ x)


def chaos(
    interaction: Interaction,
    density: Density,
    until: float,
    *,
    counts: Sequence[int] = (64, 128, 256, 512, 1024),
    runs: int = 16,
    p: float = 1.0,
    generator: torch.Generator | None = None,
    watch: ReportShare | None = None,
) -> Chaos:
    """Draw n tokens on the circle from ``density``, ``runs`` times for each n, let them go, and compare at ``until``.

    The distance is W_p to the mean field from the same density. It starts as that of n independent samples, of order
    n^{−1/2}, and grows in time by a factor that does not depend on n. ``watch`` is told which share is done.
    """
    sizes = tuple(counts)
    if len(set(sizes)) < 2 or min(sizes) < 1 or runs < 2:
        got = f"counts={sizes}, runs={runs}"
        raise ConfigError("a rate needs two sizes and two runs", got=got, remedy="Use counts=(64, 256, 1024), runs=16.")
    limit = mean_field(interaction, density, until, save=2).final
    rows = []
    done = 0
    total = sum(sizes)
    for n in sizes:
        start = Particles.circle(density.sample((runs, n), generator))
        ends = simulate(interaction, start, until, save=2, control=_control(interaction), generator=generator).final
        rows.append(torch.stack([circle_wasserstein(run, limit, p) for run in ends.angles]))
        done += n
        if watch is not None:
            watch(done / total)
    return Chaos(sizes, torch.stack(rows), until)


def _control(interaction: Interaction) -> Control | None:
    """Noise has steps of its own."""
    return CONTROL if math.isinf(interaction.kappa) else None
