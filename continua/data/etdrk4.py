"""ETDRK4: v' = Lv + N(v) with a stiff, diagonal L in Fourier space, whose linear part is exact.

Cox & Matthews (2002), with coefficients by contour integrals as Kassam & Trefethen (2005).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from continua.data.generation import ShareDone
from continua.typing import Tensor

CONTOUR = 32  # points of the circle on which the coefficients are averaged


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
        e = r.exp()
        half = (r / 2).exp()
        parts = (
            (half - 1) / r,
            (-4 - r + e * (4 - 3 * r + r * r)) / r**3,
            (2 + r + e * (r - 2)) / r**3,
            (-4 - 3 * r - r * r + e * (4 - r)) / r**3,
        )
        kept = [(self.dt * part.mean(-1)) for part in parts]
        real = not self.linear.is_complex()
        return z.exp().real if real else z.exp(), *(each.real if real else each for each in ((z / 2).exp(), *kept))

    def run(self, v: Tensor, steps: int, watch: ShareDone | None = None) -> Tensor:
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
