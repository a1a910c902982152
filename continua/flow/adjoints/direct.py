"""How gradients of a solve are computed."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from continua.config import register
from continua.errors import SolveError
from continua.flow.stepping import StepPlan
from continua.tree import mapped, tensors
from continua.typing import Args, Tensor

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


# --- clipping --------------------------------------------------------------------------------------------------------


class _Clip(torch.autograd.Function):
    """The identity, whose gradient is scaled down to a bounded norm."""

    @staticmethod
    def forward(ctx: Any, limit: float, *x: Tensor) -> Any:
        ctx.limit = limit
        return tuple(t.view_as(t) for t in x)

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> Any:
        norm = torch.stack([t.float().square().sum() for t in g]).sum().sqrt()
        scale = (ctx.limit / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0)
        return (None, *(t * scale.to(t.dtype) for t in g))


@dataclass(frozen=True)
class _Clipping:
    """A solver whose steps bound the adjoint state on the way back."""

    solver: Any
    limit: float

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "solver"), name)

    def step(self, field: Any, z: float, dz: float, x: Any, args: Args) -> Any:
        """The solver's own step, then the identity with a clipped gradient."""
        after = self.solver.step(field, z, dz, x, args)
        if not torch.is_grad_enabled() or not tensors(after):
            return after
        clips = iter(_Clip.apply(self.limit, *tensors(after)))
        return mapped(after, lambda _: next(clips))


def clipped(plan: StepPlan, limit: float | None) -> StepPlan:
    """The same plan with bounded adjoint states."""
    if limit is None:
        return plan
    if not limit > 0:
        raise SolveError("clip bounds a norm", got=limit, remedy="Use clip > 0, or None for no clipping.")
    return StepPlan(plan.field, _Clipping(plan.solver, limit), plan.steps, plan.moments, plan.notes)
