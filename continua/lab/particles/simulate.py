"""Tokens in time: the flow of an interaction on the sphere, with noise, and the layers it is the limit of."""

import enum
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from continua import memory
from continua.errors import ConfigError
from continua.flow import Adaptive, Control, Fixed, OnSphere, SaveAt, Solver, Tsit5, solve
from continua.geometry import retract, tangent
from continua.lab.particles.interaction import Interaction
from continua.lab.particles.particles import Particles
from continua.lab.progress import ReportShare
from continua.settings import MAX_STEPS, Count, checked
from continua.typing import Float, Tensor

FRAMES = 64
NOISY_STEP = 0.01  # of Euler–Maruyama, in time
OVERHEAD = 512  # bytes that a time and its state take beside the numbers


class Norm(enum.Enum):
    """Where a layer normalises its tokens."""

    POST = "post"  # x ← N(x + ε·A(x)): the flow on the sphere
    PRE = "pre"  # x ← x + ε·A(N(x)): lengths grow, directions slow down
    NONE = "none"  # x ← x + ε·A(x)


@dataclass(frozen=True, eq=False)
class Simulation:
    """Where the tokens were: x [k, …, n, d] at the k ``times``. Without post-norm they leave the sphere."""

    times: Float[Tensor, " k"]
    x: Float[Tensor, "k *b n d"]
    weights: Float[Tensor, "*b n"] | None
    interaction: Interaction
    evaluations: int = 0

    @property
    def final(self) -> Particles:
        """The directions at the end."""
        return self.at(-1)

    @property
    def directions(self) -> Tensor:
        """x/|x|."""
        return retract(self.x)

    def at(self, frame: int) -> Particles:
        """The directions at one of the times."""
        return Particles.of(self.x[frame], self.weights)

    def save(self, path: str | Path) -> Path:
        """Times, tokens and weights into an ``.npz`` file, with the interaction in words."""
        where = Path(path).with_suffix(".npz")
        where.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {"times": self.times.numpy(force=True), "x": self.x.numpy(force=True)}
        if self.weights is not None:
            arrays["weights"] = self.weights.numpy(force=True)
        words = {"interaction": self.interaction.name, "beta": self.interaction.beta, "causal": self.interaction.causal}
        numpy.savez_compressed(where, about=json.dumps(words), **arrays)
        return where


@checked
def simulate(
    interaction: Interaction,
    particles: Particles,
    until: float,
    *,
    save: int | Tensor = FRAMES,
    solver: Solver | None = None,
    control: Control | None = None,
    generator: torch.Generator | None = None,
    watch: ReportShare | None = None,
) -> Simulation:
    """Follow x_i' = P_{x_i}[…] up to the time ``until``; ``save`` are times to keep, or how many between 0 and the end.

    Steps are adaptive (Tsit5 on the sphere, rtol 1e-6) unless a solver or control says otherwise; with noise they are
    those of Euler–Maruyama with about 0.01 in time, or as many as ``control=Fixed(n)`` has. Gradients go through x and
    the matrices of the interaction. ``watch`` is told which share of the way is done.
    """
    times = kept_times(save, until, particles.x)
    if math.isfinite(interaction.kappa):
        return _noisy(interaction, particles, times, control, generator, watch)

    def field(z: float, x: Tensor, args: Any) -> Tensor:
        if watch is not None:
            watch(min(1.0, z / until))
        return interaction.drift(retract(x), args["w"], tuple(args["m"]))  # stages of a step are a little off it

    args = {"w": particles.weights, "m": list(interaction.matrices)}
    path = solve(
        field,
        particles.x,
        (0.0, until),
        args=args,
        solver=solver or OnSphere(Tsit5()),
        control=control or Adaptive(rtol=1e-6, atol=1e-9, max_steps=100_000),
        save=SaveAt(points=tuple(times.tolist())),
    )
    if watch is not None:
        watch(1.0)
    return Simulation(
        times, retract(torch.stack(list(path.x))), particles.weights, interaction, path.stats["evaluations"]
    )


@checked
def layers(
    interaction: Interaction,
    particles: Particles,
    steps: Count,
    epsilon: float = 1.0,
    norm: Norm = Norm.POST,
    skip: float = 1.0,
) -> Simulation:
    """x ← N(skip·x + ε·A(x)), ``steps`` times: what a Transformer of that many equal layers does (see ``Norm``).

    With ε → 0 and n = t/ε layers, post-norm is the flow of ``simulate`` at the time t, to first order in ε.
    """
    _check_path(steps, particles.x)
    x = particles.x
    kept = [particles.x]
    for _ in range(steps):
        seen = retract(x) if norm is Norm.PRE else x
        x = skip * x + epsilon * interaction.drift(seen, particles.weights, unit=norm is not Norm.NONE)
        x = retract(x) if norm is Norm.POST else x
        kept.append(x)
    times = torch.arange(steps + 1, dtype=particles.x.dtype, device=particles.x.device) * epsilon
    return Simulation(times, torch.stack(kept), particles.weights, interaction, steps)


@checked
def free(
    interaction: Interaction, particles: Particles, until: float, *, save: int | Tensor = FRAMES, norm: Norm = Norm.PRE
) -> Simulation:
    """x' = A(N(x)), tokens that are free in length: the limit of pre-norm layers (``Norm.NONE``: x' = A(x))."""

    def field(z: float, x: Tensor, args: Any) -> Tensor:
        if norm is Norm.PRE:
            return interaction.drift(retract(x), args["w"], tuple(args["m"]))
        return interaction.drift(x, args["w"], tuple(args["m"]), unit=False)

    times = kept_times(save, until, particles.x)
    args = {"w": particles.weights, "m": list(interaction.matrices)}
    control = Adaptive(rtol=1e-8, atol=1e-10, max_steps=100_000)
    path = solve(field, particles.x, (0.0, until), args=args, solver=Tsit5(), control=control,
                 save=SaveAt(points=tuple(times.tolist())))  # fmt: skip
    return Simulation(times, torch.stack(list(path.x)), particles.weights, interaction, path.stats["evaluations"])


def _noisy(
    interaction: Interaction,
    particles: Particles,
    times: Tensor,
    control: Control | None,
    generator: torch.Generator | None,
    watch: ReportShare | None,
) -> Simulation:
    """Euler–Maruyama with a return to the sphere: drift, and a tangent Gaussian of variance 2 dt/κ."""
    until = float(times[-1])
    steps = control.steps if isinstance(control, Fixed) else _noisy_steps(until)
    dt = until / steps
    x = particles.x
    kept: list[Tensor] = []
    done = 0
    for time in times.tolist():
        while done < round(time / dt):
            noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
            moved = dt * interaction.velocity(x, particles.weights) + math.sqrt(2 * dt / interaction.kappa) * tangent(
                x, noise
            )
            x = retract(x + moved)
            done += 1
            if watch is not None:
                watch(done / steps)
        kept.append(x)
    return Simulation(times, torch.stack(kept), particles.weights, interaction, steps)


def _noisy_steps(until: float) -> int:
    if until > MAX_STEPS * NOISY_STEP:
        remedy = f"Use a time up to {MAX_STEPS * NOISY_STEP:g}, or control=Fixed(n)."
        raise ConfigError(f"noise takes steps of {NOISY_STEP:g} in time", got=f"until={until:g}", remedy=remedy)
    return max(1, math.ceil(until / NOISY_STEP))


def _check_path(frames: int, like: Tensor | None = None) -> None:
    """Refuse a path that does not fit: its states, once one by one and once together."""
    each = OVERHEAD + (0 if like is None else 2 * like.numel() * like.element_size())
    memory.require(frames * each, f"a path of {frames} times", "Keep fewer.")


def kept_times(save: int | Tensor, until: float, like: Tensor | None = None) -> Tensor:
    """The times to keep, or so many of them from 0 to the end; ``like`` is what is kept of each."""
    if not (math.isfinite(until) and until > 0):
        raise ConfigError("a simulation goes on for a positive time", got=until, remedy="Write until=10.0.")
    if isinstance(save, Tensor):
        return save.double().cpu()
    if save < 2:
        raise ConfigError("at least the start and the end are kept", got=save, remedy="Use save ≥ 2, or give times.")
    _check_path(save, like)
    return torch.linspace(0, until, save, dtype=torch.float64)
