"""A file that was exported: what it says of itself, and its graph as onnxruntime runs it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from continua.errors import CheckpointError, ConfigError, ShapeError, install
from continua.files import read_bytes
from continua.session import protobuf
from continua.session.about import DECODER, WIDTHS, About, Size

LARGEST = 2**31  # bytes: protobuf holds no more
QUIET = 4  # folding tries what a branch that is not taken would do, and failures are said by us

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class ExportedFile:
    """The bytes of a file, its description, and how many threads run it (None: all)."""

    path: Path
    content: bytes
    about: About
    threads: int | None

    @classmethod
    def read(cls, path: str | Path, threads: int | None) -> "ExportedFile":
        """Read a file; what is no ONNX file, damaged or of somebody else is refused."""
        if not isinstance(path, str | Path):
            got = type(path).__name__
            raise ConfigError("a session opens a file", got=got, remedy='Write Session("model.onnx").')
        path = Path(path)
        if threads is not None and threads < 1:
            raise ConfigError("a session runs on one thread or more", got=threads, remedy="Leave threads out for all.")
        try:
            content = read_bytes(path, LARGEST)
        except OSError as problem:
            remedy = "Name a file that continua export wrote."
            raise CheckpointError(f"{path} cannot be read", got=problem, remedy=remedy) from problem
        return cls(path, content, About.read(protobuf.metadata(content), path), threads)


def fixed_inputs(about: About, size: Size) -> tuple[Arrays, set[str]]:
    """What a size gives the inputs for good, and the outputs of steps that it has not."""
    values: Arrays = {k: np.arange(getattr(size, k)) for k in WIDTHS}
    values["layers"] = np.array([layer for layer, _ in size.steps], dtype=np.int64)
    values["lengths"] = np.array([length for _, length in size.steps], dtype=np.float32)
    unused = range(len(size.steps), about.native["z"])
    nothing = np.zeros((0, size.h, 0, size.e), dtype=np.float32)
    values |= {f"{kind}_{number}": nothing for number in unused for kind in ("key", "value")}
    return values, {f"new_{kind}_{number}" for number in unused for kind in ("key", "value")}


@dataclass(frozen=True)
class Runtime:
    """A graph in onnxruntime at one size (None: it has no other, or is fed), opened when it is first run."""

    file: ExportedFile
    size: Size | None

    @cached_property
    def session(self) -> Any:
        """The session of onnxruntime."""
        try:
            import onnxruntime
        except ImportError as missing:
            remedy = f"Install it: {install('onnx')}."
            raise ConfigError("a session runs in onnxruntime", got=str(missing), remedy=remedy) from missing
        options = onnxruntime.SessionOptions()
        options.log_severity_level = QUIET
        if self.file.threads is not None:
            options.intra_op_num_threads = self.file.threads
            options.inter_op_num_threads = self.file.threads
        content = self.file.content
        if self.size is not None:
            content = protobuf.fixed(content, *fixed_inputs(self.file.about, self.size))
        try:
            made = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"], enable_fallback=0)
            _ = [one.name for one in (*made.get_inputs(), *made.get_outputs())]  # names may be damaged too
            return made
        except Exception as problem:  # its errors have no common class
            got = str(problem).splitlines()[0]
            remedy = "Export the model again."
            raise CheckpointError(f"{self.file.path} is damaged", got=got, remedy=remedy) from problem

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The inputs by name."""
        return {one.name: one for one in self.session.get_inputs()}

    @cached_property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return [one.name for one in self.session.get_outputs()]

    def run(self, given: Mapping[str, NDArray[Any]]) -> Arrays:
        """All outputs by name; what does not fit is refused."""
        try:
            found = self.session.run(self.outputs, given)
        except Exception as problem:  # its errors have no common class
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in given.items())
            remedy = f"Its inputs: {', '.join(f'{n} {one.shape}' for n, one in self.inputs.items())}."
            what = f"{self.file.path.name} cannot be run with these ({str(problem).splitlines()[0]})"
            raise ShapeError(what, got=shapes, remedy=remedy) from problem
        return dict(zip(self.outputs, found, strict=True))


def require_kind(about: About, kind: str, verb: str) -> None:
    """Refuse what another kind of file is asked for."""
    if about.kind != kind:
        usual = {DECODER: "generate", "encoder": "embed"}.get(about.kind, "predict")
        remedy = f"Use session.{usual}(…)."
        raise ConfigError(f"{verb} needs a file of the kind {kind}", got=f"one of the kind {about.kind}", remedy=remedy)
