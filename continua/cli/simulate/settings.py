"""What ``continua simulate`` can be told: the settings of each kind, their defaults and what they mean.

Nothing heavy is imported here: help answers at once.
"""

import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from continua.errors import ConfigError, nearest


def says(default: Any, text: str, *names: str, shown: str | bool = True) -> Any:
    """A setting: its default and how help shows it, what it is, and other names of its option."""
    return field(default=default, metadata={"help": text, "names": names, "shown": shown})


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What every simulation is told."""

    name: ClassVar[str] = ""
    swept: ClassVar[tuple[str, ...]] = ()  # what may differ within one folder

    interaction: str = says("SA", "SA (softmax), USA (unnormalised), Sinkhorn or hardmax.")
    seed: int = says(0, "The same seed gives the same numbers.")
    until: float = says(0.0, "The time at the end.", shown="11/λ, λ the fastest growth rate")

    @property
    def tokens_at_once(self) -> int:
        """How many tokens move at the same time; the small cells of a sweep do not count."""
        return 0

    @property
    def differs(self) -> dict[str, Any]:
        """What is not as by default."""
        usual = type(self)()
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != getattr(usual, f.name)}

    @property
    def folder(self) -> Path:
        """Where it goes if nothing else is said: a folder of its own for each choice of settings."""
        words = [f"{key}{_short(value)}" for key, value in self.differs.items() if key not in self.swept]
        return Path("runs") / "-".join([f"simulate-{self.name}", *words])


@dataclass(frozen=True, kw_only=True)
class Tokens(Shared):
    """What a simulation of particles is told."""

    beta: float = says(9.0, "The inverse temperature β.")
    n: int = says(2000, "How many tokens.")
    causal: bool = says(False, "Tokens see themselves and earlier ones only.")
    kappa: float = says(math.inf, "Adds noise √(2/κ) dW.", "--noise", shown="no noise")
    runs: int = says(1, "How many independent runs, side by side; pictures show the first.")
    frames: int = says(64, "How many times are kept and filmed.")
    log: bool = says(False, "These times are evenly spaced in log t: for long simulations.")
    film: str = says("gif", "gif, mp4 (needs ffmpeg) or none.")

    @property
    def tokens_at_once(self) -> int:
        """All runs go side by side."""
        return self.n * self.runs


@dataclass(frozen=True, kw_only=True)
class Circle(Tokens):
    """Tokens on the circle: their paths, clusters over time, energy and its plateaus."""

    name: ClassVar[str] = "circle"


@dataclass(frozen=True, kw_only=True)
class Sphere(Tokens):
    """Tokens on the sphere of R^d: their paths, clusters over time, energy and its plateaus."""

    name: ClassVar[str] = "sphere"

    n: int = says(500, "How many tokens.")
    d: int = says(3, "The dimension of the space around the sphere.")


@dataclass(frozen=True, kw_only=True)
class MeanField(Shared):
    """Infinitely many tokens: the density on the circle as it moves, beside particles drawn from it."""

    name: ClassVar[str] = "meanfield"

    beta: float = says(9.0, "The inverse temperature β.")
    kappa: float = says(200.0, "Noise √(2/κ) dW, which keeps peaks as wide as the nodes can tell.", "--noise")
    nodes: int = says(512, "Nodes of the density.")
    n: int = says(4000, "Particles to compare with.")
    amplitude: float = says(0.05, "How far from uniform the start is, mode by mode.")
    frames: int = says(96, "How many times are kept.")

    @property
    def tokens_at_once(self) -> int:
        """Those that the density is compared with."""
        return self.n


@dataclass(frozen=True, kw_only=True)
class Phase(Shared):
    """Counts of clusters over β, d and n: a table that can be stopped at any cell and gone on with."""

    name: ClassVar[str] = "phase"
    swept: ClassVar[tuple[str, ...]] = ("beta", "d", "n")

    beta: str = says("1,2,4,9,16,25,36", "The β, with commas between them.")
    d: str = says("2,3,4,8", "The dimensions.")
    n: str = says("256", "The numbers of tokens.")
    runs: int = says(4, "Independent runs of each cell.")
    causal: bool = says(False, "Tokens see themselves and earlier ones only.")
    kappa: float = says(math.inf, "Adds noise √(2/κ) dW.", "--noise", shown="no noise")


def asked(kind: type[Shared], options: dict[str, Any], changes: list[str]) -> Any:
    """Settings from the options, then from ``--set key=value``; unknown names and wrong kinds are refused."""
    from continua.recipes import parse

    known = {f.name: f.type for f in fields(kind)}
    wished = {"kappa" if key == "noise" else key: value for key, value in parse(changes).items()}
    for key, value in wished.items():
        if key not in known:
            raise ConfigError(f"{kind.name} has no such setting", got=key, remedy=nearest(key, list(known)))
        wished[key] = _as(known[key], key, value)
    return replace(kind(**options), **wished)


def _as(kind: Any, key: str, value: Any) -> Any:
    """A value as its setting wants it: 9 may stand for 9.0, and 1,2,4 for "1,2,4"."""
    if kind is str:
        return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    if kind is bool and str(value).lower() in ("true", "false", "1", "0"):
        return str(value).lower() in ("true", "1")
    try:
        if kind in (int, float) and not isinstance(value, bool) and kind(value) == float(value):
            return kind(value)
    except (TypeError, ValueError):
        pass
    words = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
    raise ConfigError(f"{key} is {words}", got=repr(value), remedy=f"For example --set {key}={_EXAMPLES[kind]}.")


_EXAMPLES = {int: 100, float: 9, bool: "true"}


def _short(value: Any) -> str:
    text = "" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace(",", "_").replace("/", "_")
