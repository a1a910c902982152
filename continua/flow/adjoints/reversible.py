"""The reversible adjoint: the path is computed backwards from its end."""

from dataclasses import dataclass
from typing import Any

import torch

from continua.config import register
from continua.errors import SolveError, SolveFailed
from continua.flow.adjoints.pullback import Chunk, Pullback, SolveState, count_kept
from continua.flow.adjoints.recompute import Checkpoint, redo
from continua.flow.adjoints.tape import Entry, Tape
from continua.flow.cost import plain
from continua.flow.solvers.solver import LaggingMethod, ReversibleMethod
from continua.flow.stepping import StepPlan, rehearsed
from continua.flow.vectorfield import VectorField, is_read, kinds_of, read_at
from continua.settings import Reach
from continua.tree import tensors
from continua.typing import Args, Tensor


@register
@dataclass(frozen=True)
class Reversible:
    """Undo the steps of a reversible solver on the way back: memory does not grow with the number of steps.

    Gradients are exact up to the rounding of the reconstruction. It is measured: the start that is arrived at is
    compared with the one that was kept, and above ``drift`` (relative; if None 16 roundings, and more with the root of
    many steps, where gradients are still as exact as plain ones) the backward pass is done again with checkpoints, or
    refused if ``fallback=False``. ``clip``: see ``Direct``.
    """

    drift: Reach | None = None
    fallback: bool = True
    clip: float | None = None
    reads_late = True

    def run(self, plan: StepPlan, x0: Any, args: Args) -> list[Any]:
        """Solve as one operation."""
        if not isinstance(plan.solver, ReversibleMethod):
            remedy = f"Use ReversibleSolver({plan.solver}) or ReversibleHeun(), or Checkpoint(n) gradients."
            raise SolveError("reversible gradients need a reversible solver", got=plan.solver, remedy=remedy)
        return _Reversed(self, plan, x0, args).run()


@dataclass
class _Reversed(SolveState):
    """Keep the end."""

    end: Any = None

    def forward(self, x0: Any, args: Args) -> list[Any]:
        self.end, kept = self.plan.run_in_blocks(x0, args, self.plan.everything)
        return kept

    def backward(self, x0: Any, args: Args, grad_kept: list[Any]) -> tuple[Any, dict[int, Tensor]]:
        pullback = self.pullback(args, True, self.adjoint.clip)
        reached, grad_x0 = self._undo(pullback, x0, grad_kept)
        drift = _distance(reached, x0)
        limit = self.adjoint.drift
        if limit is None:
            limit = max(16.0, 5.7 * len(self.plan.steps) ** 0.5) * torch.finfo(tensors(x0)[0].dtype).eps
        self.plan.notes["drift"] = drift
        if drift <= limit:
            return grad_x0, pullback.gradients
        if not self.adjoint.fallback:
            remedy = "Allow the fallback, take smaller steps, or use Checkpoint(n)."
            got = f"a start that is off by {drift:.1e} (allowed: {limit:.1e})"
            raise SolveFailed("the steps could not be undone", got=got, remedy=remedy, z=self.plan.steps[0][0])
        self.plan.notes["path"] = "checkpoints, since undoing the steps drifted"
        again = Checkpoint(max(1, round(len(self.plan.steps) ** 0.5)), clip=self.adjoint.clip)
        return redo(again, self.plan, x0, args, grad_kept)

    def _undo(self, pullback: Pullback, x0: Any, grad_kept: list[Any]) -> tuple[Any, Any]:
        """Step by step backwards: undo with a tape, then pull the step back with what the tape saw."""
        carried = self.end
        grad_carried = None
        end = len(grad_kept)
        waiting = None
        for block in reversed(self.plan.blocks_of(self.plan.everything)):
            with torch.enable_grad():
                read = pullback.detached(self._read(pullback.args, block))
            gathered = Tape(keep=True)
            for i in reversed(block):
                start = end - count_kept(self.plan, range(i, i + 1))
                chunk, carried, waiting = self._chunk(i, carried, read, waiting, x0)
                tape = chunk.tape.replay(gathered)
                grad_carried = pullback.replay(chunk, tape, read, grad_carried, grad_kept[start:end])
                end = start
            pullback.backpropagate(gathered)
        return self.plan.solver.show(carried), grad_carried

    def _read(self, args: Args, block: range) -> Args:
        """The weights at the depths where the steps of a block, and undoing them, ask."""
        if is_read(self.plan.field):
            return args
        solver: Any = plain(self.plan.solver)

        def undo(field: VectorField, args: Args) -> None:
            for i in block:
                z = self._before(i)
                dz = self.plan.steps[i][1]
                solver.undo(field, z, dz, solver.begin(field, z + dz, 0.0, args), args)

        also = rehearsed(kinds_of(self.plan.field), undo)
        asked = [tuple(dict.fromkeys([*a, *b])) for a, b in zip(self.plan.asked(block), also, strict=True)]
        return read_at(self.plan.field, asked, args)

    def _before(self, i: int) -> float:
        """Where undoing step i arrives: with lag to the last bit where the step before evaluated the field."""
        if i == 0 or not isinstance(self.plan.solver, LaggingMethod):
            return self.plan.steps[i][0]
        z, dz = self.plan.steps[i - 1]
        return z + dz

    @torch.no_grad()
    def _chunk(self, i: int, after: Any, read: Args, waiting: list[Entry] | None, x0: Any) -> tuple[Chunk, Any, Any]:
        """Undo step i, and put its evaluations in the order in which the step makes them."""
        solver: Any = self.plan.solver
        z, dz = self.plan.steps[i]
        lags = isinstance(solver, LaggingMethod)
        if lags and waiting is None:  # the evaluation of the last step of all
            tape = Tape(keep=True)
            solver.again(tape.through(self.plan.field), z + dz, after, read)
            waiting = tape.entries
        tape = Tape(keep=True)
        before = solver.undo(tape.through(self.plan.field), self._before(i), dz, after, read)
        seen = solver.forward_order(tape.entries)
        own, waiting = (waiting or [], seen) if lags else (seen, None)
        part = range(i, i + 1)
        start = x0 if i == 0 else before
        if any(theta < 1 for theta in self.plan.moments[i]):  # interpolation evaluates more than the step
            tape = Tape(keep=True)
            self.plan.run(start, read, part, tape.through(self.plan.field))
            own = tape.entries
        elif i == 0 and lags:
            own = seen + own
        return Chunk(part, start, Tape(True, own), part), before, waiting


def _distance(reached: Any, kept: Any) -> float:
    """How far two states are apart, relative to their size."""
    pairs = list(zip(tensors(reached), tensors(kept), strict=True))
    off = max(float((a - b).abs().max()) for a, b in pairs)
    size = max(float(b.abs().max()) for _, b in pairs)
    return off / size if size else off
