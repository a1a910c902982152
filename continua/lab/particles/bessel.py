"""Modified Bessel functions for the lab: ratios by a continued fraction and logarithms of means, without overflow."""

import functools
import math

import torch

from continua.errors import ConfigError
from continua.typing import Tensor

DIGITS = 40.0  # e^−40 is below the last bit of a float64
TERMS = 64  # the first guess for the length of a sum, beyond what its peak needs
MOST = 10**7  # terms, each a step of a recurrence: seconds


def quotients(beta: float, nu: float, count: int) -> list[float]:
    """q_j = I_{ν+j+1}(β) / (β I_{ν+j}(β)) for j = 0, …, count − 1, by q_j = 1 / (2(ν+j+1) + β² q_{j+1}) downwards.

    Downwards every error shrinks by (β q)² < 1 a step, so a start far enough above gives all digits. No number in it
    is ever large, β = 0 is no exception, and q is even in β.
    """
    extra = _length(math.sqrt(DIGITS * abs(beta)) + 25, beta)  # Π (β q)² < e^−40 over so many steps
    top = nu + count + extra + 1
    q = 1.0 / (top + math.hypot(top, beta))  # Amos 1974: a lower bound within O(1/top)
    kept = [0.0] * count
    for j in range(count + extra - 1, -1, -1):
        q = 1.0 / (2.0 * (nu + j + 1) + beta * beta * q)
        if j < count:
            kept[j] = q
    return kept


def ratio(beta: float, order: float) -> float:
    """I_{μ+1}(β) / I_μ(β) for one order μ."""
    return beta * quotients(beta, order, 1)[0]


def log_ratios(beta: float, d: int, modes: int) -> Tensor:
    """log |r_l|, r_l = I_{l+ν}(β)/I_ν(β), ν = d/2 − 1, for l = 0, …, modes; the sign of r_l is that of β^l."""
    q = torch.tensor(quotients(beta, d / 2 - 1, modes), dtype=torch.float64)
    steps = (q * abs(beta)).log()
    return torch.cat([steps.new_zeros(1), steps.cumsum(0)])


@functools.lru_cache(maxsize=256)
def log_mean(beta: float, d: int) -> float:
    """log c_0, c_0 = ∫ e^{β⟨x,y⟩} dσ(y) = Γ(d/2)(2/β)^ν I_ν(β), the mean over the sphere S^{d−1}.

    e^β = Σ_l N(d,l) c_l at y = x, with N(d,l) the number of harmonics of degree l, so c_0 = e^β / Σ_l N(d,l) r_l: a sum
    of positive terms, taken as a log-sum-exp.
    """
    beta = abs(beta)
    if beta == 0.0:
        return 0.0
    count = _length(TERMS + 2 * min(beta, math.sqrt(d * beta)) + 10 * math.sqrt(beta), beta)
    while True:
        l = torch.arange(1, count, dtype=torch.float64)
        more = (2 * l + d) * (l + d - 2) / ((2 * l + d - 2) * (l + 1))  # N(d, l+1) / N(d, l)
        number = torch.cat([l.new_tensor([0.0, math.log(d)]), math.log(d) + more.log().cumsum(0)])
        terms = number + log_ratios(beta, d, count)
        total = float(terms.logsumexp(0))
        if float(terms[-1]) < total - DIGITS and float(terms[-1]) < float(terms[-2]):
            return beta - total
        count = _length(2 * count, beta)


def log_means(beta: float, d: int, modes: int) -> Tensor:
    """log |c_l|, c_l = ∫ e^{β⟨x,y⟩} P_l(⟨x,y⟩) dσ(y) = Γ(d/2)(2/β)^ν I_{l+ν}(β), for l = 0, …, modes."""
    return log_mean(beta, d) + log_ratios(beta, d, modes)


def _length(terms: float, beta: float) -> int:
    """A number of terms, refused where nobody would wait for them."""
    if not terms <= MOST:
        remedy = "Use a smaller beta; Hardmax() is the limit of a large one."
        raise ConfigError(f"a Bessel function is summed of at most {MOST:,} terms", got=f"β={beta:g}", remedy=remedy)
    return math.ceil(terms)
