"""What is wrong with series is said in one sentence with a remedy, or mended with a warning."""

import numpy as np
import pytest
import torch

from continua.data.ragged import Ragged
from continua.errors import CheckpointError, ConfigError, ContinuaError, GridError, ShapeError
from continua.estimators import ContinuaClassifier, ContinuaForecaster, SeriesSettings
from continua.tasks.forecasting import Filling
from continua.tasks.series import Classes, Scale
from tests.refusals import refused

TINY = {"d": 8, "heads": 2, "depth": 1, "steps": 2, "verbose": 0, "random_state": 0}
LINES = np.arange(24.0).reshape(4, 6)


def classifier() -> ContinuaClassifier:
    return ContinuaClassifier(**TINY)


@pytest.mark.spec("B4")
def test_empty_series_are_refused() -> None:
    with refused(ShapeError, "none in series 1", "Drop empty series"):
        Ragged.of([np.arange(3.0), np.array([])])
    with refused(ShapeError, "none in series 0", "Drop empty series"):
        Ragged.of([np.array([np.nan, np.nan])])
    with refused(ShapeError, "none", "one series or more"):
        Ragged.of([])


@pytest.mark.spec("B4")
def test_a_single_point_is_a_series() -> None:
    fitted = classifier().fit([[1.0], [2.0, 3.0], [5.0]], ["a", "b", "a"])
    assert np.isfinite(fitted.predict_proba([[1.0]])).all()
    answers = ContinuaForecaster(**TINY).fit([[1.0], [2.0, 3.0]], [2.0, 4.0]).predict([[1.0]])
    assert answers.shape == (1,)
    assert np.isfinite(answers).all()
    with refused(ConfigError, "one point", "longer series"):
        ContinuaForecaster(**TINY).fit([[1.0], [2.0]])


@pytest.mark.spec("B4")
def test_a_channel_that_was_never_seen_is_refused_in_fit_and_bridged_in_predict() -> None:
    values = np.stack([LINES, np.full_like(LINES, np.nan)], -1)
    with refused(ShapeError, "channel 1", "Drop the channel"):
        classifier().fit(values, [0, 1, 0, 1])
    both = np.stack([LINES, LINES], -1)
    assert np.isfinite(classifier().fit(both, [0, 1, 0, 1]).predict_proba(values)).all()
    answered = ContinuaForecaster(**TINY).fit(both, LINES[:, :1]).predict_quantiles(values)
    assert np.isfinite(answered).all()


@pytest.mark.spec("B4")
def test_stamps_in_another_unit_are_refused() -> None:
    stamps = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 1e9])
    with refused(GridError, "a jump of 1e+09", "same unit"):
        Ragged.of(LINES, stamps)
    with refused(GridError, "steps of 1 and of 1e+09", "same unit"):
        Ragged.of(LINES[:2], [np.arange(6.0), 1e9 * np.arange(6.0)])
    fitted = classifier().fit(LINES, [0, 1, 0, 1], times=np.arange(6.0))
    with refused(GridError, "1e+09 between neighbours", "Convert them"):
        fitted.predict(LINES, times=1e9 * np.arange(6.0))
    assert len(fitted.predict(LINES, times=1e9 + np.arange(6.0))) == 4  # a late start is no other unit


@pytest.mark.spec("B4")
def test_equal_stamps_are_merged_with_a_warning_where_they_disagree() -> None:
    stamps = [np.array([0.0, 1.0, 1.0, 2.0])]
    with pytest.warns(UserWarning, match="1 stamps came twice with different values in one channel; their means"):
        merged = Ragged.of([np.array([1.0, 2.0, 4.0, 5.0])], stamps)
    assert merged.values[0, :, 0].tolist() == [1.0, 3.0, 5.0]
    two = np.array([[1.0, 1.0], [2.0, np.nan], [np.nan, 7.0], [5.0, 5.0]])  # two channels told one by one: no quarrel
    merged = Ragged.of([two], stamps)
    assert merged.values[0].tolist() == [[1.0, 1.0], [2.0, 7.0], [5.0, 5.0]]


@pytest.mark.spec("B4")
def test_unsorted_stamps_are_sorted() -> None:
    order = np.array([3, 0, 2, 1])
    sorted_, mixed = Ragged.of([LINES[0, :4]]), Ragged.of([LINES[0, order]], [order.astype(float)])
    assert torch.equal(sorted_.values, mixed.values)
    assert torch.equal(sorted_.times, mixed.times)


@pytest.mark.spec("B4")
def test_times_that_are_not_known_are_refused_unless_nothing_was_seen_there() -> None:
    with refused(GridError, "NaN or infinity in series 0", "Drop the points"):
        Ragged.of([np.arange(3.0)], [np.array([0.0, np.nan, 2.0])])
    padded = Ragged.of([np.array([1.0, 2.0, np.nan])], [np.array([0.0, 1.0, np.nan])])
    assert padded.present.tolist() == [[True, True]]


@pytest.mark.spec("B4")
def test_shapes_that_do_not_fit_are_refused() -> None:
    with refused(ShapeError, "1 and 2", "same channels"):
        Ragged.of([np.zeros((3, 1)), np.zeros((3, 2))])
    with refused(ShapeError, "shape [1, 1, 1] of series 0", "[t] or [t, channels]"):
        Ragged.of([np.zeros((1, 1, 1))])
    with refused(ShapeError, "infinity in series 0", "NaN where"):
        Ragged.of([np.array([1.0, np.inf])])
    with refused(ShapeError, "in series 0", "Drop text"):
        Ragged.of([["a", "b"]])
    with refused(ShapeError, "stamps [2] for 3 points in series 0", "one stamp for each point"):
        Ragged.of([np.arange(3.0)], [np.arange(2.0)])
    with refused(ShapeError, "1 arrays", "one array of stamps for each"):
        Ragged.of([np.arange(3.0), np.arange(3.0)], [np.arange(3.0)])
    with refused(GridError, "one with none", "Keep a point"):
        Ragged.of(LINES).keep(torch.zeros(4, 6, dtype=torch.bool))


@pytest.mark.spec("B4")
def test_labels_of_unseen_classes_are_refused_in_score() -> None:
    fitted = classifier().fit(LINES, ["cat", "dog", "cat", "dog"])
    assert 0.0 <= fitted.score(LINES, ["cat", "dog", "cat", "cat"]) <= 1.0
    with refused(ConfigError, "'owl'", "fit with examples"):
        fitted.score(LINES, ["cat", "dog", "cat", "owl"])
    with refused(ConfigError, "[3]", "one label for each"):
        classifier().fit(LINES, [0, 1, 0])
    with pytest.raises(ContinuaError, match="requires y to be passed, but the target y is None"):
        classifier().fit(LINES, None)


@pytest.mark.spec("B4")
def test_estimators_refuse_what_they_were_not_fitted_for() -> None:
    fitted = classifier().fit(LINES, [0, 1, 0, 1])
    with refused(ShapeError, "2", "channels of fit"):
        fitted.predict(np.zeros((2, 6, 2)))
    with pytest.raises(ValueError, match="X has 5 features, but ContinuaClassifier is expecting 6"):
        fitted.predict(LINES[:, :5])  # without stamps nobody knows what a shorter row is
    assert len(fitted.predict(LINES[:, :5], times=np.arange(5.0))) == 4
    with refused(ShapeError, "[1, 2, 3, 1]", "[n, t]"):
        fitted.predict(np.zeros((1, 2, 3, 1)))


@pytest.mark.spec("B4")
def test_answers_that_do_not_fit_are_refused() -> None:
    def fit(y, **more) -> None:
        ContinuaForecaster(**TINY).fit(LINES, y, **more)

    with refused(ShapeError, "3", "answers of each series"):
        fit(np.zeros(3))
    with refused(ShapeError, "[4, 2, 3]", "[n, q]"):
        fit(np.zeros((4, 2, 3)))
    with refused(ShapeError, "NaN only", "observed values"):
        fit(np.full((4, 2), np.nan))
    with refused(ShapeError, "[4, 3]", "[4, q]"):
        fit(np.zeros((4, 2)), y_times=np.zeros((4, 3)))
    with refused(GridError, "NaN or infinity", "Drop these questions"):
        fit(np.zeros((4, 2)), y_times=np.array([7.0, np.nan]))
    fitted = ContinuaForecaster(**TINY).fit(LINES, LINES[:, 0])
    with refused(ShapeError, "[4, 1]", "[4]"):
        fitted.score(LINES, LINES[:, :1])


@pytest.mark.spec("B4")
def test_settings_that_make_no_sense_are_refused(tmp_path) -> None:
    with refused(ConfigError, "0", "steps ≥ 1"):
        ContinuaClassifier(**{**TINY, "steps": 0}).fit(LINES, [0, 1, 0, 1])
    with refused(ConfigError, "1.5", "held_out=0.1"):
        SeriesSettings(held_out=1.5)
    with refused(ConfigError, "-1.0", "Leave it out"):
        SeriesSettings(unit=-1.0)
    series = Ragged.of(LINES)
    with refused(ConfigError, "1.0", "share=0.5"):
        Filling(series, Scale.of(series), share=1.0)
    with refused(ConfigError, "3 labels", "one label"):
        Classes(series, torch.zeros(3).long(), Scale.of(series))
    with refused(CheckpointError, "none in", "save()"):
        ContinuaClassifier.load(tmp_path)
    ContinuaForecaster(**TINY).fit(LINES, LINES[:, 0]).save(tmp_path)
    with refused(CheckpointError, "ContinuaForecaster", "ContinuaForecaster.load"):
        ContinuaClassifier.load(tmp_path)
