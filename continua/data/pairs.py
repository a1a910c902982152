"""Pairs of functions: what an operator is learned from, sampled on a uniform grid of their domain."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import torch

from continua.axes import (
    Axis,
    Circle,
    Grid,
    Interval,
    LeftEnd,
    Midpoint,
    ProductRule,
    Rule,
    Samples,
    Trapezoid,
    factors,
    grid_on,
    interned,
    mass_of,
)
from continua.errors import ConfigError, GridError, ShapeError
from continua.typing import Tensor

SAME = 1e-6  # how far a stored coordinate may lie from the node it means: float32 round-off on the unit interval


@dataclass(frozen=True, eq=False)
class Pairs:
    """inputs[i] ↦ outputs[i]: functions on a domain, sampled on a product of uniform lines.

    ``inputs`` and ``outputs`` have the shape [count, *grid, channels], ``points`` [*grid, k] says where the samples
    lie in ``axis``: entry [i, j] of a square is (x_i, y_j).

    Discrete case: on a circle of n points this is a pair of [count, n, channels] tensors.
    """

    name: str
    axis: Axis
    inputs: Tensor
    outputs: Tensor
    points: Tensor

    def __post_init__(self) -> None:
        grid = self.inputs.shape[1:-1]
        if self.inputs.shape[:-1] != self.outputs.shape[:-1] or not len(grid) or len(self.inputs) == 0:
            got = f"inputs {list(self.inputs.shape)}, outputs {list(self.outputs.shape)}"
            remedy = "Give both as [count, *grid, channels] with one count ≥ 1 and one grid."
            raise ShapeError(f"inputs and outputs of {self.name} do not fit", got=got, remedy=remedy)
        if self.points.shape != (*grid, self.axis.dim) or len(grid) != self.axis.dim:
            got = f"points {list(self.points.shape)} for a grid {list(grid)}"
            remedy = f"The domain has dimension {self.axis.dim}: give points {[*grid, self.axis.dim]}."
            raise ShapeError(f"the points of {self.name} do not fit", got=got, remedy=remedy)
        for what in ("inputs", "outputs", "points"):
            values = getattr(self, what)
            if not values.is_floating_point():
                got = values.dtype
                remedy = "Convert them with .float()."
                raise ShapeError(f"{what} of {self.name} must be floating-point", got=got, remedy=remedy)
            if not bool(torch.isfinite(values).all()):
                bad = int((~torch.isfinite(values)).sum())
                remedy = "Leave these samples out, or repair the file they come from."
                raise ShapeError(f"{what} of {self.name} must be finite", got=f"{bad} NaN or infinite", remedy=remedy)
        _ = self.lines  # refuses points that are no lattice

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def shape(self) -> tuple[int, ...]:
        """How many samples lie along each direction of the domain."""
        return tuple(self.points.shape[:-1])

    @cached_property
    def sha256(self) -> str:
        """Names the content: numbers measured on other data cannot be compared."""
        digest = hashlib.sha256(repr(self.axis).encode())
        for values in (self.inputs, self.outputs, self.points):
            digest.update(f"{values.dtype} {tuple(values.shape)}".encode())
            digest.update(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def lines(self) -> tuple[Tensor, ...]:
        """The coordinates along each direction, in float64."""
        points = self.points.detach().cpu().double()
        found = []
        for i, factor in enumerate(factors(self.axis)):
            along = points[..., i].movedim(i, 0).flatten(1) if points.dim() > 2 else points[..., i][:, None]
            line = along[:, 0]
            inside = bool(
                ((line - factor.start).abs() <= factor.length + SAME).all() and line[0] >= factor.start - SAME
            )
            if not inside or bool((along - line[:, None]).abs().max() > SAME) or bool((line.diff() <= 0).any()):
                got = f"coordinate {i}"
                remedy = "Entry [i, j] must lie at (x_i, y_j), increasing, in the domain."
                raise GridError(f"the points of {self.name} are no product of lines", got=got, remedy=remedy)
            found.append(line)
        return tuple(found)

    @cached_property
    def grid(self) -> Grid:
        """All points in one row [n, k], with quadrature weights that sum to the mass of the domain.

        Equal weights on circles; on intervals the trapezoid rule where both ends are among the points, the midpoint
        rule where they are cell centres, half-gaps to the neighbours and ends otherwise.
        """
        lines = tuple(_line(factor, line) for factor, line in zip(factors(self.axis), self.lines, strict=True))
        if len(lines) == 1:
            return lines[0]
        nodes = torch.stack(torch.meshgrid(*(line.nodes[:, 0] for line in lines), indexing="ij"), -1)
        nodes = nodes.reshape(-1, len(lines))
        weights = reduce(lambda a, b: a[..., None] * b, (line.weights for line in lines)).reshape(-1)
        return Grid(
            nodes,
            weights * (mass_of(self.axis) / weights.sum()),
            is_uniform=all(line.is_uniform for line in lines),
            key=interned(nodes.numpy()).key,
            lines=lines,
        )

    @property
    def rule(self) -> Rule:
        """The rule whose nodes these are, where it is one of the usual ones along each direction."""
        rules = [
            _rule(factor, line, (Trapezoid(len(line)), Midpoint(len(line)), LeftEnd(len(line))))
            for factor, line in zip(factors(self.axis), self.lines, strict=True)
        ]
        known = [rule for rule in rules if rule is not None]
        if len(known) < len(rules):
            remedy = "Give functions on equal nodes of a circle, or on nodes or cell centres of an interval."
            raise GridError(f"the points of {self.name} follow no rule", got=f"a grid {self.shape}", remedy=remedy)
        return known[0] if len(known) == 1 else ProductRule(tuple(known))

    def flat(self) -> tuple[Tensor, Tensor]:
        """Inputs and outputs with the points in one row, in the order of ``grid``: [count, n, channels] each."""
        return self.inputs.flatten(1, -2), self.outputs.flatten(1, -2)

    def every(self, stride: int) -> "Pairs":
        """The same functions at every ``stride``-th point of each direction, beginning with the first."""
        short = min(self.shape)
        if stride < 1 or (short - 1) // stride < 1:
            got = stride
            remedy = f"Use a stride between 1 and {max(1, short - 1)}."
            raise ConfigError(f"a grid of {list(self.shape)} cannot be thinned so", got=got, remedy=remedy)
        steps = (slice(None, None, stride),) * self.axis.dim
        values = {what: getattr(self, what)[:, *steps] for what in ("inputs", "outputs")}
        return replace(self, **values, points=self.points[steps])

    def part(self, rows: slice) -> "Pairs":
        """Some of the pairs: ``part(slice(0, 1000))`` to learn from, ``part(slice(1000, None))`` to be measured on."""
        chosen = self.inputs[rows]
        if not len(chosen):
            got = f"{rows.start}:{rows.stop}:{rows.step}"
            remedy = f"There are {len(self)}."
            raise ConfigError(f"no pair of {self.name} is chosen", got=got, remedy=remedy)
        return replace(self, inputs=chosen, outputs=self.outputs[rows])


def lattice(axis: Axis, *lines: Tensor) -> Tensor:
    """The points [*grid, k] of the product of lines, in float64."""
    if len(lines) != len(factors(axis)):
        got = len(lines)
        remedy = f"Give {len(factors(axis))} lines."
        raise GridError("a lattice needs a line for each direction", got=got, remedy=remedy)
    return torch.stack(torch.meshgrid(*(line.double() for line in lines), indexing="ij"), -1)


def _line(factor: Interval | Circle, line: Tensor) -> Grid:
    """The grid of the usual rule whose nodes these are; of half-gaps if they are none of those."""
    rule = _rule(factor, line, (Trapezoid(len(line)), Midpoint(len(line))))
    if rule is not None:
        return grid_on(factor, rule)
    return replace(Samples().on(factor, line), is_ordered=True, key=interned(line[:, None].numpy()).key)


def _rule(factor: Interval | Circle, line: Tensor, among: tuple[Rule, ...]) -> Rule | None:
    """The rule whose nodes these are, if it is one of those."""
    for rule in among if len(line) > 1 else ():
        if bool((grid_on(factor, rule).nodes[:, 0] - line).abs().max() <= SAME * factor.length):
            return rule
    return None
