"""How much of what one size writes another one would keep: measured beside the held-out loss, on the same answers."""

from dataclasses import dataclass, field

import torch

from continua.models import Batch, View
from continua.models.draft_choice import overlap
from continua.typing import Tensor

LOOKED_AT = 2**24  # probabilities at most: 64 MB of them


@dataclass(frozen=True)
class HeardView(View):
    """A view that keeps the first answers it gives, as distributions."""

    kept: list[Tensor] = field(default_factory=list)

    def __call__(self, batch: Batch | Tensor) -> Tensor:
        """Answer; remember the first few."""
        answer = super().__call__(batch)
        if not self.kept and answer.dim() == 3:
            samples = max(1, LOOKED_AT // max(1, answer[0].numel()))
            self.kept.append(answer[:samples].softmax(-1))
        return answer

    def alpha(self, native: "HeardView") -> float | None:
        """The mean of Σ min(p, q) over the tokens that both answered; None where there are none."""
        if not self.kept or not native.kept:
            return None
        with torch.no_grad():
            return float(overlap(native.kept[0], self.kept[0]).mean())
