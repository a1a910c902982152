"""Navier–Stokes in two dimensions, as vorticity on the unit torus: pseudo-spectral, ETDRK4, dealiased."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from continua import constants, memory
from continua.axes import Circle, Product
from continua.data.etdrk4 import Stepper
from continua.data.generation import ShareDone, check_finite, generator_for, in_chunks, normals
from continua.data.pairs import Pairs, lattice
from continua.errors import ConfigError, SolveError
from continua.settings import checked
from continua.typing import Float, Tensor

TORUS = Product((Circle(), Circle()))
COURANT = 1.5  # radians by which the flow turns the shortest wave in a step; ETDRK4 is stable up to about 2.8
WORKING = 128  # bytes of a node while it is solved for
UNRESOLVED = 1e-2  # share of the shortest waves at which a path is refused


class TorusWaves(NamedTuple):
    """The Fourier waves exp(i(k_x x + k_y y)) of a real field on an n × n torus."""

    x: Tensor  # k_x [n, 1]
    y: Tensor  # k_y [1, n/2 + 1]
    square: Tensor  # |k|²
    inverse: Tensor  # 1/|k|², and 0 for the mean
    kept: Tensor  # those that products leave untouched by aliasing: below n/3 in both directions


@constants.bounded(8)
def waves(n: int) -> TorusWaves:
    """The waves of an n × n torus of side 1."""
    if n < 8 or n % 2:
        raise ConfigError("a torus needs an even number of nodes, 8 or more", got=n, remedy="Use 64.")
    x = 2 * math.pi * torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)[:, None]
    y = 2 * math.pi * torch.arange(n // 2 + 1, dtype=torch.float64)[None]
    square = x * x + y * y
    kept = torch.maximum(x.abs(), y) < 2 * math.pi * n / 3
    return TorusWaves(x, y, square, torch.where(square > 0, 1 / square.clamp_min(1.0), 0.0), kept)


def velocity(vorticity: Float[Tensor, "*b n n"]) -> tuple[Tensor, Tensor]:
    """(u, v) = (ψ_y, −ψ_x) with −Δψ = ω: the flow without a mean whose curl v_x − u_y is ω."""
    n = vorticity.shape[-1]
    return _velocity(torch.fft.rfft2(vorticity.double()), n)


def _velocity(w: Tensor, n: int) -> tuple[Tensor, Tensor]:
    k = waves(n)
    stream = w * k.inverse
    return torch.fft.irfft2(1j * k.y * stream, s=(n, n)), torch.fft.irfft2(-1j * k.x * stream, s=(n, n))


def advection(n: int, push: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """−u·∇ω (+ push) of Fourier coefficients: −(∂_x² − ∂_y²)(uv) − ∂_x∂_y(v² − u²), four transforms instead of five."""
    k = waves(n)
    first = torch.where(k.kept, k.x * k.x - k.y * k.y, 0.0)
    second = torch.where(k.kept, k.x * k.y, 0.0)

    def nonlinear(w: Tensor) -> Tensor:
        u, v = _velocity(w, n)
        turned = first * torch.fft.rfft2(u * v) + second * torch.fft.rfft2(v * v - u * u)
        return turned if push is None else turned + push

    return nonlinear


def usual_forcing(n: int) -> Float[Tensor, "n n"]:
    """f(x, y) = 0.1 (sin 2π(x + y) + cos 2π(x + y)), sampled at (i, j)/n."""
    x = torch.arange(n, dtype=torch.float64) / n
    phase = 2 * math.pi * (x[:, None] + x)
    return 0.1 * (phase.sin() + phase.cos())


def navier_stokes(
    initial: Float[Tensor, "*b n n"],
    viscosity: float = 1e-3,
    until: float = 1.0,
    forcing: Float[Tensor, "n n"] | None = None,
    steps: int | None = None,
    watch: ShareDone | None = None,
) -> Float[Tensor, "*b n n"]:
    """ω_t + u·∇ω = νΔω + f on the unit torus: ω at the time ``until``. Fields are sampled at (i, j)/n.

    Without ``steps`` there are at least n/2 a unit of time, and so many that the shortest wave kept turns by at most
    1.5 radians in each. The mean of ω and f, which a torus cannot have, is dropped.
    """
    n = initial.shape[-1]
    if not (0 < viscosity < math.inf and 0 < until < math.inf):
        got = f"viscosity {viscosity:g}, time {until:g}"
        raise ConfigError("this is no viscous flow", got=got, remedy="Use ν > 0 and a positive time.")
    check_finite(initial, "the vorticity")
    k = waves(n)
    free = k.kept & (k.square > 0)
    push = None
    if forcing is not None:
        check_finite(forcing, "the forcing")
        push = torch.where(free, torch.fft.rfft2(forcing.double()), 0.0)
    w = torch.where(free, torch.fft.rfft2(initial.double()), 0.0)
    if steps is None:
        steps = _steps(w, n, until, push)
    found = Stepper(-viscosity * k.square, advection(n, push), until / steps).run(w, steps, watch)
    return torch.fft.irfft2(found, s=(n, n))


def _steps(w: Tensor, n: int, until: float, push: Tensor | None) -> int:
    """The speed at the start, with what the forcing may add on the way."""
    speed = max(float(part.abs().max()) for part in _velocity(w, n))
    if push is not None:
        speed += until * max(float(part.abs().max()) for part in _velocity(push, n))
    fastest = speed * 2 * math.pi * n / 3
    return int(2 ** math.ceil(math.log2(max(16.0, until * n / 2, until * fastest / COURANT))))


def torus_field(
    n: int, generator: torch.Generator, scale: float = 7**1.5, inverse_length: float = 7.0, power: float = 2.5
) -> Float[Tensor, "n n"]:
    """A draw of N(0, σ²(−Δ + τ²)^{−α}) on the unit torus, mean zero: σ = scale, τ = inverse_length, α = power.

    Waves are drawn in shells of growing max(|i|, |j|), so a finer grid shows the same field with finer waves.
    """
    top = n // 2 - 1  # the wave n/2 has no sine on the grid
    i = torch.arange(-top, top + 1)
    shell = torch.maximum(i[:, None].abs(), i.abs())
    ring = torch.where(i.abs() == shell, (i[:, None] + shell) * 2 + (i > 0), 0)
    ring = torch.where(i.abs() < shell, 2 * (2 * shell + 1) + (i + shell - 1) * 2 + (i[:, None] > 0), ring)
    inside = (2 * shell - 1).clamp_min(0) ** 2
    drawn = normals((2 * top + 1) ** 2, generator)[inside + ring]
    square = (2 * math.pi) ** 2 * (i[:, None] ** 2 + i**2).double()
    drawn = drawn * scale * (square + inverse_length**2) ** (-power / 2) * (square > 0)
    # a real wave for each of (i, j) and −(i, j): cosine and sine, together cas = cos + sin
    spectrum = torch.zeros(n, n, dtype=torch.float64)
    spectrum[i[:, None], i] = drawn
    found = torch.fft.fft2(spectrum)
    return found.real - found.imag


@checked
def vorticity_paths(
    count: int,
    n: int = 64,
    viscosity: float = 1e-3,
    times: int = 20,
    refine: int = 1,
    seed: int = 0,
    watch: ShareDone | None = None,
) -> Float[Tensor, "count times n n 1"]:
    """ω(·, 0), ω(·, 1), …, ω(·, times − 1) under the usual forcing, from draws of N(0, 7³(−Δ + 49)^{−5/2}).

    Solved on refine·n nodes a side and kept at n; refused where that grid is too coarse for the viscosity. Path i is
    a function of (seed, i).
    """
    if times < 2 or refine < 1:
        got = f"{times} times, refine {refine}"
        raise ConfigError("a path needs two times or more", got=got, remedy="Use times ≥ 2 and refine ≥ 1.")
    fine = refine * n
    memory.require(WORKING * fine**2, f"a torus of {fine} nodes a side", "Use a smaller n or refine.")
    memory.require(4 * count * times * n**2, f"a set of {count} paths", "Ask for fewer, or for fewer nodes.")
    waves(fine)  # refuses a torus too small
    push = usual_forcing(fine)

    def make(indices: range) -> tuple[Tensor]:
        w = torch.stack([torus_field(fine, generator_for("vorticity", seed, i)) for i in indices])
        path = [w]
        for step in range(1, times):
            path.append(navier_stokes(path[-1], viscosity, 1.0, push))
            check_resolved(path[-1], viscosity)
            if watch is not None:
                watch((indices.start + len(indices) * step / (times - 1)) / count)
        return (torch.stack(path, 1)[:, :, ::refine, ::refine, None],)

    return in_chunks(count, max(1, 2**16 // fine**2), make, None)[0]


def check_resolved(vorticity: Tensor, viscosity: float, most: float = UNRESOLVED) -> None:
    """The share of the shortest fifth of the waves: measured, it is about the error against a grid twice as fine."""
    n = vorticity.shape[-1]
    k = waves(n)
    w = torch.fft.rfft2(vorticity).abs().square()
    short = k.kept & (torch.maximum(k.x.abs(), k.y) > 0.8 * 2 * math.pi * n / 3)
    share = float(((w * short).sum((-1, -2)) / w.sum((-1, -2))).sqrt().max())
    if not share < most:
        raise SolveError(
            f"{n} nodes a side do not resolve the viscosity {viscosity:g}",
            got=f"a share of {share:.1g} in the shortest waves",
            remedy="Use refine=2 or more, or a greater viscosity.",
        )


@checked
def vorticity_pairs(
    count: int,
    n: int = 64,
    viscosity: float = 1e-3,
    times: int = 20,
    refine: int = 1,
    seed: int = 0,
    watch: ShareDone | None = None,
) -> Pairs:
    """ω(·, t) ↦ ω(·, t + 1) along the paths of ``vorticity_paths``, in order: times − 1 pairs of a path, then the next.

    ``count`` is the number of pairs; the last path may be cut. Hold out whole paths: neighbours in time are alike.
    """
    each = max(1, times - 1)
    paths = vorticity_paths(-(-count // each), n, viscosity, times, refine, seed, watch)
    inputs, outputs = (part.flatten(0, 1)[:count] for part in (paths[:, :-1], paths[:, 1:]))
    line = torch.arange(n, dtype=torch.float64) / n
    return Pairs("navier-stokes", TORUS, inputs, outputs, lattice(TORUS, line, line))
