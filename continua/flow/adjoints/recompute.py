"""Adjoints that keep little and compute the rest again: exact discrete gradients, taken once."""

import itertools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from continua.config import register
from continua.errors import SolveError
from continua.flow.adjoints.pullback import Chunk, Pullback, SolveState, count_kept, pull_back_chunks
from continua.flow.adjoints.tape import Noise, noise_now, replayed
from continua.flow.stepping import StepPlan
from continua.flow.vectorfield import is_quiet
from continua.typing import Args, Tensor

# recursive checkpoints: steps that are recorded at once, and pieces into which a longer segment is cut. A recorded step
# weighs tens of states, so a few more of these cost little memory and spare walks.
LEAF = 4
PIECES = 16


@dataclass
class _Taped(SolveState):
    """Keep something of every evaluation."""

    chunks: list[Chunk] = field(default_factory=list)

    def forward(self, x0: Any, args: Args) -> list[Any]:
        _, kept, self.chunks = self.pullback(keep=self.adjoint.gemms).record(x0, args, self.plan.everything)
        return kept

    def backward(self, x0: Any, args: Args, grad_kept: list[Any]) -> tuple[Any, dict[int, Tensor]]:
        pullback = self.pullback(args, self.adjoint.gemms, self.adjoint.clip)
        return pull_back_chunks(pullback, self.chunks, None, grad_kept), pullback.gradients


@register
@dataclass(frozen=True)
class Recompute:
    """Keep one slope an evaluation, and evaluate the field once more on the way back, one evaluation's graph at a time.

    Memory is one state an evaluation; weights over depth are made anew, block by block. ``clip``: see ``Direct``.
    """

    clip: float | None = None
    reads_late = True
    gemms = False

    def run(self, plan: StepPlan, x0: Any, args: Args) -> list[Any]:
        """Solve as one operation."""
        return _Taped(self, plan, x0, args).run()


@register
@dataclass(frozen=True)
class Lean:
    """Keep of each evaluation only what its matrix products need, and go back by hand: less memory in the same time.

    Fields without a hand-written backward are evaluated once more, as under ``Recompute``. ``clip``: see ``Direct``.
    """

    clip: float | None = None
    reads_late = True
    gemms = True

    def run(self, plan: StepPlan, x0: Any, args: Args) -> list[Any]:
        """Solve as one operation."""
        return _Taped(self, plan, x0, args).run()


class _Start(NamedTuple):
    """Some steps, the state before them, and that of the random numbers where they matter."""

    part: range
    x: Any
    noise: Noise | None


@dataclass
class _Checkpointed(SolveState):
    """Keep states between segments of steps."""

    starts: list[_Start] = field(default_factory=list)

    def forward(self, x0: Any, args: Args) -> list[Any]:
        _, kept = self._walk(x0, args, self.adjoint.segments(self.plan), self.starts)
        return kept

    def _walk(self, x: Any, args: Args, parts: list[range], starts: list[_Start]) -> tuple[Any, list[Any]]:
        """Take some steps, noting where each part starts."""
        kept = []
        quiet = is_quiet(self.plan.field)
        for part in parts:
            starts.append(_Start(part, x, None if quiet else noise_now()))
            x, more = self.plan.run_in_blocks(x, args, part)
            kept += more
        return x, kept

    def backward(self, x0: Any, args: Args, grad_kept: list[Any]) -> tuple[Any, dict[int, Tensor]]:
        pullback = self.pullback(args, self.adjoint.gemms, self.adjoint.clip)
        return self._back(pullback, [*self.starts], None, grad_kept), pullback.gradients

    def _back(self, pullback: Pullback, starts: list[_Start], grad_carried: Any, grad_kept: list[Any]) -> Any:
        """Part after part, the last one first; a state is let go with its part."""
        end = len(grad_kept)
        while starts:
            part, x, noise = starts.pop()
            start = end - count_kept(self.plan, part)
            with replayed(noise):
                grad_carried = self._segment(pullback, part, x, grad_carried, grad_kept[start:end])
            end = start
        return grad_carried

    def _segment(self, pullback: Pullback, part: range, x: Any, grad_carried: Any, grad_kept: list[Any]) -> Any:
        """Record and pull, or cut once more: walk to the start of the last piece, noting the others on the way."""
        if not self.adjoint.recursive or len(part) <= LEAF:
            with torch.no_grad():
                _, _, chunks = pullback.record(x, pullback.args, part)
            return pull_back_chunks(pullback, chunks, grad_carried, grad_kept)
        *most, last = _cut(part)
        starts: list[_Start] = []
        with torch.no_grad():
            x, _ = self._walk(x, pullback.args, most, starts)
        starts.append(_Start(last, x, None))  # its random numbers are those that come next
        return self._back(pullback, starts, grad_carried, grad_kept)


def _cut(part: range) -> list[range]:
    """At most ``PIECES`` of equal length, a multiple of ``LEAF``."""
    size = LEAF * -(-len(part) // (LEAF * PIECES))
    return [range(i, min(i + size, part.stop)) for i in range(part.start, part.stop, size)]


@register
@dataclass(frozen=True)
class Checkpoint:
    """Keep the state after every ``every`` steps (a whole number) or Δz (a fraction), and walk the steps between again.

    Memory is that of the kept states and of one segment, so O(√L) with every = √L, for one more forward pass
    (Griewank 1992; Chen et al. 2016). ``recursive`` cuts a segment into 16 pieces, and these again, down to 4 steps:
    less than 16 states a level are alive, for a forward pass a level; 64 steps have one, 1024 have two.
    ``clip``: see ``Direct``.
    """

    every: int | float
    recursive: bool = False
    clip: float | None = None
    reads_late = True
    gemms = True

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not self.every > 0:
            remedy = "Use a whole number n ≥ 1, best about √L, or a length Δz such as 0.1."
            raise SolveError("Checkpoint(every=n) counts steps, every=Δz measures depth", got=self.every, remedy=remedy)

    def segments(self, plan: StepPlan) -> list[range]:
        """Cut the steps."""
        count = len(plan.steps)
        if isinstance(self.every, int):
            cuts = list(range(0, count, self.every))
        else:
            start = plan.steps[0][0]
            number = [int((z - start) / self.every + 1e-9) for z, _ in plan.steps]
            cuts = [i for i in range(count) if i == 0 or number[i] != number[i - 1]]
        return [range(a, b) for a, b in itertools.pairwise([*cuts, count])]

    def run(self, plan: StepPlan, x0: Any, args: Args) -> list[Any]:
        """Solve as one operation."""
        return _Checkpointed(self, plan, x0, args).run()


def redo(
    adjoint: Checkpoint, plan: StepPlan, x0: Any, args: Args, grad_kept: list[Any]
) -> tuple[Any, dict[int, Tensor]]:
    """The gradients once more, with checkpoints and a forward pass of their own."""
    state = _Checkpointed(adjoint, plan, x0, args)
    with torch.no_grad():
        state.forward(x0, args)
    return state.backward(x0, args, grad_kept)


@register
@dataclass(frozen=True)
class Mixed(Checkpoint):
    """Coarse checkpoints and a fine replay: each segment is walked again keeping one slope an evaluation.

    The least memory of the checkpointing adjoints, for two more forward passes.
    """

    gemms = False
