"""A fluid that is stirred for ever: vorticity on the unit torus under a steady force and a weak drag."""

import math

import torch

from continua import memory
from continua.data.etdrk4 import Stepper
from continua.data.generation import ShareDone, generator_for, in_chunks
from continua.data.navier_stokes import TORUS, WORKING, advection, check_resolved, waves
from continua.data.pairs import Pairs, lattice
from continua.errors import ConfigError, ShapeError
from continua.settings import checked
from continua.typing import Float, Tensor

DRAG = 0.1
FORCE = 12.0  # spread of the force: the vorticity then has one of about 7
STIRRED = (3.0, 5.0)  # wave numbers of the force
STIRRING = 4  # waves of a force
COURANT = 0.9  # radians by which a flow of this speed turns the shortest wave in a step
SPEED = 1.0  # greater than the velocities that were met
UNRESOLVED = 3e-2  # share of the shortest waves at which a path is refused: half of all waves are left out anyway
SPUN_UP = 30  # units of ``dt`` before a path is looked at


def stirring(n: int, generator: torch.Generator) -> Float[Tensor, "n n"]:
    """A force of four random waves whose numbers lie between 3 and 5, of random phases."""
    top = int(STIRRED[1])
    found = [(a, b) for a in range(-top, top + 1) for b in range(top + 1) if b > 0 or a > 0]
    known = [k for k in found if STIRRED[0] <= math.hypot(*k) <= STIRRED[1]]
    x = torch.arange(n, dtype=torch.float64) / n
    force = torch.zeros(n, n, dtype=torch.float64)
    for i in torch.randperm(len(known), generator=generator)[:STIRRING].tolist():
        phase = 2 * math.pi * torch.rand(1, generator=generator, dtype=torch.float64)
        a, b = known[i]
        force += (2 * math.pi * (a * x[:, None] + b * x) + phase).cos()
    return FORCE * (2 / STIRRING) ** 0.5 * force


def resampled(fields: Float[Tensor, "*b n n"], m: int) -> Float[Tensor, "*b m m"]:
    """The same trigonometric polynomial on m × m nodes; waves from m/2 on are left out."""
    n = fields.shape[-1]
    half = min(n, m) // 2
    w = torch.fft.rfft2(fields, norm="forward")
    made = w.new_zeros(*w.shape[:-2], m, m // 2 + 1)
    made[..., :half, :half] = w[..., :half, :half]
    made[..., 1 - half :, :half] = w[..., 1 - half :, :half]
    return torch.fft.irfft2(made, s=(m, m), norm="forward")


def solved(
    start: Float[Tensor, "b n n"], force: Float[Tensor, "b n n"], viscosity: float, dt: float, times: int, parts: int
) -> Float[Tensor, "b times n n"]:
    """ω at the times dt, 2·dt, …, each reached by so many parts of ETDRK4: ω_t + u·∇ω = νΔω − ω/10 + f."""
    if start.shape != force.shape or min(times, parts) < 1:
        got = f"{list(start.shape)} and {list(force.shape)}"
        raise ShapeError("a flow has a force on the same nodes", got=got, remedy="Resample one of them.")
    n = start.shape[-1]
    k = waves(n)
    push = torch.where(k.kept, torch.fft.rfft2(force.double()), 0.0)
    w = torch.where(k.kept & (k.square > 0), torch.fft.rfft2(start.double()), 0.0)
    stepper = Stepper(-viscosity * k.square - DRAG, advection(n, push), dt / parts)
    path = []
    for _ in range(times):
        w = stepper.run(w, parts)
        path.append(torch.fft.irfft2(w, s=(n, n)))
    return torch.stack(path, 1)


def parts_of(n: int, dt: float) -> int:
    """How many steps of ETDRK4 the time dt takes on n nodes a side."""
    return max(2, math.ceil(SPEED * dt * 2 * math.pi * n / 3 / COURANT / 2))


@checked
def turbulence_paths(
    count: int,
    n: int = 32,
    viscosity: float = 1e-3,
    dt: float = 0.2,
    times: int = 41,
    refine: int = 2,
    seed: int = 0,
    watch: ShareDone | None = None,
) -> tuple[Float[Tensor, "count times n n 1"], Float[Tensor, "count n n 1"]]:
    """ω at ``times`` times ``dt`` apart of flows that have forgotten their start, and the force of each.

    Solved on refine·n nodes a side; what n nodes a side cannot show is left out wave by wave. Path i is a function of
    (seed, i).
    """
    if times < 2 or refine < 1 or not (viscosity > 0 and dt > 0):
        got = f"times {times}, refine {refine}, viscosity {viscosity:g}, dt {dt:g}"
        raise ConfigError("this is no path", got=got, remedy="Use two times or more, and numbers above zero.")
    fine = refine * n
    memory.require(WORKING * fine**2, f"a torus of {fine} nodes a side", "Use a smaller n or refine.")
    memory.require(4 * count * times * n**2, f"a set of {count} paths", "Ask for fewer, or for fewer nodes.")
    parts = parts_of(fine, dt)

    def make(indices: range) -> tuple[Tensor, Tensor]:
        draws = [generator_for("turbulence", seed, i) for i in indices]
        force = torch.stack([stirring(fine, draw) for draw in draws])
        start = torch.stack([stirring(fine, draw) for draw in draws]) / 2
        spun = solved(start, force, viscosity, SPUN_UP * dt, 1, SPUN_UP * parts)
        later = solved(spun[:, -1], force, viscosity, dt, times - 1, parts)
        check_resolved(later[:, -1], viscosity, UNRESOLVED)
        path = torch.cat([spun, later], 1)
        return resampled(path, n)[..., None], resampled(force, n)[..., None]

    paths, forces = in_chunks(count, max(1, 2**15 // fine**2), make, watch)
    return paths, forces


@checked
def turbulence_pairs(
    count: int,
    n: int = 32,
    viscosity: float = 1e-3,
    dt: float = 0.2,
    times: int = 41,
    refine: int = 2,
    seed: int = 0,
    watch: ShareDone | None = None,
) -> Pairs:
    """(ω(·, t), f) ↦ ω(·, t + dt) along ``turbulence_paths``, times − 1 pairs of a path, then the next.

    ``count`` is the number of pairs; the last path may be cut. Hold out whole paths: neighbours in time are alike.
    """
    each = max(1, times - 1)
    paths, forces = turbulence_paths(-(-count // each), n, viscosity, dt, times, refine, seed, watch)
    before = torch.cat([paths[:, :-1], forces[:, None].expand(-1, each, -1, -1, -1)], -1)
    inputs, outputs = (part.flatten(0, 1)[:count] for part in (before, paths[:, 1:]))
    line = torch.arange(n, dtype=torch.float64) / n
    return Pairs("turbulence", TORUS, inputs.contiguous(), outputs.contiguous(), lattice(TORUS, line, line))
