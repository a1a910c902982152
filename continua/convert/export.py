"""``ct.export``: a model leaves for somewhere else, as ONNX, as a program of torch, or as a Hugging Face folder.

What is written is opened again and compared with the model before it gets its name.
"""

import copy
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from continua.config import from_plain
from continua.convert.discretise import discretise
from continua.convert.folders import model_in
from continua.convert.huggingface import from_hf, to_hf
from continua.convert.onnx.compared import Compared
from continua.convert.onnx.decoders import compare_decoder, write_decoder
from continua.convert.onnx.doors import doors_of
from continua.convert.onnx.stored import one_size, unfit
from continua.convert.onnx.traced import compare, write_program, write_traced
from continua.convert.tokenizer import TOKENIZER, Pieces, described_as_json, read_tokeniser
from continua.data.tokens import Characters, Tokeniser
from continua.errors import ConfigError, ContinuaError, install
from continua.files import aside, flush
from continua.models import Patches, Tokens, Transformer, View, Widened, merged
from continua.models.model import Model
from continua.session import About
from continua.session.about import DECODER
from continua.session.tokens import CHARACTERS, LIBRARY
from continua.settings import checked
from continua.typing import Tensor

ONNX = ".onnx"
PROGRAM = ".pt2"


@dataclass(frozen=True)
class Exported:
    """What was written: where, of which kind, how far from torch, and what is to be said beside that."""

    path: Path
    kind: str
    compared: tuple[Compared, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        """The largest difference from torch, of all sizes."""
        return max((one.difference for one in self.compared), default=0.0)

    @property
    def loss(self) -> float:
        """The largest change of the loss in nats a token, of all sizes."""
        return max((one.more_loss for one in self.compared), default=0.0)


@dataclass(frozen=True)
class Options:
    """What is wished for beside the model."""

    int8: bool = False
    probe: bool = False
    data: Tensor | None = None


@dataclass(frozen=True)
class Source:
    """A model, the one view of it that is meant (None: all its sizes), and its tokeniser."""

    model: Any
    view: View | None = None
    tokens: Tokeniser | None = None

    @classmethod
    def of(cls, given: Any, tokens: Tokeniser | None) -> "Source":
        """A model, a view, or a folder: a run, one of ``model.save`` or one of Hugging Face."""
        if isinstance(given, str | Path):
            found = opened(Path(given))
            return cls(merged(found.model), None, found.tokens if tokens is None else tokens)
        if isinstance(given, View):
            model = merged(_plain(given.model))
            return cls(model, model.at(given.discretisation), tokens)
        if isinstance(given, Model):
            return cls(merged(_plain(given)), None, tokens)
        remedy = "Give a model, a view such as model.at(d=64), or the folder of one."
        raise ConfigError("export takes a model", got=type(given).__name__, remedy=remedy)


@checked
def export(
    model: Any,
    path: str | Path,
    *,
    int8: bool = False,
    probe: bool = False,
    tokens: Tokeniser | None = None,
    data: Tensor | None = None,
) -> Exported:
    """Write a model into ``path``, whose suffix decides what: ``.onnx``, ``.pt2`` (a program of torch)
    or, without one, a folder for Hugging Face.

    ``model`` is a model, a view of one (then that size alone is written), or the folder of a run, of ``model.save`` or
    of Hugging Face. A language model of the kind of GPT-2 on nested nodes becomes one ONNX file for all its smaller
    sizes; other models are written at one. ``tokens`` is the tokeniser, which rides in the file; that of a folder is
    found there.

    What was written is compared with the model at several sizes or shapes, on token numbers ``data`` [b, n] if given,
    and refused where they differ. ``int8`` stores matrices in eight bits, which is not compared but measured.
    ``probe`` adds attention weights and states along depth as outputs.
    """
    target = Path(path)
    source = Source.of(model, tokens)
    options = Options(int8, probe, data)
    if target.suffix == ONNX:
        with _written(target) as place:
            return _onnx(source, place, target, options)
    if int8 or probe:
        remedy = "Name it FILE.onnx, or leave them out."
        raise ConfigError("eight bits and probes are for ONNX", got=repr(target.suffix), remedy=remedy)
    if target.suffix == PROGRAM:
        with _written(target) as place:
            view = _flat(model_view(source))
            doors = doors_of(view.model)
            return Exported(target, "program", tuple(write_program(view, doors, place)))
    if not target.suffix:
        return _folder(source, target)
    remedy = "Name it FILE.onnx, FILE.pt2, or a folder."
    raise ConfigError("the suffix says what is written", got=repr(target.suffix), remedy=remedy)


def opened(folder: Path) -> Source:
    """The model of a folder and its tokeniser, where it has one. Nothing of it is executed."""
    found = model_in(folder)
    described = None if found.run is None else found.run.about.get("tokens")
    made = None if described is None else from_plain(described)
    tokens = made if isinstance(made, Tokeniser) else _beside(found.folder)
    return Source(_plain(found.model), None, tokens)


def _beside(folder: Path) -> Tokeniser | None:
    return read_tokeniser(folder) if (folder / TOKENIZER).is_file() else None


def _plain(model: Any) -> Any:
    """The model on the processor, in float32, as it is used; a copy where it is none of that."""
    like = next(model.parameters())
    if like.dtype == torch.float32 and like.device.type == "cpu" and not model.training:
        return model
    return copy.deepcopy(model).to(device="cpu", dtype=torch.float32).eval()


@contextmanager
def _written(target: Path) -> Iterator[Path]:
    """A file beside ``target`` that becomes it in the end; nothing is left of it where that fails."""
    try:
        if target.is_dir():
            raise IsADirectoryError(21, "a folder is there")
        target.parent.mkdir(parents=True, exist_ok=True)
        with aside(target) as place:
            place.touch()
            yield place
            flush(place)
            os.replace(place, target)
    except OSError as problem:
        why = problem.strerror or str(problem)
        remedy = "Choose a place that can be written."
        raise ConfigError(f"{target} cannot be written", got=why, remedy=remedy) from problem


def _onnx(source: Source, place: Path, target: Path, options: Options) -> Exported:
    _require_onnx()
    about = About(DECODER, tokens=_described(source.tokens))
    model = source.model
    if source.view is not None:
        return _one_size(source.view, place, target, about, options, ())
    reason = unfit(model) or one_size(model)
    if reason is None:
        write_decoder(model, place, elastic=True, about=about, probe=options.probe, int8=options.int8)
        return _compared(lambda size: model.at(**size), place, target, options, ())
    notes = (_one(reason),) if unfit(model) is None and not model.native.is_discrete else ()
    return _one_size(model.at(), place, target, about, options, notes)


def _one(reason: str) -> str:
    return f"One size is written: the model has {reason}."


def _one_size(
    view: View, place: Path, target: Path, about: About, options: Options, notes: tuple[str, ...]
) -> Exported:
    """The graph of one size: a plain model, with everything folded into ordinary weights."""
    plain = _flat(view)
    reason = unfit(plain.model)
    if reason is None:
        write_decoder(plain.model, place, elastic=False, about=about, probe=options.probe, int8=options.int8)
        return _compared(lambda size: view, place, target, options, notes)
    if options.probe:
        remedy = "Leave probes out, or use a decoder of the kind of GPT-2."
        raise ConfigError("probes are written for decoders", got=f"a model with {reason}", remedy=remedy)
    doors = doors_of(plain.model)
    about = replace(about, context=plain.model.embed.room, vocab=plain.model.embed.vocab)
    found = write_traced(plain, doors, place, about, options.int8)
    return Exported(target, doors.kind, tuple(found), notes)


def model_view(source: Source) -> View:
    """The view that is meant, the native one if none is named."""
    view: View = source.model.at() if source.view is None else source.view
    return view


def _flat(view: View) -> View:
    """The same function as a plain model where one can be made, so that no more than its size is written."""
    model = view.model
    counted = isinstance(model, Transformer) and isinstance(model.embed, Tokens | Widened | Patches)
    if not counted or (model.native.is_discrete and view.discretisation == model.native):
        return view
    try:
        flat: View = discretise(view).at()
    except ContinuaError:
        return view
    return flat


def _folder(source: Source, target: Path) -> Exported:
    """Discretise, and write as Hugging Face has it."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        got = f"{target}, which is there"
        raise ConfigError("a model is written into a new folder", got=got, remedy="Choose another name.")
    view = model_view(source)
    plain = view.model if view.model.native.is_discrete else discretise(view)
    ours = source.tokens is not None and not isinstance(source.tokens, Pieces)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
            made = Path(temporary) / "made"
            to_hf(plain, made, tokens=source.tokens if ours else None)
            if isinstance(source.tokens, Pieces):
                (made / TOKENIZER).write_text(source.tokens.made.to_str(), encoding="utf-8")
            again = from_hf(made).eval()
            doors = doors_of(again)
            found = compare(view, doors, lambda given: again(doors.batch(*given)).detach().numpy(), exact=True)
            os.replace(made, target)
    except OSError as problem:
        why = problem.strerror or str(problem)
        raise ConfigError(f"{target} cannot be written", got=why, remedy="Choose another place.") from problem
    return Exported(target, "folder", tuple(found))


def _compared(
    at: Callable[[dict[str, int]], View], place: Path, target: Path, options: Options, notes: tuple[str, ...]
) -> Exported:
    found = compare_decoder(at, place, options.data, exact=not options.int8)
    return Exported(target, DECODER, tuple(found), notes)


def _described(tokens: Tokeniser | None) -> dict[str, str] | None:
    """A tokeniser as a file has it."""
    if tokens is None:
        return None
    if isinstance(tokens, Characters):
        return {"kind": CHARACTERS, "alphabet": tokens.alphabet}
    if isinstance(tokens, Pieces):
        return {"kind": LIBRARY, "json": tokens.made.to_str(), "whole": "no"}
    return {"kind": LIBRARY, "json": described_as_json(tokens), "whole": "yes"}


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as missing:
        remedy = f"Install the extra: {install('onnx')}."
        raise ConfigError("an ONNX file needs onnx and onnxruntime", got=str(missing), remedy=remedy) from missing
