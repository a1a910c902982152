"""Adaptive control: a search for steps whose estimated error stays below a tolerance, made without gradients."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from continua.config import register
from continua.errors import SolveError, SolveFailed
from continua.flow.controls.control import Problem, StepsFound
from continua.flow.finite import culprit, not_finite
from continua.flow.solvers.reversible import ReversibleSolver
from continua.flow.solvers.solver import Attempt, OneStep, Solver, has_estimate
from continua.flow.state import axpy, scaled
from continua.flow.stepping import evaluations, rehearsed
from continua.flow.trajectory import Piece
from continua.flow.vectorfield import VectorField, is_read, kinds_of, read_at
from continua.tree import tensors
from continua.typing import Args, Tensor

SAFETY = 0.9
SHRINK = 0.2
GROW = 10.0
RETRIES = 5  # an overshoot may leave the field's domain: so often a tenfold smaller step is tried to pass one depth


@register
@dataclass(frozen=True)
class Adaptive:
    """Steps whose local error is about atol + rtol·|x|, in the root mean square over the state.

    ``per_sample`` takes the worst sample's norm instead of the joint one, so that no sample is drowned by the others.
    Absent tokens never count. ``pid`` are the proportional, integral and differential gains of the step-size
    controller (Söderlind 2003). ``first`` is the first step (found by itself if None, Hairer et al. 1993, II.4). A
    solver without an estimate of its own is measured by step doubling. As with ``Fixed``, ``solver`` travels along
    for models.
    """

    solver: Solver | None = None
    rtol: float = 1e-4
    atol: float = 1e-6
    per_sample: bool = False
    pid: tuple[float, float, float] = (0.3, 0.4, 0.0)
    first: float | None = None
    max_steps: int = 4096

    def __post_init__(self) -> None:
        if not (self.rtol >= 0 and self.atol >= 0 and self.rtol + self.atol > 0):
            got = f"rtol={self.rtol}, atol={self.atol}"
            raise SolveError("tolerances must be positive", got=got, remedy="Write Adaptive(rtol=1e-4, atol=1e-6).")
        if self.first is not None and not self.first > 0:
            raise SolveError("the first step must be positive", got=self.first, remedy="Leave it out to have it found.")
        if self.max_steps < 1:
            raise SolveError("a solve needs at least one step", got=self.max_steps, remedy="Use max_steps ≥ 1.")

    def __str__(self) -> str:
        made = f" of {self.solver}" if self.solver is not None else ""
        return f"adaptive steps{made}, rtol {self.rtol:g}, atol {self.atol:g}"

    @torch.no_grad()
    def find(self, problem: Problem) -> StepsFound:
        """Try steps, and note the accepted ones."""
        if torch.compiler.is_exporting():
            remedy = "Export the field, or use Fixed(n) steps."
            raise SolveError("adaptive steps are searched for by value, which no graph contains", remedy=remedy)
        return _Search(self, problem).run()


class _Search:
    """One search: where it is, what it has seen."""

    def __init__(self, control: Adaptive, problem: Problem) -> None:
        self.control = control
        self.problem = problem
        self.field = problem.field
        self.solver: Any = _estimated(problem.solver)
        self.embedded = has_estimate(self.solver)
        self.power = self.solver.order + (0 if self.embedded else 1)
        self.z = problem.span[0]
        self.x = problem.x0
        self.first: Any = None  # f(z, x) if known
        self.steps: list[tuple[float, float]] = []
        self.kept: list[Any] = [problem.x0] if problem.save.every or problem.save.points[:1] == (self.z,) else []
        self.pieces: list[Piece] = []
        self.evaluations = 0
        self.rejected = 0
        self.dz = 0.0
        self.past = (1.0, 1.0)  # the two error ratios before
        self.whole = bool(problem.save.dense)

    def run(self) -> StepsFound:
        """From one end to the other, or until it cannot go on."""
        failure = self._start()
        end = self.problem.span[1]
        retries = 0
        barrier = math.inf
        while failure is None and self.z < end:
            failure = self._stuck()
            if failure is not None:
                break
            last = self.z + self.dz >= end - 1e-12 * (end - self.problem.span[0])
            dz = end - self.z if last else self.dz
            tried = self._attempt(dz)
            ratio = self.norm(tried.error, self.x, tried.x)
            if not math.isfinite(ratio):
                retries += 1
                self.rejected += 1
                self.dz = dz / 10
                barrier = min(barrier, self.z + dz)
                if retries > RETRIES:
                    failure = not_finite(barrier, culprit(tried.error))
                continue
            factor = self._factor(ratio)
            if ratio > 1:
                self.rejected += 1
                self.dz = dz * min(factor, 1.0)
                continue
            self._accept(dz, tried, end if last else self.z + dz, ratio)
            self.dz = dz * factor
            if self.z >= barrier:  # it was an overshoot: the path itself goes on beyond
                retries = 0
                barrier = math.inf
        return self._result(failure)

    def _start(self) -> SolveFailed | None:
        """Look at the start and choose the first step."""
        bad = culprit(self.x)
        if bad is not None:
            return not_finite(self.z, bad, "the state")
        span = self.problem.span[1] - self.z
        self.first = self._slope(self.z, self.x)
        bad = culprit(self.first)
        if bad is not None:
            return not_finite(self.z, bad)
        if self.control.first is not None:
            self.dz = self.control.first
            return None
        size = self.norm(self.x, self.x, self.x)
        speed = self.norm(self.first, self.x, self.x)
        small = min(1e-6 if min(size, speed) < 1e-5 else 0.01 * size / speed, span)
        ahead = self._slope(self.z + small, axpy(self.x, small, self.first))
        bend = self.norm(axpy(ahead, -1.0, self.first), self.x, self.x) / small
        steepest = max(speed, bend)
        if not math.isfinite(steepest):
            steepest = speed
        guess = max(1e-6, small * 1e-3) if steepest <= 1e-15 else (0.01 / steepest) ** (1 / (self.solver.order + 1))
        self.dz = min(100 * small, guess, span)
        return None

    def _stuck(self) -> SolveFailed | None:
        """A step too small to move, or too many of them."""
        tiny = 16 * 2.2e-16 * max(abs(self.z), abs(self.problem.span[1]))
        if self.dz <= tiny:
            remedy = "The field is very stiff or singular there: loosen rtol and atol, or end the span before."
            return SolveFailed(
                "the step size fell to nothing", got=f"{self.dz:.1e} at z={self.z:g}", remedy=remedy, z=self.z
            )
        if len(self.steps) + self.rejected >= self.control.max_steps:
            got = f"{len(self.steps)} accepted and {self.rejected} rejected up to z={self.z:g}"
            remedy = "Raise max_steps, or loosen rtol and atol."
            return SolveFailed("the solve did not end within max_steps", got=got, remedy=remedy, z=self.z)
        return None

    def norm(self, error: Any, x: Any, after: Any) -> float:
        """‖error / (atol + rtol max(|x|, |after|))‖, over what is observed."""
        control = self.control
        if self.problem.observed is None and not control.per_sample and isinstance(x, Tensor):  # the same, in one pass
            scale = torch.maximum(x.abs(), after.abs()).mul_(control.rtol).add_(control.atol)
            return float(torch.linalg.vector_norm(error / scale)) / math.sqrt(max(x.numel(), 1))
        sums = []
        counts = []
        for e, a, b in zip(tensors(error), tensors(x), tensors(after), strict=True):
            scale = torch.maximum(a.abs(), b.abs()).mul_(control.rtol).add_(control.atol)
            square = (e.abs() / scale).square_()
            seen = self.problem.observed
            if seen is not None:
                square = square.masked_fill(~seen, 0.0)
            rest = tuple(range(1, square.dim())) if control.per_sample else tuple(range(square.dim()))
            sums.append(square.sum(rest) if rest or not control.per_sample else square)
            counts.append(_count(square, seen, rest))
        mean = torch.as_tensor(sum(sums) / sum(counts))
        return math.sqrt(float(mean.max()))

    def _factor(self, ratio: float) -> float:
        p, i, d = (gain / self.power for gain in self.control.pid)
        ratio, (before, earlier) = max(ratio, 1e-10), self.past
        change = ratio ** -(p + i + d) * before ** (p + 2 * d) * earlier**-d
        if ratio > 1:
            change = min(change, ratio ** (-1 / self.power))
        return min(max(SAFETY * change, SHRINK), GROW)

    def _accept(self, dz: float, tried: Attempt, after: float, ratio: float) -> None:
        save = self.problem.save
        piece = self._piece(dz, tried)
        halves = [(self.z, dz / 2), (self.z + dz / 2, dz / 2)]
        self.steps += [(self.z, dz)] if self.embedded else halves
        if save.every and len(self.steps) % save.every == 0:
            self.kept.append(tried.x)
        for point in save.points:
            if self.z < point <= after:
                self.kept.append(tried.x if point == after else piece.at((point - self.z) / dz))
        if self.whole:
            self.pieces.append(piece)
        self.z = after
        self.x = tried.x
        self.first = tried.last
        self.past = (max(ratio, 1e-10), self.past[0])

    def _piece(self, dz: float, tried: Attempt) -> Piece:
        piece = Piece(self.z, dz, self.x, tried.x)
        asked = self.whole or self.problem.save.points
        if not (asked and self.embedded) or self.solver.order <= 2:
            return piece
        slopes = (tried.slopes[0], tried.slopes[-1])
        return piece._replace(slopes=slopes, middle=self.solver.middle(dz, self.x, tried.slopes))

    def _attempt(self, dz: float) -> Attempt:
        attempt = self.solver.attempt if self.embedded else _doubling(self.solver)
        first = self.first if self.embedded else None
        args = self._read(lambda field, args: attempt(field, self.z, dz, 0.0, args, None if first is None else 0.0))
        tried: Attempt = attempt(self.field, self.z, dz, self.x, args, first)
        counted = len(tried.slopes) - (first is not None)
        self.evaluations += counted if self.embedded else 3 * evaluations(self.solver, kinds_of(self.field), begin=True)
        return tried

    def _slope(self, z: float, x: Any) -> Any:
        self.evaluations += 1
        return self.field(z, x, self._read(lambda field, args: field(z, 0.0, args)))

    def _read(self, rehearse: Callable[[VectorField, Args], object]) -> Args:
        """The weights at the depths that a dry run of ``rehearse`` asks for."""
        if is_read(self.field):
            return self.problem.args
        asked = rehearsed(kinds_of(self.field), rehearse)
        return read_at(self.field, [tuple(dict.fromkeys(log)) for log in asked], self.problem.args)

    def _result(self, failure: SolveFailed | None) -> StepsFound:
        stats = {
            "steps": len(self.steps),
            "evaluations": self.evaluations,
            "accepted": len(self.steps),
            "rejected": self.rejected,
        }
        every = self.problem.save.every
        if not self.problem.save.points and self.steps and not (every and len(self.steps) % every == 0):
            self.kept.append(self.x)
        ends_only = not (every or self.problem.save.points or self.whole)
        alone = isinstance(self.solver, OneStep)  # what carries more than the state was begun anew at every step
        walked = self.solver is self.problem.solver and (self.embedded or (ends_only and alone))
        kept = tuple(self.kept) if walked or not self.steps else None
        return StepsFound(tuple(self.steps), stats, failure, kept, self.x, tuple(self.pieces))


def _estimated(solver: Solver) -> Solver:
    """A reversible wrapper walks on the steps that its inner method finds."""
    return solver.inner if isinstance(solver, ReversibleSolver) else solver


def _doubling(solver: Solver) -> Callable[..., Attempt]:
    """One step against two halves (Richardson): the halves are kept, their difference is the estimate."""

    def attempt(field: VectorField, z: float, dz: float, x: Any, args: Args, first: Any = None) -> Attempt:
        def go(z: float, dz: float, x: Any) -> Any:
            return solver.show(solver.step(field, z, dz, solver.begin(field, z, x, args), args))

        whole, fine = go(z, dz, x), go(z + dz / 2, dz / 2, go(z, dz / 2, x))
        error = scaled(1 / (2**solver.order - 1), axpy(fine, -1.0, whole))
        return Attempt(fine, error, None, [])

    return attempt


def _count(square: Tensor, seen: Tensor | None, rest: tuple[int, ...]) -> Tensor | float:
    """How many entries the sum went over."""
    if seen is None:
        return float(math.prod(square.shape[i] for i in rest)) if rest else 1.0
    counted = torch.broadcast_to(seen, square.shape)
    return counted.sum(rest).clamp_min(1) if rest else counted.clamp_min(1)
