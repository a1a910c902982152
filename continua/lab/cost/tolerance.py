"""Depth by tolerance: how many evaluations a batch needs, and what the loss is, beside fixed numbers of steps."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from continua.axes import at
from continua.flow import Adaptive, Fixed, Solver, Tsit5
from continua.lab.figure import pyplot, save
from continua.tasks import Task


@dataclass(frozen=True)
class Depth:
    """One way to go through depth: its name, the mean evaluations of the field for a batch, and the held-out loss."""

    name: str
    evaluations: float
    loss: float
    is_adaptive: bool


class _Counting(nn.Module):
    """A view that counts the evaluations of its solves."""

    def __init__(self, model: Any, control: Any) -> None:
        super().__init__()
        self.model = model
        self.control = control
        self.seen = list[int]()

    def forward(self, batch: Any) -> Any:
        """The answer of the model; what its solve took is noted."""
        answer, path, _ = self.model.run(batch, at(z=self.control))
        self.seen.append(path.stats["evaluations"])
        return answer

    @property
    def mean(self) -> float:
        """Evaluations a batch."""
        return sum(self.seen) / len(self.seen)


@torch.no_grad()
def depth_front(
    model: Any,
    task: Task,
    steps: Iterable[int] = (1, 2, 3, 4, 6, 8),
    tolerances: Iterable[float] = (1.0, 0.3, 0.1, 0.03, 0.01),
    solver: Solver = Tsit5(),  # noqa: B008  (frozen)
) -> list[Depth]:
    """The held-out loss of ``model`` with fixed numbers of steps of its own solver, and with steps found by tolerance.

    Adaptive steps are those of ``solver`` with rtol = atol = the tolerance, judged by the worst sample of a batch.
    """
    was = model.training
    model.eval()
    own: list[tuple[str, Any]] = [(f"{n} steps", model.settle(at(z=n)).z) for n in steps]
    own += [(f"tolerance {t:g}", Adaptive(solver, rtol=t, atol=t, per_sample=True)) for t in tolerances]
    found = []
    for name, control in own:
        counting = _Counting(model, control)
        loss = task.evaluate(counting).main
        found.append(Depth(name, counting.mean, loss, not isinstance(control, Fixed)))
    model.train(was)
    return found


def plot_depth(found: list[Depth], path: str | Path) -> Path:
    """Loss over evaluations of the field, fixed and adaptive."""
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(7, 4.4), layout="constrained")
    for adaptive, colour, label in ((False, "#0072b2", "fixed steps"), (True, "#d55e00", "steps by tolerance")):
        own = sorted((d for d in found if d.is_adaptive is adaptive), key=lambda d: d.evaluations)
        panel.plot([d.evaluations for d in own], [d.loss for d in own], "o-", color=colour, label=label, ms=5, lw=1.2)
        for one in own:
            place = (one.evaluations, one.loss)
            panel.annotate(one.name, place, (4, 5), textcoords="offset points", fontsize=7, color=colour)
    panel.set(xlabel="evaluations of the field for a batch", ylabel="held-out loss", xscale="log")
    panel.grid(alpha=0.25)
    panel.legend(frameon=False)
    panel.set_title("Depth: steps or a tolerance", fontsize=11)
    return save(plt, figure, path)
