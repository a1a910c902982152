"""What estimators say of a score: measured on series that were held out, or on those that were trained on."""

from typing import Any

import numpy as np
import pytest

from continua.errors import ConfigError
from continua.estimators import ContinuaClassifier, ContinuaForecaster, SeriesSettings, base
from continua.training.progress import Bar, Progress

SERIES = np.random.default_rng(0).normal(size=(8, 6))
TINY = {"d": 8, "heads": 2, "depth": 1, "steps": 5, "random_state": 0, "verbose": 1}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Progress]:
    """What the bar is told, without waiting for five seconds."""
    told: list[Progress] = []
    monkeypatch.setattr(base, "QUIET", -1.0)
    monkeypatch.setattr(Bar, "__call__", lambda self, at: told.append(at))
    return told


@pytest.mark.finding("S13")
@pytest.mark.parametrize(
    ("held_out", "word"), [(0.0, "training loss"), (0.25, "held-out loss"), (0.01, "training loss")]
)
@pytest.mark.parametrize("kind", [ContinuaClassifier, ContinuaForecaster])
def test_a_loss_is_called_held_out_only_where_series_were(
    kind: Any, held_out: float, word: str, shown: list[Progress]
) -> None:
    """A share too small to hold one series out holds none."""
    kind(**TINY, settings=SeriesSettings(held_out=held_out)).fit(SERIES, np.arange(8) % 2)
    names = {name for at in shown for name in at.scores}
    assert names == {word}


@pytest.mark.spec("B4")
def test_a_stem_is_chosen_on_held_out_series_and_kept(tmp_path) -> None:
    """Both ways are tried where the setting is left open; what was chosen is saved with the estimator."""
    draw = np.random.default_rng(1)
    times = np.sort(24 * draw.random((12, 20)), 1)
    kind = np.arange(12) % 2
    values = np.sin((0.4 + 1.0 * kind[:, None]) * times)
    settings = SeriesSettings(stem=None, clock=True, lr=1e-2, unit=1.0)
    model = ContinuaClassifier(**{**TINY, "steps": 8, "verbose": 0}, settings=settings).fit(values, kind, times=times)
    assert model.stem_ in ((), (2, 2, 2))
    fixed = ContinuaClassifier(**{**TINY, "verbose": 0}, settings=SeriesSettings(stem=(2, 2), clock=True, unit=1.0))
    fixed.fit(values, kind, times=times)
    again = ContinuaClassifier.load(fixed.save(tmp_path / "kept"))
    assert again.stem_ == (2, 2)
    late = values[:, 3:], times[:, 3:]  # the clock goes on counting from the first stamp of fit
    assert np.array_equal(again.predict_proba(late[0], times=late[1]), fixed.predict_proba(late[0], times=late[1]))
    assert again.scale_.origin == times.min()


@pytest.mark.spec("B4")
def test_a_forecaster_has_no_stem() -> None:
    with pytest.raises(ConfigError, match="stems and clocks"):
        ContinuaForecaster(**TINY, settings=SeriesSettings(stem=(2,))).fit(SERIES)
