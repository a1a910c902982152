"""Burgers' and Darcy's equation with inputs whose waves end at a given band, for ``aliasing.py``.

A grid of n cells along a direction tells waves below n/2 a turn apart (Nyquist). Inputs of Burgers are sums of sines
and cosines around the circle, inputs of Darcy are the logarithm of the permeability, a sum of cosines in the square;
both end exactly at their band. Answers come from the library's solvers: Burgers on 1,024 nodes, Darcy on 129² nodes,
the finest grid that is asked (solved on 257² the answers differ by 5e-5 to 1e-4, relative). Where a grid does not show
all waves, ``SOLVED`` is what the equation itself makes of the values there.
"""

import math
from collections.abc import Callable
from pathlib import Path

import torch

from continua.axes import Circle
from continua.data.burgers import burgers, cole_hopf
from continua.data.darcy import SQUARE, darcy
from continua.data.generation import ShareDone, generator_for, in_chunks, normals
from continua.data.pairs import Pairs, lattice
from continua.data.store import cached
from continua.typing import Tensor

FINE = 128  # cells along a side of the finest grid that is asked
VISCOSITY = 0.01
SPEED = 1.0  # root mean square of the start
SPREAD = 0.5  # of the logarithm of the permeability
SHOCK = 1024  # nodes that Burgers is solved on: ten in a shock of width ν
EXACT = 256  # nodes that Cole and Hopf's formula needs for the same within 1e-7
DRAWS = 256  # starts that agree with given values


def start_of(band: int, n: int, generator: torch.Generator) -> Tensor:
    """Σ_{1 ≤ k < band} of waves around the circle on n nodes; the amplitude of wave k falls as 1/√(k² + 4)."""
    size = size_of(band)
    drawn = normals(2 * len(size), generator).reshape(-1, 2)
    v = torch.zeros(n // 2 + 1, dtype=torch.complex128)
    v[1:band] = torch.complex(drawn[:, 0], drawn[:, 1]) * size * (n / 2)
    return torch.fft.irfft(v, n)


def size_of(band: int) -> Tensor:
    """The amplitudes of these waves: their sum has the root mean square ``SPEED``."""
    k = torch.arange(1, band, dtype=torch.float64)
    size = (k * k + 4).rsqrt()
    return size * (SPEED / size.square().sum().sqrt())


def burgers_of(count: int, band: int, seed: int, watch: ShareDone | None = None) -> Pairs:
    """u(·, 0) ↦ u(·, 1) on ``FINE`` nodes of a circle, ν = 0.01, from starts of a band."""

    def make(indices: range) -> tuple[Tensor, Tensor]:
        start = torch.stack([start_of(band, SHOCK, generator_for("aliasing burgers", seed, i)) for i in indices])
        end = burgers(start, VISCOSITY, 1.0, 1024)
        stride = SHOCK // FINE
        return start[:, ::stride, None], end[:, ::stride, None]

    inputs, outputs = in_chunks(count, 64, make, watch)
    return Pairs(
        "burgers", Circle(), inputs, outputs, lattice(Circle(), torch.arange(FINE, dtype=torch.float64) / FINE)
    )


def through(values: Tensor, band: int) -> Tensor:
    """u(·, 1) at n nodes from the values [b, n] of u(·, 0) there: solved for the slowest waves through them."""
    n = values.shape[1]
    waves = torch.fft.rfft(values, norm="forward")[:, : n // 2]
    return solved(torch.fft.irfft(waves, EXACT, norm="forward"), n)


def without_mean(values: Tensor, band: int) -> Tensor:
    """The same for values less their mean, since a start of these has none: a mean is of waves that folded onto it."""
    return through(values - values.mean(1, keepdim=True), band)


def expected(values: Tensor, band: int) -> Tensor:
    """The mean of u(·, 1) over starts of a band with these values: no answer has less error in the mean square.

    A start is drawn, and moved to the values by the conditional mean of the waves given them (Matheron).
    """
    n = values.shape[1]
    seen = waves_of(band, n)
    gain = torch.linalg.pinv(seen @ seen.mT, rtol=1e-10, hermitian=True) @ seen  # [n, 2(band − 1)]
    found = []
    for i, own in enumerate(values):
        drawn = normals(DRAWS * seen.shape[1], generator_for("aliasing starts", i)).reshape(DRAWS, -1)
        agreed = drawn + (own - drawn @ seen.mT) @ gain
        found.append(solved(agreed @ waves_of(band, EXACT).mT, n).mean(0))
    return torch.stack(found)


def waves_of(band: int, n: int) -> Tensor:
    """Cosines and sines [n, 2(band − 1)] of unit variance in ``start_of``, at n nodes."""
    angle = 2 * math.pi * torch.outer(torch.arange(n, dtype=torch.float64) / n, torch.arange(1, band))
    return torch.cat([size_of(band) * angle.cos(), -size_of(band) * angle.sin()], 1)


def solved(start: Tensor, n: int) -> Tensor:
    """u(·, 1) at n nodes from a start at ``EXACT`` nodes."""
    return cole_hopf(start, VISCOSITY, 1.0)[:, :: EXACT // n]


SOLVED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "the exact solver on these values": through,
    "the exact solver on these values less their mean": without_mean,
    f"the mean of the exact solver over {DRAWS} starts with these values": expected,
}


def medium_of(band: int, n: int, generator: torch.Generator) -> Tensor:
    """Σ_{k, l < band} of cosines on n² nodes with both ends; the amplitude falls as 1/(k² + l² + 2)."""
    k = torch.arange(band, dtype=torch.float64)
    size = 1 / (k[:, None].square() + k.square() + 2)
    size[0, 0] = 0.0
    drawn = normals(band * band, generator).reshape(band, band) * size * (SPREAD / size.square().sum().sqrt() * 2)
    waves = torch.cos(math.pi * torch.outer(torch.arange(n, dtype=torch.float64) / (n - 1), k))
    return waves @ drawn @ waves.T


def darcy_of(count: int, band: int, seed: int, watch: ShareDone | None = None) -> Pairs:
    """log a ↦ u with −∇·(a∇u) = 1 in the square, u = 0 on its boundary, on ``FINE`` cells a side, ends included."""

    def make(indices: range) -> tuple[Tensor, Tensor]:
        log = torch.stack([medium_of(band, FINE + 1, generator_for("aliasing darcy", seed, i)) for i in indices])
        u = darcy(log.exp(), tolerance=1e-7)
        return log[..., None], u[..., None]

    inputs, outputs = in_chunks(count, 4, make, watch)
    line = torch.linspace(0, 1, FINE + 1, dtype=torch.float64)
    return Pairs("darcy", SQUARE, inputs, outputs, lattice(SQUARE, line, line))


def made(equation: str, count: int, band: int, seed: int, root: Path | None = None) -> Pairs:
    """A set by its equation, from the cache if it was made before."""
    make = {"burgers": burgers_of, "darcy": darcy_of}[equation]
    return cached(make, f"aliasing-{equation}", {"count": count, "band": band, "seed": seed}, None, 1, root)
