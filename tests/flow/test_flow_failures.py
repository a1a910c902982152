"""A solve that cannot be or does not end says what, where and what to do, at once."""

import inspect
import math

import pytest
import torch
from torch import Tensor

from continua.errors import ConfigError, SolveError, SolveFailed
from continua.flow import (
    RK4,
    Adaptive,
    Checkpoint,
    Direct,
    Dopri5,
    Euler,
    Fixed,
    LieTrotter,
    Recompute,
    Reversible,
    ReversibleSolver,
    SaveAt,
    Strang,
    Tsit5,
    solve,
)
from tests.flows import MATRICES, START, Counted, learning, tilt
from tests.measure import random
from tests.refusals import refused


def attempt(field=tilt, x0=START, span=(0.0, 1.0), solver=None, control=None, args=MATRICES[0], **options):
    return solve(field, x0, span, args=args, solver=solver or Euler(), control=control or Fixed(2), **options)


# --- what cannot be set up -------------------------------------------------------------------------------------------

CANNOT = {
    "backwards": ({"span": (1.0, 0.0)}, "got (1.0, 0.0)", "Write span=(start, end) with end > start"),
    "empty": ({"span": (0.5, 0.5)}, "got (0.5, 0.5)", "end > start"),
    "endless": ({"span": (0.0, math.inf)}, "got (0.0, inf)", "end > start"),
    "nowhere": ({"span": (math.nan, 1.0)}, "got (nan, 1.0)", "end > start"),
    "integers": ({"x0": torch.arange(3)}, "got torch.int64", "Convert it: x0.float()"),
    "integers in a pair": ({"x0": (START, torch.arange(3))}, "got torch.int64", "Convert it: x0.float()"),
    "no parts": ({"solver": LieTrotter()}, "made of parts, got tilt", "Write Flow(f) + Flow(g)"),
    "no parts, Strang": ({"solver": Strang()}, "Strang needs a field made of parts, got tilt", "or use Euler()"),
    "a point before": ({"save": SaveAt(points=(-0.1, 0.5))}, "got -0.1", "Keep them inside [0, 1]"),
    "a point after": ({"save": SaveAt(points=(0.5, 1.5))}, "got 1.5", "Keep them inside [0, 1]"),
    "no reversible solver": (
        {"x0": learning(START), "adjoint": Reversible()},
        "reversible gradients need a reversible solver, got Euler",
        "Use ReversibleSolver(Euler)",
    ),
}


@pytest.mark.spec("D1")
@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_is_refused_before_anything_is_evaluated(name) -> None:
    changes, got, remedy = CANNOT[name]
    field = Counted(tilt)
    if "made of parts" in got:
        with refused(SolveError, got, remedy):
            attempt(**changes)
        return
    with refused(SolveError, got, remedy):
        attempt(field, **changes)
    assert field.calls == 0


@pytest.mark.spec("D1")
def test_an_option_that_solve_does_not_have_is_refused_before_anything_is_evaluated() -> None:
    field = Counted(tilt)
    for option in ({"chek": False}, {"zzz": 1}):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{min(option)}'"):
            attempt(field, **option)
    assert field.calls == 0
    given = inspect.signature(solve).parameters.values()
    assert not any(one.kind is one.VAR_KEYWORD for one in given), "every option is in the signature"


MADE_WRONG = {
    "no steps": (lambda: Fixed(0), "at least one step, got 0", "Use Fixed(n) with n ≥ 1"),
    "negative every": (lambda: SaveAt(-1), "counts steps, got -1", "Use n ≥ 1"),
    "steps and points": (lambda: SaveAt(2, (0.5,)), "got every and points", "Choose one"),
    "unsorted": (lambda: SaveAt(points=(0.5, 0.2)), "must increase, got (0.5, 0.2)", "Sort them"),
    "repeated": (lambda: SaveAt(points=(0.5, 0.5)), "must increase", "drop repeats"),
    "no tolerance": (lambda: Adaptive(rtol=0.0, atol=0.0), "got rtol=0.0, atol=0.0", "rtol=1e-4"),
    "negative tolerance": (lambda: Adaptive(rtol=-1.0), "got rtol=-1.0", "rtol=1e-4"),
    "first step": (lambda: Adaptive(first=0.0), "first step must be positive, got 0.0", "Leave it out"),
    "max steps": (lambda: Adaptive(max_steps=0), "got 0", "Use max_steps ≥ 1"),
    "coupling": (lambda: ReversibleSolver(coupling=0.0), "got 0.0", "0.99"),
    "checkpoints": (lambda: Checkpoint(0), "got 0", "n ≥ 1"),
    "checkpoint lengths": (lambda: Checkpoint(-0.1), "got -0.1", "Δz"),
}


@pytest.mark.spec("D1", "D4")
@pytest.mark.parametrize("name", MADE_WRONG)
def test_a_choice_that_makes_no_sense_is_refused(name) -> None:
    make, got, remedy = MADE_WRONG[name]
    with refused(SolveError, got, remedy):
        make()


@pytest.mark.spec("D1", "D4")
def test_a_choice_that_is_no_number_is_refused_at_the_door() -> None:
    with refused(ConfigError, "rtol takes a finite number, got nan", "rtol=0.0001"):
        Adaptive(rtol=math.nan)
    with refused(ConfigError, "every takes a whole number or a finite number, got True", "every=1"):
        Checkpoint(True)


@pytest.mark.spec("D1")
def test_a_path_that_was_not_kept_cannot_be_called() -> None:
    with refused(SolveError, "got z=0.5", "SaveAt(dense=True)"):
        attempt()(0.5)
    whole = attempt(save=SaveAt(dense=True))
    for z in (-0.1, 1.1):
        with refused(SolveError, f"got {z}", "It goes from 0 to 1"):
            whole(z)


# --- numbers that end ------------------------------------------------------------------------------------------------

CONTROLS = {"fixed": Fixed(8), "adaptive": Adaptive()}
WAYS = {"no gradient": None, "direct": Direct(), "recompute": Recompute(), "checkpoint": Checkpoint(3)}
BAD = pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])


def breaks(at: float, sample: int, bad: float) -> Counted:
    """From one depth on, one sample's slope is no number."""

    def f(z: float, x: Tensor, a: Tensor) -> Tensor:
        slope = torch.tanh(x @ a.T)
        spoiled = torch.zeros_like(slope)
        spoiled[sample] = bad if z > at else 0.0
        return slope + spoiled

    return Counted(f)


@pytest.mark.spec("D1")
@BAD
@pytest.mark.parametrize("control", CONTROLS.values(), ids=CONTROLS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_start_that_is_no_number_is_named(control, way, bad) -> None:
    x0 = random(5, 3)
    x0[3, 1] = bad
    x0 = x0 if way is None else x0.requires_grad_()
    field = Counted(tilt)
    with pytest.raises(
        SolveFailed, match=r"^the state is no longer a number, got NaN or infinity at z=0 in sample 3\."
    ) as e:
        attempt(field, x0, solver=Tsit5(), control=control, adjoint=way or Direct())
    assert (e.value.z, e.value.sample) == (0.0, 3)
    assert "Look at this sample's data." in str(e.value)
    assert field.calls == 0 if control is CONTROLS["adaptive"] else field.calls <= 6 * 8


@pytest.mark.spec("D1")
@BAD
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_field_that_leaves_the_numbers_on_fixed_steps_is_named_with_its_step(way, bad) -> None:
    x0 = random(5, 3) if way is None else random(5, 3).requires_grad_()
    field = breaks(0.4, 2, bad)
    with pytest.raises(
        SolveFailed, match=r"^the field is no longer a number, got .* at z=0.5 in sample 2\. Look at"
    ) as e:
        attempt(field, x0, solver=RK4(), control=Fixed(8), adjoint=way or Direct())
    assert (e.value.z, e.value.sample) == (0.5, 2)
    assert "take smaller steps" in str(e.value)
    assert field.calls <= 4 * (8 + 4), "the walk, and once more up to the step"


@pytest.mark.spec("D1")
@BAD
@pytest.mark.parametrize("solver", [Dopri5(), RK4()], ids=str)
def test_a_field_that_leaves_the_numbers_stops_the_search_at_once(solver, bad) -> None:
    field = breaks(0.4, 2, bad)
    with pytest.raises(SolveFailed, match=r"^the field is no longer a number, got .* in sample 2\.") as e:
        attempt(field, random(5, 3), solver=solver, control=Adaptive())
    assert e.value.sample == 2
    assert 0.4 <= e.value.z < 0.41
    assert field.calls < 400


@pytest.mark.spec("D1")
def test_a_field_that_is_no_number_from_the_start_is_asked_once() -> None:
    field = breaks(-1.0, 1, math.nan)
    with pytest.raises(SolveFailed, match=r"at z=0 in sample 1"):
        attempt(field, random(5, 3), solver=Dopri5(), control=Adaptive())
    assert field.calls == 1


@pytest.mark.spec("D1")
def test_an_overshoot_that_a_smaller_step_avoids_is_no_failure() -> None:
    def root(z: float, x: Tensor, a: Tensor) -> Tensor:
        return -x.sqrt()  # NaN below zero, where a long first step lands

    x0 = torch.tensor([1.0], dtype=torch.float64)
    path = attempt(root, x0, (0.0, 1.5), Dopri5(), Adaptive(first=1.5))
    assert path.final.item() == pytest.approx((1 - 1.5 / 2) ** 2, abs=1e-4)
    assert path.stats["rejected"] >= 1


@pytest.mark.spec("D1")
def test_the_look_for_nan_can_be_turned_off() -> None:
    x0 = random(5, 3)
    x0[3, 1] = math.nan
    path = attempt(x0=x0, check=False)
    assert path.status == "done"
    assert path.final[3].isnan().any()
    assert path.final[:3].isfinite().all()


@pytest.mark.spec("D1")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_without_throwing_the_path_says_how_it_ended(way) -> None:
    x0 = random(5, 3) if way is None else random(5, 3).requires_grad_()
    fixed = attempt(breaks(0.4, 2, math.nan), x0, solver=RK4(), control=Fixed(8), adjoint=way or Direct(), throw=False)
    assert "at z=0.5 in sample 2" in fixed.status
    assert fixed.final[2].isnan().all()
    assert fixed.final[:2].isfinite().all()
    adaptive = attempt(
        breaks(0.4, 2, math.nan), x0, solver=Dopri5(), control=Adaptive(), adjoint=way or Direct(), throw=False,
        save=SaveAt(points=(0.1, 0.2, 0.9)),
    )  # fmt: skip
    assert "no longer a number" in adaptive.status
    assert adaptive.z == (0.1, 0.2)
    assert len(adaptive.x) == 2
    assert adaptive.final.isfinite().all(), "the last state that was reached"
    stuck = attempt(breaks(-1.0, 2, math.nan), x0, solver=Dopri5(), control=Adaptive(), throw=False)
    assert stuck.final is x0
    assert stuck.z == ()
    assert "at z=0 in sample 2" in stuck.status


@pytest.mark.spec("D1")
def test_a_singularity_shrinks_the_step_to_nothing_and_says_where() -> None:
    def blow_up(z: float, x: Tensor, a: Tensor) -> Tensor:
        return x * x  # 1 / (1 − z)

    with pytest.raises(SolveFailed, match=r"loosen rtol and atol|smaller steps") as e:
        attempt(blow_up, torch.ones(1, dtype=torch.float64), (0.0, 2.0), Dopri5(), Adaptive())
    assert e.value.z == pytest.approx(1.0, abs=1e-3)


@pytest.mark.spec("D1")
def test_a_jump_that_no_step_resolves_is_the_step_size_falling_to_nothing() -> None:
    def restless(z: float, x: Tensor, a: Tensor) -> Tensor:
        return torch.full_like(x, 1e9 * (1 if int(z * 1e15) % 2 else -1)) if z > 0.3 else -x

    with pytest.raises(SolveFailed, match=r"^the step size fell to nothing, got .* at z=0\.3.*\. The field is") as e:
        attempt(restless, START, (0.0, 1.0), Dopri5(), Adaptive(rtol=1e-12, atol=1e-12))
    assert e.value.z == pytest.approx(0.3, abs=1e-3)
    assert "loosen rtol and atol, or end the span before" in str(e.value)


@pytest.mark.spec("D1")
def test_more_steps_than_allowed_are_not_taken() -> None:
    field = Counted(lambda z, x, a: -50 * x + math.sin(40 * z))
    with pytest.raises(SolveFailed, match=r"^the solve did not end within max_steps, got \d+ accepted and") as e:
        attempt(field, START, (0.0, 10.0), Dopri5(), Adaptive(max_steps=20))
    assert 0 < e.value.z < 10
    assert "Raise max_steps, or loosen rtol and atol." in str(e.value)
    assert field.calls <= 2 + 20 * 6
    path = attempt(field, START, (0.0, 10.0), Dopri5(), Adaptive(max_steps=20), throw=False, save=SaveAt(1))
    assert "max_steps" in path.status
    assert path.z[-1] == pytest.approx(e.value.z)
    assert torch.equal(path.final, path.x[-1])
