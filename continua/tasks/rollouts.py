"""Roll-outs: a map of one time unit applied again and again, and how long it stays with the truth."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from continua.axes import at
from continua.errors import ConfigError, ShapeError
from continua.flow import RK4, Adaptive
from continua.models import Batch, Transformer
from continua.models.embed import Channels
from continua.models.latent import Latent
from continua.settings import Positive, Size, checked
from continua.tasks.functions import predict
from continua.typing import Bool, Float, Tensor


@dataclass(frozen=True, eq=False)
class RollOut:
    """States [steps, b, n, c] after each time unit, and how many steps each unit took where these were adaptive."""

    states: Tensor
    taken: tuple[int, ...] = ()
    evaluations: int = 0


@checked
@torch.no_grad()
def rollout(
    model: Any,
    start: Batch,
    steps: Size,
    tolerance: Positive | None = None,
    watch: Callable[[float], None] | None = None,
) -> RollOut:
    """u₁ = G(u₀), u₂ = G(u₁), …; channels that the answer lacks (a force, a coefficient) stay as they were given.

    With ``tolerance`` the depth of the model must be time (``zoo.evolution``): a step is compared with two halves of
    it, the halves are kept, and a PI controller chooses the next one (``Adaptive``). All samples share their steps.

    >>> from continua.axes import Circle
    >>> from continua.models.zoo import evolution
    >>> path = rollout(evolution(Circle(), 16), Batch(torch.ones(1, 16, 1)), steps=3, tolerance=1e-3)
    >>> path.states.shape, len(path.taken)
    (torch.Size([3, 1, 16, 1]), 3)
    """
    if tolerance is not None and not has_time(model):
        remedy = "Leave the tolerance out, or use a model of zoo.evolution."
        raise ConfigError("adaptive steps need a model whose depth is time", got=type(model).__name__, remedy=remedy)
    states: list[Tensor] = []
    taken: list[int] = []
    evaluations = 0
    batch = start
    for step in range(steps):
        if tolerance is None:
            state = predict(model, batch)
        else:
            first = 2.0 / taken[-1] if taken else None
            control = Adaptive(RK4(), rtol=tolerance, atol=tolerance, first=first)
            state, path, _ = model.run(batch, at(z=control))
            taken.append(path.stats["steps"])
            evaluations += path.stats["evaluations"]
        states.append(state)
        batch = replace(batch, values=moved_on(batch.values, state))
        if watch is not None:
            watch((step + 1) / steps)
    return RollOut(torch.stack(states), tuple(taken), evaluations)


def has_time(model: Any) -> bool:
    """Whether the depth of a model is time."""
    embed = model.embed if isinstance(model, Transformer) else None
    return isinstance(embed, Latent) and isinstance(embed.inner, Channels)


def moved_on(values: Any, state: Float[Tensor, "b n c"]) -> Tensor:
    """The next input: the new state, and the channels that are held."""
    if not isinstance(values, Tensor) or values.shape[:-1] != state.shape[:-1]:
        remedy = "Leave asked out: a state is answered where it was observed."
        raise ShapeError("a roll-out answers where it is asked again", got=list(state.shape), remedy=remedy)
    return torch.cat([state, values[..., state.shape[-1] :].to(state)], -1)


def correlation(states: Float[Tensor, "*s n c"], truth: Float[Tensor, "*s n c"]) -> Float[Tensor, "*s"]:
    """∫ uv / (‖u‖ ‖v‖) of each state and the true one, about their means; NaN counts as zero."""
    u, v = (x.double().flatten(-2) for x in (states, truth))
    u, v = (x - x.mean(-1, keepdim=True) for x in (u, v))
    found = (u * v).sum(-1) / (u.norm(dim=-1) * v.norm(dim=-1)).clamp_min(1e-300)
    return found.nan_to_num(0.0)


def correlation_time(
    states: Float[Tensor, "s b n c"], truth: Float[Tensor, "s b n c"], least: float = 0.8
) -> Float[Tensor, "b"]:
    """How many steps the correlation of each sample stays at ``least`` or above, counted until it first falls below."""
    return (correlation(states, truth) >= least).long().cumprod(0).sum(0).double()


def spectrum(fields: Float[Tensor, "*b n n"]) -> Float[Tensor, "*b k"]:
    """Σ |û_k|² over the shells k − ½ ≤ |k| < k + ½ of square fields on a torus, k = 1 … n/2 − 1."""
    n = fields.shape[-1]
    w = torch.fft.fft2(fields.double(), norm="forward").abs().square()
    k = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
    shell = (k[:, None].square() + k.square()).sqrt().round().long()
    return torch.stack([(w * (shell == i)).sum((-1, -2)) for i in range(1, n // 2)], -1)


def spectrum_error(
    fields: Float[Tensor, "*b n n"], truth: Float[Tensor, "*c n n"], least: float = 1e-6
) -> Float[Tensor, ""]:
    """Mean |log₁₀ E(k)/E*(k)| of mean spectra over the shells that hold more than a share ``least``; inf for NaN."""
    own, true = (spectrum(x.reshape(-1, *x.shape[-2:])).mean(0) for x in (fields, truth))
    shown = true > least * true.sum()
    return (own[shown].clamp_min(1e-300).log10() - true[shown].log10()).abs().mean().nan_to_num(float("inf"))


def bounded(states: Float[Tensor, "s b n c"], truth: Float[Tensor, "s b n c"], most: float = 3.0) -> Bool[Tensor, "b"]:
    """Whether every state of a roll-out is finite and at most ``most`` times as large as the largest true one."""
    size, true = (x.double().square().mean((-1, -2)).sqrt() for x in (states, truth))
    return torch.isfinite(size).all(0) & (size.nan_to_num(float("inf")) <= most * true.amax(0)).all(0)
