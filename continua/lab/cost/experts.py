"""What experts cost."""

from continua.lab.cost.complexity import CostItem, Sizes, linear, work
from continua.operators import Experts, SharedExpert


@work.register
def _experts(operator: Experts, n: Sizes) -> list[CostItem]:
    """A token pays for its own experts alone."""
    tokens = n.b * n.t
    count = operator.choice.coefficients.shape[-2]  # type: ignore[attr-defined]
    paid = tokens * operator.gate_of_experts.top
    return [
        linear("experts: gate", tokens, n.d, count, kept=tokens * (n.d + count)),
        linear("experts: hidden", paid, n.d, 2 * n.m, kept=paid * (n.d + 4 * n.m)),
        linear("experts: output", paid, n.m, n.d),
    ]


@work.register
def _shared_expert(operator: SharedExpert, n: Sizes) -> list[CostItem]:
    """As a gated feed-forward map of all its pieces, and its share."""
    tokens = n.b * n.t
    hidden = operator.pieces * n.m
    return [
        linear("shared expert: share", tokens, n.d, 1, kept=tokens),
        linear("shared expert: hidden", tokens, n.d, 2 * hidden, kept=tokens * (n.d + 4 * hidden)),
        linear("shared expert: output", tokens, hidden, n.d),
    ]
