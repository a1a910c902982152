"""Laws of adaptive steps: tolerances are kept, evaluations counted, samples not drowned, padding never felt."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from continua.flow import (
    RK4,
    Adaptive,
    Bosh3,
    Direct,
    Dopri5,
    Euler,
    Fixed,
    Flow,
    OnSphere,
    Problem,
    Recompute,
    Reversible,
    ReversibleHeun,
    ReversibleSolver,
    SaveAt,
    Trajectory,
    Tsit5,
    solve,
)
from continua.flow.controls.control import StepsFound
from tests.cases import ADAPTIVE, ALL_SOLVERS, ON_SPHERES
from tests.flows import BOTH, MATRICES, SPAN, START, Counted, learning, pulled, reference, start, swirl, tilt, towards
from tests.measure import EXACT, gap, random, slope

PAIRED = [Bosh3(), Dopri5(), Tsit5(), OnSphere(Tsit5())]
FSAL = {Bosh3(): 3, Dopri5(): 6, Tsit5(): 6}


def steps_of(field, x0, control, solver=None, span=SPAN, args=MATRICES, **options) -> StepsFound:
    """The steps that are found."""
    solver = solver or Tsit5()
    return control.find(Problem(field, x0, span, args, solver, SaveAt(), **options))


@dataclasses.dataclass(frozen=True)
class Given:
    """A control that takes steps it is told."""

    steps: tuple[tuple[float, float], ...]

    def find(self, problem: Problem) -> StepsFound:
        return StepsFound(self.steps)


@pytest.mark.spec("D1")
@pytest.mark.parametrize("solver", [*PAIRED, RK4(), ReversibleSolver(Dopri5()), ReversibleHeun()], ids=str)
def test_the_error_follows_the_tolerance(solver) -> None:
    exact = reference(BOTH, MATRICES, solver in ON_SPHERES).final
    tolerances = [1e-3, 1e-4, 1e-5] if solver.order < 4 else [1e-3, 1e-5, 1e-8]
    errors = []
    for rtol in tolerances:
        control = Adaptive(rtol=rtol, atol=rtol)
        path = solve(BOTH, start(solver), SPAN, args=MATRICES, solver=solver, control=control)
        errors.append((path.final - exact).abs().max().item())
    factor = 10 if solver.order > 2 else 20
    assert all(error < factor * rtol for error, rtol in zip(errors, tolerances, strict=True)), errors
    assert -slope(tolerances, errors) > 0.55, "a tighter tolerance is a smaller error"


@pytest.mark.spec("D1")
@pytest.mark.parametrize("control", ADAPTIVE, ids=str)
@pytest.mark.parametrize("solver", [s for s in ALL_SOLVERS if s.order > 1], ids=str)
def test_every_solver_reaches_the_end_within_tolerance(solver, control) -> None:
    control = dataclasses.replace(control, rtol=1e-3, atol=1e-3)
    path = solve(BOTH, start(solver), SPAN, args=MATRICES, solver=solver, control=control)
    assert path.z == (SPAN[1],)
    assert path.status == "done"
    assert (path.final - reference(BOTH, MATRICES, solver in ON_SPHERES).final).abs().max() < 1e-2


@pytest.mark.spec("D1")
@pytest.mark.parametrize("solver", FSAL, ids=str)
def test_the_last_slope_is_the_next_steps_first(solver) -> None:
    field = Counted(tilt)
    path = solve(field, START, SPAN, args=MATRICES[0], solver=solver, control=Adaptive(first=0.01))
    assert path.stats["accepted"] > 3
    tried = path.stats["accepted"] + path.stats["rejected"]
    assert field.calls == path.stats["evaluations"] == 1 + FSAL[solver] * tried


@pytest.mark.spec("D1")
def test_a_first_step_that_is_too_long_is_rejected_and_counted() -> None:
    def run(**choices) -> Trajectory:
        return solve(stiff, START, (0.0, 1.0), args=None, solver=Dopri5(), control=Adaptive(**choices))

    def stiff(z, x, a):
        return -30 * x

    found, told, bold = run(), run(first=1e-3), run(first=1.0)
    assert found.stats["rejected"] <= 2
    assert bold.stats["rejected"] >= 1
    assert told.stats["rejected"] == 0
    for path in (found, told, bold):
        assert (path.final - START * math.exp(-30)).abs().max() < 1e-4
        assert path.stats["accepted"] == path.stats["steps"]


@pytest.mark.spec("D1")
@pytest.mark.parametrize("speed", [1e-3, 1.0, 1e3])
def test_the_first_step_is_found_from_the_speed_of_the_field(speed) -> None:
    def turn(z, x, a):
        return speed * x.roll(1)

    found = steps_of(turn, START, Adaptive(), span=(0.0, 4.0 / speed))
    assert 3 < len(found.steps) < 20
    assert found.stats["rejected"] <= 2
    told = steps_of(turn, START, Adaptive(first=0.125 / speed), span=(0.0, 4.0 / speed))
    assert told.steps[0] == (0.0, 0.125 / speed)


@pytest.mark.spec("D1")
@pytest.mark.parametrize("solver", [Euler(), RK4(), ReversibleHeun(), OnSphere(RK4())], ids=str)
def test_a_solver_without_an_estimate_takes_pairs_of_equal_steps(solver) -> None:
    field = Counted(tilt)
    found = steps_of(field, start(solver), Adaptive(rtol=0.01, atol=0.01), solver, args=MATRICES[0])
    lengths = [dz for _, dz in found.steps]
    assert len(lengths) % 2 == 0
    assert lengths[::2] == lengths[1::2]
    assert found.stats["evaluations"] == field.calls


@pytest.mark.spec("D1", "D3")
@pytest.mark.parametrize("inner", [Dopri5(), RK4()], ids=str)
def test_a_reversible_wrapper_walks_on_the_steps_its_inner_method_finds(inner) -> None:
    wrapped = ReversibleSolver(inner)
    found = steps_of(BOTH, START, Adaptive(), inner)
    assert steps_of(BOTH, START, Adaptive(), wrapped).steps == found.steps
    path = solve(BOTH, START, SPAN, args=MATRICES, solver=wrapped, control=Adaptive(), save=SaveAt(1))
    by_hand = solve(BOTH, START, SPAN, args=MATRICES, solver=wrapped, control=Given(found.steps), save=SaveAt(1))
    assert path.z == by_hand.z
    assert all(torch.equal(a, b) for a, b in zip(path.x, by_hand.x, strict=True))


@pytest.mark.spec("D1", "D4")
@pytest.mark.parametrize("adjoint", [Direct(), Recompute(), Reversible()], ids=str)
@pytest.mark.parametrize("solver", [Tsit5(), RK4(), ReversibleSolver(Dopri5()), ReversibleHeun()], ids=str)
def test_gradients_are_those_of_the_steps_that_were_found(solver, adjoint) -> None:
    if isinstance(adjoint, Reversible) and not hasattr(solver, "undo"):
        pytest.skip("needs a reversible solver")
    control = Adaptive(rtol=1e-3, atol=1e-3)
    found = []
    for one, way in ((control, adjoint), (Given(steps_of(BOTH, START, control, solver).steps), Direct())):
        x0, args = learning(START), learning(MATRICES)
        path = solve(BOTH, x0, SPAN, args=args, solver=solver, control=one, adjoint=way, save=SaveAt(1))
        found.append([*path.x, *pulled(towards(path.x), x0, args)])
    assert all(gap(a, b) < 1e-10 for a, b in zip(*found, strict=True))


@pytest.mark.spec("D1")
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
@pytest.mark.parametrize("save", [SaveAt(), SaveAt(2), SaveAt(points=(0.3, 1.1)), SaveAt(dense=True)], ids=str)
def test_states_are_the_same_with_and_without_gradients(solver, save) -> None:
    paths = []
    for x0 in (start(solver), learning(start(solver))):
        control = Adaptive(rtol=0.01, atol=0.01)
        paths.append(solve(BOTH, x0, SPAN, args=MATRICES, solver=solver, control=control, save=save))
    quiet, learns = paths
    assert quiet.z == learns.z
    assert gap(quiet.final, learns.final) < EXACT
    close = 1e-2 if save.points else EXACT  # between steps the search has an interpolation of its own
    assert all(gap(a, b) < close for a, b in zip(quiet.x, learns.x, strict=True))
    if save.dense:
        assert gap(quiet(0.8), learns(0.8)) < 1e-2


@pytest.mark.spec("D1")
@pytest.mark.parametrize("solver", PAIRED, ids=str)
def test_points_between_found_steps_keep_the_tolerance(solver) -> None:
    exact = reference(BOTH, MATRICES, solver in ON_SPHERES)
    points, wanted = exact.z[3::17], exact.x[3::17]
    control = Adaptive(rtol=1e-6, atol=1e-6)
    for save in (SaveAt(points=points), SaveAt(dense=True)):
        path = solve(BOTH, start(solver), SPAN, args=MATRICES, solver=solver, control=control, save=save)
        assert path.stats["steps"] < 100
        found = path.x if save.points else [path(z) for z in points]
        assert max(gap(x, y) for x, y in zip(found, wanted, strict=True)) < 2e-5


# --- whose error counts ----------------------------------------------------------------------------------------------


def hurried(z: float, x: Tensor, speed: Tensor) -> Tensor:
    """Each sample turns at a speed of its own."""
    return speed[:, None] * torch.stack([x[:, 1], -x[:, 0]], -1)


def fast_error(per_sample: bool) -> tuple[float, int]:
    """How far one fast sample among many idle ones is off, and with how many steps."""
    speed = torch.zeros(400, dtype=torch.float64)
    speed[7] = 20.0
    x0 = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(400, 2)
    control = Adaptive(rtol=1e-5, atol=1e-5, per_sample=per_sample)
    path = solve(hurried, x0, (0.0, 1.0), args=speed, solver=Dopri5(), control=control)
    wanted = torch.tensor([math.cos(20.0), -math.sin(20.0)], dtype=torch.float64)
    return (path.final[7] - wanted).abs().max().item(), path.stats["steps"]


@pytest.mark.spec("D1")
def test_one_fast_sample_keeps_its_tolerance_by_the_per_sample_norm_and_is_drowned_by_the_joint_one() -> None:
    (own, many), (joint, few) = fast_error(True), fast_error(False)
    alone = solve(
        hurried, torch.tensor([[1.0, 0.0]], dtype=torch.float64), (0.0, 1.0), args=torch.tensor([20.0]).double(),
        solver=Dopri5(), control=Adaptive(rtol=1e-5, atol=1e-5),
    )  # fmt: skip
    assert many == alone.stats["steps"]
    assert own < 1e-3
    assert joint > 5 * own
    assert few < many


@pytest.mark.spec("D1", "B4")
@pytest.mark.parametrize("per_sample", [False, True], ids=["joint", "per sample"])
@pytest.mark.parametrize("solver", [Tsit5(), RK4()], ids=str)
@pytest.mark.parametrize("size", [0.0, 1.0, 1e12])
def test_absent_tokens_never_change_the_steps(solver, size, per_sample) -> None:
    def f(z, x, a):
        return torch.tanh(3 * x @ a.T) * (1 + z)

    seen = torch.tensor([[True, True, False, False], [True, True, True, False]])[..., None]
    x = random(2, 4, 3)
    control = Adaptive(per_sample=per_sample)
    options = {"args": MATRICES[0], "solver": solver, "control": control, "observed": seen, "save": SaveAt(1)}
    clean = solve(f, x.masked_fill(~seen, 0.5), SPAN, **options)
    dirty = solve(f, torch.where(seen, x, size * random(2, 4, 3, seed=1)), SPAN, **options)
    assert dirty.z == clean.z
    assert all(torch.equal(a[seen[..., 0]], b[seen[..., 0]]) for a, b in zip(dirty.x, clean.x, strict=True))
    cut = solve(f, x[:, :2], SPAN, args=MATRICES[0], solver=solver, control=control)
    assert cut.stats["steps"] > 2


@pytest.mark.spec("D1", "D7")
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
def test_on_fixed_steps_a_sample_is_the_same_alone_and_in_any_batch(solver) -> None:
    x = torch.nn.functional.normalize(random(16, 3), dim=-1).float()
    args = tuple(m.float() for m in MATRICES)

    def run(x: Tensor) -> Tensor:
        return solve(BOTH, x, SPAN, args=args, solver=solver, control=Fixed(6)).final

    whole = run(x)
    assert whole.dtype == torch.float32
    for batch in ([3], [3, 9], [15, 3, 0, 7, 8]):
        assert gap(run(x[batch]), whole[batch]) < 1e-6


@pytest.mark.spec("D1", "D4")
def test_weights_over_depth_are_read_where_the_search_goes() -> None:
    asked: list[float] = []

    def read(depths, args):
        asked.extend(depths)
        return {z: args * math.cos(z) for z in depths}

    from continua.flow import Bound

    field = Flow(Bound(lambda z, x, a: x @ a[z].T, read=read)) + Flow(swirl)
    for solver in (Tsit5(), RK4(), ReversibleHeun(), OnSphere(Tsit5())):
        path = solve(field, start(solver), SPAN, args=MATRICES, solver=solver, control=Adaptive(rtol=0.01))
        wanted = solve(
            Flow(lambda z, x, a: x @ (a * math.cos(z)).T) + Flow(swirl), start(solver), SPAN, args=MATRICES,
            solver=solver, control=Adaptive(rtol=0.01),
        )  # fmt: skip
        assert path.stats == wanted.stats
        assert gap(path.final, wanted.final) < EXACT
    assert min(asked) == SPAN[0]
