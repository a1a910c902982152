"""What the probes found along a training run: a table, curves and a film."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continua.errors import ConfigError, RunError
from continua.lab.figure import pyplot, save
from continua.lab.probes.dynamics import Dynamics, Move, State
from continua.training.run import write_text

LINES = "dynamics.jsonl"
CURVES = {  # what is drawn over the steps, and its name
    "cosine": "mean cosine of two tokens",
    "centred cosine": "the same, mean token taken away",
    "rank": "effective rank of a sample's tokens",
    "energy": "energy $E_\\beta$",
    "jump": "jump of a token in a layer [rad]",
    "beta": "effective $\\beta$ (median of the heads)",
}
HIGH = 1.7  # of a film's ridges, where the distance of their floors is one


@dataclass(frozen=True)
class Snapshot:
    """What the probes found after ``step`` steps, and the training loss of that step (None before the first)."""

    step: int
    loss: float | None
    found: Dynamics

    def plain(self) -> dict[str, Any]:
        """Everything, as JSON writes it."""
        return {"step": self.step, "loss": self.loss, "found": self.found.plain()}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Snapshot":
        """Back from ``plain``."""
        found = dict(plain["found"])
        found["states"] = tuple(State(**_tuples(state)) for state in found["states"])
        found["moves"] = tuple(Move(**_tuples(move)) for move in found["moves"])
        found["sinks"] = tuple(tuple(place) for place in found["sinks"])
        return cls(int(plain["step"]), plain["loss"], Dynamics(**found))


def _tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}


@dataclass(frozen=True)
class History:
    """A run seen through the probes: one snapshot after another, in the order of steps."""

    snapshots: tuple[Snapshot, ...]

    @property
    def glances(self) -> tuple[Snapshot, ...]:
        """``snapshots``, by its old name."""
        warnings.warn("glances is called snapshots now", DeprecationWarning, stacklevel=2)
        return self.snapshots

    def rows(self) -> list[dict[str, Any]]:
        """The table: one line for each step and depth, ``layer`` counting the depths from zero."""
        return [
            {"step": snapshot.step, "loss": snapshot.loss, "layer": i, **row}
            for snapshot in self.snapshots
            for i, row in enumerate(snapshot.found.rows())
        ]

    def curve(self, name: str, layer: int) -> tuple[list[int], list[float]]:
        """The steps and the values of one column of the table at one depth, without those that are None."""
        rows = [row for row in self.rows() if row["layer"] == layer]
        if not rows or name not in rows[0]:
            remedy = "Use a column and a layer of rows()."
            raise ConfigError("no such curve", got=f"{name!r} at layer {layer}", remedy=remedy)
        kept = [(int(row["step"] or 0), float(row[name] or 0.0)) for row in rows if row[name] is not None]
        return [step for step, _ in kept], [value for _, value in kept]

    def save(self, path: str | Path) -> Path:
        """Write JSON lines, as a run's folder has them."""
        path = Path(path)
        replace(path, lines(self.snapshots))
        return path

    @classmethod
    def load(cls, path: str | Path) -> "History":
        """Read what ``save`` wrote, or what a run's folder holds; a line cut short by a crash is left out."""
        path = Path(path) / LINES if Path(path).is_dir() else Path(path)
        if not path.is_file():
            remedy = "Train with fit(…, watch=ProbeEvery(model, batch, run=folder)) first."
            raise RunError("nothing was written along this run", got=f"no {path}", remedy=remedy)
        return cls(tuple(read(path)))

    def plot(self, path: str | Path, title: str = "Dynamics along training") -> Path:
        """Curves over the steps, one for each depth: cosines, rank, energy, jumps, effective β."""
        self._some()
        plt = pyplot()
        figure, panels = plt.subplots(2, 3, figsize=(12.5, 6.6), layout="constrained", sharex=True)
        colours = plt.colormaps["viridis"]
        last = len(self.snapshots[0].found.states) - 1
        for panel, (name, words) in zip(panels.flat, CURVES.items(), strict=True):
            for layer in range(last + 1):
                steps, values = self.curve(name, layer)
                if steps:
                    panel.plot(steps, values, "-", color=colours(0.92 * layer / last), lw=1.7)
            panel.set_title(words, fontsize=10.5)
            panel.grid(alpha=0.25)
        for panel in panels[-1]:
            panel.set_xlabel("training step")
        panels[0, 2].set_ylim(bottom=0)
        depth = [state.z for state in self.snapshots[0].found.states]
        scale = plt.cm.ScalarMappable(plt.Normalize(depth[0], depth[-1]), colours)
        figure.colorbar(scale, ax=panels, label="depth z", pad=0.01, aspect=40)
        figure.suptitle(title)
        return save(plt, figure, path)

    def film(self, path: str | Path, rate: float = 6.0, inches: float = 7.2) -> Path:
        """A gif: the histograms of cosines at every depth, raw and centred, one frame for each snapshot."""
        self._some()
        path = Path(path)
        if path.suffix != ".gif":
            raise ConfigError("this film is a .gif", got=path.name, remedy=f"Write {path.with_suffix('.gif').name}.")
        from matplotlib.animation import PillowWriter

        plt = pyplot()
        figure, panels = plt.subplots(1, 2, figsize=(inches, 0.55 * inches), layout="constrained", sharey=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        tops = [_top(self.snapshots, centred) for centred in (False, True)]
        writer = PillowWriter(fps=rate)  # type: ignore[arg-type]  # any number will do
        with writer.saving(figure, str(path), dpi=80):
            for snapshot in [*self.snapshots, *[self.snapshots[-1]] * round(rate)]:  # the end stays for a second
                _frame(plt, figure, panels, snapshot, tops)
                writer.grab_frame()
        plt.close(figure)
        return path

    def _some(self) -> None:
        if not self.snapshots:
            raise ConfigError("nothing was seen yet", got="no snapshot", remedy="Train a step first.")


def _shares(snapshot: Snapshot, centred: bool) -> list[list[float]]:
    """The share of the pairs in each bin, at every depth."""
    counts = [state.centred_histogram if centred else state.histogram for state in snapshot.found.states]
    return [[count / max(1, sum(line)) for count in line] for line in counts]


def _top(snapshots: tuple[Snapshot, ...], centred: bool) -> float:
    """A share that few bins of the whole film exceed: these are cut off, so that the others can be seen."""
    values = sorted(share for snapshot in snapshots for line in _shares(snapshot, centred) for share in line)
    return max(values[int(0.99 * (len(values) - 1))], 1e-9)


def _frame(plt: Any, figure: Any, panels: Any, snapshot: Snapshot, tops: list[float]) -> None:
    """Ridges: each depth has its own floor, the first one on top."""
    states = snapshot.found.states
    colours = plt.colormaps["viridis"]
    last = len(states) - 1
    for panel, centred, top in zip(panels, (False, True), tops, strict=True):
        panel.clear()
        for i, (state, line) in enumerate(zip(states, _shares(snapshot, centred), strict=True)):
            floor = last - i
            mean = state.centred_cosine if centred else state.cosine
            places = [-1 + (2 * k + 1) / len(line) for k in range(len(line))]
            heights = [floor + HIGH * min(share / top, 1.0) for share in line]
            panel.fill_between(places, floor, heights, color=colours(0.92 * i / last), alpha=0.8, lw=0, zorder=2 * i)
            panel.plot(places, heights, color="white", lw=1.0, zorder=2 * i + 1)
            panel.plot([mean] * 2, [floor, floor + 0.4], color="k", lw=1.8, zorder=2 * i + 1)
        panel.set(xlim=(-1, 1), ylim=(-0.1, last + HIGH + 0.1))
        panel.set_xlabel("cosine, mean token taken away" if centred else "cosine of two tokens")
        panel.set_yticks(range(last + 1), [f"{state.z:g}" for state in reversed(states)])
        panel.spines[["top", "right", "left"]].set_visible(False)
    panels[0].set_ylabel("depth z")
    loss = "" if snapshot.loss is None else f",  loss {snapshot.loss:.3f}"
    figure.suptitle(f"step {snapshot.step}{loss}", x=0.03, ha="left", fontsize=11)


# --- lines -----------------------------------------------------------------------------------------------------------


def lines(snapshots: Iterable[Snapshot]) -> str:
    """Snapshots as JSON, a line for each."""
    return "".join(json.dumps(snapshot.plain()) + "\n" for snapshot in snapshots)


def read(path: Path) -> Iterator[Snapshot]:
    """Back from a file of such lines."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield Snapshot.of(json.loads(line))
        except (ValueError, KeyError, TypeError):  # cut short, or of another kind
            continue


def replace(path: Path, text: str) -> None:
    """Write a file anew, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
