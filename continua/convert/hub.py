"""Names of models (``org/name``) in the cache of Hugging Face. Only what was fetched before is found: no network."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from continua.errors import CheckpointError
from continua.files import HUB_BLOBS, HUB_SNAPSHOTS, fault_of

WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
NAME = re.compile(rf"(?:{WORD}/)?{WORD}")
COMMIT = re.compile(r"[0-9a-f]{7,64}")
LONGEST = 96  # characters of a name, as the hub has it
FILES = (".pt", ".bin", ".gguf", ".json", ".safetensors")  # of which a path is meant
REF = 1024  # bytes of a file that names a commit: far more than one has


def located(path: str | Path) -> Path:
    """The folder or file that a path means: itself where it is there, else that of the cached model of this name."""
    here = Path(path)
    if _is_there(here) or not _may_be_name(path):
        return here
    return snapshot(here.as_posix())


def snapshot(name: str, surroundings: Mapping[str, str] = os.environ) -> Path:
    """The cached folder of a model ``org/name``: the one that its ``refs/main`` names."""
    if not NAME.fullmatch(name) or ".." in name or "--" in name or len(name) > LONGEST:
        remedy = "Write it as org/name, or give the path of a folder."
        raise CheckpointError("this is no name of a model", got=repr(name[:LONGEST]), remedy=remedy)
    cache = cache_folder(surroundings)
    model = cache / f"models--{name.replace('/', '--')}"
    fetch = f"Check the path, or fetch the model once: hf download {name}. Nothing is downloaded here."
    if not model.is_dir():
        what = "there is neither such a folder nor such a model in the cache of Hugging Face"
        raise CheckpointError(what, got=f"{name}, looked for in {cache}", remedy=fetch)
    folder = model / HUB_SNAPSHOTS / _commit(model, name, fetch)
    if not folder.is_dir():
        raise CheckpointError("the cache lacks what refs/main names", got=f"no {folder}", remedy=fetch)
    _refuse_leaving(folder, model)
    return folder


def cache_folder(surroundings: Mapping[str, str] = os.environ) -> Path:
    """Where Hugging Face keeps models: HF_HUB_CACHE, else the folder hub of HF_HOME or of the user's cache."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if surroundings.get(name):
            return Path(surroundings[name]).expanduser()
    home = surroundings.get("HF_HOME") or Path(surroundings.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def _commit(model: Path, name: str, remedy: str) -> str:
    ref = model / "refs" / "main"
    fault = fault_of(ref)
    if fault is not None:
        raise CheckpointError(f"the cache of {name} names no version", got=f"refs/main {fault}", remedy=remedy)
    with ref.open("rb") as file:
        said = file.read(REF).decode("utf-8", "replace").strip()
    if not COMMIT.fullmatch(said):
        raise CheckpointError("refs/main holds the number of a commit", got=repr(said[:60]), remedy=remedy)
    return said


def _refuse_leaving(folder: Path, model: Path) -> None:
    """The files of a snapshot are links to the blobs beside it; anything that leads elsewhere is refused."""
    home = model.resolve()
    for place in (folder, *folder.iterdir()):
        if not place.resolve().is_relative_to(home):
            remedy = f"Files of a cached model lie in its {HUB_BLOBS}; nothing else is opened. Fetch it anew."
            got = f"{place.name}, a link out of it"
            raise CheckpointError("a cached model lies in its own folder", got=got, remedy=remedy)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or a null character
        return False


def _may_be_name(path: str | Path) -> bool:
    """Whether what is not there reads as ``org/name``; old models have one word, and are looked for where cached."""
    if str(path).startswith((".", "/", "~")) or Path(path).suffix in FILES:
        return False
    parts = Path(path).parts
    if len(parts) == 1 and NAME.fullmatch(parts[0]):
        return (cache_folder() / f"models--{parts[0]}").is_dir()
    return len(parts) == 2
