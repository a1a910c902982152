"""Recipes and run folders: a run is started, gone on with and looked at by the recipe that made it.

Nothing that comes from a folder is executed. A shipped recipe is ours; one from a file is run where the user names the
file, or says that the run is trusted. Paths in a run mean files of its folder; others are read where it is trusted.
"""

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continua.config import from_plain, to_plain
from continua.errors import ConfigError, RunError
from continua.files import fault_of, inside, read_bytes, sha256_of
from continua.recipes.recipe import SHIPPED, Bundle, build, find, is_file, keys, valued_changes
from continua.tasks import Tokeniser
from continua.training import Fitted, Run, train
from continua.training.distributed import leads
from continua.training.run import DATA, RunHeader

PATHS = ("text", "folder")  # settings that name files
SMALL = 8 * 2**20  # bytes of data that are copied into a run
NAMES = {"tokens": "alphabet", "corpus": "text", "data": "set of functions"}
COPIED = "recipe.py"


@dataclass(frozen=True)
class Prepared:
    """A bundle and the run that it is to be fitted into: nothing is written before the first step is done."""

    bundle: Bundle
    run: Run

    def fit(self, device: str = "auto") -> Fitted:
        """Train to the end, on a device (auto, cpu, cuda or mps)."""
        bundle = self.bundle
        return train(
            bundle.model,
            bundle.task,
            bundle.training,
            run=self.run,
            optimiser=bundle.optimiser,
            schedule=bundle.schedule,
            penalties=bundle.penalties,
            device=device,
        )


def prepare(name: str, changes: Mapping[str, Any], folder: str | Path, anew: bool = False) -> Prepared:
    """Build a recipe for a new run in ``folder``; ``anew`` lets it replace a run that nobody trains."""
    folder = Path(folder)
    if leads() and not anew:
        Run.planned(folder, RunHeader({}, new=True))  # refused before long work
    changes = valued_changes(name, changes)
    bundle = build(name, changes)
    copies = _copies(name, bundle)
    header = RunHeader(about_of(name, _carried(changes, copies), bundle), copies, new=True)
    return Prepared(bundle, Run.planned(folder, header, anew) if leads() else Run(folder))


def prepare_again(
    folder: str | Path, changes: Mapping[str, Any] | None = None, recipe: str = "", trust: bool = False
) -> Prepared:
    """Build the recipe of a run again, with some ``changes``, to go on with it.

    ``recipe`` names it, which a run of a recipe from a file needs unless it is trusted (``trust``).
    """
    run = Run.open(folder)
    name = recipe or str(run.about.get("recipe"))
    if changes and (recipe or name in SHIPPED):
        changes = valued_changes(name, changes)
    bundle = bundle_of(run, changes, recipe, trust)
    changed = {**changes_of(run), **(changes or {})}
    files = run.about.get("files")
    copies = files if isinstance(files, dict) else {}
    about = about_of(name, _carried(changed, copies), bundle)
    for key in ("tokens", *bundle.about):
        if _told(json.loads(json.dumps(about[key]))) != _told(run.about.get(key)):
            remedy = f"Give it the {'data' if key == 'data' else 'text'} it was started with, or start a new run."
            raise RunError(f"this run was started with another {NAMES.get(key, key)}", got=run.folder, remedy=remedy)
        if key != "tokens":
            about[key] = run.about[key]
    if (changes or recipe) and leads():
        run.header = RunHeader(about)
    return Prepared(bundle, run)


def start(
    name: str, changes: Mapping[str, Any], folder: str | Path, device: str = "auto", *, anew: bool = False
) -> Fitted:
    """Fit a recipe into a new run folder, on a device (auto, cpu, cuda or mps)."""
    return prepare(name, changes, folder, anew).fit(device)


def resume(
    folder: str | Path,
    changes: Mapping[str, Any] | None = None,
    device: str = "auto",
    *,
    recipe: str = "",
    trust: bool = False,
) -> Fitted:
    """Go on with a run; ``changes`` may lengthen it."""
    return prepare_again(folder, changes, recipe, trust).fit(device)


def about_of(name: str, changes: Mapping[str, Any], bundle: Bundle) -> dict[str, Any]:
    """What a run says of itself; with this it is built again."""
    file = is_file(name)
    own = {} if file is None else {"recipe_sha256": sha256_of(file)}
    return {
        "recipe": name,
        **own,
        "changes": to_plain(changes),
        "training": to_plain(bundle.training),
        "tokens": None if bundle.tokens is None else to_plain(bundle.tokens),
        **bundle.about,
    }


def _copies(name: str, bundle: Bundle) -> dict[str, bytes]:
    """What is copied into a new run, so that it can be carried elsewhere: small data, and the recipe's file."""
    found = {key: content for key, content in bundle.files.items() if len(content) <= SMALL}
    file = is_file(name)
    return found if file is None else {**found, COPIED: read_bytes(file)}


def _carried(changes: Mapping[str, Any], copies: Iterable[str]) -> dict[str, Any]:
    """Settings whose files are copied name the copies, which are carried with the run."""
    own = {key: f"{DATA}/{key}.txt" for key in PATHS if f"{key}.txt" in copies and changes.get(key) is not None}
    return {**changes, **own}


def _told(value: Any) -> Any:
    """A description of data without their name: a copy in a run has another one."""
    return {k: v for k, v in value.items() if k != "name"} if isinstance(value, dict) and "sha256" in value else value


def changes_of(run: Run) -> dict[str, Any]:
    """The settings that a run was given, as objects."""
    made = from_plain(run.about.get("changes", {}))
    if not isinstance(made, dict):
        raise RunError("the changes of a run are settings", got=type(made).__name__, remedy="Start a new run.")
    return made


def bundle_of(run: Run, changes: Mapping[str, Any] | None = None, recipe: str = "", trust: bool = False) -> Bundle:
    """What the recipe of a run makes, of the data of the run."""
    name = recipe or run.about.get("recipe")
    if not isinstance(name, str):
        remedy = "Go on from Python: fit(model, task, run=Run.open(folder), …)."
        raise ConfigError("this run was not made by a recipe", got=run.folder, remedy=remedy)
    changed = {**changes_of(run), **(changes or {})}
    if not recipe:
        name = _own_recipe(run, name, trust)
    elif is_file(recipe) is not None:
        _compare(run, recipe)
    known = keys(find(name))
    for key in PATHS:
        if key in known and key not in (changes or {}):
            place = _place(run, key, changed.get(key), trust)
            if place is not None:
                changed[key] = place
    return build(name, changed)


def _own_recipe(run: Run, name: str, trust: bool) -> str:
    """The recipe that a run names, where it may be run: a shipped one, or any of a run that is trusted."""
    if name in SHIPPED:
        return name
    if not trust:
        remedy = (
            "Name the recipe yourself (continua fit FILE.py:FUNCTION --resume RUN), or add --trust to run its file."
        )
        raise RunError("a recipe that a run names is not executed", got=repr(name), remedy=remedy)
    copied = run.file(COPIED)
    named = is_file(name)
    function = name.rpartition(":")[2]
    if named is not None and sha256_of(named) == run.about.get("recipe_sha256"):
        return name
    if copied is None:
        remedy = "Name the recipe yourself: continua fit FILE.py:FUNCTION --resume RUN."
        raise RunError("the recipe of this run is not the one it was started with", got=repr(name), remedy=remedy)
    return f"{copied}:{function}"


def _compare(run: Run, recipe: str) -> None:
    """Say that a recipe is not the one a run was started with."""
    file = is_file(recipe)
    wanted = run.about.get("recipe_sha256")
    if file is not None and wanted is not None and sha256_of(file) != wanted:
        warnings.warn(f"{file} has changed since {run.folder} was started.", stacklevel=3)


def _place(run: Run, key: str, given: Any, trust: bool) -> str | None:
    """The file that a setting of a run means: its copy in the run, or one that lies in the folder of the run."""
    copied = run.file(f"{key}.txt")
    if copied is not None:
        return str(copied)
    if given is None or trust:
        return None
    path = inside(run.folder, given)
    if path is not None and fault_of(path) is None:
        return str(path)
    remedy = (
        f"Name it: --{'text FILE' if key == 'text' else f'set {key}=PATH'}; or add --trust to read what the run names."
    )
    raise RunError(f"the {key} of this run is not in its folder", got=repr(given), remedy=remedy)


def tokens_of(run: Run) -> Tokeniser:
    """The tokeniser of a run of text."""
    if run.about.get("tokens") is None:
        raise ConfigError("this run is not one of text", got=run.folder, remedy="Use a run of continua fit text.")
    made = from_plain(run.about["tokens"])
    if not isinstance(made, Tokeniser):
        got = type(made).__name__
        raise ConfigError("this run has no tokeniser", got=got, remedy="Use a run of continua fit text.")
    return made
