"""What the laws of the depth engine run on: two rotations that do not commute, stirred by z and by products of x."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from continua.flow import Bound, Fixed, Flow, SaveAt, Solver, Sum, Trajectory, Tsit5, solve
from continua.flow.solvers.sphere import made_tangent
from continua.flow.solvers.splitting import splits
from continua.tree import mapped, tensors
from tests.cases import ON_SPHERES
from tests.measure import random

START = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
UNIT = START / START.norm()
SPAN = (0.2, 1.7)


def turning(seed: int) -> Tensor:
    """An antisymmetric matrix."""
    m = random(3, 3, seed=seed)
    return 0.5 * (m - m.T)


MATRICES = (turning(0), turning(1))


def tilt(z: float, x: Tensor, a: Tensor) -> Tensor:
    """Non-autonomous and nonlinear, so that the order conditions in z and in x are both felt; close enough to a
    rotation for the leading error term of order-5 methods, which is made to be tiny, to lead."""
    return x @ a.T * (1 + 0.3 * math.cos(z)) + 0.3 * (x.roll(1, -1) * x).sin() + 0.3 * math.sin(2 * z)


def swirl(z: float, x: Tensor, a: Tensor) -> Tensor:
    """Does not commute with ``tilt``."""
    return (x + 0.3 * x * x.roll(1, -1)) @ a.T - 0.3 * z * x


BOTH = Flow(tilt) + Flow(swirl)


def start(solver: Solver) -> Tensor:
    """Where a solver can start: on the sphere if it stays there."""
    return UNIT if solver in ON_SPHERES else START


@functools.cache
def reference(field: Any, args: Any, on_sphere: bool = False, steps: int = 256) -> Trajectory:
    """Every step of a path that is right to round-off."""
    moving, x0 = (made_tangent(field), UNIT) if on_sphere else (field, START)
    return solve(moving, x0, SPAN, args=args, solver=Tsit5(), control=Fixed(steps), save=SaveAt(1))


def allowed(solver: Solver, field: Any) -> bool:
    """A splitting needs parts."""
    return isinstance(field, Sum) or not splits(solver)


class Counted:
    """A field that counts its evaluations and writes down their depths."""

    def __init__(self, f: Any) -> None:
        self.f, self.depths = f, []

    def __call__(self, z: float, x: Any, args: Any) -> Any:
        self.depths.append(z)
        return self.f(z, x, args)

    @property
    def calls(self) -> int:
        """How often."""
        return len(self.depths)


class Woven:
    """dx/dz = tanh(x W(z)ᵀ) with W(z) = Σ_k c_k cos(k z), made for many depths at once by one product."""

    def __init__(self) -> None:
        self.reads: list[tuple[float, ...]] = []
        self.bound = Bound(self.f, read=self.read)
        self.args = {"coef": 0.4 * random(4, 3, 3, seed=5), "bias": random(3, seed=6)}

    def read(self, depths: Any, args: Any) -> Any:
        """The weights at these depths."""
        self.reads.append(tuple(depths))
        waves = torch.tensor([[math.cos(k * z) for k in range(4)] for z in depths], dtype=torch.float64)
        woven = (waves @ args["coef"].flatten(1)).view(-1, 3, 3)
        return {"at": dict(zip(depths, woven.unbind(), strict=True)), "bias": args["bias"], "coef": args["coef"]}

    @staticmethod
    def f(z: float, x: Tensor, args: Any) -> Tensor:
        """One evaluation, with weights that were read."""
        return torch.tanh(x @ args["at"][z].T + args["bias"])


def learning(tree: Any) -> Any:
    """The same pytree with fresh leaves that need gradients."""
    return mapped(tree, lambda t: t.detach().clone().requires_grad_())


def towards(*trees: Any) -> Tensor:
    """A loss that looks at every number of these states, each with a weight of its own."""
    numbers = torch.cat([t.flatten() for t in tensors(list(trees))])
    return (numbers * random(len(numbers), seed=9).to(numbers.dtype)).sum()


def pulled(loss: Tensor, *trees: Any) -> list[Tensor]:
    """The gradients of a loss by every leaf that needs one."""
    leaves = [t for t in tensors(list(trees)) if t.requires_grad]
    return list(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))
