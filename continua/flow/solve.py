"""The one entry of the depth engine."""

import math
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import torch

from continua.errors import SolveError, SolveFailed, nearest
from continua.flow.adjoints.direct import Adjoint, Direct
from continua.flow.controls.adaptive import Adaptive
from continua.flow.controls.control import Control, Fixed, Problem, StepsFound
from continua.flow.cost import costed, splitting_of
from continua.flow.finite import culprit, not_finite
from continua.flow.solvers.reversible import ReversibleMethod
from continua.flow.solvers.runge_kutta import Solver, Tsit5
from continua.flow.solvers.splitting import split
from continua.flow.stepping import StepPlan, dry_run, piece
from continua.flow.trajectory import Piece, SaveAt, Trajectory, state_at
from continua.flow.vectorfield import Cost, VectorField, kinds_of
from continua.tree import mapped, tensors
from continua.typing import Args, Tensor


class Options(TypedDict, total=False):
    """What a solve may be told besides.

    ``save``: what is kept, see ``SaveAt``. ``cost``: a running cost R(z, x, dx/dz, args) whose integral becomes
    ``path.cost``; one with an attribute ``twice = True`` takes derivatives itself, and gradients go the plain way.
    ``observed``: what counts in error norms, broadcastable to the state. ``check=False`` does not look for NaN;
    ``throw=False`` returns a path with a ``status`` instead of raising when a solve fails.
    """

    save: SaveAt
    cost: Cost | None
    observed: Tensor | None
    check: bool
    throw: bool


def solve(
    field: VectorField,
    x0: Any,
    span: tuple[float, float],
    *,
    args: Args = None,
    solver: Solver = Tsit5(),  # noqa: B008  (frozen and stateless)
    control: Control = Adaptive(),  # noqa: B008
    adjoint: Adjoint = Direct(),  # noqa: B008
    **options: Unpack[Options],
) -> Trajectory:
    """Solve dx/dz = field(z, x, args), x(span[0]) = x0, up to span[1]; for the options see ``Options``.

    A field is any ``f(z, x, args)``; a ``Sum`` of ``Flow`` and ``Projection`` parts can be split. A state is a tensor
    or a tuple of tensors. Every tensor that is differentiated through must be ``x0`` or a leaf of ``args``, never a
    closure's. Adaptive steps are found without gradients; the gradients are then exactly those of the steps found.

    >>> import torch
    >>> from continua.flow import Fixed, RK4
    >>> path = solve(lambda z, x, a: a * x, torch.ones(1), (0.0, 1.0), args=torch.tensor(-1.0), solver=RK4(),
    ...              control=Fixed(10))
    >>> round(path.final.item(), 4)
    0.3679
    """
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        word = min(unknown)
        known = list(Options.__annotations__)
        raise SolveError("solve does not know this option", got=word, remedy=nearest(word, known))
    save = options.get("save", SaveAt())
    problem = Problem(field, x0, _checked(x0, span), args, solver, save, options.get("observed"))
    save.check(problem.span)
    _fits(solver, field, args)
    found = control.find(problem)
    if found.failure is not None and options.get("throw", True):
        raise found.failure
    cost = options.get("cost")
    if not found.steps:
        return Trajectory((), (), x0, found.stats, str(found.failure))
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in tensors((x0, args)))
    if found.kept is not None and cost is None and not learns:
        z = save.depths(problem.span, found.steps)
        return Trajectory(
            z[: len(found.kept)], found.kept, found.final, found.stats, _status(found), None, found.pieces
        )
    path = _walk(problem, found, adjoint if learns else None, cost)
    if not options.get("check", True) or torch.compiler.is_compiling() or culprit((path.final, path.x)) is None:
        return path
    failure = _where(problem, found)
    if options.get("throw", True):
        raise failure
    return replace(path, status=str(failure))


def _checked(x0: Any, span: tuple[float, float]) -> tuple[float, float]:
    start, end = float(span[0]), float(span[1])
    if not (math.isfinite(start) and math.isfinite(end) and end > start):
        raise SolveError(
            "the span must go forward", got=(start, end), remedy="Write span=(start, end) with end > start."
        )
    for tensor in tensors(x0):
        if not (tensor.is_floating_point() or tensor.is_complex()):
            remedy = "Convert it: x0.float()."
            raise SolveError("the state must be a floating-point tensor", got=tensor.dtype, remedy=remedy)
    return start, end


def _fits(solver: Solver, field: VectorField, args: Args) -> None:
    """Refuse a solver on a field it cannot walk, before anything is walked."""
    cuts = splitting_of(solver)
    if cuts is not None:
        split(cuts, field, args)
    if isinstance(solver, ReversibleMethod) and not all(kinds_of(field) or (True,)):
        remedy = "Use pre-norm, or a solver that is not reversible."
        raise SolveError("a projection cannot be undone", got=f"{solver} on a field with projections", remedy=remedy)


def _walk(problem: Problem, found: StepsFound, adjoint: Adjoint | None, cost: Cost | None) -> Trajectory:
    """Walk the steps that were found, with gradients by ``adjoint`` or without."""
    field, solver, x0 = problem.field, problem.solver, problem.x0
    notes = dict(found.stats)
    if cost is not None:
        field, solver = costed(field, solver, cost)
        if getattr(cost, "twice", False) and adjoint is not None:  # a start to differentiate by
            x0 = mapped(x0, lambda t: t if t.requires_grad else t.detach().requires_grad_())
        x0 = (x0, tensors(x0)[0].new_zeros(()))
        if getattr(cost, "twice", False) and adjoint is not None and not isinstance(adjoint, Direct):
            adjoint, notes["path"] = Direct(), "plain, since the cost takes derivatives itself"
    save = problem.save if not problem.save.dense else SaveAt(every=1)
    moments = save.moments(found.steps)
    if 1.0 not in moments[-1]:
        moments = (*moments[:-1], (*moments[-1], 1.0))
    plan = StepPlan(field, solver, found.steps, moments, notes)
    if not torch.compiler.is_compiling():
        notes["evaluations"] = notes.get("evaluations", 0) + plan.evaluations
    if adjoint is None:
        _, kept = plan.run_in_blocks(x0, problem.args, plan.everything)
    else:
        kept = adjoint.run(plan, x0, problem.args)
    return _assembled(problem, found, plan, kept, costed=cost is not None)


def _assembled(problem: Problem, found: StepsFound, plan: StepPlan, kept: list[Any], costed: bool) -> Trajectory:
    final, cost = kept[-1] if costed else (kept[-1], None)
    states = [state[0] for state in kept] if costed else kept
    save, start = problem.save, problem.span[0]
    states = [problem.x0, *states] if save.every or save.dense or save.points[:1] == (start,) else states
    pieces: tuple[Piece, ...] = ()
    if save.dense:
        pieces = _dense(problem, plan, states)
        if save.points:
            states = [state_at(pieces, z) for z in save.depths(problem.span, found.steps)]
        else:
            last = len(states) - 1
            states = [states[i] for i in range(last + 1) if i == last or (save.every and i % save.every == 0)]
    z = save.depths(problem.span, found.steps)
    return Trajectory(z, tuple(states[: len(z)]), final, plan.notes, _status(found), cost, pieces)


def _dense(problem: Problem, plan: StepPlan, states: list[Any]) -> tuple[Piece, ...]:
    """Every step with what its interpolation needs; the field is evaluated at its ends again."""
    pieces, count = [], len(plan.steps)
    whole = StepPlan(problem.field, problem.solver, plan.steps, ((0.5, 1.0),) * count)
    if not torch.compiler.is_compiling():
        plan.notes["evaluations"] += whole.evaluations - replace(whole, moments=((1.0,),) * count).evaluations
    for i, (z, dz) in enumerate(plan.steps):
        args = whole.weights(problem.args, range(i, i + 1))
        pieces.append(piece(problem.solver, problem.field, Piece(z, dz, states[i], states[i + 1]), args))
    return tuple(pieces)


def _status(found: StepsFound) -> str:
    return "done" if found.failure is None else str(found.failure)


@torch.no_grad()
def _where(problem: Problem, found: StepsFound) -> SolveFailed:
    """Walk once more, step by step, to name the depth and the sample where numbers ended."""
    bad = culprit(problem.x0)
    if bad is not None:
        return not_finite(problem.span[0], bad, "the state")
    plan = StepPlan(problem.field, problem.solver, found.steps, ((1.0,),) * len(found.steps))
    x: Any = problem.x0
    for i, (z, dz) in enumerate(found.steps):
        part = range(i, i + 1)
        x, kept = plan.run(x, plan.weights(problem.args, part), part)
        bad = culprit(kept)
        if bad is not None:
            return not_finite(z + dz, bad)
    return SolveFailed("the solve gave NaN or infinity", got="numbers that come and go", remedy="Is the field random?")


def depths(
    kinds: tuple[bool, ...], span: tuple[float, float], solver: Any, control: Fixed
) -> tuple[tuple[float, ...], ...]:
    """At which depths each part will be read, found by a dry run on plain numbers.

    ``kinds`` says of each part whether it is a flow. Weights are then sampled at these depths once, before the solve.
    """
    steps = tuple(control.walk(span))
    return dry_run(kinds, solver, steps, ((),) * len(steps), True)[0]
