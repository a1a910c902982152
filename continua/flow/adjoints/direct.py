"""How gradients of a solve are computed."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from continua.config import register
from continua.errors import SolveError
from continua.flow.solvers.clipping import Clipping
from continua.flow.stepping import StepPlan
from continua.typing import Args

ONCE = "these gradients can be taken once"
ONCE_REMEDY = "Use Direct() where gradients of gradients are needed."


@runtime_checkable
class Adjoint(Protocol):
    """Takes the steps of a plan so that gradients reach x0 and every leaf of args."""

    @property
    def reads_late(self) -> bool:
        """Whether weights over depth should be read block by block during the walk, to save memory."""
        ...

    def run(self, plan: StepPlan, x0: Any, args: Args) -> list[Any]:
        """Return the kept states, the final one last, and arrange for the backward pass."""
        ...


@register
@dataclass(frozen=True)
class Direct:
    """Let autograd record every operation: exact gradients of any order, memory proportional to the evaluations.

    ``clip`` bounds the norm of the adjoint state between steps. It changes the gradient: prefer clipping the final one.
    """

    clip: float | None = None
    reads_late = False

    def run(self, plan: StepPlan, x0: Any, args: Args) -> list[Any]:
        """Step under autograd, with the weights of all depths read at once."""
        read = plan.weights(args, plan.everything)
        return clipped(plan, self.clip).run(x0, read, plan.everything)[1]


def clipped(plan: StepPlan, limit: float | None) -> StepPlan:
    """The same plan with bounded adjoint states."""
    if limit is None:
        return plan
    if not limit > 0:
        raise SolveError("clip bounds a norm", got=limit, remedy="Use clip > 0, or None for no clipping.")
    return replace(plan, solver=Clipping(plan.solver, limit))
