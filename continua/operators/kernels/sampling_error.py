"""How far sampled attention is off: bias and deviation over draws, measured and as the delta method predicts them."""

import math
from dataclasses import dataclass

import torch

from continua.axes import Grid, counting
from continua.errors import ShapeError
from continua.operators.attention.parts import Sources
from continua.operators.attention.plan import Plan, Scores, plan
from continua.operators.kernels.control_variates import nearest_control, pick
from continua.operators.kernels.sampled import FewSources
from continua.operators.position import Position
from continua.typing import Float, Tensor


@dataclass(frozen=True)
class Spread:
    """Root mean squares over all rows, relative to that of exact attention.

    ``bias`` is that of the mean over the draws, cleared of the noise ``bias_noise`` which that mean still has;
    ``deviation`` is the spread of one draw. The predicted ones hold for independent sources (``MonteCarlo``), to first
    order in 1/m; what a quasi-random rule gains is the ratio of the two deviations.
    """

    draws: int
    bias: float
    bias_noise: float
    deviation: float
    predicted_bias: float
    predicted_deviation: float

    @property
    def error(self) -> float:
        """√(bias² + deviation²): of one draw."""
        return math.hypot(self.bias, self.deviation)


@torch.no_grad()
def spread(
    kernel: FewSources,
    q: Float[Tensor, "b h n e"],
    k: Float[Tensor, "b h n e"],
    v: Float[Tensor, "b h n e"],
    grid: Grid | None = None,
    draws: int = 64,
) -> Spread:
    """Attend ``draws`` times with the draws of steps 1, 2, …, and compare with exact attention (all pairs: small n).

    To first order in 1/m, with α the exact weights, p the measure (mass one), β the weights of the control query in
    units of the row's own normaliser, g = (α − β)/p and R the exact answer: variance = Var_p[g·(V − R)]/m and
    bias = −Cov_p[g·(V − R), g]/m. Without a control variate β = 0.
    """
    grid = counting(q.shape[2], q) if grid is None else grid
    if draws < 2:
        raise ShapeError("a spread needs at least two draws", got=draws, remedy="Ask for 64.")
    scale = q.shape[-1] ** -0.5 if kernel.temperature is None else kernel.temperature
    exact, variance, bias = _predicted(kernel, (q, k, v), grid, scale)
    found = []
    for step in range(1, draws + 1):
        made, drawn = _plan(kernel.fresh(step), grid, scale)
        found.append(made.attend(q, k, v, drawn) - exact)
    off = torch.stack(found)
    size = _rms(exact)
    deviation = _rms(off - off.mean(0)) * math.sqrt(draws / (draws - 1)) / size
    noise = deviation / math.sqrt(draws)
    return Spread(
        draws=draws,
        bias=math.sqrt(max(0.0, (_rms(off.mean(0)) / size) ** 2 - noise**2)),
        bias_noise=noise,
        deviation=deviation,
        predicted_bias=_rms(bias) / size,
        predicted_deviation=math.sqrt(float(variance.mean())) / size,
    )


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def _plan(kernel: FewSources, grid: Grid, scale: float) -> tuple[Plan, Scores]:
    return plan(
        grid,
        Sources(grid),
        mask=None,
        position=Position(),
        placed=None,
        kernel=kernel,
        scale=scale,
        pairs=None,
        itself=True,
    )


def _predicted(
    kernel: FewSources, tensors: tuple[Tensor, Tensor, Tensor], grid: Grid, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The exact answer, the variance and the bias of each of its numbers."""
    q, k, v = tensors
    _, drawn = _plan(kernel, grid, scale)
    measure = grid.log_weights.reshape(-1, 1, 1, q.shape[2]).log_softmax(-1)
    k = k - (measure.exp() @ k)  # as the control variate takes them; without one it changes nothing
    scores = scale * q @ k.mT
    normaliser = (scores + measure).logsumexp(-1, keepdim=True)
    density = (scores - normaliser).exp()  # α/p
    exact = (density * measure.exp()) @ v
    if kernel.control:
        known = drawn.prepared.controls
        owner = nearest_control(grid.nodes, known)
        density = density - (pick(scale * pick(q, known) @ k.mT, owner) - normaliser).exp()

    def mean(weights: Tensor, values: Tensor) -> Tensor:
        return (weights * measure.exp()) @ values

    def about(weights: Tensor) -> Tensor:
        """∫ weights·(V − R) dp."""
        return mean(weights, v) - exact * mean(weights, torch.ones_like(v[..., :1]))

    square = density.square()
    first = about(density)
    second = mean(square, v.square()) - 2 * exact * mean(square, v) + exact.square() * mean(square, torch.ones_like(v))
    variance = (second - first.square()).clamp_min(0.0) / kernel.rule.n
    bias = -(about(square) - first * mean(density, torch.ones_like(v[..., :1]))) / kernel.rule.n
    return exact, variance, bias
