"""The energy that attention climbs: its value, its gradient, and how fast an interaction climbs it."""

import math

import torch

from continua.errors import ConfigError
from continua.lab.particles.interaction import Interaction, Unnormalised, balanced
from continua.lab.particles.particles import Particles
from continua.lab.particles.simulate import Simulation
from continua.lab.particles.sums import (
    OVERFLOW,
    SHARPEST,
    Query,
    by_rows,
    log_weights,
    modes,
    powers,
    real_harmonics,
)
from continua.settings.ranges import LARGEST
from continua.typing import Float, Tensor

PART = 256  # tokens whose modes are in memory at once: they stay in the cache


def energy(particles: Particles, beta: float) -> Float[Tensor, "*b"]:
    """E_β = (1/2β) Σ_ij w_i w_j e^{β⟨x_i, x_j⟩}; at β = 0 the limit of E_β − 1/(2β), which is ½ |Σ_i w_i x_i|².

    Grows along USA and SA, falls for V = −I. Batches of particles have an energy each.

    >>> round(energy(Particles.polygon(2), 1.0).item(), 4), round(math.cosh(1.0) / 2, 4)
    (0.7715, 0.7715)
    """
    if abs(_finite(beta)) > OVERFLOW:
        remedy = "Use log_energy, which stays finite."
        raise ConfigError(
            "the energy grows as e^β and leaves the range of numbers", got=f"beta={beta:g}", remedy=remedy
        )
    if beta == 0:
        return mean_cosine(particles) / 2
    return log_energy(particles, beta).exp() * math.copysign(1.0, beta)


def log_energy(particles: Particles, beta: float) -> Float[Tensor, "*b"]:
    """log |E_β|, finite for every β.

    Time O(n²) and memory O(n), by blocks; on the circle and on S², for β > 0 and many tokens, by the moments of the
    measure in time O(n): Σ_k I_k(β) |m_k|² is a sum of positive terms, which loses nothing to cancellation.
    """
    if _finite(beta) == 0:
        return mean_cosine(particles).log() - math.log(2)
    series = _series(particles, beta)
    if series is None:
        logs = log_weights(_query(particles, beta))
        total = torch.logsumexp(
            log_normalisers(particles, beta) + (-math.log(particles.n) if logs is None else logs), -1
        )
    else:
        total = series.log() + beta
    return total - math.log(2 * abs(beta))


def log_normalisers(particles: Particles, beta: float) -> Float[Tensor, "*b n"]:
    """log Z_i, Z_i = Σ_j w_j e^{β⟨x_i, x_j⟩}: what softmax divides by."""
    one = torch.ones(1, 1, dtype=particles.x.dtype, device=particles.x.device)
    return by_rows(_query(particles, beta), lambda scores: torch.logsumexp(scores, -1, keepdim=True), one)[..., 0]


def energy_gradient(particles: Particles, beta: float) -> Float[Tensor, "*b n d"]:
    """∇_i E = w_i P_{x_i} Σ_j w_j e^{β⟨x_i, x_j⟩} x_j, tangent to the sphere: USA is x_i' = ∇_i E / w_i (n ∇_i E)."""
    return particles.masses[..., None] * Unnormalised(beta).velocity(particles.x, particles.weights)


def energy_rate(interaction: Interaction, particles: Particles) -> Float[Tensor, "*b"]:
    """dE/dt = Σ_i ⟨∇_i E, x_i'⟩: how fast an interaction climbs E_β of its own β.

    USA: Σ_i w_i |x_i'|². SA: Σ_i w_i Z_i |x_i'|², because SA climbs E too, in a metric that is weighted with Z.
    """
    velocity = interaction.velocity(particles.x, particles.weights)
    return (energy_gradient(particles, interaction.beta) * velocity).sum((-2, -1))


def energies(simulation: Simulation, beta: float | None = None) -> Float[Tensor, "k *b"]:
    """E_β at every time of a simulation, for its own β if none is given."""
    own = simulation.interaction.beta if beta is None else beta
    return torch.stack([energy(simulation.at(i), own) for i in range(len(simulation.times))])


def sinkhorn_energy(particles: Particles, beta: float) -> Float[Tensor, "*b"]:
    """F_β = (1/2β) max_π [ β Σ_ij π_ij ⟨x_i, x_j⟩ − KL(π | w⊗w) ] over couplings π of the measure with itself.

    Sinkhorn attention is x_i' = ∇_i F / w_i (Sander et al. 2022). Memory O(n²).
    """
    if _finite(beta) == 0:
        return mean_cosine(particles) / 2
    scores = beta * (particles.x @ particles.x.mT)
    logs = particles.masses.clamp_min(torch.finfo(particles.x.dtype).tiny).log()
    f = balanced(scores, logs, symmetric=True)
    return -(particles.masses * f).sum(-1) / beta  # the dual: −Σ w (f + g), with g = f for symmetric scores


def mean_cosine(particles: Particles) -> Float[Tensor, "*b"]:
    """Σ_ij w_i w_j ⟨x_i, x_j⟩ = |Σ_i w_i x_i|²: one if all tokens are the same."""
    return (particles.masses[..., None] * particles.x).sum(-2).square().sum(-1)


def _series(particles: Particles, beta: float) -> Tensor | None:
    """e^{−β} Σ_ij w_i w_j e^{β⟨x_i, x_j⟩} through moments, where that is right and quicker than all pairs."""
    n, d = particles.x.shape[-2:]
    if not 0 <= beta <= SHARPEST or d > 3:
        return None
    kernel = modes(beta, d, particles.x)
    if n < 4 * len(kernel) ** (d - 1):
        return None
    parts = zip(particles.x.double().split(PART, -2), particles.masses.double().split(PART, -1), strict=True)
    if d == 2:
        count = len(kernel)
        double = torch.cat([kernel[:1], 2 * kernel[1:]])
        circle = [(powers(torch.complex(x[..., 0], x[..., 1]), count) * w[..., None]).sum(-2) for x, w in parts]
        moments = torch.stack(circle).sum(0)
        return ((moments.real**2 + moments.imag**2) @ double).to(particles.x.dtype)
    ball = torch.stack([(real_harmonics(x, len(kernel) - 1) * w[..., None, :]).sum(-1) for x, w in parts]).sum(0)
    each = torch.cat([kernel[l].expand(2 * l + 1) for l in range(len(kernel))]) * (4 * math.pi)
    return (ball**2 @ each).to(particles.x.dtype)


def _query(particles: Particles, beta: float) -> Query:
    return Query(particles.x, particles.x, particles.weights, beta, False, 1.0, math.copysign(1.0, beta))


def _finite(beta: float) -> float:
    if not -LARGEST <= beta <= LARGEST:
        raise ConfigError("beta is an inverse temperature", got=beta, remedy="Use a finite number.")
    return float(beta)
