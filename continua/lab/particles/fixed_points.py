"""States at rest: how they are found and followed, and whether they are stable."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from continua.errors import ConfigError, ShapeError, SolveFailed
from continua.geometry import sphere
from continua.lab.particles.interaction import Interaction
from continua.lab.particles.particles import Particles
from continua.lab.particles.sums import Dense
from continua.typing import Float, Tensor

NEUTRAL = 1e-9  # eigenvalues below this part of the largest count as zero
AT_REST = 1e-7  # a speed, relative to e^β for USA: what stability takes as a fixed point
STALLED = 1e-9  # and what Newton's method may stop at when round-off lets it go no further
FARTHEST = 0.5  # radians that a token moves in one step of Newton's method


def tangent_basis(x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d d-1"]:
    """Columns that span the tangent space at x, orthonormal, with det [x, columns] = 1; on the circle (−sin θ, cos θ).

    A reflection that takes the first axis to ±x has them as its other columns.
    """
    d = x.shape[-1]
    sign = torch.where(x[..., :1] >= 0, -1.0, 1.0).to(x)  # the reflection to the farther side: no cancellation
    first = torch.zeros_like(x)
    first[..., 0] = 1
    u = sphere.retract(x - sign * first)
    columns = (torch.eye(d, dtype=x.dtype, device=x.device) - 2 * u[..., :, None] * u[..., None, :])[..., 1:]
    return torch.cat([columns[..., :-1], columns[..., -1:] * -sign[..., None]], -1)


def jacobian(interaction: Interaction, particles: Particles) -> Tensor:
    """∂(x_i')/∂x_j in orthonormal tangent coordinates, a square matrix with n(d − 1) rows.

    On the circle it is ∂θ_i'/∂θ_j. Time and memory O(n² d²) at least: for up to a few hundred tokens.
    """
    return _linear(interaction, _single(particles))[1]


def spectrum(interaction: Interaction, particles: Particles) -> Tensor:
    """The eigenvalues of the Jacobian, complex, the most unstable first."""
    return _sorted(torch.linalg.eigvals(jacobian(interaction, particles)))


@dataclass(frozen=True, eq=False)
class Verdict:
    """How many directions return (``stable``), leave (``unstable``) or do neither; rotations of all tokens apart.

    ``leading`` is the eigenvalue with the largest real part, ``eigenvalues`` are all but those of rotations.
    """

    stable: int
    unstable: int
    neutral: int
    rotations: int
    leading: complex
    eigenvalues: Tensor

    @property
    def word(self) -> str:
        """Stable, unstable or neutral."""
        return "unstable" if self.unstable else "neutral" if self.neutral else "stable"

    @property
    def is_stable(self) -> bool:
        """Whether every perturbation decays, up to a rotation of all tokens."""
        return self.word == "stable"


def stability(interaction: Interaction, particles: Particles, neutral: float = NEUTRAL) -> Verdict:
    """Count the eigenvalues of the Jacobian at a fixed point by the sign of their real part.

    Where the interaction does not change under a rotation of all tokens, the fixed point has neighbours at rest; these
    zero modes are left out, exactly, by going to the quotient. Eigenvalues below ``neutral`` times the largest are 0.
    """
    particles = _single(particles)
    velocity, matrix = _linear(interaction, particles)
    speed = float(velocity.norm(dim=-1).max())
    scale = _scale(interaction)
    if speed > AT_REST * scale:
        remedy = "Use what fixed_point(interaction, particles) finds."
        raise ConfigError("only a state at rest has a stability", got=f"a token with speed {speed:.3g}", remedy=remedy)
    along = _turns(interaction, particles)
    basis = torch.linalg.qr(along, mode="complete").Q[:, along.shape[1] :]
    values = _sorted(torch.linalg.eigvals(basis.mT @ matrix @ basis))
    small = neutral * max(float(values.abs().max()), torch.finfo(matrix.dtype).tiny) if len(values) else 0.0
    up = int((values.real > small).sum())
    down = int((values.real < -small).sum())
    leading = complex(values[0]) if len(values) else complex(-math.inf)
    return Verdict(down, up, len(values) - up - down, along.shape[1], leading, values)


def fixed_point(
    interaction: Interaction, start: Particles, steps: int = 60, tolerance: float = 1e-12, least: float = 1e-3
) -> Particles:
    """x with x' = 0 near ``start``, stable or not, by Newton's method on the sphere.

    Each step solves J δ = −x' in tangent coordinates by least squares, δ without a common rotation, and goes along
    geodesics; it is halved (down to ``least``) until the speed falls. Ends when no token is faster than ``tolerance``,
    in float64.
    """
    here = _single(start)
    scale = _scale(interaction)
    velocity, matrix = _linear(interaction, here)
    for _ in range(steps):
        if float(velocity.norm(dim=-1).max()) <= tolerance * scale:
            return here
        step = _newton(interaction, here, velocity, matrix)
        share = 1.0
        speed = float(velocity.norm())
        while True:
            there = Particles(sphere.retract(sphere.exp(here.x, share * step)), here.weights)
            velocity, matrix = _linear(interaction, there)
            if share < least or float(velocity.norm()) < speed:
                break
            share /= 2
        here = there
        if not float(velocity.norm()) < speed:
            break
    fastest = float(velocity.norm(dim=-1).max())
    if fastest <= STALLED * scale:
        return here
    remedy = "Start nearer to one, for example at simulate(...).final."
    raise SolveFailed("Newton's method came to no fixed point", got=f"a speed of {fastest:.3g}", remedy=remedy)


@dataclass(frozen=True, eq=False)
class Branch:
    """A fixed point along β: where it is, and what is said of its stability."""

    betas: tuple[float, ...]
    points: tuple[Particles, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def changes(self) -> tuple[float, ...]:
        """The β at which the leading eigenvalue crosses zero, by linear interpolation between those that were asked."""
        found = []
        for i in range(len(self.betas) - 1):
            a, b = (verdict.leading.real for verdict in self.verdicts[i : i + 2])
            if (a > 0) != (b > 0):
                found.append(self.betas[i] - a * (self.betas[i + 1] - self.betas[i]) / (b - a))
        return tuple(found)


def continuation(
    interaction_of_beta: Callable[[float], Interaction], start: Particles, betas: Iterable[float]
) -> Branch:
    """Follow a fixed point through ``betas``, each found from the one before."""
    asked = [float(beta) for beta in betas]
    here = start
    points: list[Particles] = []
    verdicts: list[Verdict] = []
    if not asked:
        raise ConfigError("a branch is followed through at least one β", got="none", remedy="Give betas.")
    for beta in asked:
        interaction = interaction_of_beta(beta)
        try:
            here = fixed_point(interaction, here)
        except SolveFailed as failure:
            remedy = f"Take smaller steps there; the first {len(points)} were found."
            raise SolveFailed("the branch was lost", got=f"β={beta:g}", remedy=remedy, z=beta) from failure
        points.append(here)
        verdicts.append(stability(interaction, here))
    return Branch(tuple(asked), tuple(points), tuple(verdicts))


# --- states that are known to be at rest -----------------------------------------------------------------------------


def synchronised(n: int, d: int = 2) -> Particles:
    """All tokens in one place: every direction but rotations has the eigenvalue −1 (SA) or −e^β (USA)."""
    return antipodal(n, 0, d)


def antipodal(n: int, others: int, d: int = 2) -> Particles:
    """n tokens in one place and ``others`` in the opposite one."""
    signs = torch.cat([torch.ones(n, dtype=torch.float64), -torch.ones(others, dtype=torch.float64)])
    x = torch.zeros(n + others, d, dtype=torch.float64)
    x[:, 0] = signs
    return Particles(x)


def clustered(k: int, each: int = 1, d: int = 2) -> Particles:
    """A regular k-gon on a great circle with ``each`` tokens at every corner."""
    x = torch.zeros(k * each, d, dtype=torch.float64)
    x[:, :2] = Particles.polygon(k).x.repeat_interleave(each, 0)
    return Particles(sphere.retract(x))


# --- linear algebra ---------------------------------------------------------------------------------------------------


def _linear(interaction: Interaction, particles: Particles) -> tuple[Tensor, Tensor]:
    """x' and its Jacobian, both in the tangent bases."""
    plain = replace(interaction, sums=Dense())
    x = particles.x.detach()
    n = particles.n
    d = particles.d
    basis = tangent_basis(x)
    at = torch.zeros(n, d - 1, dtype=x.dtype, device=x.device)

    def velocity(s: Tensor) -> Tensor:
        moved = sphere.retract(x + (basis @ s[..., None])[..., 0])
        return (basis.mT @ plain.velocity(moved, particles.weights)[..., None])[..., 0]

    with torch.enable_grad():
        matrix = torch.autograd.functional.jacobian(velocity, at, vectorize=True)
    return velocity(at).detach(), matrix.reshape(n * (d - 1), n * (d - 1))


def _newton(interaction: Interaction, here: Particles, velocity: Tensor, matrix: Tensor) -> Tensor:
    """The step δ with J δ = −x' and no common rotation, of at most ``FARTHEST`` for each token."""
    along = _turns(interaction, here) * float(matrix.norm())
    right = torch.cat([-velocity.flatten(), velocity.new_zeros(along.shape[1])])[:, None]
    left = torch.cat([matrix, along.mT])
    found = torch.linalg.lstsq(left.cpu(), right.cpu(), driver="gelsd").solution.to(left)  # also without full rank
    step = (tangent_basis(here.x) @ found.reshape(here.n, -1, 1))[..., 0]
    return step * min(1.0, FARTHEST / max(float(step.norm(dim=-1).max()), FARTHEST))


def _turns(interaction: Interaction, particles: Particles) -> Tensor:
    """An orthonormal basis of the directions in which a rotation that the interaction does not notice moves tokens."""
    x = particles.x
    d = particles.d
    rows, columns = torch.triu_indices(d, d, 1)
    skew = torch.zeros(len(rows), d, d, dtype=x.dtype, device=x.device)
    each = torch.arange(len(rows))
    skew[each, rows, columns] = 1.0
    skew[each, columns, rows] = -1.0
    q, k, v = interaction.matrices
    mixed = [] if q is None and k is None else [_scores(q, k, x)]
    stacks = [m if m.ndim == 3 else m[None] for m in [*mixed, *([] if v is None else [v.to(x)])]]
    if interaction.feed is not None:
        skew = skew[:0]
    elif stacks:
        m = torch.cat(stacks)[:, None]
        noticed = (m @ skew - skew @ m).transpose(0, 1).reshape(len(skew), -1)  # linear in the generator
        u, s, _ = torch.linalg.svd(noticed, full_matrices=True)
        rank = int((s > 1e-10 * max(1.0, float(s.max()))).sum())
        skew = torch.einsum("ga,gij->aij", u[:, rank:], skew)
    moved = tangent_basis(x).mT @ (skew @ x.mT).mT[..., None]
    u, s, _ = torch.linalg.svd(moved.reshape(len(skew), len(x) * (d - 1)).mT, full_matrices=False)
    return u[:, s > 1e-8]


def _scores(q: Tensor | None, k: Tensor | None, like: Tensor) -> Tensor:
    """KᵀQ of every head."""
    if q is None or k is None:
        return (k.mT if q is None else q).to(like)  # type: ignore[union-attr]
    return (k.mT @ q).to(like)


def _scale(interaction: Interaction) -> float:
    """The speeds of USA are those of SA times e^β."""
    return math.exp(min(600.0, abs(interaction.beta))) if interaction.name == "USA" else 1.0


def _sorted(values: Tensor) -> Tensor:
    return values[values.real.argsort(descending=True)]


def _single(particles: Particles) -> Particles:
    if particles.x.ndim != 2:
        got = f"a batch of shape {tuple(particles.x.shape)}"
        raise ShapeError("fixed points are those of one set of tokens", got=got, remedy="Take Particles(x[0]).")
    if particles.x.dtype == torch.float64:
        return particles
    return Particles.of(particles.x.double(), None if particles.weights is None else particles.weights.double())
