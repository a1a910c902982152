"""A session: a model from one file, ready to write, to embed or to predict."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from continua.errors import ConfigError, ShapeError
from continua.session.about import DECODER, ENCODER, MAP, About, Size
from continua.session.file import Arrays, ExportedFile, Runtime, require_kind
from continua.session.sampling import Choice
from continua.session.speculation import Speculator, speculated
from continua.session.tokens import Reading, reading, texts
from continua.session.writing import Decoder, Ids, Prompt, Request, whole_numbers, written

P = TypeVar("P", bound=str | NDArray[np.int64])  # text, or token numbers [b, n]


class Session:
    """A model from a file of ``ct.export``, with numpy and onnxruntime alone: torch need not be there.

    ``session.at(d=64, h=2, z=3)`` is the same file at another size; each size is folded once, when it is first run.
    ``threads`` says how many run it, by default all.
    """

    def __init__(self, file: str | Path, *, threads: int | None = None) -> None:
        self._file = ExportedFile.read(file, threads)
        self.size = self.about.size({}) if self.about.elastic else None

    @classmethod
    def _of(cls, file: ExportedFile, size: Size | None) -> "Session":
        made = cls.__new__(cls)
        made._file = file
        made.size = size
        return made

    @property
    def about(self) -> About:
        """What the file says of itself."""
        return self._file.about

    @cached_property
    def runtime(self) -> Runtime:
        """The graph at this size."""
        return Runtime(self._file, self.size)

    @cached_property
    def tokens(self) -> Reading:
        """The tokeniser that came with the model."""
        if self.about.tokens is None:
            remedy = "Give token numbers, or export with tokens=…."
            raise ConfigError("a text needs a tokeniser", got="a file without one", remedy=remedy)
        return reading(self.about.tokens)

    def at(self, **sizes: Any) -> "Session":
        """The same file at another size: ``at(d=64, h=2, z=3)``, or with joined steps ``at(z=(2, 1, 1))``."""
        return Session._of(self._file, self.about.size(sizes) if self.about.elastic or sizes else None)

    def __call__(self, ids: ArrayLike, observed: ArrayLike | None = None) -> NDArray[np.float32]:
        """The logits [b, t, v] behind every token of a decoder."""
        return self.probe(ids, observed)["logits"]

    def probe(self, ids: ArrayLike, observed: ArrayLike | None = None) -> Arrays:
        """All that a decoder answers: logits, and of a file with probes ``attention`` and ``states`` along depth."""
        require_kind(self.about, DECODER, "this")
        given = np.asarray(ids)
        there = None if observed is None else np.asarray(observed)
        prompt = Prompt.of(self.about, given, there)
        self._require_room(given.shape[1])
        found = self._decoder().read(prompt, np.arange(given.shape[1]))
        return {name: array for name, array in found.items() if not name.startswith("new_")}

    def generate(
        self,
        prompt: P,
        *,
        tokens: int = 64,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        stop: Sequence[int] = (),
        seed: int = 0,
        observed: ArrayLike | None = None,
        pad: int | None = None,
        draft: "Session | None" = None,
        ahead: int = 4,
    ) -> P:
        """The prompt with up to ``tokens`` more tokens behind it: a text of a text, numbers [b, n] of numbers.

        Temperature 0 takes the likeliest token, the same as ``ct.generate`` takes; above, one is drawn as by
        ``ct.Sample`` with the same numbers. ``draft``, such as ``session.at(d=64, z=2)``, writes ``ahead`` tokens that
        this size then reads at once: the text is the same, or drawn alike. The others are those of ``ct.generate``.
        """
        request = Request(tokens, Choice(temperature, top_k, top_p, repetition_penalty), whole_numbers(stop), pad, seed)
        helper = None if draft is None else Helper(draft, ahead)
        answer: Any
        if isinstance(prompt, str):
            answer = prompt + "".join(self._texts(prompt, request, helper))
        else:
            new = self._written(np.asarray(prompt), observed, request, helper)
            answer = np.concatenate([np.asarray(prompt), *(token[:, None] for token in new)], 1)
        return answer

    def stream(
        self,
        prompt: P,
        *,
        tokens: int = 64,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        stop: Sequence[int] = (),
        seed: int = 0,
        observed: ArrayLike | None = None,
        pad: int | None = None,
        draft: "Session | None" = None,
        ahead: int = 4,
    ) -> Iterator[P]:
        """Yield each new piece of text, or each new token [b], as soon as it is made; as ``generate``."""
        request = Request(tokens, Choice(temperature, top_k, top_p, repetition_penalty), whole_numbers(stop), pad, seed)
        helper = None if draft is None else Helper(draft, ahead)
        new: Any
        if isinstance(prompt, str):
            new = self._texts(prompt, request, helper)
        else:
            new = self._written(np.asarray(prompt), observed, request, helper)
        return new

    def _texts(self, prompt: str, request: Request, helper: "Helper | None") -> Iterator[str]:
        require_kind(self.about, DECODER, "generate")
        new = self._written(self.tokens.encode(prompt)[None], None, request, helper)
        return texts(self.tokens.decode, (int(token[0]) for token in new))

    def _written(
        self, ids: Ids, observed: ArrayLike | None, request: Request, helper: "Helper | None"
    ) -> Iterator[Ids]:
        require_kind(self.about, DECODER, "generate")
        prompt = Prompt.of(self.about, ids, None if observed is None else np.asarray(observed))
        request.check(self.about, int(prompt.there.sum(1).max()))
        vocab = self.about.vocab or 0
        if helper is None:
            return written(self._decoder(), prompt, request, vocab)
        helper.check(self.about)
        speculator = Speculator(self._decoder(), helper.draft._decoder(), helper.ahead, request, vocab)
        return speculated(speculator, prompt)

    def _decoder(self) -> Decoder:
        return Decoder(self.runtime, self.about, self.size)

    def embed(self, given: Sequence[str] | NDArray[Any], observed: ArrayLike | None = None) -> NDArray[np.float32]:
        """The embedding [b, d] of each text (or row of token numbers): the mean of the states at its tokens."""
        require_kind(self.about, ENCODER, "embed")
        if isinstance(given, np.ndarray):
            ids = given.astype(np.int64)
            there = np.ones(ids.shape, dtype=bool) if observed is None else np.asarray(observed) != 0
        else:
            ids, there = self._padded(given)
        self._require_room(ids.shape[1])
        states = self.runtime.run({"ids": ids, "observed": there})["states"]
        share = there[..., None].astype(np.float32)
        found: NDArray[np.float32] = (states * share).sum(1) / share.sum(1)
        return found

    def _padded(self, given: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        if isinstance(given, str) or not len(given):
            got = "one text" if isinstance(given, str) else "none"
            raise ShapeError("embed takes a list of texts", got=got, remedy='Write session.embed(["…"]).')
        rows = [self.tokens.encode(text) for text in given]
        longest = max(1, *(len(row) for row in rows))
        ids = np.zeros((len(rows), longest), dtype=np.int64)
        there = np.zeros(ids.shape, dtype=bool)
        for number, row in enumerate(rows):
            if not len(row):
                raise ShapeError("a text has at least one token", got=repr(given[number]), remedy="Leave it out.")
            ids[number, : len(row)] = row
            there[number, : len(row)] = True
        return ids, there

    def predict(self, *values: ArrayLike, **named: ArrayLike) -> NDArray[np.float32]:
        """The answers of a model of images, series or functions; inputs in their order, or by name."""
        require_kind(self.about, MAP, "predict")
        inputs = list(self.runtime.inputs)
        given = dict(zip(inputs, values, strict=False)) | named
        if len(values) > len(inputs) or sorted(given) != sorted(inputs):
            got = ", ".join(given) or "nothing"
            raise ShapeError(f"this file takes {', '.join(inputs)}", got=got, remedy="Give each of them once.")
        kinds = {"tensor(int64)": "int64", "tensor(bool)": "bool"}
        arrays: Arrays = {
            name: np.asarray(value, dtype=kinds.get(self.runtime.inputs[name].type, "float32"))
            for name, value in given.items()
        }
        found: NDArray[np.float32] = self.runtime.run(arrays)["answer"]
        return found

    def _require_room(self, tokens: int) -> None:
        room = self.about.context
        if room is not None and tokens > room:
            got = f"{tokens} tokens"
            raise ShapeError(f"the position table has {room} rows", got=got, remedy="Shorten the text.")

    def __repr__(self) -> str:
        size = "" if self.size is None else f", {self.size}"
        return f"Session({str(self._file.path)!r}, {self.about.kind}{size})"


@dataclass(frozen=True)
class Helper:
    """A session that writes ahead, and how far."""

    draft: Session
    ahead: int

    def check(self, about: About) -> None:
        """Refuse a draft that reads other tokens, or has no room for the text."""
        own = self.draft.about
        require_kind(own, DECODER, "a draft")
        if own.vocab != about.vocab or own.context != about.context:
            got = f"{own.vocab} tokens and {own.context} positions"
            remedy = "Use a size of the same file: draft=session.at(d=64, z=2)."
            raise ConfigError(
                f"a draft has the model's {about.vocab} tokens and {about.context} positions", got=got, remedy=remedy
            )
