"""The continuous adjoint, solved backwards. It ships to be compared with; it is not recommended."""

from dataclasses import dataclass
from typing import Any

import torch

from continua.config import register
from continua.errors import SolveError
from continua.flow.adjoints.pullback import SolveState
from continua.flow.adjoints.tape import differentiate
from continua.flow.solvers.runge_kutta import RungeKutta
from continua.flow.state import axpy, scaled
from continua.flow.stepping import StepPlan
from continua.flow.vectorfield import Projection, Sum, base_of, bounds_of, read_at
from continua.tree import mapped, tensors
from continua.typing import Args, Tensor


@register
@dataclass(frozen=True)
class Backsolve:
    """da/dz = −(∂F/∂X)ᵀ a − ∂R/∂X, dg/dz = −(∂F/∂θ)ᵀ a − ∂R/∂θ, solved from the end together with X (Pontryagin).

    Not recommended: the state is solved backwards too, which is unstable wherever the flow contracts (tokens that
    cluster), and even where it is stable the gradient is not that of the computed loss but off by the solver's error.
    ``Checkpoint`` and ``Reversible`` save as much memory and are exact. ``clip``: see ``Direct``.
    """

    clip: float | None = None
    reads_late = True

    def run(self, plan: StepPlan, x0: Any, args: Args) -> list[Any]:
        """Solve as one operation."""
        base = base_of(plan.field)
        projects = isinstance(base, Sum) and any(isinstance(part, Projection) for part in base.parts)
        inside = any(theta < 1 for thetas in plan.moments for theta in thetas)
        if projects or inside or not isinstance(plan.solver, RungeKutta):
            got = "projections" if projects else "save points between steps" if inside else str(plan.solver)
            remedy = "Use Checkpoint(n) or Recompute()."
            raise SolveError("Backsolve needs a Runge–Kutta solver on a plain flow", got=got, remedy=remedy)
        return _Backsolved(self, plan, x0, args).run()


@dataclass
class _Backsolved(SolveState):
    """Keep the end."""

    end: Any = None

    def forward(self, x0: Any, args: Args) -> list[Any]:
        self.end, kept = self.plan.run_in_blocks(x0, args, self.plan.everything)
        return kept

    def backward(self, x0: Any, args: Args, grad_kept: list[Any]) -> tuple[Any, dict[int, Tensor]]:
        leaves = [(i, leaf) for i, leaf in enumerate(tensors(args)) if leaf.requires_grad]
        a: Any = mapped(self.end, torch.zeros_like)
        together = (self.end, a, tuple(torch.zeros_like(leaf) for _, leaf in leaves))
        count = len(bounds_of(self.plan.field))

        def backwards(z: float, s: Any, args: Args) -> Any:
            x, a, _ = s
            with torch.enable_grad():
                read = read_at(self.plan.field, [(z,)] * count, args)
                slope = self.plan.field(z, x, read)
                to_x, pairs = differentiate(lambda x: self.plan.field(z, x, read), x, args, a)
            found = {id(leaf): g for leaf, g in pairs}
            by_args = tuple(-found[id(leaf)] if id(leaf) in found else torch.zeros_like(leaf) for _, leaf in leaves)
            return mapped(slope, torch.Tensor.detach), scaled(-1.0, to_x), by_args

        end = len(grad_kept)
        for i in reversed(range(len(self.plan.steps))):
            for _ in self.plan.moments[i]:
                end -= 1
                if grad_kept[end] is not None:
                    together = (together[0], axpy(together[1], 1.0, grad_kept[end]), together[2])
            z, dz = self.plan.steps[i]
            together = self.plan.solver.step(backwards, z + dz, -dz, together, args)
            together = (together[0], self._clipped(together[1]), together[2])
        return together[1], {i: g for (i, _), g in zip(leaves, together[2], strict=True)}

    def _clipped(self, a: Any) -> Any:
        if self.adjoint.clip is None:
            return a
        norm = torch.stack([t.square().sum() for t in tensors(a)]).sum().sqrt()
        scale = float((self.adjoint.clip / norm.clamp_min(1e-30)).clamp_max(1.0))
        return scaled(scale, a)
