"""Attention kernels κ(t, s): how queries and keys become scores."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch.nn.functional import leaky_relu

from continua.axes import Axis, Grid, mass_of
from continua.config import register
from continua.operators.mask import Mask
from continua.settings import Positive, Single
from continua.typing import Float, PerQuery, PerSource, Tensor


@runtime_checkable
class Kernel(Protocol):
    """A kernel exp(scores + bias), normalised over the sources.

    ``is_dot``: the scores are scale·⟨q, k⟩, what fused attention computes; others go through the blocked path.
    ``over_keys`` names the letters whose quadrature weights are folded into the keys (queries carry those of c and e).
    """

    is_dot: ClassVar[bool]
    over_keys: ClassVar[str]

    def scale(self, e: Axis) -> float:
        """τ for the inner axis ``e``."""
        ...

    def scores(
        self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b h s e"], scale: float
    ) -> Float[Tensor, "b h t s"]:
        """Return the scores of some query rows."""
        ...


@runtime_checkable
class Subquadratic(Kernel, Protocol):
    """A kernel that never forms all pairs: it restricts or approximates the plain one that ``plain`` names.

    ``is_exact``: it is that kernel, to round-off. ``order``: p in error = O(m^−p) for its m features, landmarks or
    sources; ``inf`` for exact kernels and for those whose error falls faster than any power on smooth fields.
    """

    is_exact: ClassVar[bool]

    @property
    def order(self) -> float:
        """The power of 1/m in the error."""
        ...

    def plain(self, mask: Mask | None) -> tuple[Kernel, Mask | None]:
        """The exact kernel and mask that this one stands for under ``mask``."""
        ...

    def prepare(self, plan: Any, scores: Any, t: Grid, s: Grid) -> Any:
        """What depends on the nodes alone, made once for all depths; refuses what it cannot serve."""
        ...

    def attend(self, q: PerQuery, k: PerSource, v: PerSource, plan: Any, scores: Any) -> PerQuery:
        """∫ α(t, s) V(s) dμ(s), or its approximation."""
        ...


class Way(Enum):
    """How the keys of other processes come to the own queries, where tokens are in parts."""

    RING = "they walk round"
    FETCHED = "those that may be seen are fetched"
    GATHERED = "all are gathered"
    SUMMED = "they do not: the kernel adds up over the processes what it needs of them"


@runtime_checkable
class InParts(Subquadratic, Protocol):
    """A subquadratic kernel that takes tokens in parts on several processes (``Plan.layout``)."""

    def way(self, mask: Mask | None) -> Way:
        """How keys come here under a mask, which is that of ``plain``; refuses a mask it cannot serve so."""
        ...


@dataclass(frozen=True)
class Dot:
    """τ ⟨q, k⟩ with τ = mass(e)^(−½) unless ``temperature`` is given: what the kernels with dot scores share."""

    temperature: Single | None = field(default=None, kw_only=True)
    is_dot: ClassVar[bool] = True
    over_keys: ClassVar[str] = "c"

    def scale(self, e: Axis) -> float:
        """mass(e)^(−½): 1/√d_head on counting axes, one on [0, 1] with mass one."""
        return mass_of(e) ** -0.5 if self.temperature is None else self.temperature

    def scores(
        self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b h s e"], scale: float
    ) -> Float[Tensor, "b h t s"]:
        """τ ⟨q, k⟩."""
        return scale * q @ k.mT

    def plain(self, mask: Mask | None) -> tuple[Kernel, Mask | None]:
        """Softmax under the same mask."""
        return Softmax(self.temperature), mask


@register
@dataclass(frozen=True)
class Softmax(Dot):
    """κ = exp(τ ∫ Q K dμ(e)), τ = mass(e)^(−½) unless ``temperature`` is given (T5: 1).

    Discrete case: scaled dot-product attention.
    """

    temperature: Single | None = None


@register
@dataclass(frozen=True)
class Capped:
    """κ = exp(c·tanh(τ ∫ Q K dμ(e) / c)): softmax whose scores stay within ±c.

    τ = mass(e)^(−½) unless ``temperature`` is given. Discrete case: the attention of Gemma 2.
    """

    cap: Positive
    temperature: Single | None = None
    is_dot: ClassVar[bool] = False
    over_keys: ClassVar[str] = "c"

    def scale(self, e: Axis) -> float:
        """That of softmax."""
        return mass_of(e) ** -0.5 if self.temperature is None else self.temperature

    def scores(
        self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b h s e"], scale: float
    ) -> Float[Tensor, "b h t s"]:
        """c·tanh(τ⟨q, k⟩ / c)."""
        return self.cap * torch.tanh(scale / self.cap * q @ k.mT)


@register
@dataclass(frozen=True)
class Additive:
    """κ = exp(LeakyReLU(∫ Q(t, e) dμ(e) + ∫ K(s, e) dμ(e))): the score is a sum, not a product.

    Discrete case: graph attention (Veličković et al. 2018), LeakyReLU(a₁·W x_t + a₂·W x_s) with Q = a₁ ⊙ W,
    K = a₂ ⊙ W and V = W.
    """

    slope: float = 0.2
    is_dot: ClassVar[bool] = False
    over_keys: ClassVar[str] = "ce"

    def scale(self, e: Axis) -> float:
        """One: a sum over e has no product to tame."""
        return 1.0

    def scores(
        self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b h s e"], scale: float
    ) -> Float[Tensor, "b h t s"]:
        """LeakyReLU(Σ q + Σ k)."""
        return leaky_relu(q.sum(-1)[..., :, None] + k.sum(-1)[..., None, :], self.slope)


@register
@dataclass(frozen=True)
class Uniform:
    """κ = 1: the weights are those of the measure, the mask and the position bias alone.

    Discrete case: the mean over all tokens, or a moving average whose weights the position bias gives.
    """

    is_dot: ClassVar[bool] = False
    over_keys: ClassVar[str] = "c"

    def scale(self, e: Axis) -> float:
        """That of softmax, so that unused queries and keys start as they would there."""
        return mass_of(e) ** -0.5

    def scores(
        self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b h s e"], scale: float
    ) -> Float[Tensor, "b h t s"]:
        """Zero: 0·Σq + 0·Σk, so that gradients are zero and not missing."""
        return 0 * (q.sum(-1)[..., :, None] + k.sum(-1)[..., None, :])


def subquadratic(kernel: Kernel) -> Subquadratic | None:
    """The kernel itself where it never forms all pairs; a protocol is slow to ask, so ``Softmax`` is known before."""
    return kernel if not isinstance(kernel, Softmax) and isinstance(kernel, Subquadratic) else None
