"""Classifying irregular series, in the manner of scikit-learn."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from continua.data.generation import generator_for
from continua.data.ragged import Ragged
from continua.errors import ConfigError
from continua.estimators.base import (  # which refuses with a remedy where scikit-learn is not installed
    Array,
    ClassifierMixin,
    SeriesEstimator,
    check_classification_targets,
    check_is_fitted,
    column_or_1d,
    reading,
)
from continua.estimators.settings import SeriesSettings, classifier
from continua.tasks.series import Classes

PARTS = 3  # of the series, each held out once where something is chosen
TRIAL = 4  # such a trial takes this part of the steps
STEM = (2, 2, 2)  # strides that are tried where a stem is left open
TIMES = 4  # that held-out series are changed and measured


class ContinuaClassifier(ClassifierMixin, SeriesEstimator):
    """The class of a series, by a continuous Transformer over its own time stamps.

    ``fit(X, y)`` takes an array [n, t] or [n, t, channels], or a list of arrays [t] or [t, channels] of unequal
    length; NaN is a missing value; ``times=`` are stamps [t], [n, t] or a list. Trained on one sampling it serves
    others: ``predict(finer, times=…)``. ``d``, ``heads`` and ``depth`` are the native size of ``model_``, ``steps``
    how long it is trained, ``settings`` all that seldom changes. ``verbose=0`` shows nothing. ``position_`` says
    whether the model was told times, which ``SeriesSettings(position=None)`` chooses on held-out parts of the series;
    ``stem_`` are the strides of its local kernels, chosen likewise by ``SeriesSettings(stem=None)``.

    >>> import numpy as np
    >>> t = np.arange(12.0)
    >>> X = [np.sin(w * t[:n]) for n, w in [(12, 0.5), (9, 2.0)] * 8]
    >>> model = ContinuaClassifier(d=16, heads=2, depth=1, steps=60, random_state=0).fit(X, ["slow", "fast"] * 8)
    >>> model.predict(X[:2]).tolist()
    ['slow', 'fast']
    """

    def __init__(
        self,
        d: int = 32,
        heads: int = 4,
        depth: int = 3,
        steps: int = 1000,
        settings: SeriesSettings | None = None,
        verbose: int = 1,
        random_state: Any = None,
    ) -> None:
        self.d = d
        self.heads = heads
        self.depth = depth
        self.steps = steps
        self.settings = settings
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any, times: Any = None) -> "ContinuaClassifier":
        """Learn the classes ``y`` of the series ``X``."""
        series = self._read(X, times, reset=True)
        labels = _labels(y, len(series))
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        chosen = self._settle(series)
        count = len(self.classes_)
        chosen = self._best(series, torch.from_numpy(numbers).long(), chosen)
        self.position_ = bool(chosen.position)
        self.stem_ = tuple(chosen.stem or ())
        held = self._held(len(series), chosen.held_out)
        task = Classes(series, torch.from_numpy(numbers).long(), self.scale_, chosen.batch, chosen.change, held)
        self._train(classifier(self.scale_, count, self._size, chosen, self.seed_), task, chosen, held is not None)
        return self

    def _best(self, series: Ragged, labels: torch.Tensor, chosen: SeriesSettings) -> SeriesSettings:
        """The settings with what was left open: every way is trained on parts of the series and measured on the rest,
        gone through the same changes. The final fit takes the best one."""
        positions = (True, False) if chosen.position is None else (chosen.position,)
        stems = ((), STEM) if chosen.stem is None else (chosen.stem,)
        ways = [replace(chosen, position=position, stem=stem) for stem in stems for position in positions]
        parts = min(PARTS, len(series))
        if len(ways) == 1 or parts < 2:
            return ways[0]
        order = torch.randperm(len(series), generator=generator_for("parts", self.seed_)).chunk(parts)
        losses = [sum(self._tried(series, labels, way, held) for held in order) for way in ways]
        return ways[losses.index(min(losses))]

    def _tried(self, series: Ragged, labels: torch.Tensor, way: SeriesSettings, held: torch.Tensor) -> float:
        """The loss of held-out series after a short training on the others."""
        task = Classes(series, labels, self.scale_, way.batch, way.change, held.sort().values)
        model = classifier(self.scale_, len(self.classes_), self._size, way, self.seed_)
        self._fit(model, task, way, max(1, self.steps // TRIAL), False)
        return task.measured(model.eval(), TIMES)

    @torch.no_grad()
    def predict_proba(self, X: Any, times: Any = None) -> Array:
        """The probability of each class [n, classes], in the order of ``classes_``."""
        check_is_fitted(self)
        series = self._read(X, times, reset=False)
        parts = torch.arange(len(series)).split(256)
        found = [self.model_(self.scale_.told(series.rows(rows))).double().softmax(-1) for rows in parts]
        made: Array = torch.cat(found).numpy(force=True)
        return made

    def predict(self, X: Any, times: Any = None) -> Array:
        """The most probable class of each series."""
        found: Array = self.predict_proba(X, times).argmax(1)
        return np.asarray(self.classes_[found])

    def score(self, X: Any, y: Any, times: Any = None) -> float:
        """The share of right answers; a class that fit never saw is refused."""
        found = self.predict(X, times)
        labels = _labels(y, len(found))
        unseen = sorted(set(labels.tolist()) - set(self.classes_.tolist()), key=str)
        if unseen:
            remedy = "Drop these series, or fit with examples of the class."
            raise ConfigError("only classes seen in fit can be scored", got=repr(unseen[0]), remedy=remedy)
        return float((found == labels).mean())

    def _fitted(self) -> dict[str, Any]:
        own = {"classes_": self.classes_.tolist(), "dtype": self.classes_.dtype.str, "position_": self.position_}
        own["stem_"] = list(self.stem_)
        return {**super()._fitted(), **own}

    def _remember(self, plain: dict[str, Any]) -> None:
        self.classes_ = np.array(plain["classes_"], dtype=plain["dtype"])
        self.position_ = bool(plain.get("position_", True))  # estimators of 0.1 say nothing of it
        self.stem_ = tuple(plain.get("stem_", ()))
        del self.dtype


def _labels(y: Any, count: int) -> Array:
    """One label for each series."""
    if y is None:
        remedy = "Give one label for each series."
        raise ConfigError("this estimator requires y to be passed, but the target y is None", remedy=remedy)
    with reading("Give one label for each series: a list or an array of words or whole numbers."):
        check_classification_targets(y)
        labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = column_or_1d(labels, warn=True)
    if labels.ndim != 1 or len(labels) != count:
        got = list(labels.shape)
        remedy = "Give one label for each series."
        raise ConfigError(
            f"inconsistent numbers of samples: {count} series need as many labels", got=got, remedy=remedy
        )
    return labels
