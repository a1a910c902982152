"""Saving and loading: safetensors and a versioned plain description. No pickle is ever read or written."""

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from continua.config import VERSION, from_plain, to_plain
from continua.errors import CheckpointError

CONFIG, WEIGHTS = "config.json", "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def save(model: nn.Module, folder: str | Path) -> Path:
    """Write ``model`` into ``folder``; each file appears whole or not at all."""
    folder = Path(folder)
    text = json.dumps(description(model), indent=1)
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    partial = {name: folder / f"{name}.partial" for name in (WEIGHTS, CONFIG)}
    try:
        save_file(tensors, partial[WEIGHTS], metadata={"format": "continua", "version": str(VERSION)})
        partial[CONFIG].write_text(text, encoding="utf-8")
        for name, written in partial.items():  # both are whole before either takes its place
            os.replace(written, folder / name)
    finally:
        for written in partial.values():
            written.unlink(missing_ok=True)
    return folder


def description(model: nn.Module) -> dict[str, Any]:
    """What ``config.json`` says of a model."""
    return {"format": "continua", "version": VERSION, "model": to_plain(model)}


def load(folder: str | Path) -> Any:
    """Return the model saved in ``folder``, exactly as it was: dtype and every number."""
    folder = Path(folder)
    described = read_config(folder)
    model = from_plain(described["model"])
    tensors = read_tensors(folder)
    wanted = model.state_dict()
    check_names(set(tensors), set(wanted), folder)
    check_shapes(tensors, wanted, folder)
    model.load_state_dict(tensors, assign=True)  # take the tensors themselves, so that each keeps its own dtype
    return model


def read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json`` and check that it is ours and of this version."""
    refuse_pickle(folder)
    path = folder / CONFIG
    if not path.is_file():
        remedy = "Give the folder that model.save() wrote; for Hugging Face folders use from_hf."
        raise CheckpointError(f"a saved model has a {CONFIG}", got=f"none in {folder}", remedy=remedy)
    described = read_json(path)
    if described.get("format") != "continua" or "model" not in described:
        remedy = "For a Hugging Face folder use from_hf."
        got = f"format {described.get('format')!r}"
        raise CheckpointError(f"{path} does not describe a Continua model", got=got, remedy=remedy)
    if described.get("version") != VERSION:
        remedy = "Load it with the version of Continua that wrote it, and save it again with this one."
        raise CheckpointError(
            f"this Continua reads checkpoint version {VERSION}", got=described.get("version"), remedy=remedy
        )
    return described


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object."""
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as damaged:  # not JSON, or not text
        raise CheckpointError(f"{path} is not valid JSON", got=str(damaged), remedy="Write it again.") from damaged
    if not isinstance(described, dict):
        got, remedy = type(described).__name__, "Write it again."
        raise CheckpointError(f"{path} must hold one JSON object", got=got, remedy=remedy)
    return described


def refuse_pickle(path: Path) -> None:
    """Refuse files that could run code when opened."""
    if path.suffix in PICKLES:
        remedy = "Load it where you trust it with weights_only=True, and store it with safetensors."
        raise CheckpointError("pickled weights are never opened", got=path.name, remedy=remedy)


def read_tensors(folder: Path) -> dict[str, Any]:
    """Read ``model.safetensors``; a missing, pickled or damaged file is said plainly."""
    path = folder / WEIGHTS
    if not path.is_file():
        pickled = [p.name for p in folder.iterdir() if p.suffix in PICKLES] if folder.is_dir() else []
        if pickled:
            refuse_pickle(Path(pickled[0]))
        raise CheckpointError(f"the folder needs a {WEIGHTS}", got=f"none in {folder}", remedy="Check the path.")
    try:
        # Copies, which torch aligns: in a file tensors lie anywhere, and products may round by where their factors lie.
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError) as damaged:
        remedy = "The file is damaged or cut short: copy it again."
        raise CheckpointError(f"{path.name} cannot be read", got=str(damaged), remedy=remedy) from damaged


def check_shapes(got: dict[str, Any], wanted: dict[str, Any], folder: Path) -> None:
    """Say which tensor has another shape than the configuration gives it."""
    for name, tensor in wanted.items():
        if got[name].shape != tensor.shape:
            remedy = "The weights and the configuration do not belong together: use the two files of one save."
            raise CheckpointError(
                f"{name} in {folder} needs shape {list(tensor.shape)}", got=list(got[name].shape), remedy=remedy
            )


def check_names(got: set[str], wanted: set[str], folder: Path) -> None:
    """Say which tensors are missing or too many."""
    if got == wanted:
        return
    missing, extra = sorted(wanted - got), sorted(got - wanted)
    parts = [f"missing {', '.join(missing[:3])}" if missing else "", f"unknown {', '.join(extra[:3])}" if extra else ""]
    remedy = "The weights and the configuration do not belong together: use the two files of one save."
    raise CheckpointError(f"the tensors in {folder} do not fit", got="; ".join(p for p in parts if p), remedy=remedy)
