"""A solver that stays on the sphere."""

from dataclasses import dataclass
from typing import Any, cast

from continua.config import register
from continua.flow.solvers.runge_kutta import RK4
from continua.flow.solvers.solver import Attempt, Embedded, OneStep, Solver, Wrapper, has_estimate
from continua.flow.solvers.splitting import splits
from continua.flow.vectorfield import Bound, Flow, Projection, Sum, VectorField, project
from continua.geometry import retract, tangent
from continua.typing import Args, Tensor


@register
@dataclass(frozen=True)
class OnSphere(OneStep, Wrapper):
    """x' = P_x f(z, x) for tokens of norm ``radius``: the field is made tangent, and each step ends on the sphere.

    The order is that of the inner method, since the tangent flow itself never leaves the sphere.
    """

    inner: Solver = RK4()  # noqa: RUF009  (frozen and stateless)
    radius: float = 1.0

    @property
    def order(self) -> int:
        """That of the inner method."""
        return self.inner.order

    @property
    def estimates(self) -> bool:
        """Whether the inner method does."""
        return has_estimate(self.inner)

    def __str__(self) -> str:
        return f"OnSphere({self.inner})"

    def step(self, field: VectorField, z: float, dz: float, x: Any, args: Args) -> Any:
        """An inner step of the tangent field, then back to the sphere."""
        moved = self.inner.step(self.velocity(field), z, dz, x, args)
        if not splits(self.inner):  # a splitting takes the projections itself
            moved = project(field, z + dz, moved, args)
        return self._land(moved)

    def attempt(self, field: VectorField, z: float, dz: float, x: Any, args: Args, first: Any = None) -> Attempt:
        """The same with an estimate of its error."""
        known = None if first is None else _along(x, first)
        inner = cast("Embedded", self.inner)
        tried = inner.attempt(self.velocity(field), z, dz, x, args, known)
        return tried._replace(x=self._land(project(field, z + dz, tried.x, args)), last=None)

    def middle(self, dz: float, x: Any, slopes: list[Any]) -> Any:
        """That of the inner method: the slopes are tangent already."""
        return cast("Embedded", self.inner).middle(dz, x, slopes)

    def tangent(self, x: Any, v: Any) -> Any:
        """The part of a slope that the solver follows."""
        return _along(x, v)

    def velocity(self, field: VectorField) -> VectorField:
        """The tangent field: part by part for an inner solver that splits, whole otherwise."""
        if isinstance(field, Sum) and splits(self.inner):
            return Sum(
                tuple(part if isinstance(part, Projection) else Flow(made_tangent(part)) for part in field.parts)
            )
        return made_tangent(field)

    def _land(self, x: Any) -> Any:
        if isinstance(x, tuple):
            return (self._land(x[0]), *x[1:])
        return retract(x, self.radius) if isinstance(x, Tensor) else x


def made_tangent(f: VectorField) -> Bound:
    """The same field, its slopes without the part along x."""
    known = f.bound if isinstance(f, Flow) else Bound.of(f)
    return Bound(lambda z, x, args: _along(x, f(z, x, args)), known.read, known.local, quiet=known.quiet)


def _along(x: Any, v: Any) -> Any:
    """Of a tuple the first is the state on the sphere; a running cost may ride behind it."""
    if isinstance(x, tuple):
        return (_along(x[0], v[0]), *v[1:])
    return tangent(x, v) if isinstance(x, Tensor) else v
