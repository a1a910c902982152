"""The mean field on the circle: ∂_t ρ + ∂_θ(ρ V[ρ]) = (1/κ) ∂²_θ ρ, the limit of infinitely many tokens."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from continua.errors import ConfigError, ShapeError, SolveFailed, nearest
from continua.flow import Adaptive, Control, Tsit5, solve
from continua.lab.particles.bessel import log_mean
from continua.lab.particles.interaction import Interaction
from continua.lab.particles.simulate import FRAMES, kept_times
from continua.lab.progress import ReportShare
from continua.lab.theory.growth import over_beta
from continua.lab.theory.wasserstein import Density
from continua.typing import Float, Tensor

FLOOR = 1e-13  # of the largest normaliser: where it is smaller it is round-off, and there is nothing to move
CLOSE = 1e-14
SCALINGS = 2000
STEP = 4 / (math.sqrt(2) + 1) ** 2
MOMENTUM = ((math.sqrt(2) - 1) / (math.sqrt(2) + 1)) ** 2
CONTROL = Adaptive(rtol=1e-8, atol=1e-10, max_steps=5000)  # between two times; unresolved densities need no end of them
Blur = Callable[[Tensor], Tensor]


class Pull(NamedTuple):
    """ρ V = s ∇W[σ]: what moves and what pulls it, both densities."""

    moved: Tensor
    pulling: Tensor


@dataclass(frozen=True, eq=False)
class MeanField:
    """ρ(t, θ) at the k ``times``: values [k, …, m] at θ_j = 2πj/m, against dθ, so that ∫ρ dθ = 1.

    ``least`` below zero or a ``tail`` that is not small say that m nodes no longer resolve the density: clusters are
    peaks that sharpen for ever, unless noise keeps them wide.
    """

    times: Float[Tensor, " k"]
    density: Float[Tensor, "k *b m"]
    interaction: Interaction
    evaluations: int = 0

    @property
    def angles(self) -> Tensor:
        """θ_j."""
        return circle_nodes(self.density.shape[-1]).to(self.density)

    @property
    def mass(self) -> Tensor:
        """∫ρ dθ at each time, [k, …]."""
        return self.density.mean(-1) * 2 * math.pi

    @property
    def least(self) -> Tensor:
        """min_θ ρ at each time, [k, …]: positivity is not forced, but told."""
        return self.density.amin(-1)

    @property
    def tail(self) -> Tensor:
        """The largest of the upper third of the modes, beside the mass: [k, …]."""
        modes = self.modes().abs()
        return modes[..., 2 * (modes.shape[-1] // 3) :].amax(-1)

    def modes(self, most: int | None = None) -> Tensor:
        """a_k = ∫ ρ e^{−ikθ} dθ for k = 0, …, most: complex, [times, …, most + 1]. For tokens it is Σ w e^{−ikθ}."""
        modes = torch.fft.rfft(self.density) * (2 * math.pi / self.density.shape[-1])
        return modes if most is None else modes[..., : most + 1]

    def at(self, frame: int) -> Density:
        """The density at one of the times: it has quantiles and samples."""
        return Density(self.density[frame])

    @property
    def final(self) -> Density:
        """The density at the end."""
        return self.at(-1)


def circle_nodes(m: int) -> Tensor:
    """θ_j = 2πj/m."""
    return torch.arange(m, dtype=torch.float64) * (2 * math.pi / m)


def mean_field(
    interaction: Interaction,
    density: Density | Tensor,
    until: float,
    *,
    save: int | Tensor = FRAMES,
    control: Control | None = None,
    watch: ReportShare | None = None,
) -> MeanField:
    """Solve the transport equation on the circle from ``density``: a ``Density`` or values […, m], each row one.

    SA, USA and Sinkhorn with Q = K = V = I; noise is the interaction's κ. Fourier modes: the product ρV is taken on
    twice as many nodes, and the mode zero never moves, so mass stays to round-off. ``save`` are times to keep, or how
    many from 0 to the end; ``watch`` is told which share of the way is done.

    >>> from continua.lab.particles.interaction import SelfAttention
    >>> start = Density.of(1 + 0.01 * torch.cos(4 * circle_nodes(64)))
    >>> path = mean_field(SelfAttention(9.0), start, 1.0)
    >>> grown = (path.modes()[-1, 4] / path.modes()[0, 4]).real.log()
    >>> round(float(grown), 2)                                    # growth_rates(9.0)[4] = 0.70
    0.7
    """
    values = density.values if isinstance(density, Density) else density
    _checked(values)
    field = circle_field(interaction, values.shape[-1])
    times = frames(save, until)
    states, evaluations = follow(field, values.double(), times, control, watch)
    return MeanField(times, states, interaction, evaluations)


def circle_field(interaction: Interaction, m: int) -> Callable[[Tensor], Tensor]:
    """ρ ↦ −∂_θ(ρ V[ρ]) + (1/κ) ∂²_θ ρ for values [..., m] on the circle.

    V = ∂W/Z (SA) and c_0 ∂W (USA), where Z = e^{β cos} ∗ ρ / c_0 = 1 + βW; e^f ∂W[e^f ρ], e^f Z[e^f ρ] = 1 (Sinkhorn).
    """
    pull = kind_of(interaction)
    scale = scale_of(interaction, 2)
    fine = 2 * m
    over = over_beta(interaction.beta, 2, m)  # r_k/β
    spread = 2 * math.pi * interaction.beta * over
    spread[0] = 2 * math.pi
    k = torch.arange(m + 1, dtype=torch.float64)
    slope = 2j * math.pi * k * over
    rise = 1j * k[: m // 2 + 1]
    rise[-1] = rise[-1] if m % 2 else 0.0  # the highest cosine of an even number of nodes has no derivative there
    damping = k[: m // 2 + 1] ** 2 / interaction.kappa

    def blur(values: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(values) * spread.to(values), n=fine)

    def field(density: Tensor) -> Tensor:
        modes = torch.fft.rfft(density)
        moved, pulling = pull(torch.fft.irfft(modes, n=fine) * 2, blur, scale)
        velocity = torch.fft.irfft(torch.fft.rfft(pulling) * slope.to(modes), n=fine)
        flux = torch.fft.rfft(moved * velocity)[..., : m // 2 + 1] / 2
        return torch.fft.irfft(-rise.to(modes) * flux - damping.to(density) * modes, n=m)

    return field


def follow(
    field: Callable[[Tensor], Tensor], start: Tensor, times: Tensor, control: Control | None, watch: ReportShare | None
) -> tuple[Tensor, int]:
    """The states of dx/dt = field(x) at the times, and how often the field was evaluated."""
    states = [start]
    evaluations = 0
    until = float(times[-1])
    for before, after in zip(times[:-1].tolist(), times[1:].tolist(), strict=True):
        try:
            path = solve(
                lambda _z, x, _args: field(x), states[-1], (before, after), solver=Tsit5(), control=control or CONTROL
            )
        except SolveFailed as failure:
            remedy = "Use more nodes, noise (a finite kappa), or an earlier end."
            got = f"no number between t={before:g} and t={after:g}"
            raise SolveFailed("the density is no longer resolved", got=got, remedy=remedy, z=failure.z) from failure
        states.append(path.final)
        evaluations += path.stats["evaluations"]
        if watch is not None:
            watch(after / until)
    return torch.stack(states), evaluations


# --- the interactions -----------------------------------------------------------------------------------------------


def _softmax(density: Tensor, blur: Blur, scale: float) -> Pull:
    return Pull(density / _floored(blur(density)), density)


def _unnormalised(density: Tensor, blur: Blur, scale: float) -> Pull:
    return Pull(density * scale, density)


def _sinkhorn(density: Tensor, blur: Blur, scale: float) -> Pull:
    """s = e^f ρ with e^f · (K ∗ s) = 1: rows and columns at once, because scores are symmetric.

    For β ≥ 0 what is missing falls by (√2−1)/(√2+1) a round: the heavy ball of Polyak 1964 for a spectrum in [1, 2].
    """
    before = torch.zeros_like(density)
    f = torch.zeros_like(density)
    for _ in range(SCALINGS):
        moved = f.exp() * density
        missing = f + _floored(blur(moved)).log()
        if float((missing * density).abs().max()) < CLOSE * float(density.abs().max()):
            return Pull(moved, moved)
        before, f = f, f - STEP * missing + MOMENTUM * (f - before)
    remedy = "Use a β that is not far below zero, or noise."
    raise ConfigError("the scalings of Sinkhorn attention did not settle", got=f"{SCALINGS} rounds", remedy=remedy)


def _floored(normaliser: Tensor) -> Tensor:
    return torch.maximum(normaliser, FLOOR * normaliser.abs().amax(-1, keepdim=True))


KINDS: dict[str, Callable[[Tensor, Blur, float], Pull]] = {
    "SA": _softmax,
    "USA": _unnormalised,
    "Sinkhorn": _sinkhorn,
}


def kind_of(interaction: Interaction) -> Callable[[Tensor, Blur, float], Pull]:
    """How a density is pulled, for interactions with Q = K = V = I."""
    if interaction.name not in KINDS:
        remedy = nearest(interaction.name, list(KINDS))
        raise ConfigError("no mean field is known for this interaction", got=interaction.name, remedy=remedy)
    extra = interaction.besides
    if extra or interaction.causal:
        remedy = "Leave it out, or simulate particles."
        got = ", ".join(extra or ["causal=True"])
        raise ConfigError(
            "the mean field is that of tokens which all see each other as they are", got=got, remedy=remedy
        )
    return KINDS[interaction.name]


def scale_of(interaction: Interaction, d: int) -> float:
    """c_0, the mean of e^{β⟨x,y⟩} over the sphere: how much faster USA is than SA on the uniform measure."""
    log = log_mean(interaction.beta, d)
    if log < 700.0:
        return math.exp(log)
    if interaction.name == "USA":
        remedy = "Use SelfAttention, which differs by the speed only where the density is uniform, or a smaller β."
        raise ConfigError("USA leaves the range of numbers", got=f"beta={interaction.beta:g}", remedy=remedy)
    return math.inf  # no other interaction reads it


# --- what may be asked ----------------------------------------------------------------------------------------------


def frames(save: int | Tensor, until: float) -> Tensor:
    """The times that are kept, rising from 0 to the end."""
    times = kept_times(save, until)
    if times.dim() != 1 or len(times) < 2 or times[0] != 0 or not bool((times.diff() > 0).all()):
        remedy = "Begin with 0 and let them increase."
        raise ConfigError("the times to keep rise from zero", got=times.tolist()[:4], remedy=remedy)
    return times


def _checked(values: Tensor) -> None:
    """Refuse what is no density."""
    if values.dim() < 1 or values.shape[-1] < 4:
        remedy = "Give at least 4 equally spaced values along the last dimension."
        raise ShapeError("a density on the circle is a row of values", got=list(values.shape), remedy=remedy)
    if not bool(torch.isfinite(values).all()):
        raise ShapeError("a density is finite", got="NaN or infinity", remedy="Leave such nodes out.")
    for row in values.reshape(-1, values.shape[-1]):
        Density(row)
