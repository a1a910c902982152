"""Reference solutions of evolution equations on periodic domains: pseudo-spectral in space, ETDRK4 in time.

Fields are sampled at x_j = j/n on the unit interval or square. Stiff linear parts are exact (Cox & Matthews 2002, with
coefficients by contour integrals as Kassam & Trefethen 2005); products are dealiased by the 2/3 rule.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from continua.axes import Circle
from continua.errors import ConfigError, ShapeError
from continua.tasks.pairs import Pairs, lattice
from continua.tasks.task import generator_for
from continua.typing import Float, Tensor

CONTOUR = 32  # points of the circle on which the coefficients are averaged
Watch = Callable[[float], None]  # is told which share of the way is done


@dataclass(frozen=True)
class Stepper:
    """v' = Lv + N(v) for Fourier coefficients v, L diagonal: one step of length dt, order 4."""

    linear: Tensor
    nonlinear: Callable[[Tensor], Tensor]
    dt: float

    def coefficients(self) -> tuple[Tensor, ...]:
        """e^{Ldt}, e^{Ldt/2}, and the weights of the four stages; near L = 0 by means over a circle around it."""
        z = self.linear.to(torch.complex128) * self.dt
        turn = torch.exp(1j * math.pi * (torch.arange(CONTOUR, dtype=torch.float64) + 0.5) / (CONTOUR / 2))
        r = z[..., None] + turn
        e, half = r.exp(), (r / 2).exp()
        parts = (
            (half - 1) / r,
            (-4 - r + e * (4 - 3 * r + r * r)) / r**3,
            (2 + r + e * (r - 2)) / r**3,
            (-4 - 3 * r - r * r + e * (4 - r)) / r**3,
        )
        kept = [(self.dt * part.mean(-1)) for part in parts]
        real = not self.linear.is_complex()
        return z.exp().real if real else z.exp(), *(each.real if real else each for each in ((z / 2).exp(), *kept))

    def run(self, v: Tensor, steps: int, watch: Watch | None = None) -> Tensor:
        """So many steps."""
        whole, half, q, first, middle, last = self.coefficients()
        for step in range(steps):
            n0 = self.nonlinear(v)
            a = half * v + q * n0
            na = self.nonlinear(a)
            b = half * v + q * na
            nb = self.nonlinear(b)
            c = half * a + q * (2 * nb - n0)
            v = whole * v + first * n0 + 2 * middle * (na + nb) + last * self.nonlinear(c)
            if watch is not None:
                watch((step + 1) / steps)
        return v


def burgers(
    initial: Float[Tensor, "*b n"],
    viscosity: float = 0.01,
    until: float = 1.0,
    steps: int | None = None,
    watch: Watch | None = None,
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


def normals(count: int, generator: torch.Generator) -> Tensor:
    """Normal numbers, of which a longer row begins with the shorter.

    Rows of ``torch.randn`` do not: it draws its last sixteen anew unless sixteen divides the length.
    """
    return torch.randn(-(-count // 16) * 16, generator=generator, dtype=torch.float64)[:count]


def burgers_pairs(
    count: int,
    n: int = 1024,
    viscosity: float = 0.01,
    until: float = 1.0,
    seed: int = 0,
    watch: Watch | None = None,
) -> Pairs:
    """u(·, 0) ↦ u(·, until) of Burgers' equation on the unit circle, u(·, 0) drawn from N(0, 625(−Δ + 25)^{−2}).

    Draws have mean zero, as those of Li et al. (2021): a mean m only carries the whole wave along by m·until.
    Solved on n·2^m ≥ 10/ν nodes and kept at n of them, so a coarse set is a fine one thinned; draw i is a function of
    (seed, i). The steps of a draw follow its speed U: their length is at most ν/U², the time of a shock of that speed.
    """
    _check(n, viscosity, until)
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


def in_chunks(
    count: int, size: int, make: Callable[[range], tuple[Tensor, ...]], watch: Watch | None
) -> tuple[Tensor, ...]:
    """Draws 0…count−1 made ``size`` at a time, in float32."""
    if count < 1:
        raise ConfigError("a set needs at least one draw", got=count, remedy="Ask for a count above zero.")
    found = []
    for start in range(0, count, size):
        found.append([part.float() for part in make(range(start, min(start + size, count)))])
        if watch is not None:
            watch(min(start + size, count) / count)
    return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


def check_finite(values: Tensor, what: str = "the field") -> None:
    """Refuse NaN and infinity before they spread over the whole domain."""
    if not bool(torch.isfinite(values).all()):
        bad = int((~torch.isfinite(values)).sum())
        raise ShapeError(f"{what} must be finite", got=f"{bad} NaN or infinite values", remedy="Leave them out.")


def _steps(speed: float, n: int, viscosity: float, until: float) -> int:
    """A power of two, so that few groups arise. Measured against Cole–Hopf: errors of 1e-8 to 1e-7."""
    needed = until * max(128.0, min(speed * speed / viscosity, speed * n / 2))
    return int(2 ** math.ceil(math.log2(max(16.0, needed))))


def _check(n: int, viscosity: float, until: float) -> None:
    if n < 8 or not (0 < viscosity < math.inf and 0 < until < math.inf):
        got = f"{n} nodes, viscosity {viscosity:g}, time {until:g}"
        raise ConfigError(
            "this is no viscous flow on a circle", got=got, remedy="Use n ≥ 8, ν > 0 and a positive time."
        )
