"""Saving and loading: safetensors and a versioned plain description. No pickle is ever read or written.

A save is one rename: ``model.safetensors`` carries the description and a SHA-256 of everything beside the weights, so
it is a whole model by itself; ``config.json`` is its description for people and tools. A crash between the two leaves
a ``config.json`` of another save, which is seen by its mark, and the description beside the weights counts.
"""

import hashlib
import json
import math
import os
import stat
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from continua.config import VERSION, from_plain, to_plain
from continua.errors import CheckpointError, ContinuaError
from continua.files import aside, fault_of, flush, read_bytes

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
MARK = "save"  # in both files: the SHA-256 of description and weights
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
ALWAYS_MADE = 10**7  # numbers that are allocated for a description without asking the file
DAMAGED = "The file is damaged or was changed: copy it again, or save the model anew."


def save(model: nn.Module, folder: str | Path) -> Path:
    """Write ``model`` into ``folder``: after a crash at any moment the model before is there, or this one."""
    folder = Path(folder)
    described = json.loads(json.dumps(description(model)))
    refuse_ruined(dict(model.named_parameters()))
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    content = fingerprint(tensors)
    mark = _mark(described, content)
    about = {"format": "continua", "version": str(VERSION), "config": json.dumps(described), "content": content}
    folder.mkdir(parents=True, exist_ok=True)
    with aside(folder / CONFIG) as config, aside(folder / WEIGHTS) as weights:
        config.write_text(json.dumps({**described, MARK: mark}, indent=1), encoding="utf-8")
        try:
            save_file(tensors, weights, metadata={**about, MARK: mark})
        except SafetensorError as problem:  # its own name for a disk that is full or cannot be written
            raise OSError(str(problem)) from problem
        os.chmod(weights, stat.S_IMODE(config.stat().st_mode))  # safetensors writes files for their owner alone
        flush(config)
        flush(weights)
        if not (folder / WEIGHTS).exists():  # a description without weights is no model yet
            os.replace(config, folder / CONFIG)
        os.replace(weights, folder / WEIGHTS)  # from here on the new model is there
        if config.exists():
            os.replace(config, folder / CONFIG)
        flush(folder)
    return folder


def refuse_ruined(parameters: Mapping[str, torch.Tensor]) -> None:
    """Say which parameter is not finite."""
    ruined = not_finite(parameters)
    if ruined:
        remedy = "Train it anew with a lower learning rate, or take an earlier checkpoint."
        raise CheckpointError("weights must be finite to be saved", got=f"NaN or infinity in {ruined}", remedy=remedy)


def not_finite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """The name of the first tensor that holds a NaN or an infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of the names, dtypes, shapes and bytes of tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _mark(described: Mapping[str, Any], content: str) -> str:
    """The SHA-256 of a description and of the weights that belong to it."""
    plain = {key: value for key, value in described.items() if key != MARK}
    return hashlib.sha256((json.dumps(plain, sort_keys=True) + content).encode()).hexdigest()


def description(model: nn.Module) -> dict[str, Any]:
    """What ``config.json`` says of a model."""
    return {"format": "continua", "version": VERSION, "model": to_plain(model)}


def load(folder: str | Path) -> Any:
    """Return the model saved in ``folder``, exactly as it was: dtype and every number.

    What 0.1 wrote has no checksums and is read without them.
    """
    folder = Path(folder)
    described = read_config(folder)
    tensors = read_tensors(folder)
    _refuse_strange(folder)
    about = _about(folder)
    changed = False
    if MARK in about:
        if fingerprint(tensors) != about.get("content"):
            raise CheckpointError(f"{folder / WEIGHTS} is damaged", got="other numbers than were saved", remedy=DAMAGED)
        if described.get(MARK) != about[MARK]:  # a crash, or another writer, between the two files of a save
            described = _described_beside(folder, about)
            warnings.warn(f"{folder / CONFIG} is of another save: the one in {WEIGHTS} is used.", stacklevel=2)
        changed = _mark(described, about["content"]) != about[MARK]
    if changed:
        _refuse_larger(described["model"], tensors, folder)
        _fitting(_unchanged(folder, described["model"]), tensors, folder)
        raise _changed(folder / CONFIG)
    model = built(described["model"], tensors, folder)
    if MARK in described and MARK not in about:
        raise _changed(folder / WEIGHTS)
    return model


def built(plain: Any, tensors: Mapping[str, torch.Tensor], folder: Path) -> Any:
    """The model of a description, with these weights; ``folder`` is where both were found."""
    _refuse_larger(plain, tensors, folder)
    model = _fitting(from_plain(plain), tensors, folder)
    model.load_state_dict(tensors, assign=True)  # take the tensors themselves, so that each keeps its own dtype
    return model


def _fitting(model: Any, tensors: Mapping[str, torch.Tensor], folder: Path) -> Any:
    wanted = model.state_dict()
    check_names(set(tensors), set(wanted), folder)
    check_shapes(tensors, wanted, folder)
    return model


def _refuse_larger(plain: Any, tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Refuse a description of more than the file holds before it is made: first as shapes without memory.

    That takes as long as making a small model, so it is left out where no three numbers of the description could make
    a large one.
    """
    held = sum(tensor.numel() for tensor in tensors.values())
    if math.prod(sorted(_sizes(plain))[-3:]) <= max(ALWAYS_MADE, held):
        return
    with torch.device("meta"):
        wanted = from_plain(plain).state_dict()
    check_names(set(tensors), set(wanted), folder)
    check_shapes(tensors, wanted, folder)


def _sizes(plain: Any) -> Iterator[int]:
    """All whole numbers of a description."""
    if isinstance(plain, Mapping):
        plain = list(plain.values())
    if isinstance(plain, list):
        for one in plain:
            yield from _sizes(one)
    elif isinstance(plain, int):
        yield plain


def _unchanged(folder: Path, plain: Any) -> Any:
    """Build what a changed description says: an error that names the change says more than that there was one."""
    try:
        return from_plain(plain)
    except ContinuaError:
        raise
    except Exception as nonsense:
        raise _changed(folder / CONFIG) from nonsense


def _changed(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} has changed", got="another SHA-256 than it had", remedy=DAMAGED)


def _refuse_strange(folder: Path) -> None:
    """Links that lead out of the folder are not followed: what is loaded is what the folder holds."""
    for name in (CONFIG, WEIGHTS):
        fault = fault_of(folder / name)
        if fault is not None:
            remedy = "Give a folder that holds the files themselves."
            raise CheckpointError(f"{name} must be a plain file", got=f"{folder / name} {fault}", remedy=remedy)


def _about(folder: Path) -> dict[str, str]:
    """What is written beside the weights; empty for 0.1."""
    with safe_open(folder / WEIGHTS, "pt") as file:
        return dict(file.metadata() or {})


def _described_beside(folder: Path, about: Mapping[str, str]) -> dict[str, Any]:
    try:
        described = json.loads(about.get("config", ""))
        fits = _mark(described, about["content"]) == about[MARK]
    except (ValueError, AttributeError):
        fits = False
    if not fits:
        got = "a description that does not belong to it"
        raise CheckpointError(f"{folder / WEIGHTS} is damaged", got=got, remedy=DAMAGED)
    _check_version(described)
    return dict(described)


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
    _check_version(described)
    return described


def _check_version(described: Mapping[str, Any]) -> None:
    if described.get("version") != VERSION:
        remedy = "Load it with the version of Continua that wrote it, and save it again with this one."
        raise CheckpointError(
            f"this Continua reads checkpoint version {VERSION}", got=described.get("version"), remedy=remedy
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object."""
    try:
        described = json.loads(read_bytes(path).decode())
    except (ValueError, RecursionError) as damaged:  # not JSON, or not text
        raise CheckpointError(f"{path} is not valid JSON", got=str(damaged), remedy="Write it again.") from damaged
    except OSError as unreadable:
        remedy = "Give a folder that holds the files themselves, and that you may read."
        raise CheckpointError(f"{path} cannot be read", got=str(unreadable), remedy=remedy) from unreadable
    if not isinstance(described, dict):
        remedy = "Write it again."
        raise CheckpointError(f"{path} must hold one JSON object", got=type(described).__name__, remedy=remedy)
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


def check_shapes(got: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> None:
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
