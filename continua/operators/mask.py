"""Masks: the support of the attention kernel and, for ``Causal``, the measure of a row's own cell.

Every mask is a function of *real* times, so irregular stamps need nothing new. A product is written ``a & b``.
"""

from dataclasses import dataclass

import torch

from continua.config import register
from continua.errors import MaskError
from continua.typing import Bool, Float, Tensor


class Mask:
    """Which sources s a query t may look at."""

    def allowed(self, t: Float[Tensor, "*b t k"], s: Float[Tensor, "*b s k"]) -> Bool[Tensor, "*b t s"]:
        """Return True where query t may attend to source s."""
        raise NotImplementedError

    @property
    def is_causal(self) -> bool:
        """Whether a row integrates over the past only."""
        return False

    @property
    def sees_itself(self) -> bool:
        """Whether every query is sure to see its own token; if not, rows are checked for having any key at all."""
        return False

    def __and__(self, other: "Mask") -> "Both":
        return Both(self, other)


def _difference(t: Tensor, s: Tensor) -> Tensor:
    """t − s for 1-D times: [..., t, s]."""
    if t.shape[-1] != 1:
        raise MaskError("this mask orders time", got=f"{t.shape[-1]}-dimensional points", remedy="Use Window(r) there.")
    return t - s.mT


@register
@dataclass(frozen=True)
class Causal(Mask):
    """Row t integrates over (−∞, t].

    On a Lebesgue axis earlier nodes keep their weights and the row's own node gets the part of its cell left of it
    (``Grid.left``), so no row uses a later stamp. Discrete case: the lower triangle, diagonal included.
    """

    @property
    def is_causal(self) -> bool:
        """Yes."""
        return True

    @property
    def sees_itself(self) -> bool:
        """At distance zero."""
        return True

    def allowed(self, t: Float[Tensor, "*b t k"], s: Float[Tensor, "*b s k"]) -> Bool[Tensor, "*b t s"]:
        """s ≤ t; equal stamps see each other."""
        return _difference(t, s) >= 0


@register
@dataclass(frozen=True)
class Window(Mask):
    """|t − s| ≤ radius (in any dimension). Discrete case: a band of width 2·radius + 1."""

    radius: float

    @property
    def sees_itself(self) -> bool:
        """At distance zero."""
        return True

    def allowed(self, t: Float[Tensor, "*b t k"], s: Float[Tensor, "*b s k"]) -> Bool[Tensor, "*b t s"]:
        """A ball around the query; a hair wider, so that 0.1 + 0.2 is within 0.3."""
        gap = _difference(t, s).abs() if t.shape[-1] == 1 else torch.cdist(t, s)
        return gap <= self.radius * (1 + 1e-6)


@register
@dataclass(frozen=True)
class Strided(Mask):
    """t − s within ``width``/2 of a multiple of ``stride``. Discrete case: every stride-th token (width 0)."""

    stride: float
    width: float = 0.0

    @property
    def sees_itself(self) -> bool:
        """At distance zero."""
        return True

    def allowed(self, t: Float[Tensor, "*b t k"], s: Float[Tensor, "*b s k"]) -> Bool[Tensor, "*b t s"]:
        """Distance to the nearest multiple of the stride."""
        gap = _difference(t, s)
        off = (gap - self.stride * torch.round(gap / self.stride)).abs()
        return off <= self.width / 2 + 1e-6 * self.stride


@register
@dataclass(frozen=True)
class Both(Mask):
    """The product of two masks."""

    first: Mask
    second: Mask

    @property
    def is_causal(self) -> bool:
        """If either is."""
        return self.first.is_causal or self.second.is_causal

    @property
    def sees_itself(self) -> bool:
        """If both do."""
        return self.first.sees_itself and self.second.sees_itself

    def allowed(self, t: Float[Tensor, "*b t k"], s: Float[Tensor, "*b s k"]) -> Bool[Tensor, "*b t s"]:
        """Allowed by both."""
        return self.first.allowed(t, s) & self.second.allowed(t, s)
