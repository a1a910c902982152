"""Model folders, checkpoints, runs and caches with something wrong in them."""

import copy
import functools
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from fuzzing import oracles
from fuzzing.case import Case
from fuzzing.configs import _mutated
from fuzzing.corpus import KEPT
from fuzzing.draw import Draw
from fuzzing.models import model_of

SOURCE = 64 << 20  # bytes that the source of Python's library takes, as text and as tokens
FILE_WAYS = (
    "flip", "flip", "cut", "empty", "grow", "remove", "fifo", "link", "dangling", "folder", "device", "swap", "bytes",
    "unreadable", "mutate", "mutate", "pickle",
)  # fmt: skip
JSON_WRONG = (
    None,
    3,
    "x",
    [],
    {},
    -1,
    10**12,
    True,
    math.nan,
    "../../etc",
    "/etc/passwd",
    [1, 2],
    {"kind": "Interval"},
)


def files(draw: Draw) -> Case:
    """One of the kinds of folders that are ours."""
    return draw.pick("what", (_model, _model, _run, _run, _run, _cache))(draw)


@functools.cache
def _template(name: str) -> Path:
    place = Path(f"template-{name}").absolute()
    model_of(name).save(place)
    return place


def _fresh_copy(source: Path, name: str) -> Path:
    place = Path(name).absolute()
    if place.is_symlink() or place.is_file():
        place.unlink()
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    return place


def damage(draw: Draw, name: str, place: Path, within: list[str]) -> str | None:
    """Do something to one file of a folder, and say what."""
    if not draw.spoils(name, 0.85):
        return None
    path = place / draw.pick(f"{name}/file", within)
    way = draw.pick(f"{name}/way", FILE_WAYS)
    draw.note(name, f"{way} {path.name}")
    if not path.exists():
        return way
    content = path.read_bytes()
    if way == "mutate" and path.suffix == ".json":
        plain = _mutated(draw, json.loads(content))
        path.write_text(json.dumps(plain))
        return f"mutate {path.name}"
    path.unlink()
    rewritten: dict[str, Callable[[], Any]] = {
        "flip": lambda: path.write_bytes(_flipped(draw, name, content)),
        "cut": lambda: path.write_bytes(content[: draw.of(f"{name}/at").randrange(len(content) or 1)]),
        "empty": lambda: path.write_bytes(b""),
        "grow": lambda: path.write_bytes(content + b"\0" * 64),
        "fifo": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to("/etc/hostname"),
        "dangling": lambda: path.symlink_to("nowhere"),
        "folder": lambda: path.mkdir(),
        "device": lambda: path.symlink_to("/dev/zero"),
        "swap": lambda: path.write_bytes((place / within[0]).read_bytes() if (place / within[0]).is_file() else b"x"),
        "bytes": lambda: path.write_bytes(draw.of(f"{name}/noise").randbytes(200)),
        "unreadable": lambda: (path.write_bytes(content), path.chmod(0)),
        "pickle": lambda: path.with_suffix(".bin").write_bytes(b"\x80\x04."),
        "mutate": lambda: path.write_bytes(content.replace(b"0", b"1", 1)),
    }
    rewritten.get(way, lambda: None)()
    return f"{way} {path.name}"


def _flipped(draw: Draw, name: str, content: bytes) -> bytes:
    if not content:
        return content
    place = draw.of(f"{name}/at").randrange(len(content))
    bit = 1 << draw.of(f"{name}/bit").randrange(8)
    return content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]


def _model(draw: Draw) -> Case:
    """A folder of model.save."""
    import continua as ct

    name = draw.pick("model", ("gpt2", "words", "t5"))
    place = _fresh_copy(_template(name), "model")
    within = [item.name for item in sorted(place.iterdir())]
    done = damage(draw, "damage", place, within)
    target: Any = draw.spoil(
        "target", place, (None, 3, "", place / "model.safetensors", place / "none", b"x", str(place), "\0")
    )

    def build() -> Any:
        return ct.load(target)

    def judge(model: Any) -> Iterable[str]:
        if done is not None and done.startswith("mutate config"):
            return  # another model, and it says so
        yield from _same(model.state_dict(), model_of(name).state_dict(), done)

    return Case(f"ct.load(model of {name} with {done}, {target!r})", build, judge)


def _same(got: dict[str, Any], wanted: dict[str, Any], done: str | None) -> Iterable[str]:
    for key, value in wanted.items():
        if key not in got or oracles.apart(got[key].float(), value) > 0:
            yield f"weights: {done} was not noticed in {key}"
            return


RUN_FILES = ["run.json", "metrics.jsonl", "poem.txt"]


def _run(draw: Draw) -> Case:
    """A run that 0.1 wrote: looked at, loaded, asked, gone on with."""
    from continua.training import Run

    place = _fresh_copy(KEPT / "run", "run")
    os.chmod(place, 0o755)
    marker = Path("executed").absolute()
    marker.unlink(missing_ok=True)
    steps = sorted(item.name for item in (place / "checkpoints").iterdir())
    inner = [
        f"checkpoints/{step}/{item.name}" for step in steps for item in sorted((place / "checkpoints" / step).iterdir())
    ]
    done = _foreign(draw, place, marker) or damage(draw, "damage", place, [*RUN_FILES, *inner, *inner])
    how = draw.pick(
        "how", ("open", "model", "load", "inspect", "generate", "history", "model", "load", "inspect", "resume")
    )

    def build() -> Any:
        return _USES[how](place, Run)

    def judge(_: Any) -> Iterable[str]:
        if marker.exists():
            yield f"executed: {how} ran a file of the run"

    case = Case(f"{how} of a run with {done}", build, judge, _asked(place))
    plain = case.call

    def watched() -> Any:
        here = os.getcwd()
        try:
            os.chdir(place)
            return plain()
        finally:
            os.chdir(here)
            if marker.exists():
                raise RuntimeError("a file of the run was executed")

    case.call = watched
    return case


def _asked(place: Path) -> int:
    """A run whose settings name no text was trained on Python's own source, and is measured on all of it."""
    described = place / "run.json"
    if not described.is_file() or described.stat().st_size > 1 << 20:  # a pipe, a device, or what was blown up
        return 0
    try:
        own = json.loads(described.read_text())["changes"].get("text")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0
    return SOURCE if own is None else 0


def _foreign(draw: Draw, place: Path, marker: Path) -> str | None:
    """Someone else's run: paths that lead out of it, code beside it, sizes of their own."""
    if not draw.spoils("foreign", 0.3):
        return None
    about = json.loads((place / "run.json").read_text())
    way = draw.pick("foreign/way", ("recipe", "text", "value", "value", "best", "huge"))
    if way == "recipe":
        (place / "recipe.py").write_text(f"open({str(marker)!r}, 'w').close()\ndef f(): pass\n")
        about["recipe"] = draw.pick("foreign/where", (f"{place}/recipe.py:f", "recipe.py:f", "./recipe.py:f"))
    elif way == "text":
        about["changes"]["text"] = draw.pick("foreign/path", ("/etc/passwd", "../secret.txt", "/dev/zero", 3, None))
    elif way == "huge":
        about["changes"][draw.pick("foreign/size", ("d", "depth", "context", "heads", "batch"))] = 10**9
    elif way == "best":
        for path in place.glob("checkpoints/*/progress.json"):
            plain = json.loads(path.read_text())
            plain["best"] = draw.pick("foreign/best", ("/etc", "../../..", 3, None, "00000003", "x\0"))
            path.write_text(json.dumps(plain))
    else:
        keys = sorted(about)
        about[draw.pick("foreign/key", keys)] = draw.pick("foreign/wrong", JSON_WRONG)
    (place / "run.json").write_text(json.dumps(about))
    draw.note("foreign", way)
    return f"foreign {way}"


def _invoked(*words: str) -> Any:
    from fuzzing.commands import typed

    return typed([*words])


_USES: dict[str, Callable[[Path, Any], Any]] = {
    "open": lambda place, Run: Run.open(place),
    "model": lambda place, Run: Run.open(place).model(),
    "history": lambda place, Run: list(Run.open(place).history()),
    "load": lambda place, Run: __import__("continua").load(sorted((place / "checkpoints").iterdir())[0]),
    "inspect": lambda place, Run: _invoked("inspect", str(place)),
    "generate": lambda place, Run: _invoked("generate", str(place), "--tokens", "3", "--prompt", "a"),
    "resume": lambda place, Run: _invoked("fit", "--resume", str(place)),
}


def _cache(draw: Draw) -> Case:
    """A cached set of pairs that somebody has touched is made anew or refused, never believed."""
    import continua.tasks as tasks

    root = Path("pairs").absolute()
    settings = {
        "n": draw.spoil("n", 16, (0, -1, "x", 1.5, None, True, [], 10**9)),
        "seed": draw.spoil("seed", 1, (-1, "x", None, 1.5)),
    }
    count = draw.spoil("count", 2, (0, -1, "x", 1.5, None, 10**9))
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    kept = _pairs()
    for name, content in kept.items():
        (root / name).write_bytes(content)
    done = damage(draw, "damage", root, sorted(kept))

    def build() -> Any:
        return tasks.generated("burgers", count, root=root, **settings)

    def judge(pairs: Any) -> Iterable[str]:
        yield from oracles.finite(pairs.inputs)
        yield from oracles.finite(pairs.outputs)
        if not draw.spoilt.keys() - {"damage"}:
            fresh = copy.copy(_reference())
            yield from oracles.equal("cache", pairs.outputs, fresh, 1e-6)

    return Case(f"generated('burgers', {count!r}, {settings}) with {done}", build, judge)


@functools.cache
def _pairs() -> dict[str, bytes]:
    import continua.tasks as tasks

    root = Path("pairs-made").absolute()
    tasks.generated("burgers", 2, root=root, n=16, seed=1)
    return {item.name: item.read_bytes() for item in root.iterdir() if item.is_file()}


@functools.cache
def _reference() -> torch.Tensor:
    import continua.tasks as tasks

    return tasks.generated("burgers", 2, root=Path("pairs-made").absolute(), n=16, seed=1).outputs
