"""Linear stability of the uniform measure: how fast each mode grows, which one wins, and where the winner changes."""

import math
from collections.abc import Callable, Sequence

import torch

from continua.errors import ConfigError, nearest
from continua.lab.particles.bessel import log_mean, quotients, ratio
from continua.lab.particles.interaction import Interaction, Named, name_of
from continua.typing import Tensor

LARGEST = 1e8  # the continued fraction takes about 6·√β steps
SMALL = 1e-16  # modes that grow slower than this part of the fastest are left out by default
Beta = float | Sequence[float]


def growth_rates(
    beta: Beta, d: int = 2, interaction: Named = "SA", modes: int | None = None, kappa: float | None = None
) -> Tensor:
    """λ_l for l = 0, …, modes: a harmonic of degree l on top of the uniform measure of S^{d−1} grows as e^{λ_l t}.

    With ν = d/2 − 1, r_l = I_{l+ν}(β)/I_ν(β) and c_l = Γ(d/2)(2/β)^ν I_{l+ν}(β):
    SA l(l+d−2) r_l/β · USA l(l+d−2) c_l/β · Sinkhorn (l(l+d−2)/β) r_l/(1+r_l), each −l(l+d−2)/κ with noise √(2/κ) dW.

    ``interaction`` is one, its class or its name: what counts is its kind and, unless ``kappa`` is
    given, its noise; β is the first argument. A sequence of β is one for each head: rates add.
    Without ``modes`` there are as many as matter (the others are below 1e-16 of the fastest). The rates of USA are as
    large as e^β; where they leave the range of numbers ``log_growth_rates`` gives their logarithm.

    >>> [round(rate, 3) for rate in growth_rates(9.0, modes=6).tolist()]
    [0.0, 0.105, 0.351, 0.591, 0.704, 0.664, 0.522]
    """
    kind = _kind(interaction)
    betas = _heads(beta, d)
    count = max(_enough(b, d) for b in betas) if modes is None else _at_least_one(modes)
    rates = torch.zeros(count + 1, dtype=torch.float64)
    for one in betas:
        rate, scale = kind(one, d, count)
        rates += rate * math.exp(scale) if scale < 700.0 else torch.sign(rate) * (rate.abs().log() + scale).exp()
    if not bool(torch.isfinite(rates).all()):
        got = f"beta={max(betas, key=abs):g}"
        remedy = "Use log_growth_rates, or SA, whose rates stay below one."
        raise ConfigError("the growth rates of USA leave the range of numbers", got=got, remedy=remedy)
    if kappa is None:
        kappa = interaction.kappa if isinstance(interaction, Interaction) else math.inf
    return rates - _degrees(d, count) / _positive(kappa, "the noise parameter kappa")


def log_growth_rates(beta: float, d: int = 2, interaction: Named = "USA", modes: int | None = None) -> Tensor:
    """log |λ_l| for l = 0, …, modes (−∞ for l = 0): finite where the rates of USA themselves are not.

    >>> bool(log_growth_rates(1e4)[1:5].isfinite().all())
    True
    """
    kind = _kind(interaction)
    (beta,) = _heads(beta, d)
    rate, scale = kind(beta, d, _enough(beta, d) if modes is None else _at_least_one(modes))
    return rate.abs().log() + scale


def rotated_rates(
    beta: float, alpha: float, phi: float, modes: int | None = None, interaction: Named = "USA"
) -> Tensor:
    """λ_k = −ik [ sin ψ I_1 + e^{ikα} ( sin ψ I_k′ + i cos ψ k I_k/β ) ], ψ = α + φ, on the circle: complex.

    Scores cos(θ_i − θ_j + α) (KᵀQ a rotation by α), values rotated by φ. The real part is growth, −Im λ_k / k the speed
    at which the mode travels. SA divides by I_0 and subtracts e^{ikα} sin ψ I_1 I_k / I_0² inside the bracket, because
    the moving normaliser acts on a velocity that is no longer zero.

    >>> rotated_rates(4.0, 0.0, 0.0, 3).real.allclose(growth_rates(4.0, 2, "USA", 3))
    True
    """
    for angle in (alpha, phi):
        if not math.isfinite(angle):
            raise ConfigError("rotations are finite angles", got=angle, remedy="Give alpha and phi in radians.")
    (beta,) = _heads(beta, 2)
    name = name_of(interaction)
    if name not in ROTATED:
        remedy = f"Use one of {', '.join(ROTATED)}, or simulate."
        raise ConfigError("rotated growth rates are known for some interactions only", got=name, remedy=remedy)
    count = _enough(beta, 2) if modes is None else _at_least_one(modes)
    k = torch.arange(count + 1, dtype=torch.float64)
    over = over_beta(beta, 2, count + 1)
    psi = alpha + phi
    r = beta * over
    r[0] = 1.0
    slope = k * over[:-1] + r[1:]  # I_k′/I_0 = k I_k/(β I_0) + I_{k+1}/I_0
    turn = torch.polar(torch.ones_like(k), k * alpha)
    inner = math.sin(psi) * r[1] + turn * torch.complex(math.sin(psi) * slope, math.cos(psi) * k * over[:-1])
    rates = -1j * k * (inner - ROTATED[name] * turn * (math.sin(psi) * r[1]) * r[:-1])
    scale = 0.0 if ROTATED[name] else log_mean(beta, 2)
    if scale > 700.0:
        remedy = "Use interaction='SA', or a smaller β."
        raise ConfigError("the growth rates of USA leave the range of numbers", got=f"beta={beta:g}", remedy=remedy)
    return rates * math.exp(scale)


def layer_factor(epsilon: float, beta: Beta, d: int = 2, interaction: Named = "SA", modes: int | None = None) -> Tensor:
    """1 + ε λ_l / (1 + ε a): what a harmonic of degree l is multiplied by in one layer N(x + ε·Attn(x)), for any ε.

    a = r_1 (SA, Sinkhorn) or c_1 (USA) is how much attention to the uniform measure lengthens a token. Discrete case:
    this is the layer; as ε → 0 its power t/ε becomes e^{λ_l t}.
    """
    rates = growth_rates(beta, d, interaction, modes)
    kind = _kind(interaction)
    pulls = [(one, *kind(one, d, 1)) for one in _heads(beta, d)]
    unmixed = [over_beta(one, d, 1)[1].item() * one * math.exp(scale) for one, _, scale in pulls]
    length = 1 + epsilon * sum(unmixed)
    if not (math.isfinite(epsilon) and length > 0):
        remedy = "Take a step of at least zero."
        raise ConfigError("a layer's step must leave tokens a length", got=f"epsilon={epsilon:g}", remedy=remedy)
    return 1 + epsilon * rates / length


def k_max(beta: float, d: int = 2, interaction: Named = "SA") -> int:
    """argmax_l λ_l ≥ 1, the mode that grows fastest; the same for USA and SA.

    About √(2β + ν²) − ν, ν = d/2 − 1. On the circle it is round(√(2β)) for β = 1, …, 100, and within one of it for
    all β ≥ 1/8.

    >>> [k_max(beta) for beta in (0.1, 1.0, 9.0, 50.0)], k_max(9.0, d=64)
    ([1, 1, 4, 10], 1)
    """
    kind = _kind(interaction)
    (beta,) = _heads(beta, d)
    rates = kind(beta, d, _enough(beta, d))[0]
    return int(rates[1:].argmax()) + 1


def crossovers(d: int = 2, most: int = 8) -> Tensor:
    """The β_l, l = 1, …, most, at which the fastest mode of SA and USA goes from l to l + 1: λ_l(β_l) = λ_{l+1}(β_l).

    There I_{l+1+ν}/I_{l+ν} = l(l+d−2)/((l+1)(l+d−1)). The left side rises from 0 to 1 with β: found by bisection.

    >>> [round(beta, 3) for beta in crossovers(2, 3).tolist()]
    [1.044, 3.165, 6.211]
    """
    _heads(1.0, d)
    found = []
    nu = d / 2 - 1
    for l in range(1, _at_least_one(most) + 1):
        wanted = l * (l + d - 2) / ((l + 1) * (l + d - 1))
        low = 0.0
        high = (l + nu + 1) ** 2
        while ratio(high, l + nu) < wanted:
            high *= 2
        while low < (middle := (low + high) / 2) < high:
            low, high = (middle, high) if ratio(middle, l + nu) < wanted else (low, middle)
        found.append(high)
    return torch.tensor(found, dtype=torch.float64)


# --- the interactions: rates and the logarithm of what they are scaled by -------------------------------------------


def over_beta(beta: float, d: int, modes: int) -> Tensor:
    """r_l / β for l = 1, …, modes with its sign, finite at β = 0; zero stands for l = 0."""
    q = torch.tensor(quotients(beta, d / 2 - 1, modes), dtype=torch.float64)
    return torch.cat([q.new_zeros(1), q[:1], q[0] * (beta * q[1:]).cumprod(0)])


def _self_attention(beta: float, d: int, modes: int) -> tuple[Tensor, float]:
    return _degrees(d, modes) * over_beta(beta, d, modes), 0.0


def _unnormalised(beta: float, d: int, modes: int) -> tuple[Tensor, float]:
    return _self_attention(beta, d, modes)[0], log_mean(beta, d)


def _sinkhorn(beta: float, d: int, modes: int) -> tuple[Tensor, float]:
    over = over_beta(beta, d, modes)
    return _degrees(d, modes) * over / (1 + beta * over), 0.0


Kind = Callable[[float, int, int], tuple[Tensor, float]]
KINDS: dict[str, Kind] = {"SA": _self_attention, "USA": _unnormalised, "Sinkhorn": _sinkhorn}
ROTATED = {"USA": 0.0, "SA": 1.0}  # how much of the moving normaliser there is


def _degrees(d: int, modes: int) -> Tensor:
    """l(l + d − 2), the eigenvalues of −Δ on S^{d−1}."""
    l = torch.arange(modes + 1, dtype=torch.float64)
    return l * (l + d - 2)


def _enough(beta: float, d: int) -> int:
    """The last mode that still grows at SMALL times the fastest rate."""
    count = 16 + math.ceil(10 * math.sqrt(abs(beta)))
    while True:
        size = _self_attention(beta, d, count)[0].abs()
        above = (size > SMALL * size.max()).nonzero()
        if int(above[-1]) < count:
            return max(1, int(above[-1]))
        count *= 2


# --- what may be asked ----------------------------------------------------------------------------------------------


def _kind(interaction: Named) -> Kind:
    name = name_of(interaction)
    if isinstance(interaction, Interaction):
        extra = interaction.besides
        if extra or interaction.causal:
            remedy = "Give the name alone for the plain interaction; see rotated_rates for rotations of the circle."
            got = ", ".join(extra or ["causal=True"])
            raise ConfigError("growth rates are those of Q = K = V = I and nothing besides", got=got, remedy=remedy)
    if name not in KINDS:
        raise ConfigError("no growth rates are known for this interaction", got=name, remedy=nearest(name, list(KINDS)))
    return KINDS[name]


def _heads(beta: Beta, d: int) -> tuple[float, ...]:
    """β of each head, checked together with the dimension."""
    betas = (float(beta),) if isinstance(beta, int | float) else tuple(float(b) for b in beta)
    if not betas:
        raise ConfigError("growth needs at least one head", got="no β", remedy="Give a number, or one for each head.")
    for one in betas:
        if not math.isfinite(one):
            raise ConfigError("β must be finite", got=f"beta={one}", remedy="Use a number such as 9.0.")
        if abs(one) > LARGEST:
            remedy = "For larger β use k_max ≈ √(2β + ν²) − ν, ν = d/2 − 1, or the hardmax interaction."
            raise ConfigError(f"β may be at most {LARGEST:g}", got=f"beta={one:g}", remedy=remedy)
    if d < 2:
        remedy = "Use d=2 for the circle, d=3 for the sphere."
        raise ConfigError("the sphere needs a dimension of two or more", got=f"d={d}", remedy=remedy)
    return betas


def _at_least_one(modes: int) -> int:
    if modes < 1:
        raise ConfigError("at least one mode must be asked for", got=modes, remedy="Use 1 or more.")
    return modes


def _positive(value: float, what: str) -> float:
    if not value > 0:
        raise ConfigError(f"{what} must be positive", got=value, remedy="Leave it out for no noise.")
    return value
