"""Irregular series: what a model is told of them, convolution in real time, quantiles, and the three tasks."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import continua as ct
from continua.axes import Depths, Points, Times
from continua.data.augmentation import Change, drawing, ending, scattered, stretch
from continua.data.ragged import Ragged
from continua.errors import ConfigError, GridError
from continua.estimators.settings import SeriesSettings, Size, classifier, forecaster
from continua.fields import counted
from continua.models import Observations, Readout, Transformer
from continua.models.build import discrete_axes, pre_norm
from continua.operators import LayerNorm, Pointwise
from continua.operators.convolution import Convolution, fit
from continua.tasks.forecasting import Answers, Asked, Filling, Quantiles, question
from continua.tasks.series import Classes, Scale
from continua.tasks.task import Task, generator_for
from tests.measure import gap, random
from tests.refusals import refused

EXACT = 1e-12  # float64 round-off
SMALL = Size(d=8, heads=2, depth=1)


def ragged() -> Ragged:
    """Three series of 6, 4 and 1 points with two channels, one value missing."""
    values = [np.stack([np.arange(n) + 1.0, 10.0 - np.arange(n)], -1) for n in (6, 4, 1)]
    values[0][2, 1] = np.nan
    return Ragged.of(values, [np.array([0.0, 1.0, 2.5, 3.0, 7.0, 8.0]), np.arange(4.0) + 100.0, np.array([5.0])])


def scale_of(series: Ragged, **choices) -> Scale:
    return Scale.of(series, **choices)


# --- what a model is told --------------------------------------------------------------------------------------------


@pytest.mark.spec("B4", "M4")
def test_series_are_padded_and_their_clock_starts_at_the_first_stamp() -> None:
    series = ragged()
    assert series.times.shape == (3, 6)
    assert series.present.sum(-1).tolist() == [6, 4, 1]
    assert series.start.tolist() == [0.0, 100.0, 5.0]
    assert series.end.tolist() == [8.0, 3.0, 0.0]
    assert series.seen[0, 2].tolist() == [True, False]
    assert series.spacing == 1.0


@pytest.mark.spec("B4")
def test_every_form_of_the_same_series_reads_the_same() -> None:
    x = np.array([[1.0, 2.0, 3.0], [4.0, np.nan, 6.0]])
    forms = [x, x[..., None], [x[0], x[1]], [[1.0, 2.0, 3.0], [4.0, np.nan, 6.0]], [x[0], np.array([4.0, np.nan, 6.0])]]
    first, *others = (Ragged.of(form) for form in forms)
    for other in others:
        assert torch.equal(first.values, other.values)
        assert torch.equal(first.times, other.times)
    days = np.array(["2020-01-01", "2020-01-02", "2020-01-04"], dtype="datetime64[D]")
    assert Ragged.of(x, days).times[0].tolist() == [0.0, 86400.0, 259200.0]


@pytest.mark.spec("B4")
def test_a_large_clock_loses_no_digits() -> None:
    """Stamps are seconds since 1970; float32 would be wrong by a minute."""
    stamps = 1.6e9 + np.array([0.0, 1.0, 2.0, 5.0])
    told = scale_of(Ragged.of([np.arange(4.0)], [stamps])).told(Ragged.of([np.arange(4.0)], [stamps]))
    assert told.times[0].tolist() == [0.0, 1.0, 2.0, 5.0]


@pytest.mark.spec("B4")
def test_points_tell_values_flags_ages_and_periods() -> None:
    series = ragged()
    scale = scale_of(series, periods=(24.0,))
    told = scale.told(series)
    assert told.values.shape == (3, 6, scale.features) == (3, 6, 8)
    assert told.values[0, 2, 2:4].tolist() == [1.0, 0.0]  # the second channel is missing there
    assert told.values[0, 2, 5].item() == pytest.approx(np.log1p(1.5))  # and was last seen 1.5 before
    known = series.values[..., 0][series.seen[..., 0]]
    assert told.values[0, 3, 0].item() == pytest.approx((4.0 - known.mean()) / known.std(correction=0))
    wave = told.values[1, 0, 6:]
    assert wave.tolist() == pytest.approx([np.sin(2 * np.pi * 100 / 24), np.cos(2 * np.pi * 100 / 24)], abs=1e-6)


@pytest.mark.spec("B4")
def test_padding_and_missing_points_change_no_answer() -> None:
    """A series beside longer ones, or with empty points between, is the series alone."""
    long = [np.sin(np.arange(9.0)), np.cos(np.arange(5.0))]
    holed = np.full(9, np.nan)
    holed[[0, 2, 4, 6, 8]] = long[1]
    model = classifier(scale_of(Ragged.of(long)), 3, SMALL, SeriesSettings()).double().eval()
    scale = scale_of(Ragged.of(long))
    alone = model(scale.told(Ragged.of(long[1:])))
    assert gap(model(scale.told(Ragged.of(long)))[1:], alone) <= EXACT
    spread = Ragged.of([long[0], holed], np.arange(9.0) / 2)
    alone = model(scale.told(Ragged.of(long[1:], np.arange(5.0))))
    assert gap(model(scale.told(spread))[1:], alone) <= EXACT


# --- convolution -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("B4", "M4")
def test_local_fits_find_value_slope_and_curvature_on_irregular_stamps() -> None:
    stamps = (6.0 * random(1, 60, low=0.0)).sort(-1).values[0]
    grid = ct.Samples().on(Times(), stamps)
    matrices = fit(grid, 0.8, 2)
    assert gap(matrices[:, 0].sum(-1), torch.ones(60).double()) <= EXACT  # a constant is that constant
    assert gap(matrices[:, 1:].sum(-1), torch.zeros(60, 2).double()) <= EXACT
    line = matrices @ stamps
    ridge = 3e-2  # slopes of a line up to the ridge, 1e-3 of a window's mass; most at the ends, where windows are cut
    assert gap(line[:, 1], torch.full((60,), 0.8).double()) < ridge * 0.8
    inside = (stamps > 1) & (stamps < 5)
    bend = (matrices @ stamps**2)[inside, 2]  # t² = … + He₂(u)/√2 · √2 r²
    assert gap(bend, torch.full_like(bend, 2**0.5 * 0.64)) < ridge * 2


@pytest.mark.spec("B4")
def test_on_counted_tokens_far_from_the_ends_it_is_a_depthwise_convolution() -> None:
    axes, native = discrete_axes(4, 1, 8, 1)
    torch.manual_seed(0)
    operator = Convolution(counted(axes, 1), (0.5,), degree=1).double()
    grid = native.grids(axes)
    tokens = ct.axes.grid.counting(21, torch.zeros((), dtype=torch.float64))
    f, args = operator.bind(replace(grid, t=tokens, z=Depths((0.0,))))
    x = random(2, 21, 4)
    u = torch.arange(-5, 6).double() / 0.5
    window = (-0.5 * u * u).exp()
    window = window / window.sum()
    slope = u * window / ((u * u * window).sum() + 1e-3)
    kernels = [field.coefficients.detach() for field in operator.kernel]
    weight = window[:, None] * kernels[0][0] + slope[:, None] * kernels[1][0]
    plain = torch.nn.functional.conv1d(x.mT, weight.T[:, None], padding=5, groups=4).mT
    middle = slice(6, 15)  # beyond it the window is cut off
    assert gap(f(0.0, x, args)[:, middle], plain[:, middle]) < 1e-10  # the tails beyond ten radii are left out


@pytest.mark.spec("B4", "M8")
def test_refining_the_stamps_converges() -> None:
    """One function read at ever more irregular stamps: the fit around a fixed time settles."""

    def at_one(count: int) -> torch.Tensor:
        u = (torch.arange(count).double() + 0.5) / count
        stamps = torch.cat([3 * (u + 0.1 * torch.sin(2 * torch.pi * u) / torch.pi), torch.tensor([1.0]).double()])
        grid = ct.Samples().on(Times(0.0, 3.0), stamps)
        return (fit(grid, 0.4, 2) @ (2 * stamps).sin())[-1]

    finest = at_one(1600)
    errors = [gap(at_one(n), finest) for n in (25, 100, 400)]
    assert errors[2] < errors[1] / 4 < errors[0] / 4
    assert errors[2] < 1e-3


@pytest.mark.spec("B4")
def test_convolution_refuses_what_it_cannot_do() -> None:
    axes, _ = discrete_axes(4, 1, 8, 1)
    with refused(ConfigError, "()", "radii"):
        Convolution(counted(axes, 1), ())
    with refused(ConfigError, "-1", "degree"):
        Convolution(counted(axes, 1), (1.0,), degree=-1)
    with refused(GridError, "2-dimensional", "window"):
        fit(ct.Grid(torch.zeros(3, 2).double(), torch.ones(3).double()), 1.0, 2)


@pytest.mark.spec("B4")
def test_models_with_convolution_store_and_differentiate(tmp_path) -> None:
    series = ragged()
    scale = scale_of(series)
    model = classifier(scale, 3, SMALL, SeriesSettings()).double()
    again = ct.load(model.save(tmp_path))
    assert torch.equal(again(scale.told(series)), model(scale.told(series)))
    model(scale.told(series)).square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    assert model.at(d=6, z=2)(scale.told(series)).shape == (3, 3)


# --- changes ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B4")
@pytest.mark.parametrize("change", [Change(thin=0.9), Change(gap=0.9), Change(thin=0.5, gap=0.5)], ids=str)
def test_thinned_series_keep_a_point_and_lose_none_of_their_times(change) -> None:
    series = ragged()
    seen = set()
    for step in range(20):
        changed = change(series, generator_for("test", step))
        assert (changed.present.sum(-1) >= 1).all()
        told = scale_of(series).told(changed)
        assert torch.isfinite(told.values).all()  # padding too: others may read it
        assert (told.times.diff(dim=-1) >= 0).all()
        for i in range(3):
            kept = changed.times[i][changed.present[i]].tolist()
            assert kept == sorted(kept)
            assert set(kept) <= set(series.times[i][series.present[i]].tolist())
        seen.add(int(changed.present.sum()))
    assert len(seen) > 1


@pytest.mark.spec("B4")
def test_points_are_picked_scattered_in_a_row_or_at_the_end() -> None:
    series, draw = ragged(), drawing(generator_for("pick"))
    many = torch.tensor([[3], [2], [0]])
    for picked in (scattered(series, many, draw), stretch(series, many, draw), ending(series, many)):
        assert (picked & series.present).sum(-1).tolist() == [3, 2, 0]
    in_a_row = stretch(series, many, draw)[0].nonzero()[:, 0]
    assert in_a_row.diff().tolist() == [1, 1]
    assert ending(series, many)[0].nonzero()[:, 0].tolist() == [3, 4, 5]


@pytest.mark.spec("B4")
def test_rolling_keeps_the_values_and_trends_are_straight() -> None:
    series = Ragged.of(random(4, 10).numpy())
    rolled = Change(wrap=0.5)(series, generator_for("roll"))
    assert gap(rolled.values.sort(1).values, series.values.sort(1).values) == 0
    assert gap(rolled.values, series.values) > 0
    bent = Change(trend=1.0)(series, generator_for("trend")).values - series.values
    assert gap(bent.diff(n=2, dim=1), torch.zeros(4, 8, 1).double()) <= EXACT
    ratio = Change(stretch=0.2)(series, generator_for("stretch")).values / series.values
    assert gap(ratio, ratio[:, :1].expand_as(ratio)) <= EXACT
    assert ((ratio > 0.8) & (ratio < 1.2)).all()
    with refused(ConfigError, "1.0", "thin"):
        Change(thin=1.0)


# --- quantiles -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B4")
def test_quantiles_never_cross() -> None:
    levels = Quantiles((0.05, 0.25, 0.5, 0.95))
    found = levels.read(100 * random(3, 4, 2 * 5), random(3, 4, 2))
    assert found.shape == (3, 4, 2, 4)
    assert (found.diff(dim=-1) >= 0).all()
    with refused(ConfigError, "(0.5, 0.1)", "(0.1, 0.5, 0.9)"):
        Quantiles((0.5, 0.1))
    with refused(ConfigError, "(0.0, 0.5)", "(0.1, 0.5, 0.9)"):
        Quantiles((0.0, 0.5))


@pytest.mark.spec("B4")
def test_the_pinball_loss_is_least_at_the_quantiles_of_the_data() -> None:
    levels = Quantiles((0.1, 0.5, 0.9))
    data = random(4001, low=0.0)
    best = torch.quantile(data, torch.tensor(levels.levels).double())

    def loss(quantiles: torch.Tensor) -> float:
        return float(levels.pinball(quantiles.expand(len(data), 3), data).mean())

    for i in range(3):
        for step in (-0.05, 0.05):
            moved = best.clone()
            moved[i] += step
            assert loss(moved) > loss(best)


@pytest.mark.spec("B4")
def test_guesses_are_straight_lines_inside_and_the_nearest_outside() -> None:
    series = Ragged.of([np.array([0.0, 4.0])], [np.array([0.0, 4.0])])
    scale = Scale((0.0,), (1.0,), 1.0)
    asked = torch.tensor([[1.0, 6.0, -2.0]]).double()
    features = question(scale, series, asked).values[0]
    assert features[:, 0].tolist() == [1.0, 4.0, 0.0]
    assert features[:, 1].tolist() == pytest.approx([np.log1p(1.0), np.log1p(2.0), np.log1p(2.0)])


# --- tasks -----------------------------------------------------------------------------------------------------------


def waves(count: int = 24, points: int = 14) -> tuple[Ragged, torch.Tensor]:
    """Slow and fast waves at random stamps."""
    generator = generator_for("waves")
    stamps = (points * torch.rand(count, points, generator=generator).double()).sort(-1).values
    kind = torch.arange(count) % 2
    values = ((0.5 + 1.5 * kind[:, None]) * stamps + 6 * torch.rand(count, 1, generator=generator)).sin()
    return Ragged.of(values.numpy(), stamps.numpy()), kind


@pytest.mark.spec("B4", "T9")
def test_waves_are_told_apart_whatever_their_stamps() -> None:
    series, kind = waves()
    scale = scale_of(series)
    task = Classes(series, kind, scale, change=Change(thin=0.3))
    assert isinstance(task, Task)
    model = classifier(scale, 2, Size(16, 2, 1), SeriesSettings())
    ct.fit(model, task, steps=80, evaluate_every=80, watch=lambda at: None, optimiser=fast())
    assert task.evaluate(model).values["accuracy"] > 0.9


def fast() -> ct.optim.ByRole:
    return ct.optim.ByRole(ct.optim.AdamW(1e-2))


@pytest.mark.spec("B4", "A8")
@pytest.mark.parametrize("kind", ["answers", "filling"])
def test_forecasting_and_filling_in_learn(kind) -> None:
    series, _ = waves(16, 12)
    scale, levels = scale_of(series), Quantiles()
    if kind == "answers":
        cut = series.keep(torch.arange(12).expand(16, 12) < 10)
        task: Task = Answers(cut, Asked(series.times[:, 10:], series.values[:, 10:]), scale, levels)
    else:
        task = Filling(series, scale, levels, batch=16)
    assert isinstance(task, Task)
    model = forecaster(scale, levels, SMALL, SeriesSettings())
    before = task.evaluate(model).main
    ct.fit(model, task, steps=60, evaluate_every=60, watch=lambda at: None, optimiser=fast())
    assert task.evaluate(model).main < 0.8 * before


@pytest.mark.spec("B4", "T9")
def test_examples_are_a_function_of_seed_and_step() -> None:
    series, kind = waves()
    scale = scale_of(series)
    answers = Answers(series, Asked(series.times[:, -1:] + 1, series.values[:, -1:]), scale, batch=4)
    for task in (Classes(series, kind, scale, 4, Change(thin=0.5)), answers, Filling(series, scale, batch=4)):
        first, again, other = task.example(1, 2), task.example(1, 2), task.example(1, 3)
        assert torch.equal(first.batch.values, again.batch.values)
        same = first.batch.values.shape == other.batch.values.shape
        assert not same or not torch.equal(first.batch.values, other.batch.values)


@pytest.mark.spec("B4")
def test_hidden_points_are_asked_for_and_not_told() -> None:
    series, _ = waves(8, 10)
    task = Filling(series, Scale((0.0,), (1.0,), 1.0), batch=16, window=6)
    example = task.example(0, 0)
    source = example.batch.source
    for i in range(16):
        present, counts = source.observed[i], example.counted[i, :, 0]
        assert counts.any()
        assert present.sum() + counts.sum() == 6
        assert not set(source.times[i][present].tolist()) & set(example.batch.times[i][counts].tolist())
        assert source.values[i, present, 0].abs().max() <= 1.0


@pytest.mark.spec("B4")
def test_answers_that_are_not_known_do_not_count() -> None:
    series, _ = waves(6, 8)
    targets = series.values[:, -2:].clone()
    targets[:, 1] = torch.nan
    task = Answers(series, Asked(series.times[:, -2:] + 1, targets), scale_of(series))
    example = task.example(0, 0)
    assert example.count == 6
    answer = torch.zeros(6, 2, 4)
    changed = answer.clone()
    changed[:, 1] = 5.0
    assert task.loss(answer, example) == task.loss(changed, example)


@pytest.mark.spec("B4")
def test_discrete_axes_serve_too() -> None:
    """Convolution beside ordinary weights: a plain Transformer of counted tokens."""
    axes, native = discrete_axes(8, 2, 16, 2)
    weights = counted(axes, 2)
    block = pre_norm((Convolution(weights, (1.0,)), Pointwise(weights)), lambda: LayerNorm(weights))
    model = Transformer(axes, native, Observations(weights.autonomous(), 1), block, Readout(weights.autonomous(), 2))
    assert isinstance(model.axes.t, Points)
    assert model(random(2, 5, 1).float()).shape == (2, 5, 2)
