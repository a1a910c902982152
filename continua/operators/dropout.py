"""Dropout whose masks are functions of a seed and of depth, so that whoever walks again meets the same ones."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch.nn.functional import dropout

from continua.axes import Grids
from continua.config import register
from continua.flow.vectorfield import Bound
from continua.operators.operator import Context, Operator
from continua.settings import Range
from continua.typing import Args, Tensor

Rate = Annotated[float, Range(low=0, below=1, remedy="0.1 is usual.")]


@register
class Drop(Operator):
    """inner(x) with a share ``rate`` of its entries set to zero and the others scaled up, while training.

    Each forward pass draws one seed (from ``Context.generator``). ``constant``: the same mask at all depths, so that
    dX/dz stays smooth in z (continuous models); otherwise each depth has its own, as layers have in the discrete case.
    """

    def __init__(self, inner: Operator, rate: Rate, constant: bool = False) -> None:
        super().__init__()
        self.inner, self.rate, self.constant = inner, rate, constant

    def read(self, grids: Grids, late: bool = False) -> Any:
        """The weights of the inner operator."""
        return self.inner.read(grids, late)

    def place(self, read: Any, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Draw the seed; without training this is the inner operator."""
        inner, own = self.inner.place(read, grids, context)
        if not self.training or self.rate == 0.0:
            return inner, own
        if torch.compiler.is_compiling():
            return Bound(DroppedInGraph(inner, self.rate), inner.read, inner.local), own
        generator = context.generator
        device = None if generator is None else generator.device
        seed = int(torch.randint(2**62, (), generator=generator, device=device))
        mask = Mask(seed, self.rate, self.constant)
        return Bound(Dropped(inner, mask), inner.read, inner.local), own


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


@dataclass(frozen=True)
class Dropped:
    """mask(z) ⊙ inner(z, x)."""

    inner: Bound
    mask: Mask

    def __call__(self, z: float, x: Tensor, args: Args) -> Tensor:
        """Evaluate."""
        return self.mask(z, self.inner.f(z, x, args))


@dataclass(frozen=True)
class DroppedInGraph:
    """The same inside a compiled graph, which draws by itself: a mask for every evaluation."""

    inner: Bound
    rate: float

    def __call__(self, z: float, x: Tensor, args: Args) -> Tensor:
        """Evaluate."""
        return dropout(self.inner.f(z, x, args), self.rate)
