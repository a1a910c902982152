"""``continua simulate meanfield``: the density of infinitely many tokens, beside particles drawn from it."""

import math
from collections.abc import Callable
from pathlib import Path

import torch

from continua.cli.simulate.outcome import Outcome, Row, Stages, end_of, interaction_of
from continua.cli.simulate.settings import MeanField
from continua.errors import ConfigError
from continua.flow import Fixed
from continua.lab import Density, Interaction, Particles, circle_wasserstein, mean_field, plot_density, simulate
from continua.lab import MeanField as Evolution
from continua.lab.theory.meanfield import circle_nodes

STEP = 0.02  # of noisy particles
UNRESOLVED = 1e-3  # beside the mass: modes at the edge of what nodes can tell may be as large as this
COMPARED = 16  # times, evenly spaced, at which the density is compared with the particles, and the start


def run(settings: MeanField, folder: Path, stage: Stages) -> Outcome:
    """Solve for the density, simulate particles drawn from its start, and compare them."""
    interaction = interaction_of(settings.interaction, settings.beta, kappa=settings.kappa)
    generator = torch.Generator().manual_seed(settings.seed)
    start = _start(settings, generator)
    until = end_of(settings.until, interaction, 2)
    levels = (torch.arange(settings.n, dtype=torch.float64) + 0.5) / max(1, settings.n)
    tokens = Particles.circle(start.quantiles(levels))
    field = _solved(settings, interaction, start, until, stage("solving the mean field"))
    reached = float(field.times[-1])
    noisy = math.isfinite(settings.kappa)
    control = Fixed(math.ceil(reached / STEP)) if noisy else None
    watch = stage("simulating particles")
    particles = simulate(
        interaction, tokens, reached, save=field.times, control=control, generator=generator, watch=watch
    )
    chosen = sorted({round(i * (len(field.times) - 1) / COMPARED) for i in range(COMPARED + 1)})
    apart = [float(circle_wasserstein(particles.at(i).angles, field.at(i))) for i in chosen]
    stage("drawing")
    title = f"{interaction.name}, β = {settings.beta:g}" + (f", κ = {settings.kappa:g}" if noisy else "")
    pictures = [plot_density(field.times, field.density, folder / "density.png", particles, title)]
    mass = float((field.mass - 1).abs().max())
    numbers = {
        "until": until,
        "resolved_until": reached,
        "wasserstein": {"times": field.times[chosen].tolist(), "distance": apart},
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
    return Outcome(numbers, {key: value.numpy(force=True) for key, value in arrays.items()}, rows, pictures)


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


def _solved(
    settings: MeanField, interaction: Interaction, start: Density, until: float, watch: Callable[[float], None]
) -> Evolution:
    """Frame by frame, as long as the nodes can tell the density: behind that there is only time to lose."""
    if settings.frames < 2:
        raise ConfigError("at least the start and the end are kept", got=settings.frames, remedy="Use --frames 96.")
    states = [start.values]
    each = until / (settings.frames - 1)
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
    return Evolution(torch.arange(len(states), dtype=torch.float64) * each, torch.stack(states), interaction)
