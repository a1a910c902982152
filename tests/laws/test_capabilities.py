"""What solvers, costs and fields declare that they can do is what they do."""

import pytest
import torch

from continua.flow import Bound, Dopri5, Flow, OnSphere, Projection, ReversibleSolver, Strang, Tsit5
from continua.flow.solvers.clipping import Clipping
from continua.flow.solvers.solver import (
    LaggingMethod,
    OnManifold,
    ReversibleMethod,
    Wrapper,
    has_estimate,
    velocity_of,
)
from continua.flow.vectorfield import Reading, bytes_a_depth, differentiates, is_quiet, is_read, read_at
from tests.cases import ALL_SOLVERS, ON_SPHERES, REVERSIBLE, SPLITTINGS
from tests.flows import BOTH, MATRICES, START, UNIT, start, tilt
from tests.measure import gap

Z, DZ = 0.3, 0.05
PAIRS = ["Bosh3", "Dopri5", "Tsit5", "OnSphere(Tsit5)"]


@pytest.mark.spec("D1")
def test_the_solvers_with_an_estimate_are_the_pairs_and_what_wraps_one() -> None:
    assert [str(solver) for solver in ALL_SOLVERS if has_estimate(solver)] == PAIRS
    assert not any(has_estimate(solver) for solver in (None, Strang(Dopri5()), ReversibleSolver(Dopri5())))


@pytest.mark.spec("D1")
@pytest.mark.parametrize("solver", [s for s in ALL_SOLVERS if has_estimate(s)], ids=str)
def test_an_attempt_is_a_step_with_an_estimate_of_its_error(solver) -> None:
    x = start(solver)
    tried = solver.attempt(BOTH, Z, DZ, x, MATRICES)
    assert torch.equal(tried.x, solver.step(BOTH, Z, DZ, x, MATRICES))
    half = solver.attempt(BOTH, Z, DZ / 2, x, MATRICES)
    falls = float(torch.log2(tried.error.norm() / half.error.norm()))
    assert falls == pytest.approx(solver.order, abs=0.3)  # an order less than the step's own error
    middle = solver.middle(DZ, x, tried.slopes)
    if middle is not None:
        assert gap(middle, half.x) < 1e-7


@pytest.mark.spec("D3")
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
def test_the_steps_that_can_be_undone_are_those_of_reversible_methods(solver) -> None:
    assert isinstance(solver, ReversibleMethod) == (solver in REVERSIBLE)
    assert isinstance(solver, LaggingMethod) == (str(solver) == "ReversibleHeun")
    if solver in REVERSIBLE:
        before = solver.step(BOTH, Z, DZ, solver.begin(BOTH, Z, START, MATRICES), MATRICES)
        after = solver.step(BOTH, Z + DZ, DZ, before, MATRICES)
        undone = solver.undo(BOTH, Z + DZ, DZ, after, MATRICES)
        assert max(gap(a, b) for a, b in zip(undone, before, strict=True)) < 1e-13


@pytest.mark.spec("L1")
@pytest.mark.parametrize("solver", [*ON_SPHERES, ReversibleSolver(OnSphere()), Clipping(OnSphere(), 1.0)], ids=str)
def test_a_solver_on_a_manifold_says_which_field_it_follows(solver) -> None:
    slope = velocity_of(solver, BOTH)(Z, UNIT, MATRICES)
    assert abs(slope @ UNIT) < 1e-15
    assert abs(BOTH(Z, UNIT, MATRICES) @ UNIT) > 1e-2
    if isinstance(solver, OnManifold):
        assert gap(solver.tangent(UNIT, BOTH(Z, UNIT, MATRICES)), slope) < 1e-15


@pytest.mark.spec("M7")
def test_other_solvers_follow_the_field_itself_and_wrappers_say_what_they_wrap() -> None:
    for solver in ALL_SOLVERS:
        if solver not in ON_SPHERES:
            assert velocity_of(solver, BOTH) is BOTH
        assert isinstance(solver, Wrapper) == ("(" in str(solver))
    assert all(isinstance(solver, Wrapper) and str(solver.inner) in str(solver) for solver in SPLITTINGS)


@pytest.mark.spec("T1")
def test_a_cost_takes_derivatives_where_it_says_so() -> None:
    class Cost:
        def __init__(self, twice: bool) -> None:
            self.twice = twice

        def __call__(self, z, x, velocity, args):
            return velocity.square().sum()

    assert not differentiates(None)
    assert not differentiates(lambda z, x, velocity, args: x.sum())
    assert [differentiates(Cost(twice)) for twice in (False, True)] == [False, True]


@pytest.mark.spec("D4", "M5")
def test_the_function_of_a_part_is_bound_once_and_says_what_is_known_of_it() -> None:
    read = Reading(lambda depths, args: dict.fromkeys(depths, args), 24)
    known = Bound(lambda z, x, args: x @ args[z].T, read)
    for part in (Flow(known), Projection(known)):
        assert part.bound is known
    field = Flow(known) + Flow(tilt)
    assert (is_read(field), is_read(tilt), is_read(field.parts[1])) == (False, True, True)
    assert (is_quiet(known), is_quiet(tilt), is_quiet(field)) == (True, False, False)
    assert (bytes_a_depth(field), bytes_a_depth(tilt)) == (24, 0)
    made = read_at(field, [(0.1, 0.2), (0.1,)], MATRICES)
    assert (list(made[0]), made[1] is MATRICES[1]) == ([0.1, 0.2], True)
    assert Flow(known) == Flow(known)
    assert Flow(known) != Flow(tilt)


@pytest.mark.spec("D1")
def test_a_pair_of_order_five_has_a_middle_and_one_of_order_three_has_none() -> None:
    for solver in (Dopri5(), Tsit5(), OnSphere(Tsit5())):
        tried = solver.attempt(BOTH, Z, DZ, start(solver), MATRICES)
        assert solver.middle(DZ, start(solver), tried.slopes) is not None
    solver = next(s for s in ALL_SOLVERS if str(s) == "Bosh3")
    assert solver.middle(DZ, START, solver.attempt(BOTH, Z, DZ, START, MATRICES).slopes) is None
