"""J(θ) = mean loss + ∫ running costs + penalties of the weights."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from continua.axes import Grid
from continua.tasks import Example, Task
from continua.training.penalty import Cost, Penalties, Seen
from continua.typing import Tensor


@dataclass(frozen=True)
class Whole:
    """The batch of which an example is a part: losses are averaged over all of it, whoever computes them."""

    count: int
    samples: int
    parts: int = 1  # how many processes and micro-batches share it

    @classmethod
    def of(cls, example: Example, parts: int = 1) -> "Whole":
        """The size of an example."""
        return cls(example.count, example.samples, parts)


class Objective(nn.Module):
    """The objective of a model on a task: one module, so that data-parallel wrappers see one forward."""

    def __init__(self, model: nn.Module, task: Task, penalties: Penalties = Penalties()) -> None:  # noqa: B008
        super().__init__()
        self.model, self.task, self.penalties = model, task, penalties
        self.generator: torch.Generator | None = None

    def forward(self, example: Example, whole: Whole) -> tuple[Tensor, dict[str, Tensor]]:
        """This part's share of J, and its terms: the shares of all parts add up to J."""
        model: Any = self.model
        running = self.penalties.running_terms
        # fused attention has no second derivative
        plain = sdpa_kernel(SDPBackend.MATH) if any(term.twice for term in running) else nullcontext()
        with plain:
            answer, path, _ = model.run(example.batch, cost=self._cost if running else None)
        terms = {"loss": self.task.loss(answer, example) / whole.count}
        if path.cost is not None:
            terms["running"] = path.cost.sum() / whole.samples
        for term in self.penalties:
            value = term.of_weights(model)
            if value is not None:
                terms[type(term).__name__] = term.weight * value / whole.parts
        return torch.stack(list(terms.values())).sum(), {name: value.detach() for name, value in terms.items()}

    def _cost(self, t: Grid, d: Grid) -> Cost | None:
        share = None if d.is_uniform else d.weights / d.mass
        return self.penalties.cost(Seen(t.observed if t.has_gaps else None, share, self.generator))
