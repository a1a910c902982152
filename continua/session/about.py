"""What a file says of itself: it rides in the metadata of ONNX as one line of JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from continua.errors import CheckpointError, ConfigError, nearest

KEY = "continua"  # of the metadata
VERSION = 1
WIDTHS = ("d", "h", "e", "m")
DECODER = "decoder"  # tokens → logits of the next ones, with keys and values kept
ENCODER = "encoder"  # tokens → states
MAP = "map"  # values → answers

Steps = tuple[tuple[int, float], ...]  # the layer that each step begins with, and its length in native steps


@dataclass(frozen=True)
class Size:
    """How many nodes each width has, and the steps in depth."""

    d: int
    h: int
    e: int
    m: int
    steps: Steps

    def __str__(self) -> str:
        lengths = [length for _, length in self.steps]
        depth = str(len(lengths)) if len(set(lengths)) == 1 else "+".join(f"{length:g}" for length in lengths)
        return f"d={self.d}, h={self.h}, e={self.e}, m={self.m}, z={depth}"


@dataclass(frozen=True)
class About:
    """Everything beside the graph that a session needs.

    ``native`` are the sizes of a decoder, ``steps`` the steps of each smaller number of them; a file that is not
    ``elastic`` has the native size alone. ``smallest`` are sizes below which it does not go, where one node is not
    enough. ``groups`` are heads of keys and values. ``tokens`` describes the tokeniser,
    ``context`` is how many tokens fit.
    """

    kind: str
    elastic: bool = False
    native: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, Steps] = field(default_factory=dict)
    smallest: Mapping[str, int] = field(default_factory=dict)
    groups: int | None = None
    vocab: int | None = None
    context: int | None = None
    tokens: Mapping[str, str] | None = None
    probe: bool = False
    int8: bool = False
    version: int = VERSION

    def written(self) -> dict[str, str]:
        """As metadata."""
        return {KEY: json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)}

    @classmethod
    def read(cls, metadata: Mapping[str, str], file: object) -> "About":
        """From metadata; a file of somebody else is refused."""
        if KEY not in metadata:
            remedy = "Use a file of ct.export or continua export; others are run by onnxruntime itself."
            raise CheckpointError("a session opens files that continua exported", got=file, remedy=remedy)
        try:
            said = json.loads(metadata[KEY])
            known = {one.name for one in fields(cls)}
            made = cls(**{name: value for name, value in said.items() if name in known})
            steps = {str(int(z)): tuple((int(a), float(b)) for a, b in own) for z, own in made.steps.items()}
            made = replace(made, steps=steps)
            made.require_whole()
        except (ValueError, TypeError, AttributeError, KeyError) as problem:
            remedy = "Export the model again."
            raise CheckpointError(f"the description in {file} is damaged", got=problem, remedy=remedy) from problem
        if made.version > VERSION:
            remedy = "Install a newer continua, or export with this one."
            raise CheckpointError(f"files up to version {VERSION} are known", got=made.version, remedy=remedy)
        return made

    def require_whole(self) -> None:
        """Raise a ``ValueError`` where something is missing that the kind of file needs."""
        if self.kind not in (DECODER, ENCODER, MAP):
            raise ValueError(f"kind {self.kind!r}")
        if self.kind == DECODER:
            native = [self.native[k] for k in (*WIDTHS, "z")]
            if not all(isinstance(n, int) and n > 0 for n in (*native, self.vocab, self.groups)):
                raise ValueError("sizes that are no numbers")
            if str(self.native["z"]) not in self.steps:
                raise ValueError("no steps")

    def size(self, sizes: Mapping[str, Any]) -> Size:
        """The size that is asked for; what is not named stays native, and d alone takes m with it."""
        self._refuse(sizes)
        native = self.native
        wish = {k: int(sizes.get(k, native[k])) for k in WIDTHS}
        if "d" in sizes and "m" not in sizes:
            wish["m"] = max(1, round(native["m"] * wish["d"] / native["d"]))
        for k, n in wish.items():
            least = 1 if k == "m" and "m" not in sizes else self.smallest.get(k, 1)
            if not least <= n <= native[k]:
                remedy = f"Choose {k} from {least} to {native[k]}{self._otherwise(k)}."
                raise ConfigError(f"this file has {native[k]} nodes of {k}", got=f"{k}={n}", remedy=remedy)
        if wish["d"] == 1 and native["d"] > 1:
            raise ConfigError("a norm leaves nothing of a width of one", got="d=1", remedy="Use d=2 or more.")
        return Size(**wish, steps=self._steps(sizes.get("z", native["z"])))

    def _refuse(self, sizes: Mapping[str, Any]) -> None:
        letters = [*WIDTHS, "z"]
        for letter, size in sizes.items():
            if letter not in letters:
                raise ConfigError("a size has the axes d, h, e, m, z", got=letter, remedy=nearest(letter, letters))
            whole = size if isinstance(size, tuple) and letter == "z" else (size,)
            if not all(isinstance(n, int) and not isinstance(n, bool) for n in whole):
                remedy = "Write at(d=64, z=3); steps may be joined, at(z=(2, 1, 1))."
                raise ConfigError(f"{letter} takes a whole number", got=repr(size), remedy=remedy)
        if sizes and not self.elastic:
            got = ", ".join(f"{k}={v}" for k, v in sizes.items())
            remedy = "Export the elastic model itself, not one view of it."
            raise ConfigError("this file has one size", got=got, remedy=remedy)

    def _otherwise(self, letter: str) -> str:
        """What serves sizes that a file does not go down to."""
        return ", or export that size: model.at(…)" if self.smallest.get(letter, 1) > 1 else ""

    def _steps(self, z: int | tuple[int, ...]) -> Steps:
        if isinstance(z, int):
            if str(z) not in self.steps:
                known = sorted(map(int, self.steps))
                remedy = f"Choose z from {known[0]} to {known[-1]}{self._otherwise('z')}."
                raise ConfigError(f"this file has up to {known[-1]} steps", got=f"z={z}", remedy=remedy)
            return self.steps[str(z)]
        total = sum(z)
        native = self.native["z"]
        if min(z) < 1 or total != native:
            remedy = f"Give whole lengths that add up to {native}."
            raise ConfigError(f"joined steps walk the {native} native ones", got="+".join(map(str, z)), remedy=remedy)
        if len(z) < self.smallest.get("z", 1):
            remedy = f"Take {self.smallest['z']} steps or more{self._otherwise('z')}."
            raise ConfigError("this file has no fewer steps", got="+".join(map(str, z)), remedy=remedy)
        starts = [sum(z[:i]) for i in range(len(z))]
        return tuple((start, float(length)) for start, length in zip(starts, z, strict=True))
