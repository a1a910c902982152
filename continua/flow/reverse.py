"""The reversible adjoint: the path is computed backwards from its end."""

from dataclasses import dataclass
from typing import Any

import torch

from continua.config import register
from continua.errors import SolveError, SolveFailed
from continua.flow.cost import plain
from continua.flow.journey import Journey, Leg, Work, counts
from continua.flow.recompute import Checkpoint, redo
from continua.flow.reversible import ReversibleMethod
from continua.flow.tape import Entry, Tape
from continua.flow.vectorfield import VectorField, is_read, kinds_of, read_at
from continua.flow.walk import Route, rehearsed
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

    drift: float | None = None
    fallback: bool = True
    clip: float | None = None
    reads_late = True

    def run(self, route: Route, x0: Any, args: Args) -> list[Any]:
        """Solve as one operation."""
        if not isinstance(route.solver, ReversibleMethod):
            remedy = f"Use ReversibleSolver({route.solver}) or ReversibleHeun(), or Checkpoint(n) gradients."
            raise SolveError("reversible gradients need a reversible solver", got=route.solver, remedy=remedy)
        return _Reversed(self, route, x0, args).run()


@dataclass
class _Reversed(Work):
    """Keep the end."""

    end: Any = None

    def out(self, x0: Any, args: Args) -> list[Any]:
        self.end, kept = self.route.go(x0, args, self.route.everything)
        return kept

    def back(self, x0: Any, args: Args, to_kept: list[Any]) -> tuple[Any, dict[int, Tensor]]:
        journey = self.journey(args, True, self.adjoint.clip)
        reached, to_x0 = self._undo(journey, x0, to_kept)
        drift, limit = _distance(reached, x0), self.adjoint.drift
        if limit is None:
            limit = max(16.0, 5.7 * len(self.route.steps) ** 0.5) * torch.finfo(tensors(x0)[0].dtype).eps
        self.route.notes["drift"] = drift
        if drift <= limit:
            return to_x0, journey.sink
        if not self.adjoint.fallback:
            remedy = "Allow the fallback, take smaller steps, or use Checkpoint(n)."
            got = f"a start that is off by {drift:.1e} (allowed: {limit:.1e})"
            raise SolveFailed("the steps could not be undone", got=got, remedy=remedy, z=self.route.steps[0][0])
        self.route.notes["path"] = "checkpoints, since undoing the steps drifted"
        again = Checkpoint(max(1, round(len(self.route.steps) ** 0.5)), clip=self.adjoint.clip)
        return redo(again, self.route, x0, args, to_kept)

    def _undo(self, journey: Journey, x0: Any, to_kept: list[Any]) -> tuple[Any, Any]:
        """Step by step backwards: undo with a tape, then pull the step back with what the tape saw."""
        carried, to_carried, end, waiting = self.end, None, len(to_kept), None
        for block in reversed(self.route.pieces(self.route.everything)):
            with torch.enable_grad():
                read = journey.cut(self._read(journey.args, block))
            gathered = Tape(keep=True)
            for i in reversed(block):
                start = end - counts(self.route, range(i, i + 1))
                leg, carried, waiting = self._leg(i, carried, read, waiting, x0)
                tape = leg.tape.replay(gathered)
                to_carried = journey.replay(leg, tape, read, to_carried, to_kept[start:end])
                end = start
            journey.collect(gathered)
        return self.route.solver.show(carried), to_carried

    def _read(self, args: Args, block: range) -> Args:
        """The weights at the depths where the steps of a block, and undoing them, ask."""
        if is_read(self.route.field):
            return args
        solver: Any = plain(self.route.solver)

        def undo(field: VectorField, args: Args) -> None:
            for i in block:
                z, dz = self._before(i), self.route.steps[i][1]
                solver.undo(field, z, dz, solver.begin(field, z + dz, 0.0, args), args)

        also = rehearsed(kinds_of(self.route.field), undo)
        asked = [tuple(dict.fromkeys([*a, *b])) for a, b in zip(self.route.asked(block), also, strict=True)]
        return read_at(self.route.field, asked, args)

    def _before(self, i: int) -> float:
        """Where undoing step i arrives: with lag to the last bit where the step before evaluated the field."""
        lag = i > 0 and getattr(self.route.solver, "lag", False)
        z, dz = self.route.steps[i - 1] if lag else (self.route.steps[i][0], 0.0)
        return z + dz

    @torch.no_grad()
    def _leg(self, i: int, after: Any, read: Args, waiting: list[Entry] | None, x0: Any) -> tuple[Leg, Any, Any]:
        """Undo step i, and put its evaluations in the order in which the step makes them."""
        solver: Any = self.route.solver
        z, dz = self.route.steps[i]
        if solver.lag and waiting is None:  # the evaluation of the last step of all
            tape = Tape(keep=True)
            solver.again(tape.through(self.route.field), z + dz, after, read)
            waiting = tape.entries
        tape = Tape(keep=True)
        before = solver.undo(tape.through(self.route.field), self._before(i), dz, after, read)
        seen = solver.forward_order(tape.entries)
        own, waiting = (waiting or [], seen) if solver.lag else (seen, None)
        part, start = range(i, i + 1), x0 if i == 0 else before
        if any(theta < 1 for theta in self.route.moments[i]):  # interpolation evaluates more than the step
            tape = Tape(keep=True)
            self.route.walk(start, read, part, tape.through(self.route.field))
            own = tape.entries
        elif i == 0 and solver.lag:
            own = seen + own
        return Leg(part, start, Tape(True, own), part), before, waiting


def _distance(reached: Any, kept: Any) -> float:
    """How far two states are apart, relative to their size."""
    pairs = list(zip(tensors(reached), tensors(kept), strict=True))
    off = max(float((a - b).abs().max()) for a, b in pairs)
    size = max(float(b.abs().max()) for _, b in pairs)
    return off / size if size else off
