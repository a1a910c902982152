"""What every simulation of the command line needs: its outcome, its progress, its interaction and its end."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from rich.progress import Progress

from continua.errors import ConfigError, nearest
from continua.lab import INTERACTIONS, Interaction
from continua.lab.theory.growth import KINDS, growth_rates

USUAL_END = 16.0  # where no growth rate says how long
Row = tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What a simulation gives: numbers for the summary, arrays for the file of numbers, rows to print, pictures."""

    numbers: dict[str, Any]
    arrays: dict[str, numpy.ndarray]
    rows: list[Row]
    pictures: list[Path]


class Stages:
    """A progress bar that names what is being done."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar
        self.task = bar.add_task("", total=1.0)

    def __call__(self, what: str) -> Callable[[float], None]:
        """Begin with something; what is returned is told which share of it is done."""
        self.bar.reset(self.task, description=what, total=1.0)
        return lambda share: self.bar.update(self.task, completed=share)


def interaction_of(name: str, beta: float, *, kappa: float, causal: bool = False) -> Interaction:
    """The interaction of a name, however it is written."""
    known = {known.lower(): known for known in INTERACTIONS}
    if name.lower() not in known:
        remedy = nearest(name.lower(), list(known))
        for low, usual in known.items():
            remedy = remedy.replace(f"'{low}'", f"'{usual}'")
        raise ConfigError("there is no such interaction", got=name, remedy=remedy)
    return INTERACTIONS[known[name.lower()]](beta, kappa=kappa, causal=causal)


def end_of(until: float, interaction: Interaction, d: int) -> float:
    """The time asked for, or eleven times what the fastest mode needs to grow by e: 15.6 for SA at β = 9."""
    if until != 0:
        return until
    if interaction.name not in KINDS:
        return USUAL_END
    kappa = interaction.kappa if math.isfinite(interaction.kappa) else None
    fastest = float(growth_rates(interaction.beta, d, interaction.name, kappa=kappa).max())
    return float(f"{11 / fastest:.3g}") if fastest > 0 else USUAL_END
