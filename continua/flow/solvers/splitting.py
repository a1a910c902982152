"""Operator splitting: take the parts of a field one after the other."""

from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar

from continua.config import register
from continua.errors import SolveError
from continua.flow.solvers.runge_kutta import Euler, Heun
from continua.flow.solvers.solver import OneStep, Solver, Wrapper
from continua.flow.vectorfield import Flow, Projection, Sum, VectorField
from continua.typing import Args


@register
@dataclass(frozen=True)
class LieTrotter(OneStep, Wrapper):
    """Φ_F ∘ Φ_A: each flow for a whole step, each projection once after the flow it follows, order 1.

    Projections read their weights at the step's start, as the flows do.
    Discrete case: ``LieTrotter(Euler())`` with unit steps is the standard sequential block, pre- or post-norm.
    """

    inner: Solver = Euler()  # noqa: RUF009  (frozen and stateless)
    order: ClassVar[int] = 1

    def __str__(self) -> str:
        return f"LieTrotter({self.inner})"

    def step(self, field: VectorField, z: float, dz: float, x: Any, args: Args) -> Any:
        """Go through the parts in order."""
        for part, own in split(self, field, args):
            x = self.inner.step(part.bound.f, z, dz, x, own) if isinstance(part, Flow) else part(z, x, own)
        return x


@register
@dataclass(frozen=True)
class Strang(OneStep, Wrapper):
    """Φ_A(dz/2) ∘ Φ_F(dz) ∘ Φ_A(dz/2), order 2 (Strang 1968), for an inner solver of order ≥ 2.

    With more than two flows all but the last are halved. A projection is applied after every sub-step of its flow.
    """

    inner: Solver = Heun()  # noqa: RUF009  (frozen and stateless)
    order: ClassVar[int] = 2

    def __str__(self) -> str:
        return f"Strang({self.inner})"

    def step(self, field: VectorField, z: float, dz: float, x: Any, args: Args) -> Any:
        """Forward through half steps, the last flow in full, backward through half steps."""
        groups = _groups(split(self, field, args))
        for group in groups[:-1]:
            x = self._advance(group, z, dz / 2, x)
        x = self._advance(groups[-1], z, dz, x)
        for group in reversed(groups[:-1]):
            x = self._advance(group, z + dz / 2, dz / 2, x)
        return x

    def _advance(self, group: list[tuple[Flow | Projection, Args]], z: float, dz: float, x: Any) -> Any:
        for part, own in group:
            x = self.inner.step(part.bound.f, z, dz, x, own) if isinstance(part, Flow) else part(z + dz, x, own)
        return x


def split(solver: Any, field: VectorField, args: Args) -> list[tuple[Flow | Projection, Args]]:
    """The parts of a field with their arguments."""
    if not isinstance(field, Sum):
        refuse_whole(type(solver).__name__, field)
    return list(zip(field.parts, args, strict=True))  # type: ignore[union-attr]


def refuse_whole(splitting: str, field: VectorField) -> None:
    """Refuse a field that is not made of parts."""
    if isinstance(field, Sum):
        return
    given = field.f if isinstance(field, Flow) else field
    raise SolveError(
        f"{splitting} needs a field made of parts",
        got=given.__name__ if isinstance(given, FunctionType) else type(given).__name__,
        remedy="Write Flow(f) + Flow(g) (or Attention(...) + Pointwise(...)), or use Euler().",
    )


def splitting_of(solver: Any) -> LieTrotter | Strang | None:
    """The splitting inside a solver, if there is one."""
    if isinstance(solver, LieTrotter | Strang):
        return solver
    return splitting_of(solver.inner) if isinstance(solver, Wrapper) else None


def splits(solver: Any) -> bool:
    """Whether a solver takes the parts of a field one by one."""
    return splitting_of(solver) is not None


def _groups(parts: list[tuple[Flow | Projection, Args]]) -> list[list[tuple[Flow | Projection, Args]]]:
    """Each flow with the projections that follow it."""
    groups: list[list[tuple[Flow | Projection, Args]]] = []
    for pair in parts:
        if isinstance(pair[0], Flow) or not groups:
            groups.append([pair])
        else:
            groups[-1].append(pair)
    return groups
