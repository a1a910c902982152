"""Forecasting and filling in irregular series, in the manner of scikit-learn."""

from typing import Any

import numpy as np
import torch

from continua.data.ragged import Ragged
from continua.errors import CheckpointError, ConfigError, GridError, ShapeError
from continua.estimators import conformal
from continua.estimators.base import (  # which refuses with a remedy where scikit-learn is not installed
    Array,
    RegressorMixin,
    SeriesEstimator,
    check_array,
    check_is_fitted,
    reading,
)
from continua.estimators.settings import SeriesSettings, forecaster
from continua.tasks.forecasting import Answers, Asked, Filling, Quantiles, question
from continua.tasks.task import Task


class ContinuaForecaster(RegressorMixin, SeriesEstimator):
    """Values of series at times that were not observed, with quantiles, by a continuous Transformer.

    ``fit(X, y)`` learns answers: ``y`` [n], [n, q] or [n, q, channels] is what came after each history, at ``y_times``
    (in the clock of the series; one unit apart behind the last point unless given), NaN where nothing is known.
    ``fit(X)`` hides points of the series themselves and learns to fill them in, between and behind. Either way
    ``predict(X, at=times)`` answers at any times, ``predict_quantiles`` with the ``quantiles`` it was made for; these
    never cross. ``calibrate`` moves them so that they cover what they promise. The rest is as in
    ``ContinuaClassifier``.
    """

    def __init__(
        self,
        d: int = 32,
        heads: int = 4,
        depth: int = 2,
        steps: int = 1000,
        quantiles: tuple[float, ...] = (0.1, 0.5, 0.9),
        settings: SeriesSettings | None = None,
        verbose: int = 1,
        random_state: Any = None,
    ) -> None:
        self.d = d
        self.heads = heads
        self.depth = depth
        self.steps = steps
        self.quantiles = quantiles
        self.settings = settings
        self.verbose = verbose
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any = None, times: Any = None, y_times: Any = None) -> "ContinuaForecaster":
        """Learn the answers ``y``, or, without them, to fill in points of the series."""
        series = self._read(X, times, reset=True)
        chosen = self._settle(series)
        if chosen.position is None:
            remedy = "Use position=True, or False where only distances count."
            raise ConfigError("a forecaster is told whether times matter", got="position=None", remedy=remedy)
        if chosen.stem is None or chosen.stem or chosen.clock:
            got = f"stem={chosen.stem}, clock={chosen.clock}"
            raise ConfigError("stems and clocks are for classifiers", got=got, remedy="Leave them as they are.")
        levels = Quantiles(tuple(self.quantiles))
        held = self._held(len(series), chosen.held_out)
        if y is None:
            self.flat_ = False
            self.own_ = False
            self.ahead_: tuple[float, ...] = (1.0,)
            task: Task = Filling(series, self.scale_, levels, chosen.batch, chosen.share, chosen.window, held)
        else:
            targets = self._targets(y, len(series))
            self.scale_ = self.scale_.answering(targets)
            asked = Asked(self._asked(series, y_times, targets.shape[1]), targets)
            task = Answers(series, asked, self.scale_, levels, chosen.batch, chosen.change, held)
        self.shift_: Array | None = None
        self._train(forecaster(self.scale_, levels, self._size, chosen, self.seed_), task, chosen, held is not None)
        return self

    def calibrate(self, X: Any, y: Any, times: Any = None, y_times: Any = None) -> "ContinuaForecaster":
        """Move the quantiles by answers that ``fit`` has not seen, so that as many lie below each as its level says.

        Arguments are those of ``fit``. The answers should be of the kind that will be asked for: stretches as long, as
        far ahead. A second call replaces the first.
        """
        check_is_fitted(self)
        series = self._read(X, times, reset=False)
        levels = Quantiles(tuple(self.quantiles))
        kept = (self.flat_, self.own_, self.ahead_)  # what fit was given is what predict answers
        try:
            targets = self._targets(y, len(series))
            asked = self._asked(series, y_times, targets.shape[1])
        finally:
            self.flat_, self.own_, self.ahead_ = kept
        found = self._quantiles(series, asked).numpy(force=True)
        truth = self.scale_.to_answer(targets).double().numpy(force=True)
        self.shift_ = conformal.shifts(found, truth, levels.levels)
        return self

    def _targets(self, y: Any, count: int) -> torch.Tensor:
        """Answers as [n, q, c]. The first channel alone may be answered: the others are NaN."""
        with reading("Give answers [n], [n, q] or [n, q, channels] as numbers."):
            found = check_array(y, ensure_2d=False, allow_nd=True, ensure_all_finite=False, dtype=np.float64)
        if np.isinf(found).any() or (found.ndim == 1 and np.isnan(found).any()):
            raise ShapeError("Input y contains NaN or infinity", got="one", remedy="Drop these series.")
        if len(found) != count:
            what = f"inconsistent numbers of samples: {count} series need answers"
            raise ShapeError(what, got=len(found), remedy="Give the answers of each series.")
        self.flat_ = found.ndim == 1
        found = found[:, None] if found.ndim == 1 else found
        self.own_ = found.ndim == 2  # answers of one variable: a channel of its own if there are several
        found = found[..., None] if found.ndim == 2 else found
        if found.ndim != 3 or found.shape[2] not in (1, self.channels_):
            remedy = f"Give [n, q] or [n, q, {self.channels_}]."
            raise ShapeError("answers have one value for each channel", got=list(found.shape), remedy=remedy)
        made = np.full((*found.shape[:2], self.channels_), np.nan)
        made[..., : found.shape[2]] = found
        if not np.isfinite(made).any():
            raise ShapeError("some answers must be known", got="NaN only", remedy="Give observed values.")
        return torch.from_numpy(made)

    def _asked(self, series: Ragged, given: Any, count: int) -> torch.Tensor:
        """The times of questions [n, q], counted from each series' first stamp."""
        if given is None:
            self.ahead_ = tuple(float(i + 1) for i in range(count))
            return series.end[:, None] + self.scale_.unit * torch.tensor(self.ahead_, dtype=torch.float64)
        with reading("Give times as numbers."):
            found = np.asarray(given, dtype=np.float64)
        found = np.broadcast_to(found, (len(series), found.shape[-1])) if found.ndim == 1 else found
        if found.ndim != 2 or len(found) != len(series) or (count and found.shape[1] != count):
            remedy = f"Give [q] or [{len(series)}, q]."
            raise ShapeError("questions need a time each", got=list(found.shape), remedy=remedy)
        if not np.isfinite(found).all():
            raise GridError("questions need finite times", got="NaN or infinity", remedy="Drop these questions.")
        made = torch.from_numpy(found.copy()) - series.start[:, None]
        ahead = ((made - series.end[:, None]) / self.scale_.unit).median(0).values
        self.ahead_ = tuple(ahead.tolist()) if count else self.ahead_
        return made

    def predict_quantiles(self, X: Any, times: Any = None, at: Any = None) -> Array:
        """The quantiles [n, q, channels, levels] at the times ``at``: [q] or [n, q], or those of fit behind the end."""
        check_is_fitted(self)
        series = self._read(X, times, reset=False)
        if at is None:
            asked = series.end[:, None] + self.scale_.unit * torch.tensor(self.ahead_, dtype=torch.float64)
        else:
            asked = self._asked(series, at, 0)
        found = self._quantiles(series, asked)
        if self.shift_ is not None:
            found = torch.from_numpy(conformal.moved(found.numpy(force=True), self.shift_))
        made: Array = self.scale_.from_answer(found.movedim(-1, -2)).movedim(-2, -1).numpy(force=True)
        return made

    @torch.no_grad()
    def _quantiles(self, series: Ragged, asked: torch.Tensor) -> torch.Tensor:
        """What the model says [n, q, channels, levels], standardised."""
        levels = Quantiles(tuple(self.quantiles))
        found = []
        for rows in torch.arange(len(series)).split(256):
            batch = question(self.scale_, series.rows(rows), asked[rows])
            guess: Any = batch.values
            found.append(levels.read(self.model_(batch), guess[..., : self.channels_]).double())
        return torch.cat(found)

    def predict(self, X: Any, times: Any = None, at: Any = None) -> Array:
        """The middle quantile: [n] or [n, q] for answers of one variable, [n, q, channels] otherwise."""
        check_is_fitted(self)
        found = self.predict_quantiles(X, times, at)[..., Quantiles(tuple(self.quantiles)).middle]
        if self.channels_ == 1 or self.own_:
            found = found[..., 0]
        return found[:, 0] if self.flat_ and at is None else found

    def score(self, X: Any, y: Any, times: Any = None, at: Any = None) -> float:
        """R² of the middle quantile over all known answers."""
        found = self.predict(X, times, at)
        known = np.asarray(y, dtype=np.float64)
        if found.shape != known.shape:
            got = list(known.shape)
            remedy = f"Give {list(found.shape)}."
            raise ShapeError("answers and predictions need one shape", got=got, remedy=remedy)
        there = np.isfinite(known)
        off = found[there] - known[there]
        all_ = known[there] - known[there].mean()
        return float(1 - (off**2).sum() / max((all_**2).sum(), 1e-300))

    def _fitted(self) -> dict[str, Any]:
        own = {"flat_": self.flat_, "own_": self.own_, "ahead_": list(self.ahead_)}
        own["shift_"] = None if self.shift_ is None else self.shift_.tolist()
        return {**super()._fitted(), **own}

    def _remember(self, plain: dict[str, Any]) -> None:
        self.ahead_ = tuple(plain["ahead_"])
        kept = plain.get("shift_")  # estimators of 0.1 have none
        self.shift_ = None if kept is None else np.asarray(kept, dtype=np.float64)
        if self.shift_ is not None and self.shift_.shape != (self.channels_, len(self.quantiles)):
            got = list(self.shift_.shape)
            remedy = "Calibrate the estimator again, and save it."
            raise CheckpointError("the calibration does not fit the quantiles", got=got, remedy=remedy)
