"""Step-size control: which steps are taken. ``Fixed`` decides before the solve; adaptive control joins it later."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from continua.config import register
from continua.errors import SolveError
from continua.flow.runge_kutta import Solver
from continua.flow.trajectory import SaveAt, Trajectory

Step = Callable[[float, float, Any], Any]  # (z, dz, x) → x(z + dz)


@runtime_checkable
class Control(Protocol):
    """Chooses the steps and walks them."""

    def integrate(self, step: Step, x0: Any, span: tuple[float, float], save: SaveAt) -> Trajectory:
        """Walk from span[0] to span[1] and keep what ``save`` asks for."""
        ...


@register
@dataclass(frozen=True)
class Fixed:
    """``steps`` equal steps, exactly; node i is start + i·length/steps by one multiplication, never by adding up.

    ``solver`` travels along where one object says how a model steps (``model.at(z=Fixed(6, RK4()))``); ``solve``
    itself takes the solver as its own argument.
    """

    steps: int
    solver: Solver | None = None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SolveError("a solve needs at least one step", got=self.steps, remedy="Use Fixed(n) with n ≥ 1.")

    def walk(self, span: tuple[float, float]) -> Iterator[tuple[float, float]]:
        """Yield (z, dz) for each step; the last one ends at span[1] exactly."""
        start, end = span
        for i in range(self.steps):
            z = start + (end - start) * i / self.steps
            after = end if i + 1 == self.steps else start + (end - start) * (i + 1) / self.steps
            yield z, after - z

    def integrate(self, step: Step, x0: Any, span: tuple[float, float], save: SaveAt) -> Trajectory:
        """Take every step; keep each ``save.every``-th state."""
        x, kept = x0, [(span[0], x0)] if save.every else []
        z_last = span[0]
        for i, (z, dz) in enumerate(self.walk(span)):
            x = step(z, dz, x)
            z_last = z + dz
            if save.every and (i + 1) % save.every == 0:
                kept.append((z_last, x))
        if not kept or kept[-1][0] != z_last:
            kept.append((z_last, x))
        return Trajectory(tuple(z for z, _ in kept), tuple(x for _, x in kept), stats={"steps": self.steps})

    def __str__(self) -> str:
        return f"{self.steps} steps" + (f" of {self.solver}" if self.solver is not None else "")
