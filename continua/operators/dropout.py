"""Dropout whose masks are functions of a seed and of depth, so that whoever walks again meets the same ones."""

from typing import Any

import torch

from continua.config import register
from continua.errors import ConfigError
from continua.flow.vectorfield import Bound, Gradients, HandWritten
from continua.operators.operator import Context, Operator
from continua.operators.weights import Grids
from continua.typing import Args, Tensor


@register
class Drop(Operator):
    """inner(x) with a share ``rate`` of its entries set to zero and the others scaled up, while training.

    Each forward pass draws one seed (from ``Context.generator``). ``constant``: the same mask at all depths, so that
    dX/dz stays smooth in z (continuous models); otherwise each depth has its own, as layers have in the discrete case.
    """

    def __init__(self, inner: Operator, rate: float, constant: bool = False) -> None:
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise ConfigError("a dropout rate lies in [0, 1)", got=rate, remedy="0.1 is usual.")
        self.inner, self.rate, self.constant = inner, rate, constant

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Draw the seed; without training this is the inner operator."""
        inner, own = self.inner.bind(grids, context)
        if not self.training or self.rate == 0.0:
            return inner, own
        generator = None if context is None else context.generator
        seed = int(
            torch.randint(2**62, (), generator=generator, device=None if generator is None else generator.device)
        )
        mask = Mask(seed, self.rate, self.constant)

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            return mask(z, inner.f(z, x, args))

        lean = None if inner.lean is None else _LeanDrop(inner.lean, mask)
        return Bound(f, inner.read, inner.local, lean), own


class Mask:
    """y ↦ y ⊙ m(z) / (1 − rate)."""

    def __init__(self, seed: int, rate: float, constant: bool) -> None:
        self.seed, self.rate, self.constant = seed, rate, constant

    def __call__(self, z: float, y: Tensor) -> Tensor:
        """Apply the mask of depth z."""
        seed = hash((self.seed, 0.0 if self.constant else z)) % 2**63
        generator = torch.Generator(device=y.device).manual_seed(seed)
        kept = torch.rand(y.shape, generator=generator, device=y.device) >= self.rate
        return torch.where(kept, y * (1.0 / (1.0 - self.rate)), 0.0)


class _LeanDrop:
    """The hand-written backward with the mask on top: it is drawn again, not kept."""

    def __init__(self, inner: HandWritten, mask: Mask) -> None:
        self.inner, self.mask, self.uses_x = inner, mask, inner.uses_x

    def prepare(self, z: float, x: Tensor, args: Args) -> Any:
        """Prepare the branch."""
        return self.inner.prepare(z, x, args)

    def finish(self, z: float, x: Tensor, kept: Any, args: Args) -> Tensor:
        """Drop entries of the answer."""
        return self.mask(z, self.inner.finish(z, x, kept, args))

    def pull(self, z: float, x: Tensor, kept: Any, args: Args, g: Tensor) -> tuple[Tensor, Gradients]:
        """The mask is its own transpose."""
        return self.inner.pull(z, x, kept, args, self.mask(z, g))
