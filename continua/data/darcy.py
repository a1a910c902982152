"""Darcy flow: steady flow through a medium of two materials on the unit square, by finite volumes."""

import math
from typing import Annotated

import torch

from continua import constants, memory
from continua.axes import Interval, Product
from continua.data.generation import ShareDone, check_finite, generator_for, in_chunks, normals
from continua.data.pairs import Pairs, lattice
from continua.errors import ConfigError, ShapeError, SolveError
from continua.settings import Range, checked
from continua.typing import Float, Tensor

SQUARE = Product((Interval(), Interval()))
TOLERANCE = 1e-10  # of the residual, relative to the source: far below the error of the grid
WORKING = 128  # bytes of a node while it is solved for
Material = Annotated[float, Range(high=1e30)]  # how easily it lets the flow through
PATIENCE = 500  # iterations; two materials of ratio 4 need about 22


def darcy(
    coefficient: Float[Tensor, "*b n n"], source: Float[Tensor, "*#b n n"] | float = 1.0, tolerance: float = TOLERANCE
) -> Float[Tensor, "*b n n"]:
    """−∇·(a∇u) = f on the unit square, u = 0 on its boundary; a, f and u at the nodes (i, j)/(n−1). Order 2.

    Between two nodes a is the harmonic mean, which keeps the flux across a jump. Conjugate gradients with −Δ inverted
    by sine transforms before each step: with κ = max a / min a the error falls by (√κ−1)/(√κ+1) an iteration, on every
    grid.
    """
    n = coefficient.shape[-1]
    if n < 3:
        remedy = "Use n ≥ 3; the outermost are the boundary."
        raise ConfigError("a square needs nodes inside", got=f"{n} along a side", remedy=remedy)
    check_finite(coefficient, "the coefficient")
    if not bool((coefficient > 0).all()):
        got = f"a smallest value of {float(coefficient.min()):g}"
        raise ShapeError("the coefficient must be positive", got=got, remedy="Use a > 0 everywhere.")
    a = coefficient.double().reshape(-1, n, n)
    f = torch.as_tensor(source, dtype=torch.float64, device=a.device).expand(coefficient.shape).reshape(-1, n, n)
    check_finite(f, "the source")
    u = torch.zeros_like(a)
    u[:, 1:-1, 1:-1] = _conjugate_gradients(a, f[:, 1:-1, 1:-1], tolerance)
    return u.reshape(coefficient.shape)


def flux_balance(a: Float[Tensor, "b n n"], inner: Float[Tensor, "b m m"]) -> Float[Tensor, "b m m"]:
    """−∇·(a∇u) at the inner nodes of a square, for u zero on the boundary: what flows out of each cell."""
    step = 1 / (a.shape[-1] - 1)
    u = torch.nn.functional.pad(inner, (1, 1, 1, 1))
    down = _between(a[:, :-1], a[:, 1:]) * u.diff(dim=1)
    across = _between(a[:, :, :-1], a[:, :, 1:]) * u.diff(dim=2)
    return -(down.diff(dim=1)[:, :, 1:-1] + across.diff(dim=2)[:, 1:-1]) / step**2


def _between(a: Tensor, b: Tensor) -> Tensor:
    return 2 * a * b / (a + b)


def _conjugate_gradients(a: Tensor, f: Tensor, tolerance: float) -> Tensor:
    """All samples at once, each with its own step; one that has arrived stands still."""
    sines, inverse = _sines(a.shape[-1])
    sines = sines.to(a.device)
    inverse = inverse.to(a.device)

    def inner(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum((1, 2), keepdim=True)

    u = torch.zeros_like(f)
    residual = f.clone()
    goal = tolerance * inner(f, f).sqrt()
    ready = sines @ ((sines @ residual @ sines) * inverse) @ sines
    direction = ready
    power = inner(residual, ready)
    for _ in range(PATIENCE):
        going = inner(residual, residual).sqrt() > goal
        if not bool(going.any()):
            return u
        pushed = flux_balance(a, direction)
        length = torch.where(going, power / inner(direction, pushed).clamp_min(1e-300), 0.0)
        u = u + length * direction
        residual = residual - length * pushed
        ready = sines @ ((sines @ residual @ sines) * inverse) @ sines
        before = power
        power = inner(residual, ready)
        direction = ready + torch.where(going, power / before.clamp_min(1e-300), 0.0) * direction
    raise SolveError(
        f"conjugate gradients did not arrive in {PATIENCE} iterations",
        got=f"a coefficient between {float(a.min()):g} and {float(a.max()):g}",
        remedy="Use a smaller contrast, or a larger tolerance.",
    )


@constants.bounded(8)
def _sines(n: int) -> tuple[Tensor, Tensor]:
    """The orthogonal sine transform of the inner nodes, and 1/λ of the five-point Laplacian in it."""
    k = torch.arange(1, n - 1, dtype=torch.float64)
    sines = math.sqrt(2 / (n - 1)) * torch.sin(math.pi * torch.outer(k, k) / (n - 1))
    line = (2 * (n - 1) * torch.sin(math.pi * k / (2 * (n - 1)))) ** 2
    return sines, 1 / (line[:, None] + line)


def neumann_field(
    n: int, generator: torch.Generator, inverse_length: float = 3.0, power: float = 2.0
) -> Float[Tensor, "n n"]:
    """A draw of N(0, (−Δ + τ²)^{−α}) with zero slope at the boundary of the unit square, mean zero.

    Cosine waves are drawn in shells of growing max(k, l), so a finer grid shows the same field with finer waves.
    """
    k = torch.arange(n)
    shell = torch.maximum(k[:, None], k)
    place = shell * shell + torch.where(k[:, None] < k, k[:, None], shell + k)
    drawn = normals(n * n, generator)[place]
    square = (math.pi * k.double()) ** 2
    size = (square[:, None] + square + inverse_length**2) ** (-power / 2)
    norm = torch.where(k > 0, math.sqrt(2.0), 1.0).double()
    coefficients = drawn * size * norm[:, None] * norm
    coefficients[0, 0] = 0
    waves = torch.cos(math.pi * torch.outer(torch.arange(n, dtype=torch.float64) / (n - 1), k.double()))
    return waves @ coefficients @ waves.T


@checked
def darcy_pairs(
    count: int,
    n: int = 141,
    high: Material = 12.0,
    low: Material = 3.0,
    refine: int = 1,
    seed: int = 0,
    watch: ShareDone | None = None,
) -> Pairs:
    """a ↦ u with −∇·(a∇u) = 1 on the unit square, u = 0 on its boundary: a is ``high`` where a random field is ≥ 0,
    else ``low``; the field is drawn from N(0, (−Δ + 9)^{−2}) with zero slope at the boundary.

    Solved on (n−1)·refine + 1 nodes a side, ends included, and kept at n. Draw i is a function of (seed, i).
    """
    if n < 5 or refine < 1 or low <= 0 or high <= 0:
        got = f"{n} nodes, refine {refine}, materials {low:g} and {high:g}"
        raise ConfigError("this is no flow on a square", got=got, remedy="Use n ≥ 5, refine ≥ 1 and materials > 0.")
    fine = (n - 1) * refine + 1
    memory.require(WORKING * fine**2, f"a square of {fine} nodes a side", "Use a smaller n or refine.")
    memory.require(8 * count * n**2, f"a set of {count} pairs", "Ask for fewer, or for fewer nodes.")

    def make(indices: range) -> tuple[Tensor, Tensor]:
        fields = torch.stack([neumann_field(fine, generator_for("darcy", seed, i)) for i in indices])
        a = torch.where(fields >= 0, torch.full_like(fields, high), low)
        u = darcy(a)
        return a[:, ::refine, ::refine, None], u[:, ::refine, ::refine, None]

    inputs, outputs = in_chunks(count, max(1, 2**16 // fine**2), make, watch)
    line = torch.linspace(0, 1, n, dtype=torch.float64)
    return Pairs("darcy", SQUARE, inputs, outputs, lattice(SQUARE, line, line))
