"""A mixture of experts: the gate is a sparse measure over an axis of feed-forward maps."""

from dataclasses import dataclass, replace

import torch
from torch.nn.functional import grouped_mm, softmax

from continua.axes import Counting, Grids, Points
from continua.checks import looking
from continua.config import register
from continua.errors import ConfigError
from continua.fields import ByBasis, Nodal, Parametrisation, kernel
from continua.flow.vectorfield import Bound
from continua.operators.activation import Activation, SiLU
from continua.operators.linear import linear
from continua.operators.operator import Context, Operands, Operator, local, read_late
from continua.operators.weights import Sampled, Weight, sample
from continua.settings import Size
from continua.typing import Args, Mapping, Tensor


@dataclass(frozen=True)
class Gate:
    """g(t, ·): the ``top`` largest entries of a softmax over experts, summing to one where ``normalised``."""

    top: int
    normalised: bool

    def __call__(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """[n, experts] → shares and numbers of the experts that have one, [n, top]."""
        shares, chosen = softmax(scores, -1).topk(self.top, -1)
        return shares / shares.sum(-1, keepdim=True) if self.normalised else shares, chosen


def can_group(rows: Tensor, w1: Tensor) -> bool:
    """Whether torch has products of groups for these: float32 in rows of whole 16 bytes, where it was tried."""
    whole = all(size % 4 == 0 for size in w1.shape[1:])
    return whole and rows.dtype == w1.dtype == torch.float32 and rows.device.type == "cpu"


@dataclass(frozen=True)
class Mixing:
    """Σ g_i F_i(x) with the weights of one depth."""

    phi: Activation
    gate: Gate

    def __call__(self, z: float, x: Tensor, args: Operands) -> Tensor:
        """Each token through its own experts; in a graph, which cannot sort tokens, through all of them."""
        w = args.weights.at(z)
        rows = x.reshape(-1, x.shape[-1])
        shares, chosen = self.gate(linear(rows, w["choice"]))
        mix = self.by_expert if looking() else self.through_all
        return mix(rows, shares, chosen, w).view(x.shape)

    def by_expert(self, rows: Tensor, shares: Tensor, chosen: Tensor, w: Mapping[str, Tensor]) -> Tensor:
        """Tokens in the order of their experts: each expert sees its own in one piece."""
        each = chosen.flatten()
        order = each.argsort(stable=True)
        counts = each.bincount(minlength=len(w["w1"]))
        tokens = order.div(self.gate.top, rounding_mode="floor")
        sorted_rows = rows.index_select(0, tokens)
        made = (self.in_groups if can_group(rows, w["w1"]) else self.one_by_one)(sorted_rows, counts, w)
        mixed = made * shares.flatten().index_select(0, order)[:, None]
        return torch.zeros_like(rows).index_add(0, tokens, mixed.to(rows.dtype))

    def one_by_one(self, rows: Tensor, counts: Tensor, w: Mapping[str, Tensor]) -> Tensor:
        """The map of each expert for its own rows."""
        parts = rows.split(counts.tolist())
        experts = zip(parts, w["w1"].unbind(), w["gate"].unbind(), w["w2"].unbind(), strict=True)
        return torch.cat(
            [linear(self.phi(linear(part, w1)) * linear(part, gate), w2) for part, w1, gate, w2 in experts if len(part)]
        )

    def in_groups(self, rows: Tensor, counts: Tensor, w: Mapping[str, Tensor]) -> Tensor:
        """The same by products of groups of rows."""
        ends = counts.cumsum(0).to(torch.int32)
        hidden = self.phi(grouped_mm(rows, w["w1"].mT, offs=ends)) * grouped_mm(rows, w["gate"].mT, offs=ends)
        return grouped_mm(hidden, w["w2"].mT, offs=ends)

    def through_all(self, rows: Tensor, shares: Tensor, chosen: Tensor, w: Mapping[str, Tensor]) -> Tensor:
        """Every expert for every token, those without a share times zero."""
        count, hidden = w["w1"].shape[:2]
        whole = torch.zeros(len(rows), count, dtype=shares.dtype, device=rows.device).scatter(1, chosen, shares)
        inner = self.phi(linear(rows, w["w1"].flatten(0, 1))) * linear(rows, w["gate"].flatten(0, 1))
        inner = inner.unflatten(-1, (count, hidden)) * whole[..., None].to(inner.dtype)
        return linear(inner.flatten(1), w["w2"].transpose(0, 1).flatten(1))


@register
class Experts(Operator):
    """F[x](t, d) = ∫ g(t, i) F_i[x](t, d) dμ(i) with F_i = W2_i (φ(W1_i x) · G_i x), a gated feed-forward map.

    g(t, ·) is a sparse measure over the axis of experts: the ``top`` largest entries of the softmax of
    ∫ C(i, c) x(t, c) dμ(c), summing to one where ``normalised``. Experts are counted and stay all there at every size;
    their hidden axis is m. Discrete case: the sparse mixture of Mixtral.
    """

    def __init__(
        self,
        weights: Parametrisation,
        experts: Size,
        top: Size,
        phi: Activation = SiLU(),  # noqa: B008  (frozen and stateless)
        normalised: bool = True,
    ) -> None:
        super().__init__()
        if top > experts:
            raise ConfigError(f"a token has at most {experts} experts", got=top, remedy="Choose top ≤ experts.")
        own = of_experts(weights, experts)
        self.phi = phi
        self.gate_of_experts = Gate(top, normalised)
        self.choice = kernel(own, "zhc", inputs="c")
        self.w1 = kernel(own, "zhmc", inputs="c")
        self.gate = kernel(own, "zhmc", inputs="c")
        self.w2 = kernel(own, "zhdm", inputs="m", is_output=True)

    def read(self, grids: Grids, late: bool = False) -> Sampled:
        """All kernels with their quadrature weights folded in; experts as they are stored."""
        weights = {
            "choice": Weight(self.choice, "c", stored="h"),
            "w1": Weight(self.w1, "c", stored="h"),
            "gate": Weight(self.gate, "c", stored="h"),
            "w2": Weight(self.w2, "m", stored="h"),
        }
        return sample(grids, weights, late)

    def place(self, read: Sampled, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """The mixture with these weights."""
        return Bound(Mixing(self.phi, self.gate_of_experts), read_late(read.reading), local), Operands(read.weights)


def of_experts(weights: Parametrisation, experts: int) -> Parametrisation:
    """The parametrisation with experts in place of heads."""
    if not isinstance(weights, ByBasis):
        got = type(weights).__name__
        raise ConfigError("experts are counted", got=got, remedy="Give the operator weights by a basis.")
    axes = replace(weights.axes, h=Points(experts))
    return replace(weights, axes=axes, bases={**weights.bases, "h": Nodal(Counting(experts))})
