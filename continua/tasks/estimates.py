"""How far an answer may be off, said with the answer: two grids, and the waves that training did not have."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from continua.axes import Grid
from continua.errors import ConfigError
from continua.models import Batch, Transformer
from continua.models.latent import Latent
from continua.tasks.functions import predict, relative
from continua.typing import Float, Tensor

STILL = 1e-6  # a change of the input below this says nothing of the gain


@dataclass(frozen=True)
class Estimated:
    """An answer and an estimate of its relative L² error, for each function of a batch.

    ``error``² = learned² + ``gain``² (``unseen`` + ``unresolved``). ``gain`` is how much of a relative change of the
    fine half of the input's waves arrives in the answer, from the answers on two grids: the latent one, and one with
    half as many nodes. ``unseen`` is the share of the observed input in waves that training did not have,
    ``unresolved`` the share of the variance of training functions that these points leave open. What points cannot
    show (waves above their Nyquist frequency) is counted as the training functions had it: faster waves that fold
    onto slow ones there are seen by nobody.
    """

    answer: Float[Tensor, "b n c"]
    error: Float[Tensor, "b"]
    gain: Float[Tensor, "b"]
    unseen: Float[Tensor, "b"]
    unresolved: Float[Tensor, "b"]


@torch.no_grad()
def estimated(
    model: Any, batch: Batch, learned: float = 0.0, watch: Callable[[float], None] | None = None
) -> Estimated:
    """The answers to a batch of functions and how far they may be off; ``learned`` is the error on held-out functions.

    >>> from continua.axes import Circle, at
    >>> from continua.models.zoo import function_map
    >>> model = function_map(Circle(), 16, at=at(d=8, h=2, m=8, z=2), modes=4)
    >>> x = torch.arange(64) / 64
    >>> slow, fast = (torch.sin(2 * torch.pi * k * x)[None, :, None] for k in (2, 20))
    >>> share = estimated(model, Batch(slow + 0.5 * fast, times=x)).unseen
    >>> round(float(share), 2)                                       # 0.25 / 1.25
    0.2
    """
    embed = model.embed if isinstance(model, Transformer) else None
    if not isinstance(embed, Latent) or not isinstance(batch.values, Tensor):
        remedy = "Use a model of zoo.function_map, such as that of continua fit burgers."
        raise ConfigError("errors are estimated for maps on a latent grid", got=type(model).__name__, remedy=remedy)
    answer = predict(model, batch, watch)
    values = batch.values.to(answer.device)
    seen = embed.seen(replace(batch, values=values)).to(values)
    own = embed.grid_like(values)
    unseen = embed.space.unseen(values, seen)
    if embed.sharp:
        fine = _on(model, embed.lay(replace(batch, values=values)).values, own)
        half = _on(model, embed.lay(replace(batch, values=values, observed=_every_second(seen))).values, own)
        gain = torch.ones_like(unseen)
        unresolved = relative(half, fine, own.weights.to(fine)).square().to(unseen)
        error = (learned**2 + unresolved).sqrt()
        return Estimated(answer, error, gain, unseen, unresolved)
    laid = embed.lay(replace(batch, values=values)).values
    gain = _gain(model, embed, laid, own)
    unresolved = embed.space.left_over(seen, own).expand(len(values)).to(unseen)
    error = (learned**2 + gain.square() * (unseen + unresolved)).sqrt()
    return Estimated(answer, error, gain, unseen, unresolved)


def _gain(model: Any, embed: Latent, laid: Any, own: Grid) -> Float[Tensor, "b"]:
    """Relative change of the answer over that of the input, when the input keeps the slower half of its waves."""
    slower = tuple(max(1, min(a, b) // 2) for a, b in zip(embed.waves.modes, embed.shown, strict=True))
    low = (replace(embed.space, shown=slower).matrix(own, own.nodes).to(laid) @ laid).to(laid)
    weights = own.weights.to(laid)
    moved = relative(low, laid, weights)
    arrived = relative(_on(model, low, own), _on(model, laid, own), weights)
    return torch.where(moved > STILL, arrived / moved.clamp_min(STILL), 1.0)


def _on(model: Any, laid: Any, own: Grid) -> Tensor:
    """Answers on the latent grid to functions that lie there."""
    return predict(model, Batch(laid, grid=own, laid=True))


def _every_second(seen: Grid) -> Tensor:
    """Which points stay when every second one is left out, along each direction of a lattice."""
    if seen.lines is None:
        return torch.arange(seen.count, device=seen.weights.device) % 2 == 0
    kept = torch.ones((), dtype=torch.bool)
    for line in seen.lines:
        kept = (kept[..., None] & (torch.arange(len(line)) % 2 == 0)).squeeze()
    return kept.flatten().to(seen.weights.device)
