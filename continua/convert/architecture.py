"""What it takes to read and write one architecture of Hugging Face."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from continua.convert.names import NameMap
from continua.errors import CheckpointError
from continua.settings.annotations import check_of
from continua.settings.door import shown
from continua.settings.ranges import Unfit


class Settings(dict[str, Any]):
    """The entries of a ``config.json``; a missing one is said plainly."""

    def __missing__(self, key: str) -> Any:
        """Refuse instead of guessing."""
        remedy = "Write the folder again with save_pretrained."
        raise CheckpointError(f"config.json needs {key!r} for this architecture", got="none", remedy=remedy)

    def take(self, key: str, hint: Any, *default: Any) -> Any:
        """An entry that is no setting of a model by itself, held against an annotation.

        Where a default is given it may be missing or null.
        """
        if default and self.get(key) is None:
            return default[0]
        value = self[key]
        check = check_of(hint)
        try:
            return check.take(value)
        except Unfit:
            remedy = "Write the folder again with save_pretrained."
            what = f"config.json: {key} takes {check.words}"
            raise CheckpointError(what, got=shown(value), remedy=remedy) from None


@dataclass(frozen=True)
class Architecture:
    """Three functions: ``config.json`` → model, model → names of its tensors on disk, model → ``config.json``.

    ``build`` is also given the names in the file (with which heads were they saved?). ``describe`` may fail on models
    of another shape; ``to_hf`` takes an architecture only if building its description gives the same model again.
    ``classes`` are names in a file by which it has a classifier of texts.
    """

    kind: str
    build: Callable[[Settings, set[str]], Any]
    names: Callable[[Any], NameMap]
    describe: Callable[[Any], dict[str, Any]]
    classes: tuple[str, ...] = ()


def expect(config: Mapping[str, Any], **settings: Any) -> None:
    """Refuse settings whose arithmetic the special case does not carry."""
    for key, value in settings.items():
        if config.get(key, value) != value:
            remedy = "Models with another setting are not in the zoo yet."
            raise CheckpointError(
                f"this architecture is read with {key}={value!r}", got=repr(config[key]), remedy=remedy
            )
