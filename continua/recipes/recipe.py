"""A recipe is a Python function that returns a bundle ready to fit; a run remembers which one it was."""

import ast
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from continua.errors import ConfigError, nearest
from continua.optim import ByRole, Cosine, Schedule
from continua.settings import door_of
from continua.settings.text import valued
from continua.tasks import Task, Tokeniser
from continua.training import Training

Recipe = Callable[..., "Bundle"]
SHIPPED: dict[str, Recipe] = {}
TRAINING = [f.name for f in fields(Training)]


def shipped(recipe: Recipe) -> Recipe:
    """Let ``continua fit NAME`` find a recipe by its function's name."""
    SHIPPED[recipe.__name__.replace("_", "-")] = recipe
    return recipe


@dataclass(frozen=True)
class Bundle:
    """All that a fit needs. ``tokens`` lets a run of text be written on by ``continua generate``.

    ``report`` measures and draws a trained model into its folder, and yields what it found line by line. ``files`` are
    data that are copied into the run where they are small, so that it can be carried elsewhere: ``text.txt`` serves the
    setting ``text``.
    """

    model: Any
    task: Task
    optimiser: ByRole = ByRole()  # noqa: RUF009  (frozen)
    schedule: Schedule = Cosine()  # noqa: RUF009
    penalties: Any = None
    training: Training = field(default_factory=Training)
    tokens: Tokeniser | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    report: Callable[[Any, Path], Iterable[str]] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


def find(name: str) -> Recipe:
    """A shipped recipe by its name, or ``path/to/file.py:function``."""
    if ":" in name:
        return _from_file(name)
    if name not in SHIPPED:
        raise ConfigError("there is no such recipe", got=name, remedy=nearest(name, list(SHIPPED)))
    return SHIPPED[name]


def is_file(name: str) -> Path | None:
    """The file of a recipe of one's own; None for a shipped one."""
    return Path(name.rpartition(":")[0]) if ":" in name else None


def _from_file(name: str) -> Recipe:
    path, _, function = name.rpartition(":")
    if not Path(path).is_file():
        raise ConfigError("a recipe of your own is FILE.py:FUNCTION", got=name, remedy="Check the path.")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError("this file cannot be imported", got=path, remedy="Give a Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Recipe | None = vars(module).get(function)
    if found is None:
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ConfigError(f"{path} has no such function", got=function, remedy=nearest(function, known))
    return found


def build(name: str, changes: Mapping[str, Any]) -> Bundle:
    """Call a recipe with some of its settings, and those of ``Training``, changed."""
    recipe = find(name)
    changes = valued_changes(name, changes)
    own = keys(recipe)
    made = _call(recipe, {key: value for key, value in changes.items() if key in own})
    changed = {key: value for key, value in changes.items() if key in TRAINING}
    return replace(made, training=replace(made.training, **changed))


def valued_changes(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes as values of the right type; what was typed is read by the annotation of its setting."""
    recipe = find(name)
    own = keys(recipe)
    for key in changes:
        if key not in own and key not in TRAINING:
            raise ConfigError(f"{name} has no such setting", got=key, remedy=nearest(key, [*own, *TRAINING]))
    homes = {key: settings_of(recipe) if key in own else Training for key in changes}
    return {key: valued(homes[key], key, value) for key, value in changes.items()}


def keys(recipe: Recipe) -> list[str]:
    """What can be set: the parameters of the function, or the fields of its one settings object."""
    return list(door_of(settings_of(recipe)).parameters)


def settings_of(recipe: Recipe) -> Any:
    """What has the settings of a recipe: the class of its one settings object, or the function itself."""
    given = list(inspect.signature(recipe).parameters.values())
    alone = len(given) == 1 and is_dataclass(given[0].annotation)
    return given[0].annotation if alone else recipe


def _call(recipe: Recipe, values: Mapping[str, Any]) -> Bundle:
    settings = settings_of(recipe)
    return recipe(**values) if settings is recipe else recipe(settings(**values))


def parse(pairs: list[str]) -> dict[str, Any]:
    """``k=v`` as typed on a command line: numbers, True, None and quoted text are read as Python, the rest as text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, found, text = pair.partition("=")
        if not found:
            raise ConfigError("settings are written key=value", got=pair, remedy="For example --set steps=500.")
        try:
            values[key.strip()] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[key.strip()] = text
    return values
