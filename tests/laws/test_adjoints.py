"""Laws of gradients: every exact adjoint gives those of Direct, by the start and by every leaf of the arguments."""

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from continua.errors import SolveError, SolveFailed
from continua.flow import (
    RK4,
    Adaptive,
    Backsolve,
    Bosh3,
    Bound,
    Checkpoint,
    Direct,
    Euler,
    Fixed,
    Flow,
    Heun,
    Lean,
    LieTrotter,
    Mixed,
    Projection,
    Recompute,
    Reversible,
    ReversibleHeun,
    ReversibleSolver,
    SaveAt,
    Strang,
    Trajectory,
    Tsit5,
    solve,
    stepping,
)
from tests.cases import ALL_SOLVERS, EXACT_ADJOINTS, INEXACT_ADJOINTS, ON_SPHERES, REVERSIBLE
from tests.flows import BOTH, MATRICES, SPAN, START, UNIT, Woven, learning, pulled, start, swirl, tilt, towards
from tests.measure import EXACT, gap, random
from tests.refusals import refused

CLOSE = 1e-10  # round-off of a backward pass of a few hundred evaluations, undone steps included
UNDOING = [adjoint for adjoint in EXACT_ADJOINTS if isinstance(adjoint, Reversible)]
PAIRS = [
    (solver, adjoint)
    for solver, adjoint in itertools.product(ALL_SOLVERS, EXACT_ADJOINTS)
    if adjoint not in UNDOING or solver in REVERSIBLE
]
COARSE = Adaptive(rtol=0.03, atol=0.03)
FOUND = [Bosh3(), Tsit5(), RK4(), Strang(), *REVERSIBLE, ON_SPHERES[1]]  # with an estimate, and by doubling


def named(pair: Any) -> str:
    return str(pair)


def each(pairs=PAIRS):
    return pytest.mark.parametrize(("solver", "adjoint"), pairs, ids=named)


# --- the same gradients ----------------------------------------------------------------------------------------------

ARGS = (
    {"w": MATRICES[0], "fixed": random(3, seed=3), "unused": random(2, seed=4)},
    [MATRICES[1], ({"logs": random(3, seed=5)}, [])],
)


def first(z: float, x: Tensor, own: Any) -> Tensor:
    return tilt(z, x, own["w"]) * own["fixed"].sigmoid()


def second(z: float, x: Tensor, own: Any) -> Tensor:
    matrix, (more, _) = own
    return swirl(z, x, matrix) * more["logs"].softmax(-1)


NESTED = Flow(first) + Flow(second)


def leaves() -> Any:
    """Arguments that all need gradients, but one."""
    args = learning(ARGS)
    args[0]["fixed"].requires_grad_(False)
    return args


def loss_of(path: Trajectory) -> Tensor:
    return towards(path.x, path.final)


@functools.cache
def wanted(solver, control, save) -> tuple[list[Tensor], list[Tensor]]:
    """What autograd says: the states and the gradients."""
    x0, args = learning(start(solver)), leaves()
    path = solve(NESTED, x0, SPAN, args=args, solver=solver, control=control, save=save)
    return [*path.x, path.final], pulled(loss_of(path), x0, args)


def check(solver, adjoint, control, save) -> None:
    x0, args = learning(start(solver)), leaves()
    path = solve(NESTED, x0, SPAN, args=args, solver=solver, control=control, adjoint=adjoint, save=save)
    states, gradients = wanted(solver, control, save)
    assert all(gap(got, state) < EXACT for got, state in zip([*path.x, path.final], states, strict=True))
    found = pulled(loss_of(path), x0, args)
    assert all(gap(got, gradient) < CLOSE for got, gradient in zip(found, gradients, strict=True))
    assert [g.abs().max().item() > 1e-3 for g in found] == [True, True, False, True, True], "one leaf is unused"
    assert "path" not in path.stats, "nothing fell back"


@pytest.mark.spec("D4", "D3")
@each()
def test_gradients_are_those_of_direct_for_the_end_some_steps_and_points(solver, adjoint) -> None:
    check(solver, adjoint, Fixed(1), SaveAt())
    check(solver, adjoint, Fixed(4), SaveAt(2))
    check(solver, adjoint, Fixed(3), SaveAt(points=(0.2, 0.71, 1.6999)))


@pytest.mark.spec("D4", "D3")
@each([pair for pair in PAIRS if pair[0] in FOUND])
def test_gradients_of_adaptive_solves_are_those_of_direct(solver, adjoint) -> None:
    check(solver, adjoint, COARSE, SaveAt(points=(0.3, 0.71)))


@pytest.mark.spec("D4")
@pytest.mark.parametrize("adjoint", EXACT_ADJOINTS, ids=str)
@pytest.mark.parametrize("solver", [RK4(), Strang(), ReversibleSolver(), ReversibleHeun()], ids=str)
def test_dense_paths_carry_gradients(solver, adjoint) -> None:
    if adjoint in UNDOING and solver not in REVERSIBLE:
        pytest.skip("refused: see below")
    found = []
    for one in (Direct(), adjoint):
        x0, args = learning(START), leaves()
        whole = SaveAt(dense=True)
        path = solve(NESTED, x0, SPAN, args=args, solver=solver, control=Fixed(5), adjoint=one, save=whole)
        found.append(pulled(towards(path(0.21), path(0.8), path(1.7)), x0, args))
    assert all(gap(a, b) < CLOSE for a, b in zip(*found, strict=True))


@pytest.mark.spec("D4")
@pytest.mark.parametrize("adjoint", EXACT_ADJOINTS, ids=str)
@pytest.mark.parametrize("solver", [RK4(), LieTrotter(), ReversibleSolver(), ReversibleHeun()], ids=str)
@pytest.mark.parametrize("control", [Fixed(3), Adaptive(rtol=0.3, atol=0.3)], ids=str)
def test_states_of_two_tensors_have_the_same_gradients(solver, adjoint, control) -> None:
    if adjoint in UNDOING and solver not in REVERSIBLE:
        pytest.skip("refused: see below")

    def turn(z, x, a):
        return x[1] @ a.T, -x[0].sin()

    def pull(z, x, a):
        return -a.sum() * x[0] ** 3, x[1].roll(1) * math.cos(z)

    found = []
    for one in (Direct(), adjoint):
        x0, args = learning((random(2, 3), random(2, 3, seed=1))), learning(MATRICES)
        field, save = Flow(turn) + Flow(pull), SaveAt(points=(0.5, 1.3))
        path = solve(field, x0, SPAN, args=args, solver=solver, control=control, adjoint=one, save=save)
        found.append(pulled(towards(path.x[0], path.x[1][1], path.final[0]), x0, args))
    assert all(gap(a, b) < CLOSE for a, b in zip(*found, strict=True))


@pytest.mark.spec("D4")
@pytest.mark.parametrize("adjoint", [Direct(), *EXACT_ADJOINTS], ids=str)
def test_gradients_pass_gradcheck(adjoint) -> None:
    x0, args = learning(START), learning(MATRICES)
    for solver in (ReversibleSolver(Heun()), ReversibleHeun()) if adjoint in UNDOING else (Strang(),):
        assert torch.autograd.gradcheck(
            lambda x, *a, s=solver: (
                solve(
                    BOTH, x, SPAN, args=a, solver=s, control=Fixed(2), adjoint=adjoint, save=SaveAt(points=(0.4, 1.7))
                ).x
            ),
            (x0, *args),
        )


@pytest.mark.spec("D4")
@pytest.mark.parametrize("adjoint", [a for a in EXACT_ADJOINTS if a not in UNDOING], ids=str)
@pytest.mark.parametrize("solver", [RK4(), LieTrotter(), Strang(), ON_SPHERES[0], ON_SPHERES[2]], ids=str)
@pytest.mark.parametrize("cost", [False, True], ids=["", "with a cost"])
def test_projections_have_the_same_gradients(solver, adjoint, cost) -> None:
    def normed(z, x, g):
        return g * x / x.norm() * (1 + 0.1 * z)

    field = Flow(tilt) + Projection(normed) + Flow(swirl) + Projection(normed)
    found = []
    for one in (Direct(), adjoint):
        x0, gains = learning(UNIT), random(2, 3, seed=7, low=0.5)
        args = learning((MATRICES[0], gains[0], MATRICES[1], gains[1]))
        path = solve(
            field, x0, SPAN, args=args, solver=solver, control=Fixed(5), adjoint=one, save=SaveAt(2),
            cost=(lambda z, x, v, a: (v**2).sum() * (1 + z)) if cost else None,
        )  # fmt: skip
        found.append(pulled(towards(path.x, path.cost if cost else path.final), x0, args))
    assert all(gap(a, b) < CLOSE for a, b in zip(*found, strict=True))
    assert all(g.abs().max() > 1e-6 for g in found[0][1:])


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.spec("D3", "D4")
@pytest.mark.parametrize("solver", [s for s in ALL_SOLVERS if s not in REVERSIBLE], ids=str)
def test_undoing_needs_a_reversible_solver(solver) -> None:
    with refused(SolveError, f"got {solver}", f"Use ReversibleSolver({solver}) or ReversibleHeun()"):
        solve(BOTH, learning(START), SPAN, args=MATRICES, solver=solver, control=Fixed(2), adjoint=Reversible())


@pytest.mark.spec("D3", "D4")
@pytest.mark.parametrize("solver", REVERSIBLE, ids=str)
def test_a_projection_cannot_be_undone(solver) -> None:
    field, args = BOTH + Projection(lambda z, x, a: x), (*MATRICES, None)
    for adjoint in (Direct(), Reversible()):  # not even forwards: the pair would leave the set
        with refused(SolveError, f"got {solver} on a field with projections", "Use pre-norm, or a solver that is not"):
            solve(field, learning(START), SPAN, args=args, solver=solver, control=Fixed(2), adjoint=adjoint)


@pytest.mark.spec("D4")
def test_backsolve_is_for_plain_flows() -> None:
    def attempt(field=BOTH, args=MATRICES, solver=None, save=None) -> None:
        solver, save = solver or RK4(), save or SaveAt()
        solve(field, learning(START), SPAN, args=args, solver=solver, control=Fixed(2), adjoint=Backsolve(), save=save)

    attempt()
    with refused(SolveError, "got Strang(Heun)", "Use Checkpoint(n) or Recompute()"):
        attempt(solver=Strang())
    with refused(SolveError, "got save points between steps", "Use Checkpoint(n)"):
        attempt(save=SaveAt(points=(0.3,)))
    with refused(SolveError, "got projections", "Use Checkpoint(n)"):
        attempt(BOTH + Projection(lambda z, x, a: x), (*MATRICES, None))


@pytest.mark.spec("D4")
@pytest.mark.parametrize("adjoint", [Direct(), *EXACT_ADJOINTS, *INEXACT_ADJOINTS], ids=str)
def test_second_derivatives_are_right_or_refused(adjoint) -> None:
    solver = ReversibleSolver() if adjoint in UNDOING else RK4()
    rate = torch.tensor(-0.7, dtype=torch.float64, requires_grad=True)
    end = solve(lambda z, x, a: a * x, START, (0.0, 1.0), args=rate, solver=solver, control=Fixed(9), adjoint=adjoint)
    loss = end.final.sum()
    if isinstance(adjoint, Direct):
        (slope,) = torch.autograd.grad(loss, rate, create_graph=True)
        (bend,) = torch.autograd.grad(slope, rate)
        assert bend.item() == pytest.approx(START.sum().item() * math.exp(-0.7), rel=1e-4)
        return
    with refused(SolveError, f"got a second derivative through {type(adjoint).__name__}", "Use Direct()"):
        torch.autograd.grad(loss, rate, create_graph=True)


# --- weights over depth ----------------------------------------------------------------------------------------------


def woven_gradients(solver, adjoint, control) -> tuple[list[Tensor], list[int]]:
    """With weights that are made on the way; and how many depths were read at a time."""
    woven = Woven()
    x0, args, save = learning(start(solver)), learning(woven.args), SaveAt(points=(0.3, 0.9))
    path = solve(woven.bound, x0, SPAN, args=args, solver=solver, control=control, adjoint=adjoint, save=save)
    return pulled(loss_of(path), x0, args), [len(read) for read in woven.reads]


@pytest.mark.spec("D4", "T7")
@each([(s, a) for s, a in PAIRS if s in (Euler(), RK4(), *REVERSIBLE[:2])])
def test_weights_that_are_made_on_the_way_have_the_same_gradients(solver, adjoint) -> None:
    (found, sizes), (gradients, at_once) = (woven_gradients(solver, one, Fixed(19)) for one in (adjoint, Direct()))
    assert all(gap(a, b) < CLOSE for a, b in zip(found, gradients, strict=True))
    assert all(g.abs().max() > 1e-3 for g in found)
    assert len(at_once) == 1
    assert len(sizes) > 2
    asked = stepping.evaluations(solver, None) + stepping.evaluations(solver, None, begin=True)
    assert max(sizes) <= stepping.NODES + 2 * asked + 3, "a block, and what interpolation asks"


@pytest.mark.spec("D4", "T7")
@each([(s, a) for s, a in PAIRS if s in (Tsit5(), *REVERSIBLE[:2]) and a in (Recompute(), Mixed(3), *UNDOING)])
def test_weights_over_depth_are_read_on_found_steps_too(solver, adjoint) -> None:
    (found, _), (gradients, _) = (woven_gradients(solver, one, COARSE) for one in (adjoint, Direct()))
    assert all(gap(a, b) < CLOSE for a, b in zip(found, gradients, strict=True))


@pytest.mark.spec("D4", "T7")
@pytest.mark.parametrize("adjoint", [Recompute(), Lean(), Checkpoint(5), Mixed(5)], ids=str)
@pytest.mark.parametrize("solver", [Euler(), Heun(), RK4()], ids=str)
def test_no_more_depths_than_a_block_has_are_read_at_once(solver, adjoint) -> None:
    woven = Woven()
    args = learning(woven.args)
    path = solve(woven.bound, START, SPAN, args=args, solver=solver, control=Fixed(33), adjoint=adjoint)
    there = len(woven.reads)
    path.final.sum().backward()
    assert max(len(read) for read in woven.reads) <= stepping.NODES
    assert there > 1
    assert len(woven.reads) >= 2 * there, "made anew on the way back"


@pytest.mark.spec("D4", "T7")
@pytest.mark.parametrize("adjoint", EXACT_ADJOINTS, ids=str)
def test_weights_over_depth_work_part_by_part(adjoint) -> None:
    solver = ReversibleSolver(Strang()) if adjoint in UNDOING else Strang(RK4())
    found = []
    for one in (Direct(), adjoint):
        woven, other = Woven(), Woven()
        args = learning((woven.args, MATRICES[0], other.args))
        field = Flow(woven.bound) + Flow(tilt) + Flow(other.bound)
        path = solve(
            field, START, SPAN, args=args, solver=solver, control=Fixed(9), adjoint=one, save=SaveAt(4),
            cost=lambda z, x, v, a: (v**2).sum() + (a[0]["bias"] * x).sum(),
        )  # fmt: skip
        found.append(pulled(towards(path.x, path.cost), args))
    assert all(gap(a, b) < CLOSE for a, b in zip(*found, strict=True))


# --- a backward written by hand --------------------------------------------------------------------------------------


class ByHand:
    """tanh(x Wᵀ): keeps the tanh, and counts what it is asked."""

    def __init__(self) -> None:
        self.prepared = self.pulled = 0
        self.uses_x = False

    def prepare(self, z, x, w):
        self.prepared += 1
        return torch.tanh(x @ w.T)

    def finish(self, z, x, kept, w):
        return kept

    def pull(self, z, x, kept, w, g):
        self.pulled += 1
        inner = g * (1 - kept**2)
        return inner @ w, [(w, torch.outer(inner, x))]


@pytest.mark.spec("D4", "T7")
@each([(s, a) for s, a in PAIRS if s in (RK4(), Strang(), ReversibleSolver(), ReversibleHeun())])
def test_hand_written_backwards_are_used_and_agree(solver, adjoint) -> None:
    def f(z, x, w):
        return torch.tanh(x @ w.T)

    hand, found = ByHand(), []
    for one, part in ((Direct(), f), (adjoint, Bound(f, lean=hand))):
        x0, args = learning(START), learning(MATRICES)
        path = solve(Flow(part) + Flow(tilt), x0, SPAN, args=args, solver=solver, control=Fixed(4), adjoint=one)
        found.append(pulled(loss_of(path), x0, args))
    assert all(gap(a, b) < CLOSE for a, b in zip(*found, strict=True))
    assert hand.pulled > 0
    keeps = getattr(adjoint, "gemms", True)
    assert hand.prepared <= path.stats["evaluations"] + 1 if keeps else hand.prepared == hand.pulled


# --- drift -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("D3")
@pytest.mark.parametrize("solver", REVERSIBLE, ids=str)
def test_what_undoing_drifts_is_told(solver) -> None:
    path = solve(BOTH, learning(START), SPAN, args=MATRICES, solver=solver, control=Fixed(20), adjoint=Reversible())
    assert "drift" not in path.stats
    path.final.sum().backward()
    assert 0 <= path.stats["drift"] < 2e-14
    assert "path" not in path.stats


@pytest.mark.spec("D3")
@pytest.mark.parametrize("solver", REVERSIBLE[:3], ids=str)
def test_a_stiff_contraction_falls_back_to_checkpoints_or_is_refused(solver) -> None:
    def stiff(z, x, a):
        return -a * x + math.sin(z)

    def run(adjoint) -> tuple[Trajectory, list[Tensor]]:
        x0, rate = learning(START), learning(torch.tensor(12.0, dtype=torch.float64))
        path = solve(stiff, x0, (0.0, 4.0), args=rate, solver=solver, control=Fixed(24), adjoint=adjoint)
        return path, pulled(loss_of(path), x0, rate)

    (path, got), (_, gradients) = run(Reversible()), run(Direct())
    assert path.stats["drift"] > 2.3e-14
    assert path.stats["path"] == "checkpoints, since undoing the steps drifted"
    assert all(gap(a, b) < CLOSE for a, b in zip(got, gradients, strict=True))
    with refused(SolveFailed, "got a start that is off by", "Allow the fallback"):
        run(Reversible(fallback=False))
    assert "path" not in run(Reversible(drift=math.inf))[0].stats
