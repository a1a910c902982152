"""The tensors of a folder, in one file or in shards with an index: each is read when it is asked for.

A large file is opened for one tensor at a time and nothing of it stays mapped, so that a model takes its own memory and
hardly more while it is loaded; a small one is opened once.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from continua.errors import CheckpointError
from continua.models.store import PICKLES, WEIGHTS, read_json, refuse_pickle
from continua.typing import Tensor

CHUNK = 2**23  # numbers that are read at once
SMALL = 2**26  # bytes of a file that may stay mapped while a model is loaded
INDEX = "model.safetensors.index.json"
DAMAGED = "The file is damaged or cut short: copy it again."
AGAIN = "Write the folder again with save_pretrained, or copy it whole."


@dataclass(frozen=True)
class StoredTensors(Mapping[str, Tensor]):
    """Tensors by name; ``files`` says in which file each one is. Small ones are parts of the file: copy them."""

    files: Mapping[str, Path]
    kept: dict[Path, Any] = field(default_factory=dict)  # small files that are open

    def __getitem__(self, name: str) -> Tensor:
        path = self.files[name]
        if path in self.kept or path.stat().st_size <= SMALL:
            if path not in self.kept:
                self.kept[path] = _opened(path)
            part: Tensor = self.kept[path].get_tensor(name)
            return part
        with _opened(path) as file:
            shape = file.get_slice(name).get_shape()
            if not shape or math.prod(shape) <= CHUNK:
                found: Tensor = file.get_tensor(name)
                return found
        return self._in_chunks(path, name, shape)

    def _in_chunks(self, path: Path, name: str, shape: list[int]) -> Tensor:
        """Some rows at a time, so that no more of the file than these is in memory beside the tensor."""
        rows = max(1, CHUNK // math.prod(shape[1:]))
        room: Tensor | None = None
        for start in range(0, shape[0], rows):
            with _opened(path) as file:
                piece = file.get_slice(name)[start : start + rows]
                room = piece.new_empty(shape) if room is None else room
                room[start : start + rows] = piece
                del piece
        if room is None:
            raise CheckpointError(f"{name} has no rows", got=shape, remedy=AGAIN)
        return room

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def stored_tensors(folder: Path) -> StoredTensors:
    """What a folder holds: ``model.safetensors``, or the shards that its index names."""
    whole = folder / WEIGHTS
    if whole.is_file():
        return StoredTensors(dict.fromkeys(_names(whole), whole))
    if (folder / INDEX).is_file():
        return _sharded(folder)
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES) if folder.is_dir() else []
    if pickled:
        refuse_pickle(Path(pickled[0]))
    got = f"neither in {folder}"
    raise CheckpointError(f"the folder needs a {WEIGHTS} or a {INDEX}", got=got, remedy="Check the path.")


def _sharded(folder: Path) -> StoredTensors:
    index = read_json(folder / INDEX).get("weight_map")
    if not isinstance(index, Mapping) or not index or not all(isinstance(file, str) for file in index.values()):
        got = type(index).__name__ if not isinstance(index, Mapping) else "names that are no text, or none"
        raise CheckpointError(f"{INDEX} needs a weight_map from tensors to files", got=got, remedy=AGAIN)
    files = sorted(set(index.values()))
    for file in files:
        if Path(file).name != file or "\\" in file or file in ("", ".", ".."):
            remedy = "An index names files beside it; nothing else is opened."
            raise CheckpointError("a shard lies in the folder of its index", got=repr(file), remedy=remedy)
        refuse_pickle(Path(file))
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        remedy = "Copy all shards into the folder."
        raise CheckpointError("the folder lacks shards of its index", got=f"no {', '.join(missing[:3])}", remedy=remedy)
    found = {file: set(_names(folder / file)) for file in files}
    lost = [name for name, file in index.items() if name not in found[file]]
    if lost:
        got = f"no {', '.join(sorted(lost)[:3])} in {index[sorted(lost)[0]]}"
        raise CheckpointError("a shard lacks tensors that the index places there", got=got, remedy=AGAIN)
    unlisted = sorted(name for names in found.values() for name in names if name not in index)
    if unlisted:
        got = ", ".join(unlisted[:3])
        raise CheckpointError("the shards hold tensors that the index does not know", got=got, remedy=AGAIN)
    return StoredTensors({name: folder / file for name, file in index.items()})


def _names(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.keys())


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, "pt")
    except (SafetensorError, OSError) as damaged:
        raise CheckpointError(f"{path.name} cannot be read", got=str(damaged), remedy=DAMAGED) from damaged
