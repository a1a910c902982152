"""Burgers' equation on the unit circle: pseudo-spectral in space (dealiased by the 2/3 rule), ETDRK4 in time."""

import math

import torch

from continua import memory
from continua.axes import Circle
from continua.data.etdrk4 import Stepper
from continua.data.generation import ShareDone, check_finite, generator_for, in_chunks, normals
from continua.data.pairs import Pairs, lattice
from continua.errors import ConfigError
from continua.settings import MAX_STEPS, checked
from continua.typing import Float, Tensor

LEAST_STEPS = 128  # a unit of time
WORKING = 128  # bytes of a node while it is solved for


def burgers(
    initial: Float[Tensor, "*b n"],
    viscosity: float = 0.01,
    until: float = 1.0,
    steps: int | None = None,
    watch: ShareDone | None = None,
) -> Float[Tensor, "*b n"]:
    """u_t + u u_x = ν u_xx on the unit circle: u at the time ``until``.

    Without ``steps`` a step moves the fastest wave by about two cells. A shock is ν wide: use n ≥ 4/ν nodes.
    """
    n = initial.shape[-1]
    _check(n, viscosity, until)
    check_finite(initial)
    speed = float(initial.abs().max())
    if steps is None:
        steps = max(16, math.ceil(until * speed * n / 2))
    k = 2 * math.pi * torch.arange(n // 2 + 1, dtype=torch.float64)
    kept = torch.arange(n // 2 + 1) < n / 3

    def nonlinear(v: Tensor) -> Tensor:
        u = torch.fft.irfft(v, n)
        return torch.where(kept, -0.5j * k * torch.fft.rfft(u * u), 0.0)

    v = torch.where(kept, torch.fft.rfft(initial.double()), 0.0)
    found = Stepper(-viscosity * k * k, nonlinear, until / steps).run(v, steps, watch)
    return torch.fft.irfft(found, n)


def cole_hopf(initial: Float[Tensor, "*b n"], viscosity: float, until: float) -> Float[Tensor, "*b n"]:
    """The same by u = m − 2ν φ_x/φ, where φ solves the heat equation and m is the mean, which carries the wave along.

    Exact in time; in space as good as φ_0 = exp(−∫(u − m)/2ν) is resolved. φ is taken relative to its greatest value.
    """
    n = initial.shape[-1]
    u = initial.double()
    mean = u.mean(-1, keepdim=True)
    k = 2 * math.pi * torch.arange(n // 2 + 1, dtype=torch.float64)
    v = torch.fft.rfft(u - mean)
    whole = torch.fft.irfft(torch.where(k > 0, v / (1j * k.clamp_min(1.0)), 0.0), n)
    exponent = -whole / (2 * viscosity)
    phi = torch.fft.rfft((exponent - exponent.amax(-1, keepdim=True)).exp())
    phi = phi * torch.exp(-viscosity * k * k * until) * torch.exp(-1j * k * mean * until)
    return mean - 2 * viscosity * torch.fft.irfft(1j * k * phi, n) / torch.fft.irfft(phi, n)


def gaussian_fields(
    count: int, n: int, generator: torch.Generator, scale: float = 25.0, inverse_length: float = 5.0, power: float = 2.0
) -> Float[Tensor, "count n"]:
    """Draws of N(0, σ²(−Δ + τ²)^{−α}) on the unit circle: σ = scale, τ = inverse_length, α = power.

    Every draw is a function: the first n/2 of its waves are drawn in order, so a finer grid shows the same field with
    finer waves.
    """
    k = 2 * math.pi * torch.arange(n // 2, dtype=torch.float64)
    size = scale * (k * k + inverse_length**2) ** (-power / 2)
    waves = normals(n // 2 * count * 2, generator).reshape(n // 2, count, 2).transpose(0, 1)
    v = torch.zeros(count, n // 2 + 1, dtype=torch.complex128)
    v[:, 1:-1] = torch.complex(waves[:, 1:, 0], waves[:, 1:, 1]) * size[1:] * (n / math.sqrt(2))
    v[:, 0] = waves[:, 0, 0] * size[0] * n
    return torch.fft.irfft(v, n)


@checked
def burgers_pairs(
    count: int,
    n: int = 1024,
    viscosity: float = 0.01,
    until: float = 1.0,
    seed: int = 0,
    watch: ShareDone | None = None,
) -> Pairs:
    """u(·, 0) ↦ u(·, until) of Burgers' equation on the unit circle, u(·, 0) drawn from N(0, 625(−Δ + 25)^{−2}).

    Draws have mean zero, as those of Li et al. (2021): a mean m only carries the whole wave along by m·until.
    Solved on n·2^m ≥ 10/ν nodes and kept at n of them, so a coarse set is a fine one thinned; draw i is a function of
    (seed, i). The steps of a draw follow its speed U: their length is at most ν/U², the time of a shock of that speed.
    """
    _check(n, viscosity, until)
    if LEAST_STEPS * until > MAX_STEPS:
        remedy = f"Use a time up to {MAX_STEPS / LEAST_STEPS:.0f}."
        raise ConfigError(f"a time takes {LEAST_STEPS} steps a unit", got=f"until={until:g}", remedy=remedy)
    what = f"a grid that resolves the viscosity {viscosity:g}"
    memory.require(WORKING * max(n, 10 / viscosity), what, "Use a greater viscosity, or fewer nodes.")
    memory.require(8 * count * n, f"a set of {count} pairs", "Ask for fewer, or for fewer nodes.")
    fine = n << max(0, math.ceil(math.log2(10 / viscosity / n)))

    def make(indices: range) -> tuple[Tensor, Tensor]:
        fields = [gaussian_fields(1, fine, generator_for("burgers", seed, i)) for i in indices]
        start = torch.cat(fields)
        start = start - start.mean(-1, keepdim=True)
        steps = [_steps(float(speed), fine, viscosity, until) for speed in start.abs().amax(-1)]
        end = torch.empty_like(start)
        for chosen in sorted(set(steps)):
            rows = torch.tensor([each == chosen for each in steps])
            end[rows] = burgers(start[rows], viscosity, until, chosen)
        return start[:, :: fine // n, None], end[:, :: fine // n, None]

    inputs, outputs = in_chunks(count, max(1, 2**16 // fine), make, watch)
    points = lattice(Circle(), torch.arange(n, dtype=torch.float64) / n)
    return Pairs("burgers", Circle(), inputs, outputs, points)


def _steps(speed: float, n: int, viscosity: float, until: float) -> int:
    """A power of two, so that few groups arise. Measured against Cole–Hopf: errors of 1e-8 to 1e-7."""
    needed = until * max(LEAST_STEPS, min(speed * speed / viscosity, speed * n / 2))
    return int(2 ** math.ceil(math.log2(max(16.0, needed))))


def _check(n: int, viscosity: float, until: float) -> None:
    if n < 8 or not (0 < viscosity < math.inf and 0 < until < math.inf):
        got = f"{n} nodes, viscosity {viscosity:g}, time {until:g}"
        raise ConfigError(
            "this is no viscous flow on a circle", got=got, remedy="Use n ≥ 8, ν > 0 and a positive time."
        )
