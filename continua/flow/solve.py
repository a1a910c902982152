"""The one entry of the depth engine."""

import math
from dataclasses import replace
from numbers import Real
from typing import Any

import torch

from continua.compiling import remembered
from continua.errors import SolveError, SolveFailed
from continua.flow.adjoints.direct import Adjoint, Direct
from continua.flow.controls.adaptive import Adaptive
from continua.flow.controls.control import Control, Fixed, Problem, StepsFound, fixed_steps
from continua.flow.cost import costed
from continua.flow.finite import culprit, not_finite
from continua.flow.solvers.runge_kutta import Tsit5
from continua.flow.solvers.solver import ReversibleMethod, Solver
from continua.flow.solvers.splitting import refuse_whole, splitting_of
from continua.flow.stepping import StepPlan, dry_run, piece
from continua.flow.trajectory import Piece, SaveAt, Trajectory, schedule, state_at
from continua.flow.vectorfield import Bound, Cost, Costed, Flow, Shaped, Sum, VectorField, differentiates, kinds_of
from continua.tree import mapped, tensors
from continua.typing import Args, Tensor


def solve(
    field: VectorField,
    x0: Any,
    span: tuple[float, float],
    *,
    args: Args = None,
    solver: Solver = Tsit5(),  # noqa: B008  (frozen and stateless)
    control: Control = Adaptive(),  # noqa: B008
    adjoint: Adjoint = Direct(),  # noqa: B008
    save: SaveAt = SaveAt(),  # noqa: B008
    cost: Cost | None = None,
    observed: Tensor | None = None,
    check: bool = True,
    throw: bool = True,
) -> Trajectory:
    """Solve dx/dz = field(z, x, args), x(span[0]) = x0, up to span[1].

    A field is any ``f(z, x, args)``; a ``Sum`` of ``Flow`` and ``Projection`` parts can be split. A state is a tensor
    or a tuple of tensors. Every tensor that is differentiated through must be ``x0`` or a leaf of ``args``, never a
    closure's. Adaptive steps are found without gradients; the gradients are then exactly those of the steps found.

    ``save`` says what is kept, see ``SaveAt``. ``cost`` is a running cost R(z, x, dx/dz, args) whose integral becomes
    ``path.cost``; one that takes derivatives itself says so (``DifferentiatingCost``), and gradients go the plain way.
    ``observed`` marks what counts in error norms, broadcastable to the state. ``check=False`` does not look for NaN,
    which waits for the device; ``throw=False`` returns a path with a ``status`` instead of raising when a solve fails.

    Inside ``torch.compile`` and ``torch.export`` fixed steps with ``Direct()`` are one graph, without the check.

    >>> import torch
    >>> from continua.flow import Fixed, RK4
    >>> path = solve(lambda z, x, a: a * x, torch.ones(1), (0.0, 1.0), args=torch.tensor(-1.0), solver=RK4(),
    ...              control=Fixed(10))
    >>> round(path.final.item(), 4)
    0.3679
    """
    problem = Problem(field, x0, _checked(x0, span), args, solver, save, observed)
    save.check(problem.span)
    _refuse_unfit(solver, field)
    if not isinstance(field, Flow | Sum | Costed | Bound):  # ours are walked on plain numbers too, to count
        if not tensors(x0):
            got = type(x0).__name__
            raise SolveError("a state is a tensor or a tuple of tensors", got=got, remedy="Write torch.tensor(x0).")
        problem = replace(problem, field=Shaped(field))
    if isinstance(control, Adaptive) and torch.compiler.is_dynamo_compiling():
        from continua.flow.uncompiled import search  # all of it: a graph of the steps found would serve once

        path: Trajectory = search(_solved, problem, control, adjoint, cost, check, throw)
        return path
    return _solved(problem, control, adjoint, cost, check, throw)


def _solved(
    problem: Problem, control: Control, adjoint: Adjoint, cost: Cost | None, check: bool, throw: bool
) -> Trajectory:
    """Find the steps, take them, and look for NaN."""
    found = control.find(problem)
    if found.failure is not None and throw:
        raise found.failure
    if not found.steps:
        return Trajectory((), (), problem.x0, found.stats, str(found.failure))
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in tensors((problem.x0, problem.args)))
    if found.kept is not None and cost is None and not learns:
        z = problem.save.depths(problem.span, found.steps)
        return Trajectory(
            z[: len(found.kept)], found.kept, found.final, found.stats, _status(found), None, found.pieces
        )
    path = _run(problem, found, adjoint if learns else None, cost)
    if not check or torch.compiler.is_compiling() or culprit((path.final, path.x)) is None:
        return path
    failure = _where(problem, found)
    if throw:
        raise failure
    return replace(path, status=str(failure))


def _checked(x0: Any, span: tuple[float, float]) -> tuple[float, float]:
    if not (isinstance(span, tuple | list) and len(span) == 2 and all(isinstance(end, Real) for end in span)):
        raise SolveError("a span is two numbers", got=repr(span), remedy="Write span=(0.0, 1.0).")
    start = float(span[0])
    end = float(span[1])
    if not -math.inf < start < end < math.inf:
        raise SolveError(
            "the span must go forward", got=(start, end), remedy="Write span=(start, end) with end > start."
        )
    for tensor in tensors(x0):
        if not (tensor.is_floating_point() or tensor.is_complex()):
            remedy = "Convert it: x0.float()."
            raise SolveError("the state must be a floating-point tensor", got=tensor.dtype, remedy=remedy)
    return start, end


def _refuse_unfit(solver: Solver, field: VectorField) -> None:
    """Refuse a solver on a field it cannot step, before anything is evaluated."""
    splits, undoes = _needs(solver)
    if splits is not None:
        refuse_whole(splits, field)
    if undoes and not all(kinds_of(field) or (True,)):
        remedy = "Use pre-norm, or a solver that is not reversible."
        raise SolveError("a projection cannot be undone", got=f"{solver} on a field with projections", remedy=remedy)


@remembered
def _needs(solver: Solver) -> tuple[str | None, bool]:
    """The name of the splitting inside a solver, which needs parts; and whether it is reversible."""
    splitting = splitting_of(solver)
    return None if splitting is None else type(splitting).__name__, isinstance(solver, ReversibleMethod)


def _run(problem: Problem, found: StepsFound, adjoint: Adjoint | None, cost: Cost | None) -> Trajectory:
    """Take the steps that were found, with gradients by ``adjoint`` or without."""
    field = problem.field
    solver = problem.solver
    x0 = problem.x0
    notes = dict(found.stats)
    if cost is not None:
        field, solver = costed(field, solver, cost)
        if adjoint is not None and differentiates(cost):
            x0 = mapped(x0, lambda t: t if t.requires_grad else t.detach().requires_grad_())
            if not isinstance(adjoint, Direct):
                adjoint = Direct()
                notes["path"] = "plain, since the cost takes derivatives itself"
        x0 = (x0, tensors(x0)[0].new_zeros(()))
    moments, z = schedule(problem.save, problem.span, found.steps)
    plan = StepPlan(field, solver, found.steps, moments, notes)
    notes["evaluations"] = notes.get("evaluations", 0) + plan.evaluations
    if adjoint is None:
        _, kept = plan.run_in_blocks(x0, problem.args, plan.everything)
    else:
        kept = adjoint.run(plan, x0, problem.args)
    final, paid = kept[-1] if cost is not None else (kept[-1], None)
    states = [state[0] for state in kept] if cost is not None else kept
    returned, pieces = _kept(problem, plan, states, z)
    return Trajectory(z, returned, final, notes, _status(found), paid, pieces)


def _kept(
    problem: Problem, plan: StepPlan, states: list[Any], z: tuple[float, ...]
) -> tuple[tuple[Any, ...], tuple[Piece, ...]]:
    """The states at the depths z that are returned, and the whole path where it is asked for."""
    save = problem.save
    if save.every or save.dense or save.points[:1] == (problem.span[0],):
        states = [problem.x0, *states]
    if not save.dense:
        return tuple(states[: len(z)]), ()
    pieces = _dense(problem, plan, states)
    if save.points:
        return tuple(state_at(pieces, depth) for depth in z), pieces
    last = len(states) - 1
    kept = [states[i] for i in range(last + 1) if i == last or (save.every and i % save.every == 0)]
    return tuple(kept[: len(z)]), pieces


def _dense(problem: Problem, plan: StepPlan, states: list[Any]) -> tuple[Piece, ...]:
    """Every step with what its interpolation needs; the field is evaluated at its ends again."""
    pieces = []
    count = len(plan.steps)
    whole = StepPlan(problem.field, problem.solver, plan.steps, ((0.5, 1.0),) * count)
    plan.notes["evaluations"] += whole.evaluations - replace(whole, moments=((1.0,),) * count).evaluations
    for i, (z, dz) in enumerate(plan.steps):
        args = whole.weights(problem.args, range(i, i + 1))
        pieces.append(piece(problem.solver, problem.field, Piece(z, dz, states[i], states[i + 1]), args))
    return tuple(pieces)


def _status(found: StepsFound) -> str:
    return "done" if found.failure is None else str(found.failure)


@torch.no_grad()
def _where(problem: Problem, found: StepsFound) -> SolveFailed:
    """Step once more, one by one, to name the depth and the sample where numbers ended."""
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
    steps = fixed_steps(control, span)
    return dry_run(kinds, solver, steps, ((),) * len(steps), True)[0]
