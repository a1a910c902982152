"""A run: a folder that holds all that is needed to look at it, to use its model and to go on.

What a run is told is its *header*, kept back until the first step is done: only then ``run.json`` is written, by one
rename and under the lock of the run. A start that fails leaves no folder behind, a change that fails leaves the run as
it was.
"""

import fcntl
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from continua.config import VERSION
from continua.errors import CheckpointError, ConfigError, RunError
from continua.files import fault_of, inside, read_bytes, write_bytes, write_text
from continua.training import checkpoint, stored

ABOUT = "run.json"
METRICS = "metrics.jsonl"
LOCK = "lock"
CHECKPOINTS = "checkpoints"
DATA = "data"  # copies of what the run is made of: a text, a recipe
OURS = (ABOUT, METRICS, CHECKPOINTS, DATA, "curves", "pareto.json")  # what a new run in the same folder replaces
KEPT = 2  # the newest, and the one before it in case the newest is damaged
WHICH = ("best", "last")


@dataclass(frozen=True)
class RunHeader:
    """What is written into a run with its first step: ``about`` it, and ``files`` by name for its folder ``data``.

    ``new`` runs begin with their first step, whatever the folder held; others go on.
    """

    about: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    new: bool = False

    def written(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """What ``run.json`` will say."""
        kept = {} if self.new else before
        files = {
            name: {"path": f"{DATA}/{name}", "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in self.files.items()
        }
        made = {"format": "continua run", "version": VERSION, **kept, **self.about}
        earlier = kept.get("files")
        return {**made, "files": {**(earlier if isinstance(earlier, dict) else {}), **files}} if files else made


def is_line(line: object) -> bool:
    """Whether this is a line of a history: the number of a step, other numbers, and perhaps a note."""
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        return False
    return all(isinstance(value, str if key == "note" else int | float) for key, value in line.items())


def texts_of(state: Mapping[str, Any], best: str | None) -> dict[str, Any]:
    """What a checkpoint says beside its tensors: its model, where the run is, and numbers of its optimiser."""
    return {
        "config": state["config"],
        "progress": {**state["progress"], "best": best},
        "optimiser": state["optimiser"][1],
    }


def warn_unwritten(step: int, problem: object) -> None:
    """Say that a state was not kept; the ones before stay."""
    warnings.warn(f"the checkpoint of step {step} was not written ({problem}); training goes on.", stacklevel=3)


@dataclass
class Run:
    """A run folder: ``run.json`` says what it is, ``metrics.jsonl`` how it went, ``checkpoints/`` holds its states."""

    folder: Path
    about: dict[str, Any] = field(default_factory=dict)
    best: str | None = None
    header: RunHeader | None = None
    _lock: IO[str] | None = None
    _torn: bool = False
    _waiting: list[dict[str, Any]] = field(default_factory=list)
    _made: list[Path] = field(default_factory=list)  # folders that this start made

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Look at a run that is there. Nothing of it is executed, and nothing outside its folder is read."""
        folder = Path(folder)
        path = folder / ABOUT
        if not path.is_file():
            remedy = "Give a folder that continua fit wrote."
            raise RunError(f"a run has a {ABOUT}", got=f"none in {folder}", remedy=remedy)
        try:
            about = json.loads(read_bytes(path))
        except (ValueError, RecursionError) as problem:
            raise RunError(f"{path} is not valid JSON", got=str(problem), remedy="Start a new run.") from problem
        except OSError as problem:
            raise RunError(f"{path} cannot be read", got=str(problem), remedy="Look at its rights.") from problem
        said = about if isinstance(about, dict) else {}
        if said.get("format") != "continua run" or said.get("version") != VERSION:
            got = f"{said.get('format')!r}, version {said.get('version')!r}"
            raise RunError(
                f"this Continua reads runs of version {VERSION}", got=got, remedy="Use the one it was made with."
            )
        if (folder / CHECKPOINTS).is_symlink():
            remedy = "Put the folder itself there: what is outside of a run is not read."
            raise RunError("the checkpoints of a run are in its folder", got=f"a link in {folder}", remedy=remedy)
        return cls(folder, said)

    @classmethod
    def planned(cls, folder: str | Path, header: RunHeader, anew: bool = False) -> "Run":
        """A new run that is there as soon as its first step is done; ``anew`` lets it replace the one that is there."""
        run = cls(Path(folder), dict(header.about), header=header)
        if not anew:
            run._refuse_other()
        return run

    @classmethod
    def create(cls, folder: str | Path, about: Mapping[str, Any]) -> "Run":
        """Make the folder and say what the run is, at once."""
        run = cls.planned(folder, RunHeader(about, new=True))
        with run._writing():
            run.folder.mkdir(parents=True, exist_ok=True)
        run.commit()
        return run

    def _refuse_other(self) -> None:
        if (self.folder / ABOUT).exists():
            remedy = f"Go on with it: continua fit --resume {self.folder}; or --again anew; or choose another folder."
            raise RunError("there is a run already", got=self.folder, remedy=remedy)

    @property
    def is_new(self) -> bool:
        """Whether this run has not begun: what its folder holds is not its own."""
        return self.header is not None and self.header.new

    def commit(self) -> None:
        """Write the header: the files first, then ``run.json`` by one rename."""
        header = self.header
        if header is None:
            return
        said = header.written(self.about)
        with self._writing():
            if header.new:
                self._clear()
            for name, content in header.files.items():
                (self.folder / DATA).mkdir(exist_ok=True)
                write_bytes(self.folder / DATA / name, content)
            write_text(self.folder / ABOUT, json.dumps(said, indent=1))
        self.about = said
        self.header = None
        waiting = self._waiting
        self._waiting = []
        for line in waiting:
            self.log(line)

    def _clear(self) -> None:
        """Remove what another run left here; ``run.json`` first, so that no half of a run looks like one."""
        for name in OURS:
            path = self.folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Forget a header that came to nothing: folders that were made for it are removed."""
        if self.header is None:
            return
        self.header = None
        with suppress(OSError):
            if self._made and self._lock is not None:
                (self.folder / LOCK).unlink(missing_ok=True)
            for path in self._made:
                path.rmdir()
        self._made = []

    def amend(self, about: Mapping[str, Any]) -> None:
        """Say what is different from now on, at once; refused while another process trains the run."""
        held = self._lock is not None
        self.lock()
        try:
            self.header = RunHeader(about)
            self.commit()
        finally:
            if not held:
                self.release()

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
            if self.is_new:
                self._make_folder()
            if fault_of(self.folder / LOCK) not in (None, "is missing"):
                raise OSError(f"{LOCK} {fault_of(self.folder / LOCK)}")
            try:
                held = (self.folder / LOCK).open("a+")
            except OSError:
                self.abandon()
                raise
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

    def _make_folder(self) -> None:
        """Make the folder and those above it, and remember which."""
        missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        self._made = missing

    def release(self) -> None:
        """Give the run back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def is_here(self) -> bool:
        """Whether the folder is still the one that was locked; somebody may have moved or removed it."""
        if self._lock is None:
            return (self.folder / ABOUT).is_file()
        try:
            return os.path.samestat(os.fstat(self._lock.fileno()), os.stat(self.folder / LOCK))
        except OSError:
            return False

    def refuse_moved(self) -> None:
        """Nothing is written where a run was and is not any more."""
        if self._lock is not None and not self.is_here:
            raise OSError(f"{self.folder} was moved or removed")

    @property
    def checkpoints(self) -> Path:
        """Where states are kept."""
        return self.folder / CHECKPOINTS

    def log(self, values: Mapping[str, Any]) -> None:
        """Add a line to the history. A full disk costs the line, not the run."""
        if self.header is not None:
            self._waiting.append(dict(values))
            return
        line = json.dumps(dict(values)) + "\n"
        try:
            self.refuse_moved()
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write("\n" + line if self._torn else line)
            self._torn = False
        except OSError as problem:
            self._torn = True  # some of the line may be there: the next one starts anew
            warnings.warn(f"a line of {METRICS} was lost: {problem.strerror or problem}.", stacklevel=2)

    def history(self) -> list[dict[str, Any]]:
        """Every line of the history; a line cut short by a crash, or damaged, is left out."""
        path = self.folder / METRICS
        if fault_of(path) == "is missing":
            return []
        try:
            whole = read_bytes(path)
        except OSError as problem:
            warnings.warn(f"the history of {self.folder} cannot be read ({problem}).", stacklevel=2)
            return []
        lines = []
        for text in whole.splitlines():
            try:
                line = json.loads(text)  # bytes that are no text are a ValueError too
            except (ValueError, RecursionError):
                continue
            if is_line(line):
                lines.append(line)
        return lines

    def forget_after(self, step: int) -> None:
        """Drop what was logged after a step: it will be done again."""
        kept = [line for line in self.history() if line["step"] <= step]
        with self._writing():
            write_text(self.folder / METRICS, "".join(json.dumps(line) + "\n" for line in kept))

    def save(self, step: int, state: Mapping[str, Any], is_best: bool) -> bool:
        """Write a checkpoint. If it cannot be written the ones before stay, and the run goes on with a warning."""
        best = checkpoint.place(self.checkpoints, step).name if is_best else self.best
        tensors = {"model": state["model"], "optimiser": state["optimiser"][0]}
        self.commit()
        try:
            self.refuse_moved()
            checkpoint.write(self.checkpoints, step, tensors, texts_of(state, best))
        except (OSError, CheckpointError) as problem:
            warn_unwritten(step, problem)
            return False
        self.kept(best)
        return True

    def kept(self, best: str | None) -> None:
        """A checkpoint was written: the ones that nobody needs any more are removed."""
        self.best = best
        checkpoint.prune(self.checkpoints, KEPT, {best} if best else set())

    def gather(self) -> list[Path]:
        """Write the checkpoints of shards as one file of weights each; returns those that were. Damaged ones stay."""
        gathered = []
        held = self._lock is not None
        self.lock()
        try:
            for path in checkpoint.found(self.checkpoints):
                fault = checkpoint.damage(path)
                if fault is not None:
                    warnings.warn(f"{path} is damaged ({fault}): it is left as it is.", stacklevel=2)
                elif checkpoint.is_sharded(path):
                    with self._writing():
                        gathered.append(stored.gather(path))
        finally:
            if not held:
                self.release()
        return gathered

    def newest(self) -> Path | None:
        """The newest whole checkpoint."""
        return checkpoint.newest(self.checkpoints)

    def model(self, which: str = "best") -> Any:
        """Load the model: the ``best`` one so far, or the ``last``."""
        return stored.model(self.checkpoint(which))

    def checkpoint(self, which: str = "best") -> Path:
        """The folder of the ``best`` checkpoint so far, or of the ``last``."""
        if which not in WHICH:
            remedy = "Use best (the default) or last."
            raise ConfigError("which model of a run: best or last", got=repr(which), remedy=remedy)
        path = self.newest()
        if path is None:
            remedy = "Train it a little further: continua fit --resume."
            raise RunError("this run has no checkpoint yet", got=self.folder, remedy=remedy)
        if which == "last":
            return path
        best = checkpoint.best_of(path)
        if best is None:
            return path
        fault = checkpoint.damage(self.checkpoints / best)
        if fault is None:
            return self.checkpoints / best
        warnings.warn(f"the best checkpoint, {best}, is damaged ({fault}): the last one is used.", stacklevel=2)
        return path

    def file(self, name: str) -> Path | None:
        """Where the copy of something that the run is made of lies in its folder; None if it was not copied."""
        files = self.about.get("files")
        told = files.get(name) if isinstance(files, dict) else None
        if not isinstance(told, dict):
            return None
        path = inside(self.folder, told.get("path"))
        if path is None or fault_of(path) is not None:
            got = told.get("path")
            raise RunError(f"the {name} of a run lies in its folder", got=repr(got), remedy="Copy the run again.")
        if hashlib.sha256(read_bytes(path)).hexdigest() != told.get("sha256"):
            raise RunError(f"the {name} of this run has changed", got=path, remedy="Copy the run again.")
        return path
