"""Folders that hold a model: a run, one of ``model.save``, or one of Hugging Face."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continua.convert.huggingface import from_hf
from continua.models import load
from continua.models.store import CONFIG, read_json
from continua.training import Run
from continua.training.run import ABOUT


@dataclass(frozen=True)
class Found:
    """The model of a folder, the run it is the best of (None: no run), and whether the folder is Hugging Face's."""

    model: Any
    run: Run | None
    is_hf: bool


def model_in(folder: Path) -> Found:
    """Open a folder of any of these kinds. Nothing of it is executed."""
    if (folder / ABOUT).is_file():
        run = Run.open(folder)
        return Found(run.model(), run, False)
    config = folder / CONFIG
    if config.is_file() and read_json(config).get("format") != "continua":
        return Found(from_hf(folder), None, True)
    return Found(load(folder), None, False)
