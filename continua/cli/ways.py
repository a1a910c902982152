"""The ways of ``continua simulate``: tokens, a mean field, a phase diagram; each simulates, measures and draws."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from rich.progress import Progress

from continua.cli.settings import Circle, MeanField, Phase, Shared, Sphere, Tokens
from continua.errors import ConfigError, nearest
from continua.flow import Fixed
from continua.lab import INTERACTIONS, Interaction, Particles, Simulation, simulate
from continua.lab.canvas.canvas import time_label
from continua.lab.canvas.densities import plot_density
from continua.lab.canvas.films import film, possible
from continua.lab.canvas.pictures import Stay, plot_counts, plot_paths, plot_phase, plot_staircase
from continua.lab.particles.clusters import Clusters, clusters, plateaus, usual_gap
from continua.lab.particles.energy import log_energy
from continua.lab.particles.sums import OVERFLOW
from continua.lab.theory.growth import KINDS, growth_rates, k_max
from continua.lab.theory.meanfield import MeanField as Field
from continua.lab.theory.meanfield import circle_nodes, mean_field
from continua.lab.theory.phase import phase_diagram
from continua.lab.theory.wasserstein import Density, circle_wasserstein
from continua.typing import Tensor

STILL = 1e-9  # tokens that move less from frame to frame have no plateaus: they rest all the time
PATHS = 4096  # tokens whose whole paths are kept; of all the others the end
EARLY = 0.3  # the first of times that are evenly spaced in log t
ABOVE = 7  # plateaus whose tokens are shown above the energy
STEP = 0.02  # of noisy particles
UNRESOLVED = 1e-3  # beside the mass: modes at the edge of what nodes can tell may be as large as this
Row = tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """What a simulation gives: numbers for the summary, arrays for the file of numbers, rows to print, pictures."""

    numbers: dict[str, Any]
    arrays: dict[str, numpy.ndarray]
    rows: list[Row]
    pictures: list[Path]


class Steps:
    """A bar that names what is being done."""

    def __init__(self, bar: Progress) -> None:
        self.bar, self.task = bar, bar.add_task("", total=1.0)

    def __call__(self, what: str) -> Callable[[float], None]:
        """Begin with something; what is returned is told which share of it is done."""
        self.bar.reset(self.task, description=what, total=1.0)
        return lambda share: self.bar.update(self.task, completed=share)


# --- tokens ---------------------------------------------------------------------------------------------------------


def interaction_of(settings: Shared, beta: float) -> Interaction:
    """The interaction of a name, however it is written."""
    known = {name.lower(): name for name in INTERACTIONS}
    wish = settings.interaction.lower()
    if wish not in known:
        remedy = nearest(wish, list(known))
        for low, name in known.items():
            remedy = remedy.replace(f"'{low}'", f"'{name}'")
        raise ConfigError("there is no such interaction", got=settings.interaction, remedy=remedy)
    more = {key: getattr(settings, key) for key in ("causal", "kappa") if hasattr(settings, key)}
    return INTERACTIONS[known[wish]](beta, **more)


def end_of(settings: Shared, interaction: Interaction, d: int) -> float:
    """The time asked for, or eleven times what the fastest mode needs to grow by e: 15.6 for SA at β = 9."""
    if settings.until != 0:
        return settings.until
    if interaction.name not in KINDS:
        return 16.0
    kappa = interaction.kappa if math.isfinite(interaction.kappa) else None
    fastest = float(growth_rates(interaction.beta, d, interaction.name, kappa=kappa).max())
    return float(f"{11 / fastest:.3g}") if fastest > 0 else 16.0


def _times(until: float, frames: int, log: bool) -> Tensor | int:
    if not log or frames < 3:
        return frames
    if not until > 0:
        raise ConfigError("a simulation goes on for a positive time", got=until, remedy="Write --until 10.")
    late = torch.logspace(math.log10(min(EARLY, until / 1000)), math.log10(until), frames - 1, dtype=torch.float64)
    late[-1] = until
    return torch.cat([late.new_zeros(1), late])


def _tokens(settings: Tokens, folder: Path, step: Steps) -> Found:
    interaction = interaction_of(settings, settings.beta)
    if settings.film != "none":
        possible(f"film.{settings.film}")
    d = settings.d if isinstance(settings, Sphere) else 2
    if settings.runs < 1:
        raise ConfigError("there is at least one run", got=settings.runs, remedy="Use --runs 1.")
    generator = torch.Generator().manual_seed(settings.seed)
    start = Particles.uniform(settings.n, d, generator, settings.runs)
    until = end_of(settings, interaction, d)
    save = _times(until, settings.frames, settings.log)
    found = simulate(interaction, start, until, save=save, generator=generator, watch=step("simulating"))
    watch = step("counting")
    gap = usual_gap(interaction) or 0.5 / math.sqrt(max(1.0, abs(settings.beta)))
    first = Simulation(found.times, found.x[:, 0], None, interaction, found.evaluations)
    groups = clusters(found, gap)
    watch(0.5)
    energy = _energies(found, settings.beta)
    moved = float(first.x.diff(dim=0).abs().max()) > STILL
    stays = plateaus(first, gap) if moved and abs(settings.beta) <= OVERFLOW else []
    known = None if interaction.name not in KINDS or settings.causal else k_max(settings.beta, d, interaction.name)
    end = groups.count[-1].tolist()
    numbers = {
        "until": until,
        "times": found.times.tolist(),
        "clusters": groups.count.tolist(),
        "clusters_at_the_end": end,
        "fastest_mode": known,
        "gap": gap,
        "energy": energy.tolist(),
        "plateaus": [asdict(stay) for stay in stays],
        "evaluations": found.evaluations,
    }
    kept = torch.linspace(0, settings.n - 1, min(PATHS, settings.n)).long()
    arrays = {
        "times": found.times,
        "x": first.x[:, kept],
        "tokens": kept,
        "final": found.x[-1],
        "clusters": groups.count,
        "energy": energy,
    }
    pictures = _drawn(settings, folder, first, groups, energy[:, 0], stays, known, step("drawing"))
    rows = _rows(settings, numbers, float(torch.tensor(end).double().mean()), len(stays))
    return Found(numbers, {key: value.numpy(force=True) for key, value in arrays.items()}, rows, pictures)


def _energies(found: Simulation, beta: float) -> Tensor:
    """E_β beside that of tokens which all are one: [k, runs], finite for every β."""
    one = log_energy(Particles.polygon(1), beta)
    return torch.stack([(log_energy(found.at(i), beta) - one).exp() for i in range(len(found.times))])


def _drawn(
    settings: Tokens, folder: Path, first: Simulation, groups: Clusters, energy: Tensor, stays: list[Any],
    known: int | None, watch: Callable[[float], None],
) -> list[Path]:  # fmt: skip
    own, counts = groups.labels[-1, 0], groups.count[:, 0]
    title = f"{first.interaction.name}, β = {settings.beta:g}, {settings.n} tokens"
    pictures = [plot_paths(first, folder / "paths.png", own, title)]
    marks = [Stay(stay.start, stay.end, _counted(stay.count, stay.cosine)) for stay in stays]
    where, above = folder / "energy.png", first if len(stays) <= ABOVE else None
    pictures.append(plot_staircase(first.times, energy, where, counts, marks, title, above, own))
    watch(0.2)
    if settings.runs > 1:
        pictures.append(
            plot_counts(groups.count[-1], folder / "clusters.png", None if known is None else float(known), title)
        )
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


# --- the mean field -------------------------------------------------------------------------------------------------


def _start(settings: MeanField, generator: torch.Generator) -> Density:
    """Uniform, and on it random phases of twice as many modes as there will be clusters."""
    if settings.nodes < 8:
        raise ConfigError("a density needs at least eight nodes", got=settings.nodes, remedy="Use --nodes 512.")
    theta = circle_nodes(settings.nodes)
    most = min(settings.nodes // 3, 2 * round(math.sqrt(2 * abs(settings.beta))) + 1)
    phases = 2 * math.pi * torch.rand(most, generator=generator, dtype=torch.float64)
    modes = torch.arange(1, most + 1, dtype=torch.float64)
    values = 1 + settings.amplitude * (modes[:, None] * theta + phases[:, None]).cos().sum(0)
    if not float(values.min()) > 0:
        remedy = f"Use an --amplitude below {1 / most:.2g}."
        raise ConfigError("a density is positive", got=f"one with a least value of {values.min():.2g}", remedy=remedy)
    return Density.of(values)


def _solved(settings: MeanField, interaction: Interaction, start: Density, until: float, watch: Any) -> Field:
    """Frame by frame, as long as the nodes can tell the density: behind that there is only time to lose."""
    if settings.frames < 2:
        raise ConfigError("at least the start and the end are kept", got=settings.frames, remedy="Use --frames 96.")
    states, each = [start.values], until / (settings.frames - 1)
    for i in range(1, settings.frames):
        path = mean_field(interaction, states[-1], each, save=2)
        if float(path.tail[-1]) > UNRESOLVED:
            break
        states.append(path.density[-1])
        watch(i / (settings.frames - 1))
    if len(states) < 2:
        got = f"{settings.nodes} nodes for β={settings.beta:g}"
        raise ConfigError(
            "the density is not resolved", got=got, remedy="Use more --nodes, or more noise (--noise 50)."
        )
    return Field(torch.arange(len(states), dtype=torch.float64) * each, torch.stack(states), interaction)


def _meanfield(settings: MeanField, folder: Path, step: Steps) -> Found:
    interaction = interaction_of(settings, settings.beta)
    generator = torch.Generator().manual_seed(settings.seed)
    start, until = _start(settings, generator), end_of(settings, interaction, 2)
    levels = (torch.arange(settings.n, dtype=torch.float64) + 0.5) / max(1, settings.n)
    tokens = Particles.circle(start.quantiles(levels))
    field = _solved(settings, interaction, start, until, step("solving the mean field"))
    reached, noisy = float(field.times[-1]), math.isfinite(settings.kappa)
    control = Fixed(math.ceil(reached / STEP)) if noisy else None
    watch = step("simulating particles")
    particles = simulate(
        interaction, tokens, reached, save=field.times, control=control, generator=generator, watch=watch
    )
    seen = sorted({round(i * (len(field.times) - 1) / 16) for i in range(17)})
    apart = [float(circle_wasserstein(particles.at(i).angles, field.at(i))) for i in seen]
    step("drawing")
    title = f"{interaction.name}, β = {settings.beta:g}" + (f", κ = {settings.kappa:g}" if noisy else "")
    pictures = [plot_density(field.times, field.density, folder / "density.png", particles, title)]
    mass = float((field.mass - 1).abs().max())
    numbers = {
        "until": until,
        "resolved_until": reached,
        "wasserstein": {"times": field.times[seen].tolist(), "distance": apart},
        "mass_error": mass,
        "least": field.least.tolist(),
        "tail": field.tail.tolist(),
    }
    arrays = {"times": field.times, "density": field.density, "particles": particles.final.angles}
    early = len(field.times) < settings.frames
    rows: list[Row] = [
        ("nodes, particles", f"{settings.nodes}, {settings.n:,}"),
        ("until", f"{reached:g}" + (f" of {until:g}: then it needs more --nodes, or --noise" if early else "")),
        ("Wasserstein distance", f"{apart[0]:.1e} → {apart[-1]:.1e}"),
        ("mass kept to", f"{mass:.0e}"),
        ("least density", f"{float(field.least.min()):.1e}"),
    ]
    return Found(numbers, {key: value.numpy(force=True) for key, value in arrays.items()}, rows, pictures)


# --- phase diagrams -------------------------------------------------------------------------------------------------


def listed(text: str, key: str, kind: type) -> list[Any]:
    """``1,2,4`` as numbers.

    >>> listed("1,2.5", "beta", float)
    [1.0, 2.5]
    """
    try:
        return list(dict.fromkeys(kind(part) for part in text.split(",") if part.strip()))
    except ValueError as error:
        raise ConfigError(f"{key} is a list of numbers", got=text, remedy=f"Write --{key} 2,4,9.") from error


def _phase(settings: Phase, folder: Path, step: Steps) -> Found:
    betas, ds, ns = (listed(getattr(settings, key), key, kind) for key, kind in _LISTS)
    name = interaction_of(settings, 1.0).name
    if settings.runs < 1:
        raise ConfigError("a cell has at least one run", got=settings.runs, remedy="Use --runs 4.")
    found = phase_diagram(
        betas,
        ds,
        ns,
        until=lambda beta, d: end_of(settings, interaction_of(settings, beta), d),
        runs=range(settings.seed, settings.seed + settings.runs),
        interaction=lambda beta: interaction_of(settings, beta),
        folder=folder,
        watch=step("sweeping"),
    )
    table, pictures = found.values("count"), []
    columns = found.axis("beta")
    for i, n in enumerate(found.axis("n") if len(ds) > 1 or len(ns) == 1 else []):
        where, title = folder / f"phase-n{int(n)}.png", f"{name}: clusters of {int(n)} tokens"
        pictures.append(plot_phase(table[:, :, i].mT, columns, found.axis("d"), where, title=title))
    if len(ns) > 1:
        for j, d in enumerate(found.axis("d")):
            where, title = folder / f"phase-d{int(d)}.png", f"{name}: clusters in dimension {int(d)}"
            shown = ("β", "tokens n", "clusters")
            pictures.append(plot_phase(table[:, j].mT, columns, found.axis("n"), where, shown, title))
    numbers = {"cells": [asdict(cell) for cell in found.cells]}
    rows: list[Row] = [("clusters, mean of runs", *(f"β={beta:g}" for beta in columns))]
    for j, d in enumerate(found.axis("d")):
        for i, n in enumerate(found.axis("n")):
            rows.append((f"d={d:g}, n={n:g}", *(f"{value:.2f}" for value in table[:, j, i].tolist())))
    arrays = {name: numpy.array(found.axis(name)) for name in ("beta", "d", "n")} | {"count": table.numpy()}
    return Found(numbers, arrays, rows, pictures)


_LISTS = (("beta", float), ("d", int), ("n", int))


WAYS: dict[type, Callable[[Any, Path, Steps], Found]] = {
    Circle: _tokens,
    Sphere: _tokens,
    MeanField: _meanfield,
    Phase: _phase,
}
