"""The width of the state: an order of its coordinates, moments by which fewer stand in for all, gains of norms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from continua.convert.moments import CHOSEN, Sums, leading
from continua.fields import Expansion
from continua.operators import Attention, LayerNorm, Operator, RMSNorm
from continua.operators.norm import Affine
from continua.typing import Tensor

ROUND_OFF = 1e-9  # of the mean variance: what is below says nothing


@dataclass(frozen=True)
class Reading:
    """The states that an operator reads, by layer, and how much its maps take of each coordinate, [layers, d]."""

    sums: tuple[Sums, ...]
    weight: Tensor

    def moments(self, centred: bool) -> list[tuple[Tensor, Tensor]]:
        """Mean and second moments of each layer."""
        return [own.moments(centred) for own in self.sums]


def reading_maps(operator: Operator) -> Tensor:
    """Σ of the squares of all that is multiplied with each coordinate of the state, [layers, d]."""
    names: tuple[str, ...] = ("w1", "gate")
    if isinstance(operator, Attention):
        names = ("q",) if operator.cross else ("q", "k", "v")  # of cross-attention keys and values read another state
    total: Any = 0.0
    for name in names:
        field = getattr(operator, name)
        if isinstance(field, Expansion):
            own = field.coefficients.detach().double().cpu()
            own = own if "z" in field.bases else own[None]
            total = total + own.square().flatten(1, -2).sum(1)
    found: Tensor = total
    return found


def state_order(readings: Sequence[Reading]) -> Tensor:
    """Coordinates by pivoted Cholesky of all layers at once: the one whose unsaid part moves all maps most is next.

    What a coordinate moves in a layer counts as a share of what the whole state moves there.
    """
    second = torch.stack([own for one in readings for _, own in one.moments(centred=True)])  # [layers, d, d]
    weight = torch.cat([one.weight for one in readings])  # [layers, d]
    left = second.diagonal(dim1=1, dim2=2).clone()
    floor = ROUND_OFF * left.mean(1)
    weight = weight / (weight * left).sum(1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
    layers, count = left.shape
    chosen = max(1, int(CHOSEN * count))
    factor = second.new_zeros(layers, count, chosen)
    is_open = torch.ones(count, dtype=torch.bool)
    taken: list[int] = []
    for step in range(chosen):
        node = int((weight * left).sum(0).masked_fill(~is_open, -torch.inf).argmax())
        taken.append(node)
        is_open[node] = False
        column = second[:, :, node] - (factor[:, :, :step] @ factor[:, node, :step, None])[..., 0]
        pivot = column[:, node]
        new = column * torch.where(pivot > floor, pivot, torch.inf).rsqrt()[:, None]
        factor[:, :, step] = new
        left = left - new.square()
    score = (weight * left).sum(0)
    rest = [node for node in score.argsort(descending=True).tolist() if is_open[node]]
    return torch.tensor([*taken, *rest])


def keep_state_moments(operator: Any, reading: Reading) -> None:
    """Give the refit of the maps that read the state its moments."""
    refit = operator.state_refit
    if refit is None:
        return
    rank = refit.factor.shape[-1]
    for layer, (mean, second) in enumerate(reading.moments(refit.centred)):
        refit.keep(layer, leading(second, rank, reading.weight[layer].sqrt()), second.diagonal(), mean)


def norms_of(model: Any) -> list[Affine]:
    """The norms whose gains are mended."""
    return [module for module in model.modules() if isinstance(module, LayerNorm | RMSNorm)]


def mend_norm(norm: Any, sums: Sequence[Sums], order: Tensor) -> None:
    """Let a norm over half of the coordinates give them what the norm over all gives them, in the mean over tokens.

    γ y / σ with σ of fewer coordinates is too small or too large by the ratio of both σ: a gain along d. LayerNorm also
    subtracts another mean, which a shift gives back. Both grow with log2(native / size), as all calibrations do.
    """
    if norm.calibration is None or norm.scale is None or not sums:
        return
    kept = order[: max(1, len(order) // 2)]
    octaves = math.log2(len(order) / len(kept)) or 1.0
    centred = isinstance(norm, LayerNorm)
    gains: Any = norm.calibration.fields["scale over d by d"]
    shifts: Any = norm.calibration.fields["shift over d by d"] if norm.shift is not None else None
    for layer, own in enumerate(sums):
        mean = own.first / own.count
        second = own.second / own.count
        whole = _spread(second, centred)
        part = _spread(second[kept][:, kept], centred)
        at = layer if "z" in gains.letters else ...
        gains.coefficients[at] = 0.5 * float((part / whole).log()) / octaves
        if centred and shifts is not None:
            apart = float((mean[kept].mean() - mean.mean()) / whole.sqrt()) / octaves
            shifts.coefficients[at] = apart * norm.scale.coefficients[at]


def _spread(second: Tensor, centred: bool) -> Tensor:
    """The mean square of coordinates, about their mean over coordinates where ``centred``."""
    total = second.diagonal().mean()
    return total - second.mean() if centred else total
