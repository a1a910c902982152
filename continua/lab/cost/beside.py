"""Other models beside the sizes of one: what each costs and loses, from a file, and the line through them."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from continua.errors import ConfigError
from continua.files import read_bytes, write_text

Line = Callable[[float], float]  # from FLOPs to the loss that is to be expected


@dataclass(frozen=True)
class Beside:
    """A model trained by itself: its name, the FLOPs of one sample going forward, and its held-out loss."""

    name: str
    flops: int
    loss: float

    def __post_init__(self) -> None:
        if self.flops < 1 or not (math.isfinite(self.loss) and self.loss > 0):
            remedy = "Give the FLOPs of one sample and a held-out loss above 0."
            raise ConfigError("a model to compare with has a cost and a loss", got=self, remedy=remedy)


def line_through(models: Sequence[Beside]) -> Line | None:
    """loss = a · flops^b by least squares in logarithms; None where fewer than two costs are known."""
    if len({model.flops for model in models}) < 2:
        return None
    x = np.log([model.flops for model in models])
    y = np.log([model.loss for model in models])
    slope, offset = (float(number) for number in np.polyfit(x, y, 1))
    return lambda flops: math.exp(offset + slope * math.log(flops))


def write_beside(models: Sequence[Beside], path: str | Path) -> Path:
    """Write models for ``read_beside``: a JSON list of name, flops and loss."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps([asdict(model) for model in models], indent=1))
    return path


def read_beside(path: str | Path) -> tuple[Beside, ...]:
    """Read models to compare with."""
    try:
        lines = json.loads(read_bytes(Path(path)))
        models = tuple(Beside(str(line["name"]), int(line["flops"]), float(line["loss"])) for line in lines)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        remedy = 'Write a JSON list such as [{"name": "half width", "flops": 60000000, "loss": 1.46}].'
        raise ConfigError(f"{path} is no list of models", got=repr(problem), remedy=remedy) from problem
    if not models:
        raise ConfigError(f"{path} is no list of models", got="none in it", remedy="Name at least one model.")
    return models
