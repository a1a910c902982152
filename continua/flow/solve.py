"""The one entry of the depth engine."""

import functools
import math
from typing import Any

from continua.errors import SolveError
from continua.flow.adjoint import Adjoint, Direct, Problem
from continua.flow.control import Control
from continua.flow.runge_kutta import Solver
from continua.flow.trajectory import SaveAt, Trajectory
from continua.flow.vectorfield import Flow, Projection, Sum, VectorField
from continua.typing import Args, Tensor


def solve(
    field: VectorField,
    x0: Any,
    span: tuple[float, float],
    *,
    args: Args = None,
    solver: Solver,
    control: Control,
    adjoint: Adjoint = Direct(),  # noqa: B008  (frozen and stateless)
    save: SaveAt = SaveAt(),  # noqa: B008
) -> Trajectory:
    """Solve dx/dz = field(z, x, args), x(span[0]) = x0, up to span[1].

    A field is any ``f(z, x, args)``; a ``Sum`` of ``Flow`` and ``Projection`` parts can be split. Every tensor that is
    differentiated through must be ``x0`` or a leaf of ``args``, never a closure's.

    >>> import torch
    >>> from continua.flow import Fixed, RK4
    >>> path = solve(lambda z, x, a: a * x, torch.ones(1), (0.0, 1.0), args=torch.tensor(-1.0), solver=RK4(),
    ...              control=Fixed(10))
    >>> round(path.final.item(), 4)
    0.3679
    """
    start, end = float(span[0]), float(span[1])
    if not (math.isfinite(start) and math.isfinite(end) and end > start):
        raise SolveError(
            "the span must go forward", got=(start, end), remedy="Write span=(start, end) with end > start."
        )
    if isinstance(x0, Tensor) and not (x0.is_floating_point() or x0.is_complex()):
        raise SolveError("the state must be a floating-point tensor", got=x0.dtype, remedy="Convert it: x0.float().")
    return adjoint.run(Problem(field, x0, (start, end), args, solver, control, save))


@functools.lru_cache(maxsize=256)
def depths(
    kinds: tuple[bool, ...], span: tuple[float, float], solver: Solver, control: Control
) -> tuple[tuple[float, ...], ...]:
    """At which depths each part will be read, found by a dry run on plain numbers.

    ``kinds`` says of each part whether it is a flow. Weights are then sampled at these depths once, before the solve.
    """
    seen: list[dict[float, None]] = [{} for _ in kinds]

    def recorder(log: dict[float, None]) -> Any:
        def record(z: float, x: float, args: None) -> float:
            log[z] = None
            return 0.0

        return record

    parts = tuple((Flow if flow else Projection)(recorder(log)) for flow, log in zip(kinds, seen, strict=True))
    solve(Sum(parts), 0.0, span, args=(None,) * len(parts), solver=solver, control=control)
    return tuple(tuple(log) for log in seen)
