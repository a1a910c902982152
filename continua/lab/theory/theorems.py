"""Closed forms and small equations of the theory, beside which simulations are held."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from continua.errors import ConfigError, nearest
from continua.flow import Adaptive, SaveAt, Tsit5, solve
from continua.lab.particles.interaction import Named, name_of
from continua.typing import Float, Tensor

CONTROL = Adaptive(rtol=1e-10, atol=1e-12, max_steps=100_000)

REFERENCES = {
    "equiangular": "Geshkovski, Letrouit, Polyanskiy, Rigollet 2023, A mathematical perspective on Transformers",
    "consensus": "Geshkovski, Letrouit, Polyanskiy, Rigollet 2023, A mathematical perspective on Transformers",
    "clusters": "Geshkovski, Letrouit, Polyanskiy, Rigollet 2023, The emergence of clusters in self-attention dynamics",
    "metastability": "Geshkovski, Koubbi, Polyanskiy, Rigollet 2024, Dynamic metastability in the self-attention model",
    "growth": "Bruno, Pasqualotto, Agazzi 2024, Emergence of meta-stable clustering in mean-field transformer models",
    "synchronisation": "Criscitiello, Rebjock, McRae, Boumal 2024, Synchronization on circles and spheres with "
    "nonlinear interactions",
    "causal": "Karagodin, Polyanskiy, Rigollet 2024, Clustering in causal attention masking",
    "rank": "Dong, Cordonnier, Loukas 2021, Attention is not all you need: pure attention loses rank doubly "
    "exponentially with depth",
    "Sinkhorn": "Sander, Ablin, Blondel, Peyré 2022, Sinkformers: Transformers with doubly stochastic attention",
    "chaos": "Sznitman 1991, Topics in propagation of chaos",
    "distance": "Fournier, Guillin 2015, On the rate of convergence in Wasserstein distance of the empirical measure",
}


@dataclass(frozen=True, eq=False)
class Equiangular:
    """1 − γ(t) at the k ``times``, when every pair of tokens has the cosine γ; ``lengths`` r(t) if they may grow."""

    times: Float[Tensor, " k"]
    gap: Float[Tensor, " k"]
    lengths: Float[Tensor, " k"] | None = None

    @property
    def cosine(self) -> Tensor:
        """γ(t)."""
        return 1 - self.gap


def equiangular_slope(gamma: Tensor | float, n: int, beta: float, interaction: Named = "SA") -> Tensor:
    """γ' = 2 e^{βγ} (1 − γ)(1 + (n−1)γ) / Z, Z = e^β + (n−1) e^{βγ} (SA) or n (USA): equal cosines stay equal.

    >>> round(float(equiangular_slope(0.0, 8, 0.0)), 4)              # 2/n
    0.25
    """
    gap = 1 - torch.as_tensor(gamma, dtype=torch.float64)
    return 2 * gap * (n - (n - 1) * gap) * _share(interaction)(gap, _tokens(n), _finite(beta))


def equiangular(n: int, beta: float, times: Tensor, *, interaction: Named = "SA", start: float = 0.0) -> Equiangular:
    """γ(t) from γ(0) = ``start`` (0: orthogonal tokens), the times rising from zero.

    The logarithm of 1 − γ is solved for, so tails are exact in relative terms: e^{−2t} (SA), e^{−2 e^β t} (USA).
    """
    share = _share(interaction)

    def field(_z: float, log_gap: Tensor, _args: Any) -> Tensor:
        gap = log_gap.exp()
        return -2 * (n - (n - 1) * gap) * share(gap, n, beta)

    states = _solved(field, _opened(n, beta, start), times)
    return Equiangular(times, states[:, 0].exp())


def equiangular_pre_norm(
    n: int, beta: float, times: Tensor, *, interaction: Named = "SA", start: float = 0.0
) -> Equiangular:
    """The same for pre-norm tokens y' = Attn(y/|y|) of length r: γ' is divided by r, and r' = (e^β + (n−1) e^{βγ} γ)/Z.

    Lengths grow like t (SA) or e^β t (USA), and so 1 − γ falls like 1/t² only.
    """
    share = _share(interaction)

    def field(_z: float, state: Tensor, _args: Any) -> Tensor:
        gap = state[0].exp()
        each = share(gap, n, beta)  # e^{βγ}/Z
        own = (beta * gap).exp() * each  # e^β/Z
        falling = -2 * (n - (n - 1) * gap) * each / state[1]
        return torch.stack([falling, own + (n - 1) * each * (1 - gap)])

    states = _solved(field, torch.cat([_opened(n, beta, start), torch.ones(1, dtype=torch.float64)]), times)
    return Equiangular(times, states[:, 0].exp(), states[:, 1])


def equiangular_without_temperature(n: int, times: Tensor) -> Tensor:
    """γ(t) = (e^{2t} − 1)/(e^{2t} + n − 1): orthogonal tokens at β = 0, SA and USA alike.

    >>> round(float(equiangular_without_temperature(8, torch.tensor(1.0, dtype=torch.float64))), 4)
    0.444
    """
    return torch.expm1(2 * times) / (torch.expm1(2 * times) + _tokens(n))


def consensus_rate(beta: float, interaction: Named = "SA") -> float:
    """How fast tokens that are nearly one close up: 1 (SA, Sinkhorn), e^β (USA). 1 − γ falls at twice this rate."""
    return float(_look_up(interaction, {"SA": _one, "Sinkhorn": _one, "USA": _exponential})(_finite(beta)))


@dataclass(frozen=True, eq=False)
class PolygonRates:
    """Rates at a regular k-gon of equally heavy clusters on the circle; those below zero are stable.

    ``inter`` [k]: modes e^{2πijm/k} of the corners, m = 0, …, k − 1 (m = 0 is a rotation and zero). ``intra``: how
    tokens of one corner close up, negative where they do.
    """

    inter: Float[Tensor, " k"]
    intra: float


def polygon_rates(k: int, beta: float, interaction: Named = "SA") -> PolygonRates:
    """inter_m = (1/(kZ)) Σ_j h′(2πj/k)(cos(2πjm/k) − 1), intra = −(1/(kZ)) Σ_j h′(2πj/k), h(u) = e^{β cos u} sin u.

    Z = (1/k) Σ_j e^{β cos(2πj/k)} (SA) or 1 (USA). For three tokens inter is e^{−β/2}(½ + ¾β)/Z: β = −2/3 changes its
    sign.

    >>> bool(polygon_rates(3, -0.7).inter[1] < 0 < polygon_rates(3, -0.6).inter[1])
    True
    """
    if k < 2:
        raise ConfigError("a polygon has corners", got=k, remedy="Use two or more.")
    u = torch.arange(k, dtype=torch.float64) * (2 * math.pi / k)
    tilt = _finite(beta) * u.cos()
    most = float(tilt.max())
    weights = (tilt - most).exp()
    slopes = weights * (u.cos() - beta * u.sin() ** 2) / k
    modes = torch.cos(torch.outer(torch.arange(k, dtype=torch.float64), u)) - 1
    scale = _look_up(interaction, {"SA": lambda _: 1 / float(weights.mean()), "USA": _exponential})(most)
    return PolygonRates(scale * (modes @ slopes), -scale * float(slopes.sum()))


# --- parts ----------------------------------------------------------------------------------------------------------

Share = Callable[[Tensor, int, float], Tensor]


def _share(interaction: Named) -> Share:
    """e^{βγ}/Z as a function of 1 − γ, n and β."""

    def softmax(gap: Tensor, n: int, beta: float) -> Tensor:
        return 1 / ((beta * gap).exp() + n - 1)

    def unnormalised(gap: Tensor, n: int, beta: float) -> Tensor:
        return (beta * (1 - gap)).exp() / n

    return _look_up(interaction, {"SA": softmax, "Sinkhorn": softmax, "USA": unnormalised})


def _one(_: float) -> float:
    return 1.0


def _exponential(beta: float) -> float:
    if beta > 700.0:
        remedy = "Use SA, or a smaller β."
        raise ConfigError("the rates of USA leave the range of numbers", got=f"e^{beta:g}", remedy=remedy)
    return math.exp(beta)


def _look_up(interaction: Named, known: dict[str, Any]) -> Any:
    name = name_of(interaction)
    if name not in known:
        raise ConfigError("the theory does not know this interaction", got=name, remedy=nearest(name, list(known)))
    return known[name]


def _tokens(n: int) -> int:
    if n < 2:
        raise ConfigError("equal cosines need two tokens or more", got=f"n={n}", remedy="Use n ≥ 2.")
    return n


def _finite(beta: float) -> float:
    if not math.isfinite(beta):
        raise ConfigError("β must be finite", got=f"beta={beta}", remedy="Use a number such as 9.0.")
    return beta


def _opened(n: int, beta: float, start: float) -> Tensor:
    """log(1 − γ(0)), checked."""
    _finite(beta)
    if not -1 / (_tokens(n) - 1) <= start < 1:
        remedy = f"Start between −1/(n−1) = {-1 / (n - 1):.4g} and 1."
        raise ConfigError(f"{n} tokens cannot begin with this cosine", got=start, remedy=remedy)
    return torch.tensor([math.log1p(-start)], dtype=torch.float64)


def _solved(field: Callable[[float, Tensor, Any], Tensor], start: Tensor, times: Tensor) -> Tensor:
    """The states at the times, [k, …]."""
    if times.dim() != 1 or len(times) < 2 or times[0] != 0 or not bool((times.diff() > 0).all()):
        remedy = "Use torch.linspace(0, end, frames)."
        raise ConfigError("times rise from zero", got=times.tolist()[:3] if times.dim() else times, remedy=remedy)
    points = tuple(times.double().tolist())
    span = (0.0, points[-1])
    path = solve(field, start, span, solver=Tsit5(), control=CONTROL, save=SaveAt(points=points))
    return torch.stack(list(path.x))
