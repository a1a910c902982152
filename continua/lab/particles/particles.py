"""Tokens as particles on the unit sphere."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from continua import memory
from continua.errors import ShapeError
from continua.geometry import sphere
from continua.settings import checked
from continua.typing import Float, Tensor

ON_SPHERE = 1e-5  # how far from length one a token may be: float32 states of a long run pass


@dataclass(frozen=True, eq=False)
class Particles:
    """μ = Σ_i w_i δ(x_i): tokens x_i on the unit sphere of R^d, with weights that sum to one (1/n each if None)."""

    x: Float[Tensor, "*b n d"]
    weights: Float[Tensor, "*b n"] | None = None

    def __post_init__(self) -> None:
        if self.n < 1 or self.d < 2:
            got = f"{self.n} tokens in dimension {self.d}"
            raise ShapeError("particles are at least one token in dimension two or more", got=got, remedy=_MAKE)
        if not bool(torch.isfinite(self.x).all()):
            bad = int((~torch.isfinite(self.x)).any(-1).sum())
            raise ShapeError("tokens must be finite", got=f"{bad} with NaN or infinity", remedy="Leave them out.")
        off = float((self.x.detach().norm(dim=-1) - 1).abs().max())
        if off > ON_SPHERE:
            remedy = "Particles.of(x) brings them onto it."
            raise ShapeError("tokens lie on the unit sphere", got=f"one that is {off:.2g} off it", remedy=remedy)
        w = self.weights
        if w is not None and (bool((w < 0).any()) or float((w.detach().sum(-1) - 1).abs().max()) > ON_SPHERE):
            got = f"least {float(w.min()):.3g}, sum {float(w.sum(-1).max()):.6g}"
            raise ShapeError("weights are at least 0 and sum to 1", got=got, remedy="Divide them by their sum.")

    @property
    def n(self) -> int:
        """How many tokens."""
        return self.x.shape[-2]

    @property
    def d(self) -> int:
        """The dimension of the space around the sphere."""
        return self.x.shape[-1]

    @property
    def angles(self) -> Tensor:
        """θ_i in (−π, π], on the circle."""
        if self.d != 2:
            raise ShapeError("angles belong to the circle", got=f"d={self.d}", remedy="Use .x, or particles with d=2.")
        return torch.atan2(self.x[..., 1], self.x[..., 0])

    @property
    def masses(self) -> Tensor:
        """The weights, also where they are all equal."""
        return self.weights if self.weights is not None else torch.full_like(self.x[..., 0], 1 / self.n)

    @classmethod
    def of(cls, x: Tensor, weights: Tensor | None = None) -> "Particles":
        """The directions of any vectors; their weights are scaled to the sum one."""
        lengths = x.norm(dim=-1)
        if bool((lengths == 0).any()):
            got = f"{int((lengths == 0).sum())} of them"
            raise ShapeError("zero vectors have no direction", got=got, remedy="Leave them out.")
        return cls(sphere.retract(x), None if weights is None else weights / weights.sum(-1, keepdim=True))

    @classmethod
    @checked
    def uniform(
        cls, n: int, d: int = 2, generator: torch.Generator | None = None, runs: int | None = None
    ) -> "Particles":
        """n independent tokens, uniform on the sphere; ``runs`` of them side by side."""
        _check(n, d, runs or 1)
        return cls(sphere.uniform((n, d) if runs is None else (runs, n, d), generator))

    @classmethod
    def circle(cls, angles: Tensor | Sequence[float], weights: Tensor | None = None) -> "Particles":
        """(cos θ, sin θ)."""
        theta = torch.as_tensor(angles, dtype=torch.float64) if not isinstance(angles, Tensor) else angles
        return cls(torch.stack([theta.cos(), theta.sin()], -1), weights)

    @classmethod
    @checked
    def polygon(cls, n: int) -> "Particles":
        """The corners of a regular n-gon."""
        _check(n, 2)
        return cls.circle(torch.arange(n, dtype=torch.float64) * (2 * math.pi / n))

    @classmethod
    @checked
    def orthogonal(cls, n: int, d: int | None = None) -> "Particles":
        """n pairwise orthogonal tokens."""
        return cls.equiangular(n, 0.0, d)

    @classmethod
    @checked
    def equiangular(cls, n: int, gamma: float, d: int | None = None) -> "Particles":
        """n tokens with ⟨x_i, x_j⟩ = γ for i ≠ j."""
        d = n if d is None else d
        _check(n, d)
        if d < n or not -1 / max(1, n - 1) < gamma <= 1:
            got = f"n={n}, d={d}, gamma={gamma}"
            remedy = "Use d ≥ n and a cosine above −1/(n−1)."
            raise ShapeError("so many tokens cannot have equal cosines there", got=got, remedy=remedy)
        gram = torch.full((n, n), gamma, dtype=torch.float64).fill_diagonal_(1.0)
        values, vectors = torch.linalg.eigh(gram)
        x = torch.zeros(n, d, dtype=torch.float64)
        x[:, :n] = vectors * values.clamp_min(0).sqrt()
        return cls(sphere.retract(x))


_MAKE = "Write Particles.uniform(1000, d=3), or give x of shape [n, d]."


def _check(n: int, d: int, runs: int = 1) -> None:
    if n < 1 or d < 2 or runs < 1:
        raise ShapeError("particles are at least one token in dimension two or more", got=f"n={n}, d={d}", remedy=_MAKE)
    memory.require(8 * runs * n * d, f"{n} tokens in dimension {d}", "Use fewer.")
