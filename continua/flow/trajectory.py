"""The path through depth, and which of it is kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from continua.compiling import remembered
from continua.config import register
from continua.errors import SolveError
from continua.flow.state import axpy, scaled

Steps = tuple[tuple[float, float], ...]  # (z, dz) of each step
Moments = tuple[tuple[float, ...], ...]  # for each step, which θ ∈ (0, 1] of it are kept


@register
@dataclass(frozen=True)
class SaveAt:
    """What a solve keeps besides the final state.

    ``every=n``: every n-th step, the start included. ``points``: these depths, wherever the steps fall. ``dense``: the
    whole path, ``path(z)`` for any z. Between steps states are interpolated to the order of the solver.
    """

    every: int = 0
    points: tuple[float, ...] = ()
    dense: bool = False

    def __post_init__(self) -> None:
        if self.every < 0:
            raise SolveError("SaveAt(every=n) counts steps", got=self.every, remedy="Use n ≥ 1, or 0 for the end only.")
        if self.every and self.points:
            raise SolveError("SaveAt keeps steps or points", got="every and points", remedy="Choose one of them.")
        object.__setattr__(self, "points", tuple(float(z) for z in self.points))
        if any(a >= b for a, b in zip(self.points, self.points[1:], strict=False)):
            raise SolveError("save points must increase", got=self.points, remedy="Sort them and drop repeats.")

    def check(self, span: tuple[float, float]) -> None:
        """Refuse points outside the span."""
        outside = [z for z in self.points if not span[0] <= z <= span[1]]
        if outside:
            remedy = f"Keep them inside [{span[0]:g}, {span[1]:g}], or solve further."
            raise SolveError("save points must lie inside the span", got=f"{outside[0]:g}", remedy=remedy)

    def moments(self, steps: Steps) -> Moments:
        """Where inside each step a state is kept; the end of the last step always is."""
        last = len(steps) - 1
        if not self.points:
            return tuple(
                (1.0,) if i == last or (self.every and (i + 1) % self.every == 0) else () for i in range(last + 1)
            )
        kept: list[list[float]] = [[] for _ in steps]
        i = 0
        for point in self._reached(steps):
            while i < last and steps[i + 1][0] < point:
                i += 1
            theta = (point - steps[i][0]) / steps[i][1]
            if theta > 0:
                kept[i].append(1.0 if theta > 1 - 1e-12 else theta)
        return tuple(tuple(thetas) for thetas in kept)

    def depths(self, span: tuple[float, float], steps: Steps) -> tuple[float, ...]:
        """The depths at which states are returned, the final one not included where only points are asked."""
        if self.points:
            return self._reached(steps)
        ends = [z + dz for z, dz in steps]
        if abs(ends[-1] - span[1]) <= 1e-12 * (span[1] - span[0]):
            ends[-1] = span[1]
        if not self.every:
            return tuple(ends[-1:])
        kept = [ends[i] for i in range(len(ends)) if (i + 1) % self.every == 0 or i + 1 == len(ends)]
        return (span[0], *kept)

    def _reached(self, steps: Steps) -> tuple[float, ...]:
        """The points up to where the steps lead: a solve that failed may not have come to all of them."""
        (start, _), (z, dz) = steps[0], steps[-1]
        end = z + dz
        return tuple(point for point in self.points if point <= end + 1e-12 * (end - start))


@remembered
def schedule(save: SaveAt, span: tuple[float, float], steps: Steps) -> tuple[Moments, tuple[float, ...]]:
    """Where inside each step a state is kept, and the depths of the states that are returned."""
    every_step = SaveAt(every=1) if save.dense else save
    *most, last = every_step.moments(steps)
    last = last if 1.0 in last else (*last, 1.0)  # the final state is always returned
    return (*most, last), save.depths(span, steps)


class Piece(NamedTuple):
    """One step of the path with what its interpolation needs."""

    z: float
    dz: float
    x: Any
    end: Any
    slopes: tuple[Any, Any] | None = None  # at both ends
    middle: Any = None

    def at(self, theta: float) -> Any:
        """Linear without slopes (error O(dz²)), cubic with them (O(dz⁴)), quartic with a middle (O(dz⁵))."""
        chord = axpy(self.end, -1.0, self.x)
        line = axpy(self.x, theta, chord)
        if self.slopes is None:
            return line
        f0, f1 = self.slopes
        bend = axpy(axpy(scaled(1 - 2 * theta, chord), (theta - 1) * self.dz, f0), theta * self.dz, f1)
        curve = axpy(line, theta * (theta - 1), bend)
        if self.middle is None:
            return curve
        halfway = axpy(axpy(axpy(self.x, 0.5, chord), self.dz / 8, f0), -self.dz / 8, f1)
        return axpy(curve, 16 * theta**2 * (1 - theta) ** 2, axpy(self.middle, -1.0, halfway))


@dataclass(frozen=True, eq=False)  # holds tensors, whose == is no answer
class Trajectory:
    """z ↦ X_z at the kept depths. Discrete case: the list of hidden states.

    ``final`` is X(Z), or where a solve stopped early the last state it reached; ``status`` says so. ``cost`` is the
    integral of the running cost. A dense path can be called: ``path(z)``.
    """

    z: tuple[float, ...]
    x: tuple[Any, ...]
    final: Any
    stats: Mapping[str, Any] = field(default_factory=dict)
    status: str = "done"
    cost: Any = None
    pieces: tuple[Piece, ...] = ()

    def __call__(self, z: float) -> Any:
        """X at any depth of the span."""
        return state_at(self.pieces, z)


def state_at(pieces: tuple[Piece, ...], z: float) -> Any:
    """X at any depth that the pieces of a path reach."""
    if not pieces:
        raise SolveError("this path was not kept whole", got=f"z={z:g}", remedy="Solve with SaveAt(dense=True).")
    start = pieces[0].z
    end = pieces[-1].z + pieces[-1].dz
    slack = 1e-12 * (end - start)  # the last step may end a rounding short
    if not start - slack <= z <= end + slack:
        remedy = f"It goes from {start:g} to {end:g}."
        raise SolveError("the path does not reach this depth", got=f"{z:g}", remedy=remedy)
    place = sum(1 for one in pieces if one.z <= z)
    piece = pieces[max(place - 1, 0)]
    return piece.at((z - piece.z) / piece.dz)
