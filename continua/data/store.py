"""Sets of pairs on disk: generated once, kept under the name of everything that determines them."""

import contextlib
import hashlib
import hmac
import inspect
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as as_bytes

from continua.axes import Axis
from continua.config import from_plain, to_plain
from continua.data.burgers import burgers_pairs
from continua.data.darcy import darcy_pairs
from continua.data.generation import ShareDone
from continua.data.navier_stokes import vorticity_pairs
from continua.data.pairs import Pairs
from continua.data.turbulence import turbulence_pairs
from continua.errors import ConfigError, ContinuaError, nearest
from continua.files import read_bytes
from continua.typing import Tensor

TENSORS = ("inputs", "outputs", "points")
CONTIGUOUS = torch.contiguous_format


class Generator(NamedTuple):
    """A function that makes pairs; its version is raised whenever it would make other numbers."""

    make: Callable[..., Pairs]
    version: int


GENERATORS: Mapping[str, Generator] = {
    "burgers": Generator(burgers_pairs, 2),
    "darcy": Generator(darcy_pairs, 1),
    "navier-stokes": Generator(vorticity_pairs, 1),
    "turbulence": Generator(turbulence_pairs, 1),
}


def generated(
    name: str, count: int, watch: ShareDone | None = None, root: Path | None = None, **settings: Any
) -> Pairs:
    """The set of a generator by its name, from the cache if it was made before: ``generated("burgers", 1200, n=1024)``.

    What is not set keeps the generator's own value, and is part of the key.
    """
    if name not in GENERATORS:
        raise ConfigError("no generator has this name", got=name, remedy=nearest(name, list(GENERATORS)))
    make, version = GENERATORS[name]
    known = {k: p.default for k, p in inspect.signature(make).parameters.items() if k not in ("count", "watch")}
    for word in settings:
        if word not in known:
            raise ConfigError(f"{name} has no such setting", got=word, remedy=nearest(word, list(known)))
    given = {word: _number(word, value, known[word]) for word, value in settings.items()}
    return cached(make, name, {**known, **given, "count": count}, watch, version, root)


def _number(word: str, value: Any, usual: Any) -> Any:
    """The value in the type of the usual one, since 1 and 1.0 are two names of one set."""
    wanted = (int, float) if isinstance(usual, float) else (int,)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise ConfigError(f"{word} takes a number such as {usual:g}", got=repr(value), remedy="Give one.")
    return type(usual)(value)


def cached(
    make: Callable[..., Pairs],
    name: str,
    settings: Mapping[str, Any],
    watch: ShareDone | None = None,
    version: int = 1,
    root: Path | None = None,
) -> Pairs:
    """``make(**settings, watch=watch)``, or what it made before with the same name, version and settings.

    A file that is damaged, holds another set than its name says, or was not made by this user (its seal, an HMAC under
    a key that only this user has, is wrong) is made anew. Where nothing can be written the set is returned all the
    same, with a warning. Two processes may make the same set at once: each file appears whole.
    """
    key = key_of(name, version, settings)
    path = (root or cache_folder()) / f"{name}-{key[:32]}.safetensors"
    if path.exists():
        try:
            pairs, about = _read(path)
            if _is_sealed(path, key, pairs, about):
                return pairs
        except ContinuaError as damage:
            warnings.warn(f"a cached set is made anew: {damage}", stacklevel=2)
    pairs = make(**settings, watch=watch)
    try:
        save(pairs, path, {"request": key, "seal": seal_of(key, pairs.sha256)})
    except OSError as problem:
        warnings.warn(f"{name} was not kept for the next time ({problem}).", stacklevel=2)
    return pairs


def _is_sealed(path: Path, key: str, pairs: Pairs, about: Mapping[str, str]) -> bool:
    """Whether a file is what this user made for this request; False of files of 0.1, which have no seal."""
    if "seal" not in about:
        return False
    if about.get("request") != key:
        raise ConfigError(f"{path} holds another set", got="the seal of another request", remedy="Delete it.")
    if not hmac.compare_digest(about["seal"].encode(), seal_of(key, pairs.sha256).encode()):
        raise ConfigError(f"{path} was not made here", got="a seal of somebody else", remedy="Delete it.")
    return True


def seal_of(key: str, content: str) -> str:
    """An HMAC that says: this content was computed by this user for this request."""
    return hmac.new(_secret(), f"{key} {content}".encode(), "sha256").hexdigest()


def _secret() -> bytes:
    """A key of this user, made when it is first needed; where none can be kept, a checksum without one has to do."""
    named = os.environ.get("CONTINUA_STATE") or os.environ.get("XDG_STATE_HOME")
    path = (Path(named) if named else Path("~/.local/state").expanduser()) / "continua" / "seal.key"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, aside = tempfile.mkstemp(dir=path.parent)  # readable by its owner alone
            with os.fdopen(handle, "wb") as file:
                file.write(os.urandom(32))
            try:
                os.link(aside, path)  # the first of two processes wins
            except FileExistsError:
                pass
            finally:
                os.unlink(aside)
        return read_bytes(path, 4096)
    except OSError:
        return b""


def cache_folder() -> Path:
    """``$CONTINUA_CACHE``, or ``~/.cache/continua``."""
    named = os.environ.get("CONTINUA_CACHE")
    return Path(named) if named else Path("~/.cache/continua").expanduser()


def key_of(name: str, version: int, settings: Mapping[str, Any]) -> str:
    """sha256 of the generator's name, its version and all settings, in any order."""
    try:
        text = json.dumps([name, version, dict(settings)], sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as problem:
        remedy = "Use finite numbers, words and lists of them."
        raise ConfigError("these settings cannot name a set", got=str(problem), remedy=remedy) from problem
    return hashlib.sha256(text.encode()).hexdigest()


def save(pairs: Pairs, path: Path, more: Mapping[str, str] | None = None) -> Path:
    """Write one safetensors file: inputs, outputs, points, and the name, domain and sha256 of them."""
    tensors = {what: getattr(pairs, what) for what in TENSORS}
    about = {"name": pairs.name, "axis": json.dumps(to_plain(pairs.axis)), "sha256": pairs.sha256, **(more or {})}
    return write_tensors(path, tensors, about)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> Path:
    """Write a safetensors file aside, flushed to the disk, then named: a crash leaves it whole or not there."""
    # clones: tensors may be parts of one, and safetensors refuses those that share their memory
    own = {what: values.detach().cpu().clone(memory_format=CONTIGUOUS) for what, values in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(as_bytes(own, dict(about)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise
    return path


def load(path: Path) -> Pairs:
    """The pairs of such a file; one that is not what was written is refused."""
    return _read(path)[0]


def _read(path: Path) -> tuple[Pairs, dict[str, str]]:
    """The pairs of a file, and what is written beside them."""
    remedy = "Delete it and make or fetch it again."
    try:
        if path.exists() and not path.is_file():
            raise OSError(f"{path.name} is not a plain file")
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            missing = [name for name in TENSORS if name not in file.keys()]  # noqa: SIM118 (not a dict)
            missing += [word for word in ("name", "axis", "sha256") if word not in about]
            if missing:
                raise ConfigError(f"{path} is no file of pairs", got=f"no {missing[0]} in it", remedy=remedy)
            tensors = {name: file.get_tensor(name) for name in TENSORS}
        axis = from_plain(json.loads(about["axis"]))
        if not isinstance(axis, Axis):
            raise ConfigError(f"{path} is no file of pairs", got=f"the domain {axis}", remedy=remedy)
        pairs = Pairs(name=about["name"], axis=axis, **tensors)
    except (OSError, SafetensorError, ValueError) as problem:
        if isinstance(problem, ContinuaError):
            raise
        raise ConfigError(f"{path} cannot be read", got=str(problem), remedy=remedy) from problem
    if pairs.sha256 != about["sha256"]:
        raise ConfigError(f"{path} is damaged", got="another sha256 than its own", remedy=remedy)
    return pairs, about
