"""A run: a folder that holds all that is needed to look at it, to use its model and to go on."""

import fcntl
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from continua.config import VERSION
from continua.errors import RunError
from continua.models.store import load
from continua.training import checkpoint

ABOUT = "run.json"
METRICS = "metrics.jsonl"
LOCK = "lock"
CHECKPOINTS = "checkpoints"
KEPT = 2  # the newest, and the one before it in case the newest is damaged


@dataclass
class Run:
    """A run folder: ``run.json`` says what it is, ``metrics.jsonl`` how it went, ``checkpoints/`` holds its states."""

    folder: Path
    about: dict[str, Any] = field(default_factory=dict)
    best: str | None = None
    _lock: IO[str] | None = None
    _torn: bool = False

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Look at a run that is there."""
        folder = Path(folder)
        path = folder / ABOUT
        if not path.is_file():
            remedy = "Give a folder that continua fit wrote."
            raise RunError(f"a run has a {ABOUT}", got=f"none in {folder}", remedy=remedy)
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as problem:
            raise RunError(f"{path} is not valid JSON", got=str(problem), remedy="Start a new run.") from problem
        if about.get("format") != "continua run" or about.get("version") != VERSION:
            got = f"{about.get('format')!r}, version {about.get('version')!r}"
            raise RunError(
                f"this Continua reads runs of version {VERSION}", got=got, remedy="Use the one it was made with."
            )
        return cls(folder, about)

    @classmethod
    def create(cls, folder: str | Path, about: Mapping[str, Any]) -> "Run":
        """Make the folder and say what the run is."""
        run = cls(Path(folder), {"format": "continua run", "version": VERSION, **about})
        if (run.folder / ABOUT).exists():
            remedy = f"Go on with it: continua fit --resume {run.folder}, or choose another folder."
            raise RunError("there is a run already", got=run.folder, remedy=remedy)
        with run._writing():
            run.folder.mkdir(parents=True, exist_ok=True)
            write_text(run.folder / ABOUT, json.dumps(run.about, indent=1))
        return run

    def amend(self, about: Mapping[str, Any]) -> None:
        """Say what is different from now on."""
        self.about = {**self.about, **about}
        with self._writing():
            write_text(self.folder / ABOUT, json.dumps(self.about, indent=1))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Answer a folder that cannot be written with a sentence."""
        try:
            yield
        except OSError as problem:
            remedy = "Make room there, or choose a folder that can be written: --folder PATH."
            raise RunError(
                f"the run cannot be written to {self.folder}", got=problem.strerror or str(problem), remedy=remedy
            ) from problem

    def lock(self) -> None:
        """Keep the run for this process; it is given back when the process ends, however it ends."""
        if self._lock is not None:
            return
        with self._writing():
            held = (self.folder / LOCK).open("a+")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as taken:
            held.seek(0)
            owner = held.read().strip() or "unknown"
            held.close()
            remedy = "Wait for it, or choose another folder."
            raise RunError("another process is training this run", got=f"process {owner}", remedy=remedy) from taken
        self._lock = held
        with suppress(OSError):  # a full disk: the lock holds without its owner's number
            held.truncate(0)
            held.write(str(os.getpid()))
            held.flush()

    def release(self) -> None:
        """Give the run back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def checkpoints(self) -> Path:
        """Where states are kept."""
        return self.folder / CHECKPOINTS

    def log(self, values: Mapping[str, Any]) -> None:
        """Add a line to the history. A full disk costs the line, not the run."""
        line = json.dumps(dict(values)) + "\n"
        try:
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write("\n" + line if self._torn else line)
            self._torn = False
        except OSError as problem:
            self._torn = True  # some of the line may be there: the next one starts anew
            warnings.warn(f"a line of {METRICS} was lost: {problem.strerror}.", stacklevel=2)

    def history(self) -> list[dict[str, Any]]:
        """Every line of the history; a line cut short by a crash is left out."""
        path = self.folder / METRICS
        lines = []
        for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                lines.append(line)
        return lines

    def forget_after(self, step: int) -> None:
        """Drop what was logged after a step: it will be done again."""
        kept = [line for line in self.history() if line["step"] <= step]
        with self._writing():
            write_text(self.folder / METRICS, "".join(json.dumps(line) + "\n" for line in kept))

    def save(self, step: int, state: Mapping[str, Any], is_best: bool) -> bool:
        """Write a checkpoint. If it cannot be written the ones before stay, and the run goes on with a warning."""
        tensors, plain = state["optimiser"]
        name = checkpoint.place(self.checkpoints, step).name
        best = name if is_best else self.best
        texts = {
            "config": state["config"],
            "progress": {**state["progress"], "best": best},
            "optimiser": plain,
        }
        try:
            checkpoint.write(self.checkpoints, step, {"model": state["model"], "optimiser": tensors}, texts)
        except OSError as problem:
            warnings.warn(f"the checkpoint of step {step} was not written ({problem}); training goes on.", stacklevel=2)
            return False
        self.best = best
        checkpoint.prune(self.checkpoints, KEPT, {best} if best else set())
        return True

    def newest(self) -> Path | None:
        """The newest whole checkpoint."""
        return checkpoint.newest(self.checkpoints)

    def model(self, which: str = "best") -> Any:
        """Load the model: the ``best`` one so far, or the ``last``."""
        path = self.newest()
        if path is None:
            remedy = "Train it a little further: continua fit --resume."
            raise RunError("this run has no checkpoint yet", got=self.folder, remedy=remedy)
        best = checkpoint.read_text(path, "progress").get("best")
        if which == "best" and best:
            fault = checkpoint.damage(self.checkpoints / best)
            if fault is None:
                path = self.checkpoints / best
            else:
                warnings.warn(f"the best checkpoint, {best}, is damaged ({fault}): the last one is used.", stacklevel=2)
        return load(path)


def write_text(path: Path, text: str) -> None:
    """Replace a file at once."""
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
