"""Quantiles that are moved by held-out answers cover what they promise."""

from typing import Any

import numpy as np
import pytest

from continua.errors import CheckpointError, ConfigError
from continua.estimators import ContinuaForecaster, conformal

LEVELS = (0.1, 0.5, 0.9)
TINY: dict[str, Any] = {"d": 8, "heads": 2, "depth": 1, "steps": 3, "random_state": 0, "verbose": 0}


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles that are wrong, of a spread that changes from question to question, and answers."""
    draw = np.random.default_rng(seed)
    spread = np.exp(draw.normal(size=(count, 1, 1)))
    centre = draw.normal(size=(count, 1, 1))
    found = centre[..., None] + spread[..., None] * np.array([-0.2, 0.3, 0.5])
    return found, centre + spread * draw.standard_t(4, size=(count, 1, 1))


@pytest.mark.spec("B4")
def test_each_level_has_its_share_below_it_on_answers_that_come_later() -> None:
    found, truth = drawn(4000, 0)
    shift = conformal.shifts(found, truth, LEVELS)
    later, answers = drawn(40_000, 1)
    made = conformal.moved(later, shift)
    assert (np.diff(made, axis=-1) >= 0).all()
    for k, level in enumerate(LEVELS):
        assert abs(float((answers[..., 0] <= made[..., 0, k]).mean()) - level) < 0.015
        assert abs(float((answers[..., 0] <= later[..., 0, k]).mean()) - level) > 0.05, "they were wrong before"


@pytest.mark.spec("B4")
@pytest.mark.parametrize(("count", "outside"), [(9, 0), (19, 1), (99, 9)])
def test_no_more_is_left_out_than_promised(count: int, outside: int) -> None:
    """Of n held-out answers (n + 1) / 10 − 1 lie strictly below the level 0.1, by the rank of the bound."""
    found, truth = drawn(count, 2)
    made = conformal.moved(found, conformal.shifts(found, truth, LEVELS))
    inside = 1e-9 * np.abs(made)
    assert int((truth[..., 0] < made[..., 0, 0] - inside[..., 0, 0]).sum()) == outside
    assert int((truth[..., 0] > made[..., 0, -1] + inside[..., 0, -1]).sum()) == outside


def histories(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    walk = draw.normal(size=(count, 9)).cumsum(1)
    return walk[:, :8], walk[:, 8]


@pytest.mark.spec("B4")
def test_an_estimator_is_calibrated_saved_and_calibrated_anew(tmp_path) -> None:
    x, y = histories(40, 0)
    model = ContinuaForecaster(**TINY).fit(x, y)
    plain = model.predict_quantiles(x)
    held, answers = histories(300, 1)
    assert model.calibrate(held, answers) is model
    later, truth = histories(1000, 2)
    found = model.predict_quantiles(later)[:, 0, 0]
    cover = float(((found[:, 0] <= truth) & (truth <= found[:, 2])).mean())
    assert 0.75 < cover < 0.87
    assert model.predict(later).shape == (1000,), "what predict answers is what fit was given"
    loaded = ContinuaForecaster.load(model.save(tmp_path / "kept"))
    assert np.array_equal(loaded.predict_quantiles(later), model.predict_quantiles(later))
    again = model.calibrate(held, answers).predict_quantiles(later)[:, 0, 0]
    assert np.array_equal(again, found), "a second call replaces the first"
    assert np.array_equal(model.fit(x, y).predict_quantiles(x), plain), "a new fit starts anew"


@pytest.mark.spec("B4")
def test_channels_without_answers_stay_and_too_few_are_refused() -> None:
    x, y = histories(20, 0)
    both = np.stack([x, x], -1)
    model = ContinuaForecaster(**TINY).fit(both, y[:, None])
    before = model.predict_quantiles(both)
    after = model.calibrate(both, y[:, None]).predict_quantiles(both)
    assert np.array_equal(after[:, :, 1], before[:, :, 1])
    assert not np.array_equal(after[:, :, 0], before[:, :, 0])
    with pytest.raises(ConfigError, match=r"more held-out answers.*got 8.*Give 9 or more"):
        model.calibrate(both[:8], y[:8, None])
    assert np.array_equal(model.predict_quantiles(both), after), "nothing is lost"


@pytest.mark.spec("B4")
def test_a_calibration_of_other_levels_is_refused() -> None:
    x, y = histories(20, 0)
    model = ContinuaForecaster(**TINY).fit(x, y).calibrate(x, y)
    plain = {**model._fitted(), "shift_": [[0.0, 0.0]]}
    with pytest.raises(CheckpointError, match="does not fit the quantiles"):
        model._remember(plain)
