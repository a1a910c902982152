"""An expert that every token has, beside a mixture of them."""

from dataclasses import dataclass

import torch

from continua.axes import Grids
from continua.config import register
from continua.fields import Parametrisation, kernel
from continua.flow.vectorfield import Bound
from continua.operators.activation import Activation, SiLU
from continua.operators.experts import of_experts
from continua.operators.linear import linear
from continua.operators.operator import Context, Operands, Operator, local, read_late
from continua.operators.weights import Sampled, Weight, sample
from continua.settings import Size
from continua.typing import Args, Tensor


@dataclass(frozen=True)
class Sharing:
    """σ(⟨s, x⟩) W2 (φ(W1 x) · Gx) with the weights of one depth."""

    phi: Activation

    def __call__(self, z: float, x: Tensor, args: Operands) -> Tensor:
        """All pieces at once: they are one map of a wider hidden axis."""
        w = args.weights.at(z)
        hidden = self.phi(linear(x, w["w1"])) * linear(x, w["gate"])
        return torch.sigmoid(linear(x, w["share"])) * linear(hidden, w["w2"])


@register
class SharedExpert(Operator):
    """F[x](t, d) = σ(∫ s(c) x(t, c) dμ(c)) Σ_i W2_i (φ(W1_i x) · G_i x) over so many ``pieces``, each with the axis m.

    Discrete case: the shared expert of Qwen2-MoE, whose hidden width is ``pieces`` times that of its other experts.
    """

    def __init__(
        self,
        weights: Parametrisation,
        pieces: Size = 1,
        phi: Activation = SiLU(),  # noqa: B008  (frozen and stateless)
    ) -> None:
        super().__init__()
        own = of_experts(weights, pieces)
        self.pieces = pieces
        self.phi = phi
        self.share = kernel(own, "zc", inputs="c")
        self.w1 = kernel(own, "zhmc", inputs="c")
        self.gate = kernel(own, "zhmc", inputs="c")
        self.w2 = kernel(own, "zdhm", inputs="hm", is_output=True)

    def read(self, grids: Grids, late: bool = False) -> Sampled:
        """All kernels with their quadrature weights folded in; pieces side by side."""
        weights = {
            "share": Weight(self.share, "c", then=_as_row),
            "w1": Weight(self.w1, "c", then=_rows_side_by_side, stored="h"),
            "gate": Weight(self.gate, "c", then=_rows_side_by_side, stored="h"),
            "w2": Weight(self.w2, "m", then=_columns_side_by_side, stored="h"),
        }
        return sample(grids, weights, late)

    def place(self, read: Sampled, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """The map with these weights."""
        return Bound(Sharing(self.phi), read_late(read.reading), local), Operands(read.weights)


def _as_row(share: Tensor) -> Tensor:
    return share.unsqueeze(-2)


def _rows_side_by_side(maps: Tensor) -> Tensor:
    """[…, h, m, c] → […, hm, c]."""
    return maps.flatten(-3, -2)


def _columns_side_by_side(maps: Tensor) -> Tensor:
    """[…, d, h, m] → […, d, hm]."""
    return maps.flatten(-2)
