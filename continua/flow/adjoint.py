"""How gradients of a solve are computed: plain back-propagation, or with states kept now and then."""

import itertools
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch.utils.checkpoint import checkpoint

from continua.config import register
from continua.errors import SolveError
from continua.flow.control import Control, Fixed
from continua.flow.runge_kutta import Solver
from continua.flow.trajectory import SaveAt, Trajectory
from continua.flow.vectorfield import VectorField
from continua.typing import Args


@dataclass(frozen=True)
class Problem:
    """Everything a solve needs. Every differentiated tensor is ``x0`` or a leaf of ``args``."""

    field: VectorField
    x0: Any
    span: tuple[float, float]
    args: Args
    solver: Solver
    control: Control
    save: SaveAt


@runtime_checkable
class Adjoint(Protocol):
    """Runs a problem so that gradients reach x0 and every leaf of args."""

    def run(self, problem: Problem) -> Trajectory:
        """Solve, and arrange for the backward pass."""
        ...


@register
@dataclass(frozen=True)
class Direct:
    """Let autograd record every operation: exact gradients, memory proportional to the number of evaluations."""

    def run(self, problem: Problem) -> Trajectory:
        """Walk the steps under autograd."""

        def step(z: float, dz: float, x: Any) -> Any:
            return problem.solver.step(problem.field, z, dz, x, problem.args)

        return problem.control.integrate(step, problem.x0, problem.span, problem.save)


@register
@dataclass(frozen=True)
class Checkpoint:
    """Keep the state after every ``every``-th step and walk the steps between again on the way back.

    The gradients are those of ``Direct``. Memory is that of L/every states and of ``every`` steps, so O(√L) with
    every = √L, for one more forward pass (Griewank 1992; Chen et al. 2016). States that ``SaveAt`` keeps cut too.
    """

    every: int

    def __post_init__(self) -> None:
        if self.every < 1:
            raise SolveError("Checkpoint(every=n) counts steps", got=self.every, remedy="Use n ≥ 1, best about √L.")

    def run(self, problem: Problem) -> Trajectory:
        """Walk segment by segment."""
        if not isinstance(problem.control, Fixed):
            got, remedy = type(problem.control).__name__, "Use Fixed(n), or Direct() gradients."
            raise SolveError("checkpoints need to know the steps in advance", got=got, remedy=remedy)
        steps, save = list(problem.control.walk(problem.span)), problem.save.every
        cuts = {*range(0, len(steps), self.every), *(range(0, len(steps), save) if save else ()), len(steps)}
        x, kept = problem.x0, [(problem.span[0], problem.x0)] if save else []
        for start, end in itertools.pairwise(sorted(cuts)):
            x = checkpoint(_walk, problem, steps[start:end], x, use_reentrant=False)
            if save and end % save == 0:
                kept.append((sum(steps[end - 1]), x))
        if not save or len(steps) % save:
            kept.append((sum(steps[-1]), x))
        return Trajectory(tuple(z for z, _ in kept), tuple(x for _, x in kept), stats={"steps": len(steps)})


def _walk(problem: Problem, steps: list[tuple[float, float]], x: Any) -> Any:
    for z, dz in steps:
        x = problem.solver.step(problem.field, z, dz, x, problem.args)
    return x
