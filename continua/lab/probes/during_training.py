"""The probes along a training run: how the tokens' own dynamics are learned, as a table, curves and a film."""

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from continua.errors import ConfigError, ContinuaError, RunError
from continua.lab.figure import pyplot, save
from continua.lab.probes.dynamics import Dynamics, Move, State, dynamics
from continua.models import Batch, View
from continua.tasks import Example
from continua.training import Bar, Progress, Run
from continua.training.checkpoint import found as checkpoints
from continua.training.run import CHECKPOINTS, write_text
from continua.training.watch import Watch
from continua.typing import Tensor

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
Probe = Callable[[Any, Batch | Tensor], Dynamics]


# --- what was seen ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Glance:
    """What the probes found after ``step`` steps, and the training loss of that step (None before the first)."""

    step: int
    loss: float | None
    found: Dynamics

    def plain(self) -> dict[str, Any]:
        """Everything, as JSON writes it."""
        return {"step": self.step, "loss": self.loss, "found": self.found.plain()}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Glance":
        """Back from ``plain``."""
        found = dict(plain["found"])
        found["states"] = tuple(State(**_tuples(state)) for state in found["states"])
        found["moves"] = tuple(Move(**_tuples(move)) for move in found["moves"])
        found["sinks"] = tuple(tuple(place) for place in found["sinks"])
        return cls(int(plain["step"]), plain["loss"], Dynamics(**found))


def _tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}


@dataclass(frozen=True)
class Course:
    """A run seen through the probes: one glance after another, in the order of steps."""

    glances: tuple[Glance, ...]

    def rows(self) -> list[dict[str, Any]]:
        """The table: one line for each step and depth, ``layer`` counting the depths from zero."""
        return [
            {"step": glance.step, "loss": glance.loss, "layer": i, **row}
            for glance in self.glances
            for i, row in enumerate(glance.found.rows())
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
        _replace(path, _text(self.glances))
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Course":
        """Read what ``save`` wrote, or what a run's folder holds; a line cut short by a crash is left out."""
        path = Path(path) / LINES if Path(path).is_dir() else Path(path)
        if not path.is_file():
            remedy = "Train with fit(…, watch=Along(model, batch, run=folder)) first."
            raise RunError("nothing was written along this run", got=f"no {path}", remedy=remedy)
        return cls(tuple(_read(path)))

    def plot(self, path: str | Path, title: str = "Dynamics along training") -> Path:
        """Curves over the steps, one for each depth: cosines, rank, energy, jumps, effective β."""
        self._some()
        plt = pyplot()
        figure, panels = plt.subplots(2, 3, figsize=(12.5, 6.6), layout="constrained", sharex=True)
        colours, last = plt.colormaps["viridis"], len(self.glances[0].found.states) - 1
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
        depth = [state.z for state in self.glances[0].found.states]
        scale = plt.cm.ScalarMappable(plt.Normalize(depth[0], depth[-1]), colours)
        figure.colorbar(scale, ax=panels, label="depth z", pad=0.01, aspect=40)
        figure.suptitle(title)
        return save(plt, figure, path)

    def film(self, path: str | Path, rate: float = 6.0, inches: float = 7.2) -> Path:
        """A gif: the histograms of cosines at every depth, raw and centred, one frame for each glance."""
        self._some()
        path = Path(path)
        if path.suffix != ".gif":
            raise ConfigError("this film is a .gif", got=path.name, remedy=f"Write {path.with_suffix('.gif').name}.")
        from matplotlib.animation import PillowWriter

        plt = pyplot()
        figure, panels = plt.subplots(1, 2, figsize=(inches, 0.55 * inches), layout="constrained", sharey=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        tops = [_top(self.glances, centred) for centred in (False, True)]
        writer = PillowWriter(fps=rate)  # type: ignore[arg-type]  # any number will do
        with writer.saving(figure, str(path), dpi=80):
            for glance in [*self.glances, *[self.glances[-1]] * round(rate)]:  # the end stays for a second
                _frame(plt, figure, panels, glance, tops)
                writer.grab_frame()
        plt.close(figure)
        return path

    def _some(self) -> None:
        if not self.glances:
            raise ConfigError("nothing was seen yet", got="no glance", remedy="Train a step first.")


def _shares(glance: Glance, centred: bool) -> list[list[float]]:
    """The share of the pairs in each bin, at every depth."""
    counts = [state.centred_histogram if centred else state.histogram for state in glance.found.states]
    return [[count / max(1, sum(line)) for count in line] for line in counts]


def _top(glances: tuple[Glance, ...], centred: bool) -> float:
    """A share that few bins of the whole film exceed: these are cut off, so that the others can be seen."""
    values = sorted(share for glance in glances for line in _shares(glance, centred) for share in line)
    return max(values[int(0.99 * (len(values) - 1))], 1e-9)


def _frame(plt: Any, figure: Any, panels: Any, glance: Glance, tops: list[float]) -> None:
    """Ridges: each depth has its own floor, the first one on top."""
    states, colours = glance.found.states, plt.colormaps["viridis"]
    last = len(states) - 1
    for panel, centred, top in zip(panels, (False, True), tops, strict=True):
        panel.clear()
        for i, (state, line) in enumerate(zip(states, _shares(glance, centred), strict=True)):
            floor, mean = last - i, state.centred_cosine if centred else state.cosine
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
    loss = "" if glance.loss is None else f",  loss {glance.loss:.3f}"
    figure.suptitle(f"step {glance.step}{loss}", x=0.03, ha="left", fontsize=11)


# --- lines -----------------------------------------------------------------------------------------------------------


def _text(glances: Any) -> str:
    return "".join(json.dumps(glance.plain()) + "\n" for glance in glances)


def _read(path: Path) -> Iterator[Glance]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield Glance.of(json.loads(line))
        except (ValueError, KeyError, TypeError):  # cut short, or of another kind
            continue


# --- watching --------------------------------------------------------------------------------------------------------


def probe(model: Any, batch: Batch | Tensor) -> Dynamics:
    """The probes that ``Along`` uses. Every token counts, so that all steps speak of the same ones."""
    return dynamics(model, batch, sinks=None)


@dataclass
class Along:
    """Looks at a model every ``every`` steps of ``fit(…, watch=Along(model, batch, run))``, and at its last.

    ``batch`` is the same at every step; a sight of the fresh model comes first, as step 0. ``watch`` is what shows the
    progress meanwhile. With ``run``, the folder that the fit is given, every glance becomes a line of
    ``dynamics.jsonl`` there at once; a run that goes on goes on with these lines, less those of steps that are done
    again. Training does not notice: modes and random numbers are put back. A glance that fails costs a warning.

    >>> from continua.models import zoo
    >>> seen = Along(zoo.bert(vocab=9, d=8, heads=2, depth=3, context=8), torch.arange(8)[None], every=10)
    >>> seen(Progress(10, 20, 2.5, {}))
    >>> [glance.step for glance in seen.course.glances], len(seen.course.rows())
    ([0, 10], 8)
    """

    model: Any
    batch: Batch | Tensor
    run: Run | str | Path | None = None
    every: int = 100
    watch: Watch = field(default_factory=Bar)
    probe: Probe = probe
    _glances: list[Glance] = field(default_factory=list, init=False, repr=False)
    _started: bool = field(default=False, init=False, repr=False)
    _whole: bool = field(default=True, init=False, repr=False)  # whether the file has every glance

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError("a run is looked at every so many steps", got=self.every, remedy="100 is usual.")
        first = self._measure()  # a model the probes do not know is refused before anything is trained
        path = self._path
        if path is not None and checkpoints(path.parent / CHECKPOINTS):
            self._glances = list(_read(path)) if path.is_file() else []
        else:
            self._glances = [Glance(0, None, first)]

    @property
    def course(self) -> Course:
        """What was seen so far."""
        return Course(tuple(self._glances))

    @property
    def _path(self) -> Path | None:
        if self.run is None:
            return None
        return (self.run.folder if isinstance(self.run, Run) else Path(self.run)) / LINES

    def __call__(self, at: Progress) -> None:
        """Show where the run is, and look at the model if it is time."""
        self.watch(at)
        # the first call comes after the first step of this sitting: that step, if it was seen before, is done again
        last = at.step if self._started else at.step - 1
        kept = [glance for glance in self._glances if glance.step <= last]
        if not self._started or len(kept) < len(self._glances):
            self._glances, self._started, self._whole = kept, True, False
        if at.step % self.every == 0 or at.step == at.steps:
            self._take(at)
        self._write()

    def close(self) -> None:
        """Let go of what shows the progress."""
        getattr(self.watch, "close", lambda: None)()

    def _take(self, at: Progress) -> None:
        if self._glances and self._glances[-1].step == at.step:
            return
        if any(hasattr(weight, "full_tensor") for weight in self._inner.parameters()):
            remedy = "Train with sharded=False, or probe the checkpoints later: dynamics(run.model(), batch)."
            raise ConfigError("the probes need whole weights", got="sharded ones", remedy=remedy)
        try:
            found = self._measure()
        except (ContinuaError, torch.linalg.LinAlgError) as problem:
            warnings.warn(f"step {at.step} was not probed, training goes on: {problem}", stacklevel=2)
            return
        glance = Glance(at.step, at.loss if math.isfinite(at.loss) else None, found)
        self._glances.append(glance)
        if self._whole and self._path is not None:
            self._whole = _guarded(lambda: _append(self._path, glance))

    def _write(self) -> None:
        """All of it anew: at the start, after going back, and when a line could not be written."""
        if not self._whole and self._path is not None:
            path, text = self._path, _text(self._glances)
            self._whole = _guarded(lambda: _replace(path, text))

    @property
    def _inner(self) -> Any:
        return self.model.model if isinstance(self.model, View) else self.model

    def _measure(self) -> Dynamics:
        with _unnoticed(self._inner) as device:
            batch = Example(Batch.of(self.batch), torch.empty(0)).to(device).batch
            return self.probe(self.model, batch)


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def _append(path: Any, glance: Glance) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(_text([glance]))


def _guarded(write: Callable[[], None]) -> bool:
    """Whether it was written. A full disk costs the line for now, not the run."""
    try:
        write()
    except OSError as problem:
        warnings.warn(f"{LINES} was not written ({problem.strerror}); training goes on.", stacklevel=2)
        return False
    return True


@contextmanager
def _unnoticed(model: Any) -> Iterator[torch.device]:
    """Leave modes, the check for NaN and torch's random numbers as they were; say where the model is."""
    device = next(iter(model.parameters()), torch.empty(0)).device
    modes, check = [(module, module.training) for module in model.modules()], getattr(model, "check", None)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        if check is not None:  # fit turns it off; here a state that is not finite is a sentence, not a wrong number
            model.check = True
        try:
            yield device
        finally:
            if check is not None:
                model.check = check
            for module, mode in modes:
                module.training = mode
