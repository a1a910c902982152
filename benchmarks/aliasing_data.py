"""Burgers' and Darcy's equation with inputs whose waves end at a given band, for ``aliasing.py``.

A grid of n cells along a direction tells waves below n/2 a turn apart (Nyquist). Inputs of Burgers are sums of sines
and cosines around the circle, inputs of Darcy are the logarithm of the permeability, a sum of cosines in the square;
both end exactly at their band. Answers come from the library's solvers: Burgers on 1,024 nodes, Darcy on 129² nodes,
the finest grid that is asked (solved on 257² the answers differ by 5e-5 to 1e-4, relative).
"""

import math
from pathlib import Path

import torch

from continua.axes import Circle
from continua.data.burgers import burgers
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


def start_of(band: int, n: int, generator: torch.Generator) -> Tensor:
    """Σ_{1 ≤ k < band} of waves around the circle on n nodes; the amplitude of wave k falls as 1/√(k² + 4)."""
    k = torch.arange(1, band, dtype=torch.float64)
    size = (k * k + 4).rsqrt()
    size = size * (SPEED / size.square().sum().sqrt())
    drawn = normals(2 * len(k), generator).reshape(-1, 2)
    v = torch.zeros(n // 2 + 1, dtype=torch.complex128)
    v[1:band] = torch.complex(drawn[:, 0], drawn[:, 1]) * size * (n / 2)
    return torch.fft.irfft(v, n)


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


def burgers_through(values: Tensor) -> Tensor:
    """u(·, 1) at n nodes from the values [b, n] of u(·, 0) there: solved for the slowest waves through them."""
    n = values.shape[1]
    waves = torch.fft.rfft(values.double(), norm="forward")[:, : n // 2]
    start = torch.fft.irfft(waves, SHOCK, norm="forward")
    return burgers(start, VISCOSITY, 1.0, 1024)[:, :: SHOCK // n]


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
