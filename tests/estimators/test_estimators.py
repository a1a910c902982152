"""Estimators in the manner of scikit-learn: its own checks, and what it does not check."""

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

import continua as ct
from continua.data.augmentation import Change
from continua.errors import ConfigError
from continua.estimators import ContinuaClassifier, ContinuaForecaster, SeriesSettings
from continua.tasks.series import Classes

TINY = {"d": 8, "heads": 2, "depth": 1, "verbose": 0, "random_state": 0}
# enough training for what the checks ask of answers
CHECKED = [
    ContinuaClassifier(**TINY, steps=40, settings=SeriesSettings(lr=1e-2)),
    ContinuaForecaster(**TINY, steps=150, settings=SeriesSettings(lr=1e-2)),
]
CARELESS = "check_do_not_raise_errors_in_init_or_set_params"
QUICK = {
    "check_estimator_cloneable",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_estimators_unfitted",
    "check_fit1d",
    "check_n_features_in_after_fitting",
    "check_estimators_empty_data_messages",
}


@pytest.mark.slow(reason="some two hundred short trainings; the quick part is below")
@pytest.mark.spec("B4")
@pytest.mark.filterwarnings("ignore")  # what scikit-learn says of its own checks
@parametrize_with_checks(CHECKED)
def test_scikit_learn_checks_them(estimator, check) -> None:
    """All of its checks; none is expected to fail."""
    if name_of(check) != CARELESS:
        check(estimator)


def name_of(check: Any) -> str:
    return getattr(check, "func", check).__name__


@pytest.mark.spec("B4")
@pytest.mark.unshaped
@pytest.mark.filterwarnings("ignore")  # what scikit-learn says of its own checks
@pytest.mark.parametrize("kind", [ContinuaClassifier, ContinuaForecaster])
def test_scikit_learn_checks_careless_parameters(kind: Any) -> None:
    """Parameters of any type are taken and refused by fit; where types are checked they are refused before."""
    getattr(estimator_checks, CARELESS)(kind.__name__, kind())


@pytest.mark.spec("B4")
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([ContinuaClassifier(**TINY, steps=2), ContinuaForecaster(**TINY, steps=2)])
def test_scikit_learn_checks_the_quick_part(estimator, check) -> None:
    """Those that need little or no training."""
    if name_of(check) in QUICK:
        check(estimator)


def waves(count: int = 12, points: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Slow and fast waves at irregular stamps, a tenth of the values missing."""
    draw = np.random.default_rng(0)
    stamps = np.sort(points * draw.random((count, points)), 1)
    kind = np.arange(count) % 2
    values = np.sin((0.5 + 1.5 * kind[:, None]) * stamps + 6 * draw.random((count, 1)))
    values[draw.random(values.shape) < 0.1] = np.nan
    return values, stamps, np.array(["slow", "fast"])[kind]


def fitted(steps: int = 4, **more: Any) -> ContinuaClassifier:
    values, stamps, kind = waves()
    return ContinuaClassifier(**TINY, steps=steps, **more).fit(values, kind, times=stamps)


@pytest.mark.spec("B4", "T9")
def test_the_same_seed_gives_the_same_numbers() -> None:
    values, stamps, _ = waves()
    first, again = fitted(), fitted()
    assert np.array_equal(first.predict_proba(values, times=stamps), again.predict_proba(values, times=stamps))
    other = clone(first).set_params(random_state=1).fit(values, waves()[2], times=stamps)
    assert not np.array_equal(first.predict_proba(values, times=stamps), other.predict_proba(values, times=stamps))


@pytest.mark.spec("B4")
def test_torchs_own_generator_is_left_alone() -> None:
    """What was drawn before or is drawn after a fit does not depend on it."""
    values, stamps, _ = waves()
    torch.manual_seed(1)
    first = fitted().predict_proba(values, times=stamps)
    torch.manual_seed(2)
    assert np.array_equal(first, fitted().predict_proba(values, times=stamps))


@pytest.mark.spec("B4", "M10")
def test_a_finer_or_thinner_sampling_of_the_same_curve_answers_nearly_the_same() -> None:
    """Trained at 20 points; read at 20, 40 and 80 of the same smooth curves."""
    draw = np.random.default_rng(0)
    phase, kind = 6 * draw.random((40, 1)), np.arange(40) % 2

    def curves(points: int) -> tuple[np.ndarray, np.ndarray]:
        t = np.linspace(0, 10, points)
        return np.sin((0.6 + 1.2 * kind[:, None]) * t + phase), t

    x, t = curves(20)
    model = ContinuaClassifier(**{**TINY, "d": 16}, steps=60, settings=SeriesSettings(lr=1e-2)).fit(x, kind, times=t)
    assert model.score(x, kind, times=t) > 0.9
    for points in (40, 80):
        finer, times = curves(points)
        assert model.score(finer, kind, times=times) > 0.9
    x[np.random.default_rng(1).random(x.shape) < 0.3] = np.nan
    assert model.score(x, kind, times=t) > 0.75


@pytest.mark.spec("B4")
def test_lists_arrays_and_padding_are_the_same_series() -> None:
    values, stamps, kind = waves()
    model = fitted()
    wanted = model.predict_proba(values, times=stamps)
    lists = [v[np.isfinite(v)] for v in values], [t[np.isfinite(v)] for v, t in zip(values, stamps, strict=True)]
    assert np.abs(model.predict_proba(lists[0], times=lists[1]) - wanted).max() < 1e-12
    padded = np.concatenate([values, np.full((12, 3), np.nan)], 1), np.concatenate([stamps, np.zeros((12, 3))], 1)
    assert np.abs(model.predict_proba(padded[0], times=padded[1]) - wanted).max() < 1e-12
    assert np.abs(model.predict_proba(values[..., None], times=stamps) - wanted).max() < 1e-12
    assert set(kind) == set(model.classes_)


@pytest.mark.spec("B4")
def test_saved_and_pickled_estimators_predict_the_same(tmp_path) -> None:
    values, stamps, _ = waves()
    settings = SeriesSettings(change=Change(thin=0.2), periods=(24.0,))
    model = fitted(settings=settings)
    wanted = model.predict_proba(values, times=stamps)
    loaded = ContinuaClassifier.load(model.save(tmp_path))
    assert np.array_equal(loaded.predict_proba(values, times=stamps), wanted)
    assert loaded.settings == settings
    assert loaded.predict(values, times=stamps).tolist() == model.predict(values, times=stamps).tolist()
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(values, times=stamps), wanted)
    answers = ContinuaForecaster(**TINY, steps=2).fit(values, values[:, :2], times=stamps, y_times=stamps[:, -2:] + 1)
    loaded = ContinuaForecaster.load(answers.save(tmp_path / "f"))
    assert np.array_equal(
        loaded.predict_quantiles(values, times=stamps), answers.predict_quantiles(values, times=stamps)
    )


@pytest.mark.spec("B4")
def test_they_work_inside_scikit_learn() -> None:
    values, _, kind = waves()
    pipeline = make_pipeline(ContinuaClassifier(**TINY, steps=2))
    assert len(cross_val_score(pipeline, values, kind, cv=2)) == 2


# --- forecasting -----------------------------------------------------------------------------------------------------


def sines(count: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Histories of 12 irregular points over ten units, and their stamps."""
    draw = np.random.default_rng(0)
    stamps = np.sort(10 * draw.random((count, 12)), 1)
    return np.sin(stamps + 6 * draw.random((count, 1))), stamps


@pytest.mark.spec("B4", "A8")
def test_quantiles_are_ordered_at_any_times_and_shapes_are_as_asked() -> None:
    x, t = sines()
    model = ContinuaForecaster(**TINY, steps=3).fit(x, x[:, :2], times=t, y_times=t[:, -2:] + 1.0)
    found = model.predict_quantiles(x[:5], times=t[:5], at=np.linspace(0.0, 12.0, 7))
    assert found.shape == (5, 7, 1, 3)
    assert (np.diff(found, axis=-1) >= 0).all()
    assert model.predict(x[:5], times=t[:5]).shape == (5, 2)
    assert model.predict(x[:5], times=t[:5], at=[11.0]).shape == (5, 1)
    both = ContinuaForecaster(**TINY, steps=3).fit(np.stack([x, x], -1), times=t)
    assert both.predict(np.stack([x, x], -1), times=t, at=[3.0, 4.0]).shape == (24, 2, 2)


@pytest.mark.spec("B4", "A8")
def test_questions_do_not_see_each_other_and_the_clock_does_not_matter() -> None:
    x, t = sines(6)
    model = ContinuaForecaster(**TINY, steps=3).fit(x, x[:, 0], times=t)
    together = model.predict(x, times=t, at=[4.0, 11.0])
    alone = np.concatenate([model.predict(x, times=t, at=[when]) for when in (4.0, 11.0)], 1)
    assert np.abs(together - alone).max() < 1e-12
    later = model.predict(x, times=t + 1024.0, at=[1028.0, 1035.0])  # a power of two: stamps lose no digit
    assert np.abs(together - later).max() < 1e-5  # stamps are told in float32


@pytest.mark.spec("B4")
def test_without_answers_it_learns_to_fill_in() -> None:
    x, t = sines(32)
    model = ContinuaForecaster(**{**TINY, "d": 16}, steps=120, settings=SeriesSettings(lr=1e-2)).fit(x, times=t)
    hidden = x.copy()
    hidden[:, 5:7] = np.nan
    found = model.predict(hidden, times=t, at=t[:, 5:7])
    line = np.stack([np.interp(s[5:7], np.delete(s, [5, 6]), np.delete(v, [5, 6])) for s, v in zip(t, x, strict=True)])
    assert np.abs(found - x[:, 5:7]).mean() < np.abs(line - x[:, 5:7]).mean()


@pytest.mark.spec("B4")
def test_answers_of_another_scale_are_learned_and_unknown_ones_left_out() -> None:
    x, t = sines(24)
    y = 1e4 + 1e3 * x.mean(1)
    model = ContinuaForecaster(**{**TINY, "d": 16}, steps=200, settings=SeriesSettings(lr=1e-2)).fit(x, y, times=t)
    assert model.score(x, y, times=t) > 0.5
    two = np.stack([y, np.full(24, np.nan)], 1)
    assert np.isfinite(ContinuaForecaster(**TINY, steps=2).fit(x, two, times=t).predict(x, times=t)).all()


@pytest.mark.spec("B4")
def test_without_scikit_learn_there_is_a_sentence() -> None:
    script = (
        "import sys; sys.modules['sklearn'] = None\n"
        "try:\n    import continua.estimators\n"
        "except ValueError as said:\n    print(said)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("Install the extra: pip install 'continua-ml[series]'.")


@pytest.mark.spec("B4")
def test_the_old_home_of_the_estimators_is_still_open() -> None:
    with pytest.warns(DeprecationWarning, match=r"continua\.estimators"):
        assert ct.recipes.ContinuaClassifier is ContinuaClassifier is ct.ContinuaClassifier
    with pytest.raises(AttributeError, match="ContinuaClasifier"):
        _ = ct.recipes.ContinuaClasifier


@pytest.mark.spec("B4")
@pytest.mark.parametrize("better", [True, False])
def test_whether_times_help_is_chosen_on_held_out_parts(
    better: bool, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, stamps, kind = waves()
    settings = SeriesSettings(position=None)
    told: list[bool] = []
    held: list[Any] = []
    measured = Classes.measured

    def looked(self: Classes, model: Any, times: int) -> float:
        told.append(model.embed.position is not None)
        held.append(self.held)
        found = measured(self, model, times)
        assert np.isfinite(found)
        return found + (0.0 if told[-1] is better else 100.0)

    monkeypatch.setattr(Classes, "measured", looked)
    model = ContinuaClassifier(**TINY, steps=4, settings=settings).fit(values, kind, times=stamps)
    assert told == [True] * 3 + [False] * 3
    assert torch.cat(held[:3]).sort().values.tolist() == list(range(len(values))), "each series is held out once"
    assert model.position_ is better
    assert (model.model_.embed.position is not None) is better
    assert ContinuaClassifier.load(model.save(tmp_path)).position_ is better


@pytest.mark.spec("B4")
def test_a_forecaster_chooses_no_position() -> None:
    with pytest.raises(ConfigError, match=r"told whether times matter.*position=True"):
        ContinuaForecaster(**TINY, steps=2, settings=SeriesSettings(position=None)).fit(np.ones((4, 6)), np.ones(4))
