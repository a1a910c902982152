"""Models from whatever Continua wrote: a saved model, a checkpoint, a run."""

from pathlib import Path
from typing import Any

from continua.errors import CheckpointError, ConfigError
from continua.models import store
from continua.settings import checked
from continua.training import checkpoint, stored
from continua.training.run import ABOUT, WHICH, Run


@checked
def load(path: str | Path, which: str = "best") -> Any:
    """Return the model that is in ``path``, exactly as it was: dtype and every number.

    ``path`` is a folder that ``model.save`` wrote, a run (its ``which`` = "best" or "last" model), a checkpoint of one,
    or the ``model.safetensors`` of any of them. Nothing of a folder is executed, no pickle is opened.
    """
    if which not in WHICH:
        raise ConfigError("which model of a run: best or last", got=repr(which), remedy="Leave it out for the best.")
    path = Path(path)
    if path.name in (store.WEIGHTS, store.CONFIG) and path.is_file():
        path = path.parent
    if (path / ABOUT).is_file():
        return Run.open(path).model(which)
    named = checkpoint.is_name(path.name) and (path / checkpoint.STATE).exists()
    if named or checkpoint.is_sharded(path):
        fault = checkpoint.damage(path)
        if fault is not None:
            remedy = "Take an older one, or the run itself: ct.load(RUN)."
            raise CheckpointError(f"the checkpoint {path} is damaged", got=fault, remedy=remedy)
    return stored.model(path)
