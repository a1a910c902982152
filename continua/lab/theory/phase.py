"""Phase diagrams over (β, d, n): sweeps that can stop at any cell and go on."""

import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from continua.errors import ConfigError, RunError
from continua.flow import Adaptive
from continua.geometry import sphere
from continua.lab.particles.clusters import clusters, usual_gap
from continua.lab.particles.energy import mean_cosine
from continua.lab.particles.interaction import Interaction, SelfAttention
from continua.lab.particles.particles import Particles
from continua.lab.particles.simulate import simulate
from continua.lab.progress import ReportShare
from continua.typing import Float, Tensor

FRAMES = 65  # at which the time of the last merger is looked for
AT_ONCE = 1 << 15  # coordinates that are simulated side by side
Key = tuple[float, int, int]  # β, d, n
CELLS = "cells.jsonl"
ABOUT = "about.json"
CONTROL = Adaptive(rtol=1e-4, atol=1e-7, max_steps=100_000)  # counts do not change from here on to finer steps


@dataclass(frozen=True)
class Cell:
    """Means over the runs of one (β, d, n) at the time ``until``: clusters and their deviation, the mean cosine.

    ``merged`` is the share of runs in which all tokens came to lie in one cluster (each within the gap of its centre)
    and ``time`` the mean time at which they did; None if none did.
    """

    beta: float
    d: int
    n: int
    until: float
    runs: int
    count: float
    deviation: float
    cosine: float
    merged: float
    time: float | None

    @property
    def key(self) -> Key:
        """(β, d, n)."""
        return self.beta, self.d, self.n


@dataclass(frozen=True)
class Phase:
    """The cells of a sweep."""

    cells: tuple[Cell, ...]

    def axis(self, name: str) -> list[Any]:
        """``beta``, ``d`` or ``n`` of the cells, rising."""
        return sorted({getattr(cell, name) for cell in self.cells})

    def values(self, name: str = "count") -> Float[Tensor, "betas ds ns"]:
        """One number of each cell over β, d and n; NaN where it is not known."""
        if name not in {f.name for f in fields(Cell)}:
            known = ", ".join(f.name for f in fields(Cell))
            raise ConfigError("cells do not have this number", got=name, remedy=f"Known: {known}.")
        axes = [self.axis(each) for each in ("beta", "d", "n")]
        found = torch.full([len(axis) for axis in axes], math.nan, dtype=torch.float64)
        for cell in self.cells:
            value = getattr(cell, name)
            at = tuple(axis.index(own) for axis, own in zip(axes, cell.key, strict=True))
            found[at] = math.nan if value is None else value
        return found

    def cell(self, beta: float, d: int, n: int) -> Cell:
        """The cell at (β, d, n)."""
        for one in self.cells:
            if one.key == (beta, d, n):
                return one
        remedy = "Ask for one that was swept: .axis('beta'), .axis('d'), .axis('n')."
        raise ConfigError("there is no such cell", got=f"β={beta:g}, d={d}, n={n}", remedy=remedy)

    def save(self, path: str | Path) -> Path:
        """Write the cells as JSON."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"cells": [asdict(cell) for cell in self.cells]}, indent=1), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Phase":
        """Read what ``save`` wrote, or the folder of a sweep as far as it is."""
        path = Path(path)
        if path.is_dir():
            return cls(tuple(_read(path / CELLS)[0]))
        try:
            return cls(tuple(Cell(**line) for line in json.loads(path.read_text(encoding="utf-8"))["cells"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            remedy = "Give a file that Phase.save wrote, or the folder of a sweep."
            raise RunError("this is no phase diagram", got=str(path), remedy=remedy) from error


def phase_diagram(
    betas: Sequence[float],
    ds: Sequence[int],
    ns: Sequence[int],
    until: float | Callable[[float, int], float] = 16.0,
    runs: int | Sequence[int] = 8,
    interaction: Callable[[float], Interaction] = SelfAttention,
    folder: str | Path | None = None,
    watch: ReportShare | None = None,
) -> Phase:
    """Simulate ``runs`` sets of n uniform tokens on S^{d−1} at each (β, d, n) and count their clusters at the end.

    ``interaction`` makes one of β. ``until`` is a time, or a function of β and d. ``runs`` is how many, or their seeds
    (by default 0, 1, …): a cell has the same tokens in every sweep. With a ``folder`` each finished cell is a line of
    ``cells.jsonl`` there at once; the same sweep, or one with other β, d and n, goes on from them. ``watch`` is told
    which share of the way is done.

    >>> found = phase_diagram([0.0, 4.0], [2, 3], [16], until=12.0, runs=2)
    >>> found.cell(0.0, 3, 16).count, found.values("count").shape
    (1.0, torch.Size([2, 2, 1]))
    """
    cells = list(dict.fromkeys((float(b), int(d), int(n)) for b, d, n in itertools.product(betas, ds, ns)))
    seeds = list(range(runs)) if isinstance(runs, int) else [int(seed) for seed in runs]
    times = {key: float(until(*key[:2]) if callable(until) else until) for key in cells}
    _check(times, seeds)
    made = {beta: interaction(beta) for beta, _, _ in cells}
    done = {} if folder is None else _resumed(Path(folder), {"seeds": seeds, **_about(made)}, times)
    for i, key in enumerate(cells):
        if key not in done:
            done[key] = measure(made[key[0]], key, times[key], seeds, _part(watch, i / len(cells), 1 / len(cells)))
            if folder is not None:
                _append(Path(folder) / CELLS, done[key])
        _part(watch, 0.0, 1.0)((i + 1) / len(cells))
    return Phase(tuple(done[key] for key in cells))


def measure(
    interaction: Interaction,
    key: Key,
    until: float,
    seeds: Sequence[int],
    watch: ReportShare | None = None,
) -> Cell:
    """One cell of a phase diagram."""
    beta, d, n = key
    gap = usual_gap(interaction) or 0.5 / math.sqrt(max(1.0, abs(beta)))
    counts = []
    cosines = []
    times = []
    size = max(1, AT_ONCE // (n * d))
    for start in range(0, len(seeds), size):
        some = seeds[start : start + size]
        drawn = [Particles.uniform(n, d, torch.Generator().manual_seed(seed)).x for seed in some]
        run = simulate(
            interaction,
            Particles(torch.stack(drawn)),
            until,
            save=FRAMES,
            control=CONTROL if math.isinf(interaction.kappa) else None,
            generator=torch.Generator().manual_seed(some[0]),
            watch=_part(watch, start / len(seeds), len(some) / len(seeds)),
        )
        counts.append(clusters(run.final, gap).count.double())
        cosines.append(mean_cosine(run.final))
        times.append(_merged(run.directions, run.times, gap))
    count = torch.cat(counts)
    cosine = torch.cat(cosines)
    time = torch.cat(times)
    joined = time.isfinite()
    took = float(time[joined].mean()) if bool(joined.any()) else None
    numbers = float(count.mean()), float(count.std(correction=0)), float(cosine.mean()), float(joined.double().mean())
    return Cell(beta, d, n, until, len(seeds), *numbers, took)


def _merged(x: Tensor, times: Tensor, gap: float) -> Tensor:
    """The first of the times from which on every token is within the gap of the centre, [runs]; infinity for never."""
    centre = x.mean(-2, keepdim=True)
    centre = centre / centre.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    apart = (sphere.distance(x, centre) > gap).any(-1)
    last = torch.where(apart, torch.arange(len(x))[:, None], -1).amax(0)  # the last frame in which one is not
    ends = torch.cat([times.double(), torch.tensor([math.inf], dtype=torch.float64)])
    return ends[last + 1]


# --- what is kept -----------------------------------------------------------------------------------------------------

_KEPT = "Use another folder, or the same until, runs and interaction: what was swept is kept."


def _part(watch: ReportShare | None, start: float, size: float) -> ReportShare:
    """Tells ``watch`` of a part of the way as of the whole."""
    return lambda share: None if watch is None else watch(min(1.0, start + share * size))


def _check(times: dict[Key, float], seeds: list[int]) -> None:
    if not times:
        remedy = "Give at least one β, one d and one n."
        raise ConfigError("a sweep has at least one cell", got="an empty list of betas, ds or ns", remedy=remedy)
    if not seeds:
        raise ConfigError("a cell has at least one run", got="none", remedy="Use runs=8.")
    for (beta, d, n), until in times.items():
        if not (math.isfinite(until) and until > 0):
            remedy = "Write until=16.0."
            raise ConfigError("a sweep simulates for a positive time", got=f"{until:g} at β={beta:g}", remedy=remedy)
        if not math.isfinite(beta) or d < 2 or n < 1:
            remedy = "Use finite β, d ≥ 2 and n ≥ 1."
            raise ConfigError("this cell cannot be simulated", got=f"β={beta:g}, d={d}, n={n}", remedy=remedy)


def _about(made: dict[float, Interaction]) -> dict[str, Any]:
    """The interaction in words, so that a sweep does not go on with another one."""
    one = next(iter(made.values()))
    seen = hashlib.sha256()
    for name, each in zip("qkv", one.matrices, strict=True):
        seen.update(name.encode() + (b"" if each is None else each.detach().double().cpu().numpy().tobytes()))
    words = {"interaction": one.name, "causal": one.causal, "kappa": str(one.kappa)}
    if any(each is not None for each in one.matrices):
        words["matrices"] = seen.hexdigest()[:16]
    return words if one.feed is None else {**words, "feed": getattr(one.feed, "__qualname__", type(one.feed).__name__)}


def _resumed(folder: Path, about: dict[str, Any], times: dict[Key, float]) -> dict[Key, Cell]:
    """The finished cells of a folder, if it holds the same kind of sweep."""
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / ABOUT
    if known.exists():
        before = _settings(known)
        for name in sorted({*before, *about}):
            if before.get(name) != about.get(name):
                got = f"{name}={about.get(name)} where {before.get(name)} was swept"
                raise RunError("the folder holds another sweep", got=got, remedy=_KEPT)
    else:
        _replace(known, json.dumps(about, indent=1))
    cells, whole = _read(folder / CELLS)
    if not whole:  # stopped in the middle of a line
        _replace(folder / CELLS, "".join(json.dumps(asdict(cell)) + "\n" for cell in cells))
    for cell in cells:
        beta, d, n = cell.key
        if times.get(cell.key, cell.until) != cell.until:
            got = f"until={times[cell.key]:g} where {cell.until:g} was at β={beta:g}, d={d}, n={n}"
            raise RunError("this cell was swept for another time", got=got, remedy=_KEPT)
    return {cell.key: cell for cell in cells}


def _settings(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        remedy = f"Delete this file if the settings are the same: the cells are in {CELLS}."
        raise RunError("the settings of a sweep cannot be read", got=path.name, remedy=remedy) from error


def _read(path: Path) -> tuple[list[Cell], bool]:
    """The cells of a file, and whether every line of it is whole."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = []
    whole = not text or text.endswith("\n")
    for line in text.splitlines():
        try:
            found.append(Cell(**json.loads(line)))
        except (ValueError, TypeError):
            whole = False
    return found, whole


def _append(path: Path, cell: Cell) -> None:
    """One line by one write, on the disk before the next cell begins."""
    with path.open("ab") as file:
        file.write((json.dumps(asdict(cell)) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, text: str) -> None:
    aside = path.with_suffix(".aside")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
