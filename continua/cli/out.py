"""Where a command writes: what cannot be written is said in a sentence, before the work where that can be seen."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from continua.errors import ConfigError

REMEDY = "Choose a place that can be written: --out PATH."


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Answer a place that cannot be written with a sentence."""
    try:
        yield path
    except OSError as problem:
        why = problem.strerror or str(problem)
        raise ConfigError(f"{path} cannot be written", got=why, remedy=REMEDY) from problem


def refuse_unwritable(path: Path) -> None:
    """Refuse the name of a file where none can be: a folder, a device, a place without rights or below a file."""
    if path.exists() and not path.is_file():
        raise ConfigError("a plain file is written", got=f"{path}, which is something else", remedy=REMEDY)
    above = next(place for place in (path.parent, *path.parent.parents) if place.exists() or place == place.parent)
    if (
        not above.is_dir()
        or not os.access(above, os.W_OK | os.X_OK)
        or (path.exists() and not os.access(path, os.W_OK))
    ):
        raise ConfigError(f"{path} cannot be written", got=f"no right to, or no folder, at {above}", remedy=REMEDY)


def folder_for(path: Path) -> Path:
    """Make a folder for what a command writes."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    return path
