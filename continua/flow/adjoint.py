"""How gradients of a solve are computed. ``Direct`` is plain back-propagation; the memory-saving ways join it later."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from continua.config import register
from continua.flow.control import Control
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
