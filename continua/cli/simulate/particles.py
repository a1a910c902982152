"""``continua simulate circle`` and ``sphere``: tokens, their clusters, energy and plateaus, in numbers and pictures."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from continua.cli.simulate.outcome import Outcome, Row, Stages, end_of, interaction_of
from continua.cli.simulate.settings import Sphere, Tokens
from continua.errors import ConfigError
from continua.lab import Clusters, Particles, Plateau, Simulation, clusters, film, k_max, log_energy, plateaus, simulate
from continua.lab.canvas import plot_counts, plot_paths, plot_staircase
from continua.lab.canvas.canvas import time_label
from continua.lab.canvas.films import possible
from continua.lab.canvas.pictures import Stay
from continua.lab.particles.clusters import usual_gap
from continua.lab.particles.sums import OVERFLOW
from continua.lab.theory.growth import KINDS
from continua.typing import Tensor

STILL = 1e-9  # tokens that move less from frame to frame have no plateaus: they rest all the time
PATHS = 4096  # tokens whose whole paths are kept; of all the others the end
EARLY = 0.3  # the first of times that are evenly spaced in log t
ABOVE = 7  # plateaus whose tokens are shown above the energy


def run(settings: Tokens, folder: Path, stage: Stages) -> Outcome:
    """Simulate tokens, count their clusters over time, and draw them."""
    interaction = interaction_of(settings.interaction, settings.beta, kappa=settings.kappa, causal=settings.causal)
    if settings.film != "none":
        possible(f"film.{settings.film}")
    d = settings.d if isinstance(settings, Sphere) else 2
    if settings.runs < 1:
        raise ConfigError("there is at least one run", got=settings.runs, remedy="Use --runs 1.")
    generator = torch.Generator().manual_seed(settings.seed)
    start = Particles.uniform(settings.n, d, generator, settings.runs)
    until = end_of(settings.until, interaction, d)
    save = _times(until, settings.frames, settings.log)
    path = simulate(interaction, start, until, save=save, generator=generator, watch=stage("simulating"))
    watch = stage("counting")
    gap = usual_gap(interaction) or 0.5 / math.sqrt(max(1.0, abs(settings.beta)))
    first = Simulation(path.times, path.x[:, 0], None, interaction, path.evaluations)
    groups = clusters(path, gap)
    watch(0.5)
    energy = _energies(path, settings.beta)
    moved = float(first.x.diff(dim=0).abs().max()) > STILL
    stays = plateaus(first, gap) if moved and abs(settings.beta) <= OVERFLOW else []
    known = None if interaction.name not in KINDS or settings.causal else k_max(settings.beta, d, interaction.name)
    end = groups.count[-1].tolist()
    numbers = {
        "until": until,
        "times": path.times.tolist(),
        "clusters": groups.count.tolist(),
        "clusters_at_the_end": end,
        "fastest_mode": known,
        "gap": gap,
        "energy": energy.tolist(),
        "plateaus": [asdict(stay) for stay in stays],
        "evaluations": path.evaluations,
    }
    kept = torch.linspace(0, settings.n - 1, min(PATHS, settings.n)).long()
    arrays = {
        "times": path.times,
        "x": first.x[:, kept],
        "tokens": kept,
        "final": path.x[-1],
        "clusters": groups.count,
        "energy": energy,
    }
    pictures = _drawn(settings, folder, first, groups, energy[:, 0], stays, known, stage("drawing"))
    rows = _rows(settings, numbers, float(torch.tensor(end).double().mean()), len(stays))
    return Outcome(numbers, {key: value.numpy(force=True) for key, value in arrays.items()}, rows, pictures)


def _times(until: float, frames: int, log: bool) -> Tensor | int:
    if not log or frames < 3:
        return frames
    if not until > 0:
        raise ConfigError("a simulation goes on for a positive time", got=until, remedy="Write --until 10.")
    late = torch.logspace(math.log10(min(EARLY, until / 1000)), math.log10(until), frames - 1, dtype=torch.float64)
    late[-1] = until
    return torch.cat([late.new_zeros(1), late])


def _energies(path: Simulation, beta: float) -> Tensor:
    """E_β beside that of tokens which all are one: [k, runs], finite for every β."""
    one = log_energy(Particles.polygon(1), beta)
    return torch.stack([(log_energy(path.at(i), beta) - one).exp() for i in range(len(path.times))])


def _drawn(
    settings: Tokens, folder: Path, first: Simulation, groups: Clusters, energy: Tensor, stays: Sequence[Plateau],
    known: int | None, watch: Callable[[float], None],
) -> list[Path]:  # fmt: skip
    own = groups.labels[-1, 0]
    counts = groups.count[:, 0]
    title = f"{first.interaction.name}, β = {settings.beta:g}, {settings.n} tokens"
    pictures = [plot_paths(first, folder / "paths.png", own, title)]
    marks = [Stay(stay.start, stay.end, _counted(stay.count, stay.cosine)) for stay in stays]
    above = first if len(stays) <= ABOVE else None
    pictures.append(plot_staircase(first.times, energy, folder / "energy.png", counts, marks, title, above, own))
    watch(0.2)
    if settings.runs > 1:
        expected = None if known is None else float(known)
        pictures.append(plot_counts(groups.count[-1], folder / "clusters.png", expected, title))
    if settings.film != "none":
        alike = first.directions.mean(-2).square().sum(-1).tolist()
        frames = zip(first.times.tolist(), counts.tolist(), alike, strict=True)
        words = [f"t = {time_label(t)}   {_counted(count, cosine)}" for t, count, cosine in frames]
        pictures.append(film(first, folder / f"film.{settings.film}", own, captions=words))
    return pictures


def _counted(count: int, cosine: float) -> str:
    """In words; tokens that lie everywhere are one component, too."""
    if count == 1:
        return "1 cluster" if cosine > 0.5 else "no gaps"
    return f"{count} clusters"


def _rows(settings: Tokens, numbers: dict[str, Any], clusters: float, stays: int) -> list[Row]:
    energy = [line[0] for line in numbers["energy"]]
    mode = numbers["fastest_mode"]
    return [
        ("tokens", f"{settings.n:,}" + (f" × {settings.runs} runs" if settings.runs > 1 else "")),
        ("β", f"{settings.beta:g}"),
        ("until", f"{numbers['until']:g}"),
        ("clusters at the end", f"{clusters:g}" if settings.runs == 1 else f"{clusters:.2f} (mean)"),
        ("fastest mode", "-" if mode is None else str(mode)),
        ("energy, 1 at consensus", f"{energy[0]:.4f} → {energy[-1]:.4f}"),
        ("plateaus", str(stays)),
        ("evaluations", str(numbers["evaluations"])),
    ]
