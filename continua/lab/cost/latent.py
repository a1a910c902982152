"""Costs of attention through latent tokens."""

from continua.lab.cost.complexity import CostItem, Sizes, linear, work
from continua.operators import Gates, Slices


@work.register
def _gates(operator: Gates, n: Sizes) -> list[CostItem]:
    """Projections, one product for the scores and one for each way; both normalised scores are kept."""
    rows = n.b * n.t
    inner = n.h * n.e
    kept = 2 * rows * n.h * operator.count
    return [
        linear("attention: keys and values", rows, n.d, 2 * inner, rows * (n.d + 2 * inner)),
        linear("attention: latent tokens", rows, inner, 3 * operator.count, kept + n.b * inner * operator.count),
        linear("attention: output", rows, inner, n.d, rows * inner),
    ]


@work.register
def _slices(operator: Slices, n: Sizes) -> list[CostItem]:
    """To slices and back for each node; attention among the slices is small beside it."""
    inner = n.h * n.e
    slices = n.b * operator.count
    each = linear("attention: slices", n.b * n.t, n.d, 3 * operator.count, n.b * n.t * (n.d + 2 * operator.count))
    width = 4 * n.d + 2 * operator.count
    return [each, linear("attention: among slices", slices, inner, width, slices * (2 * n.d + 5 * inner))]
