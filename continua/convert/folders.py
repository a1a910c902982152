"""Folders that hold a model: a run, one of ``model.save``, or one of Hugging Face."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continua.convert.hub import located
from continua.convert.huggingface import from_hf
from continua.errors import CheckpointError
from continua.models import load
from continua.models.store import CONFIG, read_json
from continua.training import Run
from continua.training.run import ABOUT


@dataclass(frozen=True)
class Found:
    """The model of a folder, the run it is the best of (None: no run), and whether the folder is Hugging Face's.

    ``folder`` is where it is: that of a name ``org/name`` is in the cache of Hugging Face.
    """

    folder: Path
    model: Any
    run: Run | None
    is_hf: bool


def model_in(place: Path) -> Found:
    """Open a folder of any of these kinds, or a cached model of Hugging Face. Nothing of it is executed."""
    folder = located(place)
    if (folder / ABOUT).is_file():
        run = Run.open(folder)
        return Found(folder, run.model(), run, False)
    config = folder / CONFIG
    if not config.is_file():
        got = f"none in {folder}" if folder.is_dir() else f"{folder}, where no folder is"
        remedy = "Give a run of continua fit, a folder of model.save() or one of Hugging Face."
        raise CheckpointError(f"a folder of a model has a {ABOUT} or a {CONFIG}", got=got, remedy=remedy)
    if read_json(config).get("format") != "continua":
        return Found(folder, from_hf(folder), None, True)
    return Found(folder, load(folder), None, False)
