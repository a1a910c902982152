"""Taking known steps: blocks of them, the depths they read, and the states kept on the way."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from continua.compiling import remembered
from continua.flow.cost import plain
from continua.flow.solvers.solver import Solver, velocity_of
from continua.flow.trajectory import Moments, Piece, Steps
from continua.flow.vectorfield import Flow, Projection, Sum, VectorField, bytes_a_depth, is_read, kinds_of, read_at
from continua.typing import Args

# depths read at once where memory counts: as many as fit into BYTES, but NODES at least
NODES = 8
BYTES = 8 * 2**20

Kinds = tuple[bool, ...] | None  # of each part whether it is a flow; None for a field that is not made of parts


@dataclass(frozen=True, eq=False)  # holds tensors, whose == is no answer
class StepPlan:
    """A field, a solver, the steps to take and what to keep of them."""

    field: VectorField
    solver: Solver
    steps: Steps
    moments: Moments
    notes: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)  # what the backward pass has to say

    def run(self, x: Any, args: Args, part: range, field: VectorField | None = None) -> tuple[Any, list[Any]]:
        """Take the steps of ``part``; return what is carried and the kept states. The first step begins from x0."""
        solver = self.solver
        field = self.field if field is None else field
        kept = []
        if part.start == 0:
            x = solver.begin(field, self.steps[0][0], x, args)
        for i in part:
            z, dz = self.steps[i]
            before = x
            x = solver.step(field, z, dz, x, args)
            if self.moments[i]:
                kept += self.interpolate(self.moments[i], i, before, x, args, field)
        return x, kept

    def interpolate(
        self, thetas: tuple[float, ...], i: int, before: Any, after: Any, args: Args, field: Any
    ) -> list[Any]:
        """The states at some moments of one step."""
        end = self.solver.show(after)
        if thetas == (1.0,):
            return [end]
        (z, dz), start = self.steps[i], self.solver.show(before)
        found = piece(self.solver, field, Piece(z, dz, start, end), args)
        return [end if theta == 1.0 else found.at(theta) for theta in thetas]

    def run_in_blocks(self, x: Any, args: Args, part: range) -> tuple[Any, list[Any]]:
        """The same block by block, so that only one block's weights are alive where nothing else keeps them."""
        kept = []
        for block in self.blocks_of(part):
            x, more = self.run(x, self.weights(args, block), block)
            kept += more
        return x, kept

    def blocks_of(self, part: range) -> list[range]:
        """The blocks, cut to ``part``."""
        cuts = [range(max(b.start, part.start), min(b.stop, part.stop)) for b in self.blocks()]
        return [cut for cut in cuts if len(cut)]

    @property
    def everything(self) -> range:
        """All steps."""
        return range(len(self.steps))

    def blocks(self) -> list[range]:
        """Runs of steps whose weights fit into a block; all steps at once where nothing is left to read."""
        count = len(self.steps)
        if is_read(self.field):
            return [range(count)]
        each = bytes_a_depth(self.field)
        nodes = max(NODES, BYTES // each) if each else NODES
        size = max(1, (nodes - 1) // fresh(plain(self.solver), kinds_of(self.field)))
        return [range(start, min(start + size, count)) for start in range(0, count, size)]

    def weights(self, args: Args, part: range) -> Args:
        """The weights that the steps of ``part`` ask for."""
        if is_read(self.field):
            return args
        return read_at(self.field, self.asked(part), args)

    def asked(self, part: range) -> tuple[tuple[float, ...], ...]:
        """At which depths each part of the field is evaluated."""
        window = slice(part.start, part.stop)
        begin = part.start == 0
        return dry_run(kinds_of(self.field), plain(self.solver), self.steps[window], self.moments[window], begin)[0]

    @property
    def evaluations(self) -> int:
        """How often the field is evaluated."""
        return all_evaluations(kinds_of(self.field), plain(self.solver), self.steps, self.moments)


def piece(solver: Solver, field: VectorField, bare: Piece, args: Args) -> Piece:
    """Add to one step what interpolation of the solver's order needs."""
    if solver.order <= 2:
        return bare
    z, dz, x, end = bare[:4]
    moving = velocity_of(solver, field)
    slopes = (moving(z, x, args), moving(z + dz, end, args))
    if solver.order <= 4:
        return bare._replace(slopes=slopes)
    middle = solver.show(solver.step(field, z, dz / 2, solver.begin(field, z, x, args), args))
    return bare._replace(slopes=slopes, middle=middle)


def all_evaluations(kinds: Kinds, solver: Any, steps: Steps, moments: Moments) -> int:
    """Evaluations of all steps, and of interpolating where states between them are kept."""
    if any(thetas not in ((), (1.0,)) for thetas in moments):
        return dry_run(kinds, solver, steps, moments, True)[1]
    begin = evaluations(solver, kinds, begin=True) - evaluations(solver, kinds)
    return len(steps) * evaluations(solver, kinds) + begin


@remembered
def evaluations(solver: Any, kinds: Kinds, begin: bool = False) -> int:
    """Evaluations of one step, and those of beginning."""
    return dry_run(kinds, solver, ((0.0, 1.0),), ((1.0,),), begin)[1]


@remembered
def fresh(solver: Any, kinds: Kinds) -> int:
    """How many depths one more step reads: it shares its start with the end of the step before."""
    asked, _ = dry_run(kinds, solver, ((0.0, 1.0), (1.0, 1.0)), ((), ()), False)
    return max(len(log) // 2 for log in asked) or 1


@remembered
def dry_run(
    kinds: Kinds, solver: Any, steps: Steps, moments: Moments, begin: bool
) -> tuple[tuple[tuple[float, ...], ...], int]:
    """Step with plain numbers: at which depths each part is read, and how often the field is evaluated.

    Where parts are taken one by one, an evaluation is a call of the part that is called most often.
    """
    skip = 0 if begin else 1  # a run that does not start at step 0 does not begin

    def run(field: VectorField, args: Args) -> None:
        x = 0.0 if begin else solver.begin(lambda z, x, args: x, 0.0, 0.0, None)
        plan = StepPlan(field, solver, ((0.0, 0.0),) * skip + steps, ((),) * skip + moments)
        plan.run(x, args, range(skip, skip + len(steps)))

    calls = rehearsed(kinds, run)
    flows = [len(log) for log, flow in zip(calls, kinds or (True,), strict=True) if flow]
    return tuple(tuple(dict.fromkeys(log)) for log in calls), max(flows, default=0)


def rehearsed(kinds: Kinds, action: Callable[[VectorField, Args], object]) -> list[list[float]]:
    """The depths at which ``action`` evaluates each part, call by call, found with a field of plain numbers."""
    calls: list[list[float]] = [[] for _ in kinds or (True,)]

    def recorder(log: list[float]) -> Any:
        def record(z: float, x: Any, args: None) -> Any:
            log.append(z)
            return x

        return record

    parts = tuple(
        (Flow if flow else Projection)(recorder(log)) for flow, log in zip(kinds or (True,), calls, strict=True)
    )
    action(parts[0] if kinds is None else Sum(parts), None if kinds is None else (None,) * len(parts))
    return calls
