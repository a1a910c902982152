"""Attention kernels κ(t, s): how queries and keys become scores."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from torch.nn.functional import leaky_relu

from continua.axes import Axis, mass_of
from continua.config import register
from continua.typing import Float, Tensor


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


@register
@dataclass(frozen=True)
class Softmax:
    """κ = exp(τ ∫ Q K dμ(e)), τ = mass(e)^(−½) unless ``temperature`` is given (T5: 1).

    Discrete case: scaled dot-product attention.
    """

    temperature: float | None = None
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
