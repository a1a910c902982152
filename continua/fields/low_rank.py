"""Kernels with a low-rank addition: few numbers learn, and all of a pretrained kernel stays (Hu et al. 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from continua.axes import Axis, Counting, Points, Sites
from continua.config import register
from continua.errors import ConfigError
from continua.fields.basis import Basis, precisely
from continua.fields.field import Expansion
from continua.fields.nodal import Nodal
from continua.fields.role import TABLE, Role
from continua.settings import Positive, Single, Size
from continua.typing import Float, Letter, Tensor


@register
@dataclass(frozen=True)
class LowRank:
    """What is added to each kernel: ``scale`` Σ_r A_r(out) B_r(in), with ``rank`` functions A and B of each depth."""

    rank: Size
    scale: Positive = 1.0


class Factors(NamedTuple):
    """The two sides of an addition as matrices, with the coefficients in depth before them where there are some."""

    out: Float[Tensor, "*z r o"]
    inputs: Float[Tensor, "*z r i"]
    scale: float


class Adapted(Expansion):
    """W(z, x, y) + s Σ_k B_k(z) Σ_r A_kr(x) B_kr(y): a kernel with a few more functions of each side.

    A is zero at first. Coefficients are added to coefficients, in the bases of the kernel itself. So the sum is a field
    of the same kind, read on any grid as that is, and merging it into W is exact on all of them.

    Discrete case: LoRA of ``nn.Linear``, W + s AᵀB, for every layer.
    """

    def __init__(
        self,
        axes: Mapping[Letter, Axis],
        bases: Mapping[Letter, Basis],
        std: Single = 0.0,
        mean: Single = 0.0,
        role: Role | None = None,
        *,
        low: LowRank,
        spread: float,
    ) -> None:
        super().__init__(axes, bases, std, mean, role)
        letters = "".join(self.letters)
        inputs = "" if role is None else role.inputs
        if not inputs or not letters.endswith(inputs):
            remedy = 'Name what it is integrated over, last: kernel(weights, "zdc", inputs="c").'
            raise ConfigError("a low-rank addition is one to a kernel", got=letters, remedy=remedy)
        self.low = low
        depth = "z" if letters.startswith("z") else ""
        self.out = self._side(depth, letters.removeprefix("z").removesuffix(inputs), 0.0)
        self.inputs = self._side(depth, inputs, spread)

    def _side(self, depth: str, letters: str, std: float) -> Expansion:
        """Functions of one side, counted by n; a basis that is a network stays the kernel's, and is counted here."""
        axes: dict[Letter, Axis] = {}
        bases: dict[Letter, Basis] = {}
        for letter in (*depth, "n", *letters):
            size = self.low.rank if letter == "n" else self.bases[letter].size
            counts = letter == "n" or isinstance(self.bases[letter], nn.Module)
            axes[letter] = Points(size) if counts else self.axes[letter]
            bases[letter] = Nodal(Counting(size)) if counts else self.bases[letter]
        return Expansion(axes, bases, std, role=TABLE.with_rows(self.low.rank))

    @property
    def factors(self) -> Factors:
        """Both sides as matrices."""
        leading = 2 if self.letters[0] == "z" else 1
        out = self.out.coefficients.flatten(leading)
        return Factors(out, self.inputs.coefficients.flatten(leading), self.low.scale)

    @precisely
    def stored(self) -> Tensor:
        """The coefficients of the sum."""
        out, inputs, scale = self.factors
        own = self.coefficients
        if out.dim() == 2:
            flat = own.reshape(out.shape[-1], inputs.shape[-1])
            return torch.addmm(flat, out.mT, inputs, alpha=scale).view(own.shape)
        flat = own.reshape(own.shape[0], out.shape[-1], inputs.shape[-1])
        return torch.baddbmm(flat, out.mT, inputs, alpha=scale).view(own.shape)

    def draw(self, generator: torch.Generator) -> None:
        """Start anew: functions B at random, A zero."""
        self.out.reset(0.0, 0.0, generator)
        self.inputs.reset(self.inputs.std, 0.0, generator)

    @torch.no_grad()
    def project(self, values: Tensor, grids: Mapping[Letter, Sites]) -> "Adapted":
        """Set the kernel itself, and A to zero."""
        self.out.coefficients.zero_()
        super().project(values, grids)
        return self
