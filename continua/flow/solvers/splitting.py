"""Operator splitting: take the parts of a field one after the other."""

from dataclasses import dataclass
from typing import Any, ClassVar

from continua.config import register
from continua.errors import SolveError
from continua.flow.solvers.runge_kutta import Euler, Heun, OneStep, Solver
from continua.flow.vectorfield import Flow, Projection, Sum, VectorField
from continua.typing import Args


@register
@dataclass(frozen=True)
class LieTrotter(OneStep):
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
            x = self.inner.step(part.f, z, dz, x, own) if isinstance(part, Flow) else part(z, x, own)
        return x


@register
@dataclass(frozen=True)
class Strang(OneStep):
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
            x = self.inner.step(part.f, z, dz, x, own) if isinstance(part, Flow) else part(z + dz, x, own)
        return x


def split(solver: Any, field: VectorField, args: Args) -> list[tuple[Flow | Projection, Args]]:
    """The parts of a field with their arguments."""
    if not isinstance(field, Sum):
        raise SolveError(
            f"{type(solver).__name__} needs a field made of parts",
            got=getattr(field, "__name__", type(field).__name__),
            remedy="Write Flow(f) + Flow(g) (or Attention(...) + Pointwise(...)), or use Euler().",
        )
    return list(zip(field.parts, args, strict=True))


def _groups(parts: list[tuple[Flow | Projection, Args]]) -> list[list[tuple[Flow | Projection, Args]]]:
    """Each flow with the projections that follow it."""
    groups: list[list[tuple[Flow | Projection, Args]]] = []
    for pair in parts:
        if isinstance(pair[0], Flow) or not groups:
            groups.append([pair])
        else:
            groups[-1].append(pair)
    return groups
