"""Step-size control: which steps are taken. ``Fixed`` decides before the solve, ``Adaptive`` by looking for them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, runtime_checkable

from continua.compiling import remembered
from continua.config import register
from continua.errors import SolveError, SolveFailed
from continua.flow.solvers.solver import Solver
from continua.flow.trajectory import Piece, SaveAt, Steps
from continua.flow.vectorfield import VectorField
from continua.settings import MAX_STEPS, Count, Range
from continua.typing import Args, Tensor


@dataclass(frozen=True, eq=False)  # holds tensors, whose == is no answer
class Problem:
    """Everything a solve needs. Every differentiated tensor is ``x0`` or a leaf of ``args``.

    ``observed`` marks what counts in error norms (absent tokens do not).
    """

    field: VectorField
    x0: Any
    span: tuple[float, float]
    args: Args
    solver: Solver
    save: SaveAt
    observed: Tensor | None = None


@dataclass(frozen=True, eq=False)  # holds tensors, whose == is no answer
class StepsFound:
    """The steps that were found.

    Where the path itself was walked to find them, ``kept`` holds the states to return and ``final`` the last one.
    """

    steps: Steps
    stats: Mapping[str, Any] = field(default_factory=dict)
    failure: SolveFailed | None = None
    kept: tuple[Any, ...] | None = None
    final: Any = None
    pieces: tuple[Piece, ...] = ()


@runtime_checkable
class Control(Protocol):
    """Chooses the steps."""

    def find(self, problem: Problem) -> StepsFound:
        """Return steps that lead from span[0] to span[1], or as far as they got."""
        ...


@register
@dataclass(frozen=True)
class Fixed:
    """``steps`` equal steps, exactly; node i is start + i·length/steps by one multiplication, never by adding up.

    ``solver`` travels along where one object says how a model steps (``model.at(z=Fixed(6, RK4()))``); ``solve``
    itself takes the solver as its own argument. ``nested`` = n makes steps out of n equal ones: fewer by joining
    neighbours (the last pair first), more by halving (the first one first), so that coarse nodes are fine ones too.
    ``lengths`` are those of the steps instead, one to another: ``Fixed(3, lengths=(2, 1, 1))`` joins the first two of
    four.
    """

    steps: Annotated[int, Range(high=MAX_STEPS)]
    solver: Solver | None = None
    nested: Annotated[int, Range(high=MAX_STEPS)] | None = None
    lengths: tuple[Count, ...] | None = None

    def __post_init__(self) -> None:
        for count in (self.steps, 1 if self.nested is None else self.nested):
            if count < 1:
                raise SolveError("a solve needs at least one step", got=count, remedy="Use Fixed(n) with n ≥ 1.")
        if self.lengths is not None and len(self.lengths) != self.steps:
            remedy = f"Use Fixed({len(self.lengths)}, lengths={self.lengths})."
            raise SolveError("lengths has one number for each step", got=f"{self.steps} steps", remedy=remedy)

    def walk(self, span: tuple[float, float]) -> Iterator[tuple[float, float]]:
        """Yield (z, dz) for each step; the last one ends at span[1] exactly."""
        start, end = span
        count = len(range(self.steps))  # a number where a compiled program has a symbol
        if self.lengths is not None:
            parts: Sequence[float] = (0, *itertools.accumulate(self.lengths))
            count = sum(self.lengths)
        else:
            parts = range(count + 1) if self.nested is None else _nodes(count, self.nested)
        nodes = [start + (end - start) * i / count for i in parts]
        nodes[-1] = end
        for z, after in itertools.pairwise(nodes):
            yield z, after - z

    def find(self, problem: Problem) -> StepsFound:
        """All steps, at once."""
        return StepsFound(fixed_steps(self, problem.span), {"steps": self.steps})

    def __str__(self) -> str:
        said = f"{self.steps} steps" if self.lengths is None else f"steps {'+'.join(map(str, self.lengths))}"
        return said + (f" of {self.solver}" if self.solver is not None else "")


@remembered
def fixed_steps(control: Fixed, span: tuple[float, float]) -> Steps:
    """(z, dz) of every step."""
    return tuple(control.walk(span))


@remembered
def _nodes(steps: int, of: int) -> tuple[float, ...]:
    """The nodes 0, …, ``steps`` of nested steps, in units of an equal one."""
    halvings = 0
    while of << halvings < steps:
        halvings += 1
    cells = [1 << halvings for _ in range(of)]  # in whole numbers, so that a node is one division away
    while len(cells) > steps:  # level by level: pairs from the last to the first
        pairs = [cells[i : i + 2] for i in range(0, len(cells), 2)]
        apart = max(0, steps - (len(cells) + 1) // 2)  # pairs that stay apart
        cells = [*(cell for pair in pairs[:apart] for cell in pair), *(sum(pair) for pair in pairs[apart:])]
    while len(cells) < steps:
        halved = min(len(cells), steps - len(cells))
        cells = [*(cell // 2 for cell in cells[:halved] for _ in range(2)), *cells[halved:]]
    whole = of << halvings
    nodes = [0.0]
    place = 0
    for cell in cells:
        place += cell
        nodes.append(place * steps / whole)
    return tuple(nodes)
