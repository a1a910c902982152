"""Biases of distance, steeper in some heads than in others."""

from typing import Any

import torch

from continua.axes import Axes, Grid, Points, mass_of
from continua.config import register
from continua.errors import ConfigError
from continua.fields.basis import unit_coordinate
from continua.operators.position import Position
from continua.typing import Float, Tensor


@register
class ALiBi(Position):
    """bias = −2^(−8u_h) |t − s| with u_h = (i+1)/H on ``Points(H)`` (Press et al. 2022).

    With ``as_powers`` numbers of heads between two powers of two have the slopes of the smaller one, and then every
    second of the larger one. With ``tempered`` the bias is divided by √mass(e), as scores are. Falcon has both.
    """

    def __init__(self, axes: Axes, as_powers: bool = False, tempered: bool = False) -> None:
        super().__init__()
        if as_powers and not (isinstance(axes.h, Points) and axes.h.n):
            raise ConfigError("powers of two are of counted heads", got=axes.h, remedy="Leave as_powers out.")
        self.axes = axes
        self.as_powers = as_powers
        self.tempered = tempered

    def bind(self, h: Grid, e: Grid) -> Any:
        """Return the slopes of the heads."""
        axis = self.axes.h
        u = (h.nodes[:, 0] + 1) / axis.n if isinstance(axis, Points) and axis.n else unit_coordinate(axis, h.nodes)
        if self.as_powers and isinstance(axis, Points):
            u = _as_powers(h.nodes[:, 0], axis.n or 1)
        slopes = 2.0 ** (-8 * u)
        return slopes * mass_of(self.axes.e) ** -0.5 if self.tempered else slopes

    def key_bias(self, s: Float[Tensor, "*b s k"], args: Any) -> Float[Tensor, "*bh s"] | None:
        """+slope·s: the query's own −slope·t is constant along a row and cancels."""
        return args.to(s)[:, None] * s[..., None, :, 0]

    def pair_bias(
        self, t: Float[Tensor, "*#b t k"], s: Float[Tensor, "*#b s k"], args: Any
    ) -> Float[Tensor, "*bh t s"] | None:
        """−slope·|t − s|."""
        return -args[:, None, None] * (t - s.mT).abs().to(args)[..., None, :, :]


def _as_powers(heads: Tensor, count: int) -> Tensor:
    """(i+1)/P for the first P heads, the largest power of two, then (2j+1)/2P."""
    power = 2 ** (count.bit_length() - 1)
    return torch.where(heads < power, (heads + 1) / power, (2 * (heads - power) + 1) / (2 * power))
