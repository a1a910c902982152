"""The probes while a model trains: how the dynamics of its tokens are learned."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from continua.errors import ConfigError, ContinuaError
from continua.lab.probes.dynamics import Dynamics, dynamics
from continua.lab.probes.history import LINES, History, Snapshot, lines, read, replace
from continua.models import Batch, EncoderDecoder, Transformer, View
from continua.tasks import Example
from continua.training import Bar, Progress, Run
from continua.training.checkpoint import found as checkpoints
from continua.training.progress import OnProgress
from continua.training.run import CHECKPOINTS
from continua.typing import Tensor

Probe = Callable[[Any, Batch | Tensor], Dynamics]


@runtime_checkable
class _Closes(Protocol):
    """What shows progress and holds a terminal or a file until it is closed."""

    def close(self) -> None: ...


@runtime_checkable
class _Sharded(Protocol):
    """A weight of which this process has a part."""

    def full_tensor(self) -> Tensor: ...


def probe(model: Any, batch: Batch | Tensor) -> Dynamics:
    """The probes that ``ProbeEvery`` uses. Every token counts, so that all steps speak of the same ones."""
    return dynamics(model, batch, sinks=None)


@dataclass
class ProbeEvery:
    """Looks at a model every ``every`` steps of ``fit(…, watch=ProbeEvery(model, batch, run))``, and at its last.

    ``batch`` is the same at every step; a sight of the fresh model comes first, as step 0. ``watch`` is what shows the
    progress meanwhile. With ``run``, the folder that the fit is given, every snapshot becomes a line of
    ``dynamics.jsonl`` there at once; a run that goes on goes on with these lines, less those of steps that are done
    again. Training does not notice: modes and random numbers are put back. A snapshot that fails costs a warning.

    >>> from continua.models import zoo
    >>> seen = ProbeEvery(zoo.bert(vocab=9, d=8, heads=2, depth=3, context=8), torch.arange(8)[None], every=10)
    >>> seen(Progress(10, 20, 2.5, {}))
    >>> [snapshot.step for snapshot in seen.history.snapshots], len(seen.history.rows())
    ([0, 10], 8)
    """

    model: Any
    batch: Batch | Tensor
    run: Run | str | Path | None = None
    every: int = 100
    watch: OnProgress = field(default_factory=Bar)
    probe: Probe = probe
    _snapshots: list[Snapshot] = field(default_factory=list, init=False, repr=False)
    _started: bool = field(default=False, init=False, repr=False)
    _whole: bool = field(default=True, init=False, repr=False)  # whether the file has every snapshot

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError("a run is looked at every so many steps", got=self.every, remedy="100 is usual.")
        first = self._measure()  # a model the probes do not know is refused before anything is trained
        path = self._path
        if path is not None and checkpoints(path.parent / CHECKPOINTS):
            self._snapshots = list(read(path)) if path.is_file() else []
        else:
            self._snapshots = [Snapshot(0, None, first)]

    @property
    def history(self) -> History:
        """What was seen so far."""
        return History(tuple(self._snapshots))

    @property
    def course(self) -> History:
        """``history``, by its old name."""
        warnings.warn("course is called history now", DeprecationWarning, stacklevel=2)
        return self.history

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
        kept = [snapshot for snapshot in self._snapshots if snapshot.step <= last]
        if not self._started or len(kept) < len(self._snapshots):
            self._snapshots = kept
            self._started = True
            self._whole = False
        if at.step % self.every == 0 or at.step == at.steps:
            self._take(at)
        self._write()

    def close(self) -> None:
        """Let go of what shows the progress."""
        if isinstance(self.watch, _Closes):
            self.watch.close()

    def _take(self, at: Progress) -> None:
        if self._snapshots and self._snapshots[-1].step == at.step:
            return
        if any(isinstance(weight, _Sharded) for weight in self._inner.parameters()):
            remedy = "Train with sharded=False, or probe the checkpoints later: dynamics(run.model(), batch)."
            raise ConfigError("the probes need whole weights", got="sharded ones", remedy=remedy)
        try:
            found = self._measure()
        except (ContinuaError, torch.linalg.LinAlgError) as problem:
            warnings.warn(f"step {at.step} was not probed, training goes on: {problem}", stacklevel=2)
            return
        snapshot = Snapshot(at.step, at.loss if math.isfinite(at.loss) else None, found)
        self._snapshots.append(snapshot)
        path = self._path
        if self._whole and path is not None:
            self._whole = _guarded(lambda: _append(path, snapshot))

    def _write(self) -> None:
        """All of it anew: at the start, after going back, and when a line could not be written."""
        if not self._whole and self._path is not None:
            path = self._path
            text = lines(self._snapshots)
            self._whole = _guarded(lambda: replace(path, text))

    @property
    def _inner(self) -> Any:
        return self.model.model if isinstance(self.model, View) else self.model

    def _measure(self) -> Dynamics:
        with _unnoticed(self._inner) as device:
            batch = Example(Batch.of(self.batch), torch.empty(0)).to(device).batch
            return self.probe(self.model, batch)


def _append(path: Path, snapshot: Snapshot) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(lines([snapshot]))


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
    modes = [(module, module.training) for module in model.modules()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []), _checking(model):
        try:
            yield device
        finally:
            for module, mode in modes:
                module.training = mode


@contextmanager
def _checking(model: Any) -> Iterator[None]:
    """Check for NaN meanwhile: fit turns that off, but a probe of such a state is a wrong number."""
    if not isinstance(model, Transformer | EncoderDecoder):  # the probes refuse it with a sentence
        yield
        return
    was = model.execution.check
    model.execution.check = True
    try:
        yield
    finally:
        model.execution.check = was
