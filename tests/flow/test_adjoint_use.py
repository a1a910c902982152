"""Adjoints at work: random fields, clipping, the continuous adjoint's error, bytes, half precision, compilation."""

import functools
import math

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from continua.errors import SolveError
from continua.flow import (
    RK4,
    Adaptive,
    Backsolve,
    Checkpoint,
    Direct,
    Dopri5,
    Fixed,
    Heun,
    Lean,
    Mixed,
    Recompute,
    Reversible,
    ReversibleHeun,
    ReversibleSolver,
    SaveAt,
    solve,
)
from continua.flow.adjoints.recompute import LEAF, PIECES
from continua.lab.cost.memory import uncollected
from tests.cases import EXACT_ADJOINTS, INEXACT_ADJOINTS
from tests.flows import BOTH, MATRICES, SPAN, START, learning, pulled, towards
from tests.measure import gap, random
from tests.operators.test_memory import peak
from tests.refusals import refused

CLOSE = 1e-10
REPLAYING = [adjoint for adjoint in EXACT_ADJOINTS if not isinstance(adjoint, Reversible)]
BACKWARDS = [adjoint for adjoint in EXACT_ADJOINTS if isinstance(adjoint, Reversible)]


def solver_for(adjoint) -> RK4 | ReversibleSolver:
    return ReversibleSolver() if isinstance(adjoint, Reversible) else RK4()


# --- randomness ------------------------------------------------------------------------------------------------------


def noisy(z: float, x: Tensor, a: Tensor) -> Tensor:
    """Draws while it is evaluated: the way back must draw the same."""
    return torch.tanh(x @ a.T) * torch.rand_like(x)


@pytest.mark.spec("D4")
@pytest.mark.parametrize("adjoint", [*REPLAYING, Checkpoint(5, recursive=True), Mixed(7, recursive=True)], ids=str)
@pytest.mark.parametrize("solver", [Heun(), RK4()], ids=str)
def test_random_numbers_come_again_on_the_way_back(solver, adjoint) -> None:
    found, after = [], []
    for one in (Direct(), adjoint):
        torch.manual_seed(3)
        x0, weights = learning(START), learning(MATRICES[0])
        path = solve(noisy, x0, SPAN, args=weights, solver=solver, control=Fixed(11), adjoint=one, save=SaveAt(4))
        state = torch.get_rng_state()
        found.append([*path.x, *pulled(towards(path.x), x0, weights)])
        assert torch.equal(torch.get_rng_state(), state), "the way back leaves the numbers of others alone"
        after.append(torch.rand(3))
    assert torch.equal(*after)
    assert all(gap(a, b) < CLOSE for a, b in zip(*found, strict=True))


# --- clipping --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("D5")
@pytest.mark.parametrize(
    "make", [Recompute, Lean, functools.partial(Checkpoint, 3), functools.partial(Mixed, 2), Reversible, Direct]
)
def test_clipping_is_off_by_default_and_the_same_everywhere(make) -> None:
    def gradients(adjoint, scale: float = 30.0) -> list[Tensor]:
        x0, args = learning(START), learning(MATRICES)
        solver = ReversibleSolver() if make is Reversible else RK4()
        path = solve(BOTH, x0, SPAN, args=args, solver=solver, control=Fixed(6), adjoint=adjoint)
        return pulled(scale * towards(path.final), x0, args)

    assert make().clip is None
    got, clipped, plain = gradients(make(clip=2.0)), gradients(Direct(clip=2.0)), gradients(Direct())
    assert all(gap(a, b) < CLOSE for a, b in zip(got, clipped, strict=True))
    assert gap(got[0], plain[0]) > 0.1
    assert got[0].norm() < 0.2 * plain[0].norm()
    assert all(gap(a, b) < CLOSE for a, b in zip(gradients(make(clip=1e6)), plain, strict=True)), "a loose bound"


@pytest.mark.spec("D5")
@pytest.mark.parametrize("adjoint", [Direct(clip=2.0), Recompute(clip=2.0), Backsolve(clip=2.0)], ids=str)
def test_what_is_longer_than_the_bound_becomes_as_long_as_it(adjoint) -> None:
    x0 = learning(START)
    path = solve(lambda z, x, a: 0 * x, x0, SPAN, solver=RK4(), control=Fixed(3), adjoint=adjoint)
    (found,) = pulled(100 * towards(path.final), x0)
    assert found.norm().item() == pytest.approx(2.0, abs=1e-6)


@pytest.mark.spec("D5")
def test_backsolve_clips_its_adjoint_state_too() -> None:
    x0 = learning(START)
    path = solve(BOTH, x0, SPAN, args=MATRICES, solver=RK4(), control=Fixed(6), adjoint=Backsolve(clip=0.5))
    (found,) = pulled(100 * towards(path.final), x0)
    assert 0.1 < found.norm() <= 0.5


@pytest.mark.spec("D5")
@pytest.mark.parametrize("adjoint", [Direct(clip=0.0), Recompute(clip=-1.0)], ids=str)
def test_a_bound_that_bounds_nothing_is_refused(adjoint) -> None:
    x0 = learning(START)
    with refused(SolveError, f"got {adjoint.clip}", "Use clip > 0"):
        path = solve(BOTH, x0, SPAN, args=MATRICES, solver=RK4(), control=Fixed(2), adjoint=adjoint)
        path.final.sum().backward()


# --- the continuous adjoint ------------------------------------------------------------------------------------------


def pushed(z: float, x: Tensor, a: Tensor) -> Tensor:
    """Contracts at the rate a onto a path that never rests."""
    return 4 * math.sin(5 * z) - a * x + (2 * x.roll(1)).sin()


def off(adjoint, steps: int, rate: float, solver=None) -> float:
    """How far gradients are from those of the computed loss, on a flow that contracts."""
    found = []
    for one in (Direct(), adjoint):
        x0, args = learning(START), learning(torch.tensor(rate, dtype=torch.float64))
        path = solve(pushed, x0, (0.0, 3.0), args=args, solver=solver or RK4(), control=Fixed(steps), adjoint=one)
        found.append(pulled(towards(path.final), x0, args))
    return ((found[1][1] - found[0][1]) / found[0][1]).abs().item()


@pytest.mark.spec("D4")
def test_the_continuous_adjoint_is_off_by_the_solvers_error_and_the_exact_ones_are_not() -> None:
    errors = [off(Backsolve(), steps, 1.0) for steps in (20, 40, 80)]
    assert errors[0] > 4 * errors[1] > 16 * errors[2]
    assert errors[2] > 100 * off(Checkpoint(8), 80, 1.0)


@pytest.mark.spec("D4")
def test_where_the_flow_contracts_fast_only_the_continuous_adjoint_is_lost() -> None:
    assert off(Backsolve(), 60, 12.0) > 1e-3
    assert off(Checkpoint(8), 60, 12.0) < CLOSE
    assert off(Recompute(), 60, 12.0) < CLOSE
    assert off(Reversible(), 60, 12.0, ReversibleSolver()) < CLOSE, "by falling back"


# --- bytes -----------------------------------------------------------------------------------------------------------


def taken(adjoint, steps: int, width: int = 64) -> int:
    """Peak bytes of one forward and backward pass; an evaluation is a layer four times as wide inside."""
    shapes = ((width, 4 * width), (4 * width, width))
    weights = [(0.1 * random(*shape, seed=i)).float().requires_grad_() for i, shape in enumerate(shapes)]
    x0 = random(64, width, seed=4).float().requires_grad_()
    solver = ReversibleSolver(Heun()) if isinstance(adjoint, Reversible) else Heun()

    def f(z, x, a):
        return torch.tanh(torch.tanh(x @ a[0]) @ a[1]).sin() - x

    def run() -> None:
        path = solve(f, x0, (0.0, 1.0), args=weights, solver=solver, control=Fixed(steps), adjoint=adjoint)
        torch.autograd.grad(path.final.sum(), [x0, *weights])
        assert "path" not in path.stats

    return peak(run)


@pytest.mark.spec("D3", "D4")
def test_undoing_takes_the_same_bytes_for_any_number_of_steps() -> None:
    few, many = taken(Reversible(drift=1e-3), 8), taken(Reversible(drift=1e-3), 128)
    assert many < 1.05 * few


@pytest.mark.spec("D4")
def test_keeping_slopes_takes_a_fraction_of_keeping_everything() -> None:
    direct = taken(Direct(), 32)
    assert taken(Recompute(), 32) < 0.5 * direct
    assert taken(Lean(), 32) < 0.5 * direct
    assert taken(Checkpoint(6), 32) < 0.2 * direct
    assert taken(Mixed(6), 32) <= taken(Checkpoint(6), 32)


@pytest.mark.spec("D4", "T10")
def test_cutting_again_and_again_takes_a_few_states_a_level() -> None:
    taken(Checkpoint(8, recursive=True), 8)  # what is allocated once
    few, one, two = (taken(Checkpoint(n * LEAF, recursive=True), n * LEAF) for n in (2, PIECES, 2 * PIECES))
    state = 64 * 64 * 4 + torch.get_rng_state().numel()  # of float32, and that of the random numbers
    assert one - few == (PIECES - 2) * state
    assert 0 < two - one <= PIECES * state
    assert two < 0.1 * taken(Direct(), 2 * PIECES * LEAF)


@pytest.mark.spec("D4", "T10")
@pytest.mark.parametrize("steps", [LEAF + 1, LEAF * PIECES - 1, LEAF * PIECES + 3])
def test_cutting_again_and_again_gives_the_same_gradients(steps) -> None:
    """One level, a ragged last piece, two levels; the field draws random numbers."""
    found = []
    for one in (Direct(), Checkpoint(steps, recursive=True), Mixed(steps - 1, recursive=True)):
        torch.manual_seed(3)
        x0, weights = learning(START), learning(MATRICES[0])
        save = SaveAt(points=(0.31, 1.2))
        path = solve(noisy, x0, SPAN, args=weights, solver=Heun(), control=Fixed(steps), adjoint=one, save=save)
        loss = towards(path.x, path.final)
        found.append([g for _ in range(2) for g in torch.autograd.grad(loss, [x0, weights], retain_graph=True)])
    for other in found[1:]:
        assert all(gap(a, b) < CLOSE for a, b in zip(other, found[0], strict=True))


def saved(adjoint, steps: int) -> int:
    """Bytes alive between the forward and the backward pass, beyond those alive before."""
    weights, x0 = (0.1 * random(32, 32)).float().requires_grad_(), random(16, 32, seed=4).float().requires_grad_()
    solver = ReversibleHeun() if isinstance(adjoint, Reversible) else Heun()

    def f(z, x, a):
        return torch.tanh(x @ a)

    with uncollected(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        end = solve(f, x0, SPAN, args=weights, solver=solver, control=Fixed(steps), adjoint=adjoint).final
    assert end.grad_fn is not None
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    return sum(event.nbytes() for event in events)


@pytest.mark.spec("T10", "D3", "D4")
def test_what_is_kept_between_the_passes_does_not_grow_with_the_steps() -> None:
    for make in (lambda n: Reversible(), lambda n: Checkpoint(n, recursive=True)):
        few, many = saved(make(4), 4), saved(make(64), 64)
        assert few == many > 0
    assert saved(Direct(), 64) > 8 * saved(Direct(), 4)


# --- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("D7", "A10")
@pytest.mark.parametrize("control", [Fixed(4), Adaptive(rtol=1e-2, atol=1e-2)], ids=str)
@pytest.mark.parametrize("adjoint", [Direct(), *EXACT_ADJOINTS, *INEXACT_ADJOINTS], ids=str)
def test_under_autocast_the_state_stays_single_and_gradients_agree(adjoint, control) -> None:
    def f(z, x, a):
        return torch.tanh(x @ a["w"].T + a["b"])

    solver = ReversibleSolver(Dopri5()) if adjoint in BACKWARDS else Dopri5()

    def run(one, autocast: bool) -> tuple[Tensor, list[Tensor]]:
        x0 = learning(random(5, 8).float())
        args = learning({"w": (0.5 * random(8, 8, seed=1)).float(), "b": random(8, seed=2).float()})
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            path = solve(f, x0, (0.0, 1.0), args=args, solver=solver, control=control, adjoint=one)
            assert path.final.dtype == torch.float32
            again = f(0.0, x0, args)  # the casts of weights that a solve left behind carry gradients too
            loss = towards(path.final) + again.float().sum()
        return path.final, pulled(loss, x0, args)

    (state, got), (full, wanted) = run(adjoint, True), run(Direct(), False)
    assert all(g.dtype == torch.float32 for g in got)
    assert 1e-7 < gap(state, full) < 0.03, "computed in bfloat16"
    assert all(gap(a, b) < 0.03 for a, b in zip(got, wanted, strict=True))


@pytest.mark.spec("D7")
@pytest.mark.parametrize("adjoint", [Direct(), *EXACT_ADJOINTS], ids=str)
def test_half_precision_states_stay_half(adjoint) -> None:
    x0, args = learning(random(5, 8).bfloat16()), learning((0.5 * random(8, 8, seed=1)).bfloat16())
    path = solve(
        lambda z, x, a: torch.tanh(x @ a), x0, (0.0, 1.0), args=args, solver=solver_for(adjoint), control=Fixed(3),
        adjoint=adjoint, cost=lambda z, x, v, a: (v * v).sum(),
    )  # fmt: skip
    assert path.final.dtype == path.cost.dtype == torch.bfloat16
    assert all(
        g.dtype == torch.bfloat16 and g.isfinite().all() for g in pulled(towards(path.final, path.cost), x0, args)
    )
