"""Sets of functions on meshes on disk: made once, kept under the name of everything that determines them."""

import hmac
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from continua.data.diffusion import diffusion_points
from continua.data.elasticity import elasticity_meshes
from continua.data.generation import ShareDone
from continua.data.mesh_features import DIFFUSION, ELASTICITY, POISSON, Equation
from continua.data.mesh_pairs import MeshPairs
from continua.data.poisson import poisson_meshes
from continua.data.store import cache_folder, key_of, seal_of, write_tensors
from continua.errors import ConfigError, ContinuaError

TENSORS = ("inputs", "outputs", "points", "weights", "cells", "sizes")
VERSION = 3  # of the generator: raised whenever it would make other numbers


def generated_meshes(
    count: int,
    n: int,
    seed: int = 0,
    watch: ShareDone | None = None,
    root: Path | None = None,
    equation: Equation = POISSON,
) -> MeshPairs:
    """``poisson_meshes(count, n, seed)``, the set of another ``equation``, or what was made of the same numbers before.

    A file that is damaged, or was not made by this user for this request, is made anew; where nothing can be written
    the set is returned all the same, with a warning.
    """
    key = key_of(equation.name, VERSION, {"count": count, "n": n, "seed": seed})
    path = (root or cache_folder()) / f"{equation.name}-{key[:32]}.safetensors"
    found = _kept(path, key)
    if found is not None:
        return found
    pairs = _made(equation, count, n, seed, watch)
    about = {"name": pairs.name, "sha256": pairs.sha256, "request": key, "seal": seal_of(key, pairs.sha256)}
    _attempted(pairs.name, lambda: write_tensors(path, {what: getattr(pairs, what) for what in TENSORS}, about))
    return pairs


def _made(equation: Equation, count: int, n: int, seed: int, watch: ShareDone | None) -> MeshPairs:
    """A new set."""
    if equation == ELASTICITY:
        return elasticity_meshes(count, n, seed, watch)
    if equation == DIFFUSION:
        return diffusion_points(count, n, seed, watch)
    return poisson_meshes(count, n, seed, watch)


def _kept(path: Path, key: str) -> MeshPairs | None:
    """The set of a file whose seal is ours; None where there is none, or a wrong one."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {what: file.get_tensor(what) for what in TENSORS}
        pairs = MeshPairs(name=about.get("name", ""), **tensors)
        _check(pairs)
        if not hmac.compare_digest(about.get("seal", "").encode(), seal_of(key, pairs.sha256).encode()):
            raise ConfigError(f"{path} was not made here", got="another seal", remedy="Delete it.")
    except (OSError, SafetensorError, ValueError, ContinuaError) as damage:
        warnings.warn(f"a cached set is made anew: {damage}", stacklevel=3)
        return None
    return pairs


def _check(pairs: MeshPairs) -> None:
    """Refuse cells that name no node: a file that is sealed cannot have them, one that is not may."""
    cells = pairs.cells
    whole = not cells.is_floating_point() and int(pairs.sizes.sum()) == len(cells)
    if not whole or (len(cells) and not 0 <= int(cells.min()) <= int(cells.max()) < pairs.nodes):
        raise ConfigError("cells name nodes of their mesh", got="others", remedy="Make the set anew.")
    if not bool(torch.isfinite(pairs.weights).all()):
        raise ConfigError("the measure of a mesh is finite", got="NaN", remedy="Make the set anew.")


def _attempted(name: str, write: Callable[[], Any]) -> None:
    try:
        write()
    except OSError as problem:
        warnings.warn(f"{name} was not kept for the next time ({problem}).", stacklevel=3)
