"""A recipe is a Python function that returns a bundle ready to fit; a run remembers which one it was."""

import ast
import importlib.util
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from continua.config import from_plain, to_plain
from continua.errors import ConfigError, RunError, nearest
from continua.optim import ByRole, Cosine, Schedule
from continua.tasks import Task, Tokeniser
from continua.training import Fitted, Run, Training, train
from continua.training.distributed import joined

Recipe = Callable[..., "Bundle"]
SHIPPED: dict[str, Recipe] = {}


def shipped(recipe: Recipe) -> Recipe:
    """Let ``continua fit NAME`` find a recipe by its function's name."""
    SHIPPED[recipe.__name__.replace("_", "-")] = recipe
    return recipe


@dataclass(frozen=True)
class Bundle:
    """All that a fit needs. ``tokens`` lets a run of text be written on by ``continua generate``.

    ``report`` measures and draws a trained model into its folder, and yields what it found line by line.
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


def find(name: str) -> Recipe:
    """A shipped recipe by its name, or ``path/to/file.py:function``."""
    if ":" in name:
        return _from_file(name)
    if name not in SHIPPED:
        raise ConfigError("there is no such recipe", got=name, remedy=nearest(name, list(SHIPPED)))
    return SHIPPED[name]


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
    own = keys(recipe)
    training = [f.name for f in fields(Training)]
    for key in changes:
        if key not in own and key not in training:
            raise ConfigError(f"{name} has no such setting", got=key, remedy=nearest(key, [*own, *training]))
    made = _call(recipe, {key: value for key, value in changes.items() if key in own})
    changed = {key: value for key, value in changes.items() if key in training}
    return replace(made, training=replace(made.training, **changed))


def keys(recipe: Recipe) -> list[str]:
    """What can be set: the parameters of the function, or the fields of its one settings object."""
    settings = _settings(recipe)
    return list(inspect.signature(recipe).parameters) if settings is None else [f.name for f in fields(settings)]


def _settings(recipe: Recipe) -> Any:
    given = list(inspect.signature(recipe).parameters.values())
    return given[0].annotation if len(given) == 1 and is_dataclass(given[0].annotation) else None


def _call(recipe: Recipe, values: Mapping[str, Any]) -> Bundle:
    settings = _settings(recipe)
    return recipe(**values) if settings is None else recipe(settings(**values))


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


def start(name: str, changes: Mapping[str, Any], folder: str | Path, device: str = "auto") -> Fitted:
    """Fit a recipe into a new run folder, on a device (auto, cpu, cuda or mps)."""
    bundle = build(name, changes)
    return _fit(bundle, Run(Path(folder)), _about(name, changes, bundle), new=True, device=device)


def _about(name: str, changes: Mapping[str, Any], bundle: Bundle) -> dict[str, Any]:
    """What a run says of itself; with this it is built again."""
    return {
        "recipe": name,
        "changes": to_plain(changes),
        "training": to_plain(bundle.training),
        "tokens": None if bundle.tokens is None else to_plain(bundle.tokens),
        **bundle.about,
    }


def changes_of(run: Run) -> dict[str, Any]:
    """The settings that a run was given, as objects."""
    made: dict[str, Any] = from_plain(run.about["changes"])
    return made


def resume(folder: str | Path, changes: Mapping[str, Any] | None = None, device: str = "auto") -> Fitted:
    """Go on with a run; ``changes`` may lengthen it."""
    run = Run.open(folder)
    if "recipe" not in run.about:
        remedy = "Go on from Python: fit(model, task, run=Run.open(folder), …)."
        raise ConfigError("this run was not made by a recipe", got=run.folder, remedy=remedy)
    changed = {**changes_of(run), **(changes or {})}
    bundle = build(run.about["recipe"], changed)
    about = _about(run.about["recipe"], changed, bundle)
    for key in ("tokens", *bundle.about):
        if json.loads(json.dumps(about[key])) != run.about.get(key):
            remedy = f"Give it the {'data' if key == 'data' else 'text'} it was started with, or start a new run."
            raise RunError(f"this run was started with another {_NAMES.get(key, key)}", got=run.folder, remedy=remedy)
    return _fit(bundle, run, about if changes else None, device=device)


_NAMES = {"tokens": "alphabet", "corpus": "text", "data": "set of functions"}


def tokens_of(run: Run) -> Tokeniser:
    """The tokeniser of a run of text."""
    if run.about.get("tokens") is None:
        raise ConfigError("this run is not one of text", got=run.folder, remedy="Use a run of continua fit text.")
    made: Tokeniser = from_plain(run.about["tokens"])
    return made


def _fit(
    bundle: Bundle, run: Run, about: Mapping[str, Any] | None, *, new: bool = False, device: str = "auto"
) -> Fitted:
    """Fit into a run. ``about``: what is written into it first, if anything."""
    with joined(device) as world:
        if world.leads and new:
            run = Run.create(run.folder, about or {})
        elif world.leads and about is not None:
            run.lock()  # before anything of a run that may be going on is changed
            run.amend(about)
        return train(
            bundle.model,
            bundle.task,
            bundle.training,
            run=run,
            optimiser=bundle.optimiser,
            schedule=bundle.schedule,
            penalties=bundle.penalties,
            device=device,
        )
