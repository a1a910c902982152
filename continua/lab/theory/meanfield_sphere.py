"""The mean field on S²: ∂_t ρ + div(ρ V[ρ]) = (1/κ) Δρ, in spherical harmonics."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from continua.errors import ShapeError
from continua.flow import Control
from continua.lab.particles.harmonics import Harmonics
from continua.lab.particles.interaction import Interaction
from continua.lab.particles.simulate import FRAMES
from continua.lab.progress import ReportShare
from continua.lab.theory.growth import over_beta
from continua.lab.theory.meanfield import follow, frames, kind_of, scale_of
from continua.lab.theory.wasserstein import MASS
from continua.typing import Tensor


@dataclass(frozen=True, eq=False)
class SphereField:
    """ρ(t, x) = Σ a_lm(t) Y_lm(x) at the k ``times``: complex coefficients [k, …, l, m], ∫ρ dA = 1.

    As on the circle, ``least`` below zero or a ``tail`` that is not small say that the degree is too low.
    """

    times: Tensor
    coefficients: Tensor
    interaction: Interaction
    evaluations: int = 0

    @property
    def harmonics(self) -> Harmonics:
        """The basis, with the grid on which densities are read."""
        return Harmonics(self.coefficients.shape[-1] - 1)

    @property
    def density(self) -> Tensor:
        """ρ against the area on the grid of ``harmonics``: [k, …, latitude, longitude]."""
        return self.harmonics.synthesise(self.coefficients)

    @property
    def mass(self) -> Tensor:
        """∫ρ dA at each time."""
        return self.coefficients[..., 0, 0].real * math.sqrt(4 * math.pi)

    @property
    def least(self) -> Tensor:
        """min ρ over the grid at each time: positivity is not forced, but told."""
        return self.density.flatten(-2).amin(-1)

    @property
    def power(self) -> Tensor:
        """Σ_m |a_lm|² for each degree, both signs of m: [k, …, l]. Rotations do not change it."""
        square = self.coefficients.abs() ** 2
        return 2 * square.sum(-1) - square[..., 0]

    @property
    def tail(self) -> Tensor:
        """The largest √power of the upper third of the degrees, beside that of degree zero."""
        size = self.power.sqrt()
        return size[..., 2 * (size.shape[-1] // 3) :].amax(-1) / size[..., 0]


def sphere_mean_field(
    interaction: Interaction,
    coefficients: Tensor,
    until: float,
    *,
    save: int | Tensor = FRAMES,
    control: Control | None = None,
    watch: ReportShare | None = None,
) -> SphereField:
    """Solve the transport equation on S² from a_lm ([…, L+1, L+1], as ``Harmonics(L).analyse`` gives them).

    SA, USA and Sinkhorn with Q = K = V = I; noise is the interaction's κ. Products are taken on a grid that is exact
    for three fields of degree L, and a_00 never moves, so mass stays.
    """
    degree = coefficients.shape[-1] - 1
    _checked(coefficients)
    field = sphere_field(interaction, degree)
    times = frames(save, until)
    start = torch.view_as_real(coefficients.to(torch.complex128))
    states, evaluations = follow(field, start.contiguous(), times, control, watch)
    return SphereField(times, torch.view_as_complex(states), interaction, evaluations)


def sphere_field(interaction: Interaction, degree: int) -> Callable[[Tensor], Tensor]:
    """a_lm ↦ d a_lm/dt as pairs of real numbers [..., l, m, 2].

    ρV = s ∇W with s and W as on the circle, and div(s ∇W) = ½ [ Δ(sW) + s ΔW − W Δs ] needs scalar harmonics only.
    """
    pull = kind_of(interaction)
    scale = scale_of(interaction, 3)
    y = Harmonics(degree, 3 * degree // 2 + 1)
    over = 4 * math.pi * over_beta(interaction.beta, 3, max(1, degree))[: degree + 1, None]
    spread = interaction.beta * over
    spread[0] = 4 * math.pi
    laplacian = y.laplacian
    grid = (y.latitudes, y.longitudes)

    def blur(values: Tensor) -> Tensor:
        return y.synthesise(y.analyse(values.unflatten(-1, grid)) * spread.to(values)).flatten(-2)

    def field(state: Tensor) -> Tensor:
        a = torch.view_as_complex(state)
        moved, pulling = (
            y.analyse(each.unflatten(-1, grid)) for each in pull(y.synthesise(a).flatten(-2), blur, scale)
        )
        delta = laplacian.to(state)
        w = pulling * over.to(state)
        s_here = y.synthesise(moved)
        w_here = y.synthesise(w)
        inside = s_here * y.synthesise(delta * w) - w_here * y.synthesise(delta * moved)
        spreading = (delta * y.analyse(s_here * w_here) + y.analyse(inside)) / 2
        change = delta / interaction.kappa * a - spreading
        change = torch.cat([torch.zeros_like(change[..., :1, :]), change[..., 1:, :]], -2)  # l = 0 is the mass
        return torch.view_as_real(change)

    return field


def _checked(coefficients: Tensor) -> None:
    square = coefficients.dim() >= 2 and coefficients.shape[-1] == coefficients.shape[-2] > 1
    if not square or not coefficients.is_complex():
        got = f"{list(coefficients.shape)} of {coefficients.dtype}"
        remedy = "Use Harmonics(L).analyse(values) with L ≥ 1."
        raise ShapeError("a density on S² is given by its a_lm", got=got, remedy=remedy)
    mass = coefficients[..., 0, 0].real * math.sqrt(4 * math.pi)
    worst = float(mass.flatten()[(mass - 1).abs().argmax()])
    if not abs(worst - 1) < MASS or not bool(torch.isfinite(torch.view_as_real(coefficients)).all()):
        remedy = "Divide the coefficients by a_00 √(4π)."
        raise ShapeError("a density is finite and has total mass one", got=f"{worst:.6g}", remedy=remedy)
