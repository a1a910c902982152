"""What estimators say of a score: measured on series that were held out, or on those that were trained on."""

from typing import Any

import numpy as np
import pytest

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
