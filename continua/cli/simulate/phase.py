"""``continua simulate phase``: counts of clusters over β, d and n, as a table and pictures."""

from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import numpy

from continua.cli.simulate.outcome import Outcome, Row, Stages, end_of, interaction_of
from continua.cli.simulate.settings import Phase
from continua.errors import ConfigError
from continua.lab import Interaction, phase_diagram, plot_phase
from continua.lab import Phase as Diagram

N = TypeVar("N", int, float)


def run(settings: Phase, folder: Path, stage: Stages) -> Outcome:
    """Sweep the cells that are not yet in the folder, and draw the table."""

    def coupled(beta: float) -> Interaction:
        return interaction_of(settings.interaction, beta, kappa=settings.kappa, causal=settings.causal)

    betas = listed(settings.beta, "beta", float)
    ds = listed(settings.d, "d", int)
    ns = listed(settings.n, "n", int)
    name = coupled(1.0).name
    if settings.runs < 1:
        raise ConfigError("a cell has at least one run", got=settings.runs, remedy="Use --runs 4.")
    diagram = phase_diagram(
        betas,
        ds,
        ns,
        until=lambda beta, d: end_of(settings.until, coupled(beta), d),
        runs=range(settings.seed, settings.seed + settings.runs),
        interaction=coupled,
        folder=folder,
        watch=stage("sweeping"),
    )
    table = diagram.values("count")
    pictures = _drawn(diagram, name, folder, over_d=len(ds) > 1 or len(ns) == 1, over_n=len(ns) > 1)
    rows: list[Row] = [("clusters, mean of runs", *(f"β={beta:g}" for beta in diagram.axis("beta")))]
    for j, d in enumerate(diagram.axis("d")):
        for i, n in enumerate(diagram.axis("n")):
            rows.append((f"d={d:g}, n={n:g}", *(f"{value:.2f}" for value in table[:, j, i].tolist())))
    arrays = {name: numpy.array(diagram.axis(name)) for name in ("beta", "d", "n")} | {"count": table.numpy()}
    return Outcome({"cells": [asdict(cell) for cell in diagram.cells]}, arrays, rows, pictures)


def _drawn(diagram: Diagram, name: str, folder: Path, *, over_d: bool, over_n: bool) -> list[Path]:
    """One picture of β and d for each n, and of β and n for each d."""
    table = diagram.values("count")
    columns = diagram.axis("beta")
    pictures = []
    for i, n in enumerate(diagram.axis("n") if over_d else []):
        where = folder / f"phase-n{int(n)}.png"
        title = f"{name}: clusters of {int(n)} tokens"
        pictures.append(plot_phase(table[:, :, i].mT, columns, diagram.axis("d"), where, title=title))
    for j, d in enumerate(diagram.axis("d") if over_n else []):
        where = folder / f"phase-d{int(d)}.png"
        title = f"{name}: clusters in dimension {int(d)}"
        shown = ("β", "tokens n", "clusters")
        pictures.append(plot_phase(table[:, j].mT, columns, diagram.axis("n"), where, shown, title))
    return pictures


def listed(text: str, key: str, kind: type[N]) -> list[N]:
    """``1,2,4`` as numbers.

    >>> listed("1,2.5", "beta", float)
    [1.0, 2.5]
    """
    try:
        return list(dict.fromkeys(kind(part) for part in text.split(",") if part.strip()))
    except ValueError as error:
        raise ConfigError(f"{key} is a list of numbers", got=text, remedy=f"Write --{key} 2,4,9.") from error
