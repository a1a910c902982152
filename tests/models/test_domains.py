"""Stamps, points and masses lie in the domain of their axis, or are refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import continua as ct
from continua.axes import Grid
from continua.errors import ConfigError, ContinuaError, GridError
from continua.models import Batch
from tests.measure import gap, random, stirred
from tests.models.test_time_is_exact import series
from tests.refusals import refused

FOUR = ct.Interval(0.0, 4.0)
OUTSIDE = {
    "behind the end": (FOUR, [3.0, 3.8, 4.6, 5.4, 6.2], "got 6.2", "Widen the axis"),
    "before the start": (FOUR, [-0.5, 1.0], "got -0.5", "Widen the axis"),
    "Times with a start": (ct.Times(start=10.0), [9.0, 12.0], "got 9", "Widen the axis"),
    "Times with an end": (ct.Times(end=10.0), [9.0, 12.0], "got 12", "Widen the axis"),
    "more than a turn": (ct.Circle(1.0), [0.0, 0.4, 1.7], "span 1.7", "modulo 1"),
    "a turn from below zero": (ct.Circle(1.0), [-0.6, 0.0, 0.9], "span 1.5", "modulo 1"),
}


@pytest.mark.finding("S2")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("axis", "stamps", "got", "remedy"), OUTSIDE.values(), ids=OUTSIDE)
def test_stamps_outside_the_domain_are_refused(
    axis: Any, stamps: list[float], got: str, remedy: str, dtype: torch.dtype
) -> None:
    times = torch.tensor(stamps, dtype=dtype)
    with refused(GridError, got, remedy):
        ct.Samples().on(axis, times)
    model = series(t=axis)
    batch = Batch(random(2, len(stamps), 2).float(), times=torch.stack([times.clamp(1, 1), times]))
    if isinstance(axis, ct.Times):
        batch = replace(batch, times=times)
    with refused(GridError, got, remedy):
        model(batch)
    model.check = False
    assert model(batch).shape == (2, len(stamps), 3)
    assert model.check is False


@pytest.mark.finding("S2")
def test_points_outside_a_box_are_refused() -> None:
    pytest.importorskip("scipy")
    box = ct.Product((ct.Interval(), ct.Circle()))
    for bad in ([1.2, 0.5], [0.5, 1.4], [-0.2, 0.5]):
        points = torch.tensor([[0.1, 0.1], [0.9, 0.2], [0.4, 0.8], bad], dtype=torch.float64)
        with refused(GridError, "a point outside", "Enlarge"):
            ct.Samples().on(box, points)


@pytest.mark.finding("S2")
def test_what_lies_on_the_end_or_is_absent_is_taken() -> None:
    grid = ct.Samples().on(ct.Interval(0.0, 0.3), torch.tensor([0.0, 0.1, 0.3]))  # 0.3 in float32 lies above 0.3
    assert bool((grid.weights >= 0).all())
    assert grid.mass.item() == pytest.approx(0.3)
    turn = ct.Samples().on(ct.Circle(1.0), torch.linspace(0, 1, 5, dtype=torch.float64))
    assert turn.weights.tolist() == pytest.approx([0.125, 0.25, 0.25, 0.25, 0.125])
    shifted = ct.Samples().on(ct.Circle(1.0), torch.tensor([-0.3, 0.1, 0.6], dtype=torch.float64))
    assert shifted.mass.item() == pytest.approx(1.0)
    there = torch.tensor([True, False, True])
    absent = ct.Samples().on(FOUR, torch.tensor([1.0, 99.0, 3.0]), there)
    assert absent.mass.item() == pytest.approx(4.0)


@pytest.mark.finding("S11")
@pytest.mark.parametrize("wrong", [-1.0, 0.0, float("nan"), float("inf"), -float("inf")])
def test_the_mass_of_an_axis_is_finite_and_positive(wrong: float) -> None:
    for make in (
        lambda: ct.Interval(mass=wrong),
        lambda: ct.Circle(mass=wrong),
        lambda: ct.Product((ct.Interval(), ct.Interval()), mass=wrong),
    ):
        with refused(ConfigError, "got ", "mass > 0"):
            make()
    with pytest.raises(ContinuaError, match=r"length=1\.0"):
        ct.Circle(length=wrong)


@pytest.mark.finding("S11")
def test_the_ends_of_an_axis_are_finite_and_in_order() -> None:
    for start, end in ((0.0, float("inf")), (float("nan"), 1.0), (-float("inf"), 0.0)):
        for axis in (ct.Interval, ct.Times):
            with pytest.raises(ContinuaError, match="a finite number"):
                axis(start, end)
    with refused(GridError, "got (1.0, 0.0)", "Swap the two ends"):
        ct.Times(1.0, 0.0)


@pytest.mark.finding("S11")
@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_weights_of_a_given_grid_are_finite_and_not_negative(wrong: float) -> None:
    nodes = torch.arange(4.0)[:, None]
    weights = torch.tensor([1.0, wrong, 1.0, 1.0])
    values = random(1, 4, 2).float()
    with refused(GridError, f"got {wrong:g}", "from zero up"):
        series()(Batch(values, grid=Grid(nodes, weights, torch.ones(4) / 2)))
    nodes[1] = torch.nan
    with refused(GridError, "NaN or infinity", "finite node"):
        series()(Batch(values, grid=Grid(nodes, torch.ones(4), torch.ones(4) / 2)))


@pytest.mark.finding("S2")
def test_questions_may_lie_beyond_the_domain() -> None:
    """They have no values; the domain then reaches as far as they do, and no weight is negative."""
    grid = ct.Samples().on(FOUR, torch.tensor([1.0, 3.0, 6.0]), beyond=True)
    assert grid.weights.tolist() == pytest.approx([2.0, 2.5, 1.5])
    model = ct.zoo.forecaster(2, at=ct.at(d=8, h=2, z=1), t=FOUR, self_attention=True)
    history = Batch(random(1, 3, 2).float(), times=[0.0, 1.0, 2.0])
    assert model(Batch(times=[3.0, 6.0], source=history)).shape == (1, 2, 2)
    with refused(GridError, "got 6", "Widen the axis"):
        model(Batch(times=[3.0], source=replace(history, times=torch.tensor([0.0, 1.0, 6.0]))))


@pytest.mark.finding("S1")
@torch.no_grad()
def test_one_question_a_sample_is_asked_of_its_own_source() -> None:
    """[b, 1] are b questions, one for each source, not b questions to all of them."""
    model = stirred(ct.zoo.forecaster(2, at=ct.at(d=8, h=2, z=1))).eval()
    source = Batch(random(3, 4, 2), times=torch.arange(4.0).double())
    asked = torch.tensor([[5.0], [6.0], [7.0]], dtype=torch.float64)
    answer = model(Batch(times=asked, source=source))
    assert answer.shape == (3, 1, 2)
    alone = model(Batch(times=asked[2:], source=Batch(source.values[2:], times=source.times)))  # type: ignore[index]
    assert gap(answer[2:], alone) < 1e-12


@pytest.mark.finding("S1")
def test_equal_points_of_a_plane_share_their_cell_in_any_order() -> None:
    pytest.importorskip("scipy")
    box = ct.Product((ct.Interval(), ct.Interval()))
    points = torch.tensor([[0.2, 0.3], [0.8, 0.4], [0.2, 0.3], [0.5, 0.9], [0.2, 0.3]], dtype=torch.float64)
    weights = ct.Samples().on(box, points).weights
    assert weights[0] == weights[2] == weights[4]
    assert weights.sum().item() == pytest.approx(1.0)
    order = torch.tensor([4, 3, 0, 1, 2])
    assert torch.equal(ct.Samples().on(box, points[order]).weights, weights[order])
