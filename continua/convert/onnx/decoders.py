"""Decoders as files: written, opened again and compared with torch at several sizes."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from continua.axes import at
from continua.convert.onnx.compared import Compared
from continua.convert.onnx.decoder import DecoderGraph
from continua.convert.onnx.graph import assembled
from continua.convert.onnx.stored import Stored, smallest, stored
from continua.errors import ConfigError
from continua.models import View
from continua.session import About, Session
from continua.session.about import DECODER
from continua.session.writing import Decoder, Prompt
from continua.typing import Tensor

SHAPES = ((2, 12), (1, 5), (3, 2), (4, 1))  # samples and tokens
SEED = 0
LARGEST = 2**31 - 2**20  # bytes of weights that one message of protobuf holds


def write_decoder(model: Any, path: Path, *, elastic: bool, about: About, probe: bool, int8: bool) -> About:
    """Write the graph of a decoder into ``path``; what the file says of itself."""
    own = stored(model, elastic)
    about = described(model, own, replace(about, probe=probe, int8=int8))
    built = DecoderGraph(own, probe, int8).build()
    size = sum(array.nbytes for array in built.graph.constants.values())
    if size >= LARGEST:
        remedy = "Export it with int8=True, or a smaller size of it."
        raise ConfigError("an ONNX file holds less than two gigabytes", got=f"{size:,} bytes", remedy=remedy)
    path.write_bytes(assembled(built.graph, built.inputs, built.outputs, about.written()).SerializeToString())
    return about


def described(model: Any, own: Stored, about: About) -> About:
    """The sizes of a decoder, and the steps of every number of them."""
    span = (model.axes.z.start, model.axes.z.end)
    unit = (span[1] - span[0]) / own.native["z"]
    steps = {}
    least = smallest(model) if own.elastic else {}
    for count in range(least.get("z", 1) if own.elastic else own.native["z"], own.native["z"] + 1):
        walked = model.settle(at(z=count)).z.walk(span)
        steps[str(count)] = tuple((round((z - span[0]) / unit), length / unit) for z, length in walked)
    return replace(
        about,
        kind=DECODER,
        elastic=own.elastic,
        native=dict(own.native),
        steps=steps,
        smallest=least,
        groups=own.attend.groups,
        vocab=len(own.words),
        context=None if own.positions is None else len(own.positions),
    )


def usual_sizes(about: About) -> list[dict[str, int]]:
    """The native size, halves of each axis, half of all of them, and one that is no half of anything."""
    if not about.elastic:
        return [{}]
    native = about.native
    least = {**dict.fromkeys("hzme", 1), "d": 2, **about.smallest}
    half = {k: max(least[k], native[k] // 2) for k in ("d", "h", "z", "m", "e")}
    odd = {k: max(least[k], native[k] * 5 // 8) for k in ("d", "h", "z")}
    together = {k: half[k] for k in ("d", "h", "z")}
    return [{}, *({k: half[k]} for k in half), together, odd]


def compare_decoder(
    at: Callable[[dict[str, int]], View], path: Path, data: Tensor | None, exact: bool
) -> list[Compared]:
    """Logits of the file and of the views ``at`` each size: read at once, and behind kept keys and values.

    Where the file is to be ``exact`` it is refused when it is not.
    """
    session = Session(path, threads=1)
    return [_compared(session, at, size, ids, exact) for size, ids in _cases(session.about, data)]


def _cases(about: About, data: Tensor | None) -> list[tuple[dict[str, int], Tensor]]:
    """Sizes with tokens to compare at; where there is one size, batches of several shapes."""
    sizes = usual_sizes(about)
    if len(sizes) > 1:
        return [(size, _ids(about, data, SHAPES[0])) for size in sizes]
    shapes: list[tuple[dict[str, int], Tensor]] = [({}, _ids(about, None, shape)) for shape in SHAPES]
    return shapes if data is None else [({}, _ids(about, data, SHAPES[0])), *shapes]


def _compared(
    session: Session, at: Callable[[dict[str, int]], View], size: dict[str, int], ids: Tensor, exact: bool
) -> Compared:
    with torch.no_grad():
        wanted = at(size)(ids)
    answers = _twice(session.at(**size), ids.numpy())
    own = Compared(
        where=", ".join(f"{k}={n}" for k, n in size.items()) or f"native, {ids.shape[0]} × {ids.shape[1]} tokens",
        difference=max(float(np.abs(answer - wanted.numpy()).max()) for answer in answers),
        largest=float(wanted.abs().max()),
        torch_loss=_loss(wanted, ids),
        file_loss=_loss(torch.from_numpy(answers[0]), ids),
    )
    if exact:
        own.require_exact()
    return own


def _twice(session: Session, ids: Any) -> list[Any]:
    """The logits read at once; and read up to a place, then behind it one by one and several at once."""
    decoder = Decoder(session.runtime, session.about, session.size)
    count = ids.shape[1]
    whole = decoder.read(Prompt.of(session.about, ids, None), np.arange(count))["logits"]
    cut = (count + 1) // 2
    first = Prompt.of(session.about, ids[:, :cut], None)
    parts = [decoder.read(first, np.arange(cut))["logits"]]
    places = sorted({cut, min(cut + 1, count), count})
    for begin, end in itertools.pairwise(places):
        parts.append(decoder.write(ids[:, begin:end], np.arange(end - begin))["logits"])
    return [whole, np.concatenate(parts, 1)]


def _ids(about: About, data: Tensor | None, shape: tuple[int, int]) -> Tensor:
    """Held-out tokens [b, n], or numbers drawn at random."""
    if data is not None:
        return data.long().cpu()
    samples, tokens = shape
    draw = torch.Generator().manual_seed(SEED)
    return torch.randint(about.vocab or 1, (samples, min(tokens, about.context or tokens)), generator=draw)


def _loss(logits: Tensor, ids: Tensor) -> float | None:
    if ids.shape[1] < 2:
        return None
    return float(cross_entropy(logits[:, :-1].flatten(0, 1).double(), ids[:, 1:].flatten()))
