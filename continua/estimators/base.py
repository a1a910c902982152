"""What estimators of series share: reading series in every form, training, saving."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from continua.config import from_plain, to_plain
from continua.data.augmentation import Change
from continua.data.generation import generator_for
from continua.data.ragged import JUMP, Ragged
from continua.errors import CheckpointError, ConfigError, ContinuaError, GridError, ShapeError, install
from continua.estimators.settings import SeriesSettings, Size
from continua.files import read_bytes, write_text
from continua.models import load as load_model
from continua.optim import AdamW, ByRole, Cosine
from continua.tasks.series import Scale
from continua.tasks.task import Task
from continua.training import Training, fit
from continua.training.progress import Bar, Progress

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data
except ImportError as missing:
    raise ConfigError(
        "these estimators stand on scikit-learn",
        got="it is not installed",
        remedy=f"Install the extra: {install('series')}.",
    ) from missing

__all__ = [
    "Array",
    "ClassifierMixin",
    "RegressorMixin",
    "SeriesEstimator",
    "check_array",
    "check_classification_targets",
    "check_is_fitted",
    "column_or_1d",
    "reading",
]

DESCRIPTION = "estimator.json"
QUIET = 5.0  # seconds of training after which something is shown
Array = np.ndarray
E = TypeVar("E", bound="SeriesEstimator")


class UnreadableSeries(ShapeError, TypeError):
    """What scikit-learn or numpy could not read; a ``TypeError`` too, as the conventions of scikit-learn ask for."""


@contextmanager
def reading(remedy: str) -> Iterator[None]:
    """Give the errors of scikit-learn's and numpy's readers a remedy."""
    try:
        yield
    except ContinuaError:
        raise
    except (ValueError, TypeError, OverflowError) as problem:
        what = " ".join(str(problem).split()).rstrip(".")
        kind = UnreadableSeries if isinstance(problem, TypeError) else ShapeError
        raise kind(what, remedy=remedy) from problem


class _Slow:
    """The bar of ``fit``, for those who wait: nothing is shown of what takes no five seconds.

    Where no series are ``held`` out, what is measured is measured on those that were trained on, and called so.
    """

    def __init__(self, held: bool) -> None:
        import time

        self.held = held
        self.clock = time.monotonic
        self.bar = Bar()
        self.begun = self.clock()

    def __call__(self, at: Progress) -> None:
        if self.clock() - self.begun <= QUIET:
            return
        scores = {name if self.held else name.replace("held-out", "training"): x for name, x in at.scores.items()}
        self.bar(at._replace(scores=scores))

    def close(self) -> None:
        self.bar.close()


class SeriesEstimator(BaseEstimator):
    """What both estimators share: reading series, training, saving."""

    d: int
    heads: int
    depth: int
    steps: int
    settings: SeriesSettings | None
    verbose: int
    random_state: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = False  # 2-D arrays are series too
        tags.non_deterministic = False
        return tags

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read(self, X: Any, times: Any, reset: bool) -> Ragged:
        """Series in any of their forms. An array of two dimensions is checked as scikit-learn does."""
        with reading("Give an array [n, t] or [n, t, channels], or a list of arrays; stamps as numbers or dates."):
            series = Ragged.of(X if _is_sequence_of_series(X) else self._array(X, times, reset), times)
        if reset:
            self.channels_ = series.channels
        elif series.channels != self.channels_:
            got = f"{series.channels}"
            remedy = "Give the channels of fit, NaN where one was not measured."
            raise ShapeError(f"this estimator was fitted with {self.channels_} channels", got=got, remedy=remedy)
        if not reset:
            self._check_unit(series)
        return series

    def _array(self, X: Any, times: Any, reset: bool) -> Array:
        options: dict[str, Any] = {"ensure_all_finite": "allow-nan", "allow_nd": True, "dtype": "numeric"}
        # stamps make columns points in time: then there may be more or fewer of them than in fit
        table = not isinstance(X, np.ndarray | torch.Tensor) or X.ndim == 2
        same = table and times is None and (reset or "n_features_in_" in vars(self))
        found = validate_data(self, X, reset=reset, **options) if same else check_array(X, **options)
        if found.ndim > 3:
            got = list(found.shape)
            remedy = "Give [n, t] or [n, t, channels]."
            raise ShapeError("series have at most three dimensions", got=got, remedy=remedy)
        checked: Array = found.astype(np.float64)
        return checked

    def _check_unit(self, series: Ragged) -> None:
        """Refuse stamps that are a million times closer or farther than those of fit."""
        ratio = series.spacing / self.spacing_
        if bool((series.present.sum(-1) > 1).any()) and not 1 / JUMP < ratio < JUMP:
            got = f"{series.spacing:.3g} between neighbours instead of {self.spacing_:.3g}"
            raise GridError("stamps need the unit of fit", got=got, remedy="Convert them to that unit.")

    def _settle(self, series: Ragged) -> SeriesSettings:
        chosen = self.settings if self.settings is not None else SeriesSettings()
        _ = self._size, Training(steps=self.steps)  # refuse what is no size and no number of steps
        self.spacing_ = series.spacing
        self.scale_ = Scale.of(series, chosen.unit, chosen.periods)
        if chosen.clock:
            self.scale_ = replace(self.scale_, origin=float(series.start.min()))
        with reading("Give random_state a whole number from 0 to 2³² − 1, a RandomState or None."):
            self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        return chosen

    @property
    def _size(self) -> Size:
        return Size(self.d, self.heads, self.depth)

    def _held(self, count: int, share: float) -> torch.Tensor | None:
        many = int(count * share)
        if not many:
            return None
        return torch.randperm(count, generator=generator_for("held", self.seed_))[:many].sort().values

    # --- training ----------------------------------------------------------------------------------------------------

    def _train(self, model: Any, task: Task, chosen: SeriesSettings, held: bool) -> None:
        self.history_ = self._fit(model, task, chosen, self.steps, held)
        # in double precision a prediction does not depend, in any digit that counts, on what it is predicted beside
        model.eval().double()
        self.model_ = model
        self.n_iter_ = self.steps

    def _fit(self, model: Any, task: Task, chosen: SeriesSettings, steps: int, held: bool) -> list[dict[str, Any]]:
        """Train a model; what was measured meanwhile."""
        done = fit(
            model,
            task,
            steps=steps,
            seed=self.seed_,
            optimiser=ByRole(AdamW(chosen.lr, decay=chosen.decay)),
            schedule=Cosine(floor=0.02),
            evaluate_every=max(steps // 5, 1) if held else steps,
            watch=_Slow(held) if self.verbose else lambda at: None,
        )
        return done.history

    # --- saving ------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write the weights (safetensors) and everything else (JSON) into ``folder``."""
        check_is_fitted(self)
        path: Path = self.model_.save(folder)
        plain = {"kind": type(self).__name__, "parameters": self._plain_parameters(), "fitted": self._fitted()}
        write_text(path / DESCRIPTION, json.dumps({**plain, "sha256": _sum(plain)}, indent=1))
        return path

    def _plain_parameters(self) -> dict[str, Any]:
        found = self.get_params(deep=False)
        if self.settings is not None:
            own = {f.name: getattr(self.settings, f.name) for f in fields(self.settings)}
            found["settings"] = {**own, "change": vars(self.settings.change)}
        if not isinstance(found["random_state"], int | None):
            found["random_state"] = None  # the state of a generator is not the estimator's to keep
        return found

    def _fitted(self) -> dict[str, Any]:
        names = ("channels_", "spacing_", "seed_", "n_iter_", "n_features_in_")
        kept = {name: vars(self)[name] for name in names if name in vars(self)}
        return {**kept, "scale_": to_plain(self.scale_)}

    @classmethod
    def load(cls: type[E], folder: str | Path) -> E:
        """Return the estimator saved in ``folder``: it predicts the same numbers."""
        path = Path(folder) / DESCRIPTION
        if not path.is_file():
            remedy = "Give the folder that save() wrote."
            raise CheckpointError(f"a saved estimator has a {DESCRIPTION}", got=f"none in {folder}", remedy=remedy)
        plain = _read(path)
        if plain["kind"] != cls.__name__:
            raise CheckpointError(f"this is no {cls.__name__}", got=plain["kind"], remedy=f"Use {plain['kind']}.load.")
        try:
            made = cls._of(plain)
        except ContinuaError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise _damaged(path, repr(problem)) from problem
        made.model_ = load_model(folder).eval()
        return made

    @classmethod
    def _of(cls: type[E], plain: dict[str, Any]) -> E:
        """The estimator of a description, without its model."""
        given: dict[str, Any] = _tuples(plain["parameters"])
        if given.get("settings") is not None:
            own: dict[str, Any] = _tuples(given["settings"])
            given["settings"] = SeriesSettings(**{**own, "change": Change(**own["change"])})
        made = cls(**given)
        for name, value in plain["fitted"].items():
            if name in vars(cls) or not (name == "dtype" or name.endswith("_")):
                raise KeyError(name)
            setattr(made, name, from_plain(value) if name == "scale_" else value)
        made._remember(plain["fitted"])
        return made

    def _remember(self, plain: dict[str, Any]) -> None:
        """Bring back what is an estimator's own."""


def _sum(plain: dict[str, Any]) -> str:
    text = json.dumps({key: value for key, value in plain.items() if key != "sha256"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    """The description of an estimator; one that has changed since is refused, one of 0.1 has no checksum."""
    try:
        plain = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as problem:
        raise _damaged(path, str(problem)) from problem
    if not isinstance(plain, dict) or not {"kind", "parameters", "fitted"} <= set(plain):
        raise _damaged(path, "no description of an estimator")
    if "sha256" in plain and plain["sha256"] != _sum(plain):
        raise _damaged(path, "another SHA-256 than it had")
    return plain


def _damaged(path: Path, got: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged", got=got, remedy="Copy it again, or save the estimator anew.")


def _is_sequence_of_series(X: Any) -> bool:
    """A list or tuple whose entries are series: of unequal length, or themselves arrays or lists of channels."""
    if not isinstance(X, list | tuple) or not len(X):
        return False
    depths = {np.ndim(one) if not isinstance(one, list | tuple) else _depth(one) for one in X}
    if depths & {2}:
        return True
    return depths == {1} and (len({len(one) for one in X}) > 1 or not isinstance(X[0], list | tuple))


def _depth(one: Any) -> int:
    return 1 + (_depth(one[0]) if isinstance(one[0], list | tuple | np.ndarray) else 0) if len(one) else 1


def _tuples(plain: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where Python had tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()}
