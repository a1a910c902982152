"""What the page needs of a model: the ONNX file, its tokeniser, the table of its sizes and some held-out text."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from continua.axes.rules import taken_first
from continua.convert import export
from continua.data.tokens import BytePairs, Characters, Tokeniser
from continua.errors import ConfigError
from continua.lab.cost.pareto import Pareto
from continua.lab.cost.point import Point
from continua.session import About, Session
from continua.session.about import DECODER
from continua.typing import Tensor

VERSION = 1
MODEL = "model.onnx"
INDEX = "bundle.json"
WINDOWS = 4  # of held-out text, on which the page measures sizes that the table does not have

Drew = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Sizes:
    """What is known of the sizes of a model: the measured ones, and whether training drew one."""

    table: Pareto
    drew: Drew


@dataclass(frozen=True)
class Measured:
    """One size of the table."""

    d: int
    h: int
    z: int
    loss: float
    milliseconds: float | None
    flops: int
    bytes: int | None
    trained: bool | None


@dataclass(frozen=True)
class Bundle:
    """All that the page reads at first, beside the ONNX file.

    ``about`` is what the file says of itself, ``trained`` lists the sizes d, h, z that training drew, ``nodes`` has the
    nodes of each width in the order in which smaller sizes take them, as shares of the axis. ``windows`` are token
    numbers of held-out text. ``live`` says that a server is behind the page that can start work.
    """

    name: str
    prompt: str
    about: Mapping[str, Any]
    measured_on: str
    sizes: tuple[Measured, ...]
    trained: tuple[tuple[int, int, int], ...]
    nodes: Mapping[str, tuple[float, ...]]
    windows: tuple[tuple[int, ...], ...]
    model: str = MODEL
    model_bytes: int = 0
    live: bool = False
    version: int = VERSION

    def as_json(self) -> str:
        """In one line."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))


def write_model(model: Any, tokens: Tokeniser, path: Path) -> About:
    """Export every size of a model into one file, with attention and states as further outputs."""
    if not isinstance(tokens, Characters | BytePairs):
        remedy = "Use a run of continua demo or continua fit elastic."
        raise ConfigError("the page reads characters and byte pairs", got=type(tokens).__name__, remedy=remedy)
    made = export(model, path, probe=True, tokens=tokens)
    about = Session(made.path).about
    if made.kind != DECODER or not about.elastic:
        remedy = "Use an elastic model: continua demo, or continua fit elastic."
        raise ConfigError("the studio shows a text model at every size", got="a model of one size", remedy=remedy)
    return about


def bundle_of(
    name: str, model: Any, about: About, sizes: Sizes, windows: Tensor | None = None, prompt: str = ""
) -> Bundle:
    """The bundle of a model that ``write_model`` wrote."""
    return Bundle(
        name=name,
        prompt=prompt or usual_prompt(about),
        about=asdict(replace(about, steps=dict(about.steps))),
        measured_on=sizes.table.measured_on,
        sizes=tuple(found for point in sizes.table.points if (found := _measured(point)) is not None),
        trained=drawn_sizes(about, sizes.drew),
        nodes={letter: _nodes(model, letter) for letter in ("d", "h")},
        windows=() if windows is None else tuple(tuple(row) for row in windows[:WINDOWS].tolist()),
    )


def usual_prompt(about: About) -> str:
    """``def `` where the alphabet has it (byte pairs have all), else the first characters that are letters."""
    alphabet = (about.tokens or {}).get("alphabet")
    if alphabet is None or set("def ") <= set(alphabet):
        return "def "
    letters = [character for character in alphabet if character.isalpha()] or list(alphabet)
    return "".join(letters[:3])


def drawn_sizes(about: About, drew: Drew) -> tuple[tuple[int, int, int], ...]:
    """The sizes d, h, z of a file that training may have drawn."""
    ranges = [range(about.smallest.get(k, 1), about.native[k] + 1) for k in "dhz"]
    return tuple((d, h, z) for d, h, z in product(*ranges) if drew({"d": d, "h": h, "z": z}))


def _measured(point: Point) -> Measured | None:
    """A line of the table; None for sizes that are more than three numbers."""
    sizes = point.sizes
    numbers = {letter: n for letter, n in sizes.items() if isinstance(n, int)}
    if set(sizes) != set("dhz") or set(numbers) != set("dhz"):
        return None
    took = None if point.seconds is None else 1e3 * point.seconds
    return Measured(**numbers, loss=point.loss, milliseconds=took, flops=point.flops, bytes=point.bytes,
                    trained=point.trained)  # fmt: skip


def _nodes(model: Any, letter: str) -> tuple[float, ...]:
    """The native nodes of a width, in the order in which smaller sizes take them, as shares of the axis."""
    order = taken_first(model.axes[letter], getattr(model.native, letter))
    return tuple(((order + 0.5) / len(order)).round(6).tolist())
