"""Writing on with a decoder: one token after the other, keys and values of the past kept."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from continua.errors import ConfigError, ShapeError, SolveFailed
from continua.session.about import About, Size
from continua.session.file import Arrays, Runtime
from continua.session.sampling import Choice

Ids = NDArray[np.int64]
There = NDArray[np.bool_]
LAST = np.array([-1])


@dataclass(frozen=True)
class Prompt:
    """Token numbers [b, n] and which of them are there; those that are not stand before the others."""

    ids: Ids
    there: There

    @classmethod
    def of(cls, about: About, ids: Ids, observed: There | None) -> "Prompt":
        """Check the numbers; move what is not there to the front."""
        if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer) or ids.shape[1] < 1:
            got = f"{ids.dtype} {list(ids.shape)}"
            raise ShapeError("a prompt holds whole numbers of shape [b, t]", got=got, remedy="Tokenise the text first.")
        ids = ids.astype(np.int64)
        vocab = about.vocab or 0
        if ids.size and (ids.min() < 0 or ids.max() >= vocab):
            got = f"{ids.min()} to {ids.max()}"
            remedy = "Use the tokeniser of this model."
            raise ShapeError(f"the vocabulary has the numbers 0 to {vocab - 1}", got=got, remedy=remedy)
        there = np.ones(ids.shape, dtype=bool) if observed is None else np.asarray(observed) != 0
        if there.shape != ids.shape or not there.any(1).all():
            got = f"{list(there.shape)}, {int(there.any(-1).sum())} samples with tokens"
            remedy = "Mark one token of each sample at least."
            raise ShapeError(f"observed needs shape {list(ids.shape)}", got=got, remedy=remedy)
        order = np.argsort(there, 1, kind="stable")
        return cls(np.take_along_axis(ids, order, 1), np.take_along_axis(there, order, 1))

    @property
    def positions(self) -> Ids:
        """Counted by the tokens that are there."""
        return np.maximum(self.there.cumsum(1) - 1, 0)


class Decoder:
    """A graph at one size, and the keys and values of the tokens so far."""

    def __init__(self, runtime: Runtime, about: About, size: Size | None) -> None:
        self.runtime = runtime
        self.steps = about.native["z"] if size is None else len(size.steps)
        self.heads = about.groups if size is None else size.h
        self.inner = about.native["e"] if size is None else size.e
        self.room = about.context
        self.kept: Arrays = {}
        self.renamed: dict[str, str] = {}
        self.there: There = np.zeros((0, 0), dtype=bool)
        self.next: Ids = np.zeros((0, 1), dtype=np.int64)

    def read(self, prompt: Prompt, answers: Ids = LAST) -> Arrays:
        """Take tokens in from the start; logits behind those of ``answers``."""
        samples = len(prompt.ids)
        nothing = np.zeros((samples, self.heads or 1, 0, self.inner), dtype=np.float32)
        self.kept = {f"{kind}_{number}": nothing for number in range(self.steps) for kind in ("key", "value")}
        self.renamed = {name: f"new_{name}" for name in self.kept}
        self.there = prompt.there
        return self._take(prompt.ids, prompt.positions, answers)

    def write(self, tokens: Ids, answers: Ids = LAST) -> Arrays:
        """Take more tokens [b, t] in, all of them there; behind the last position they stand on it."""
        self.there = np.concatenate([self.there, np.ones(tokens.shape, dtype=bool)], 1)
        count = tokens.shape[1]
        positions = self.next if count == 1 else self.next + np.arange(count)
        if self.room is not None and positions[:, -1].max() >= self.room:
            positions = np.minimum(positions, self.room - 1)
        return self._take(tokens, positions, answers)

    def keep(self, counts: Ids, of: int) -> None:
        """Forget all but the first ``counts`` [b] tokens that are there, of each sample's last ``of`` places."""
        last = self.there[:, -of:]
        kept = last & (last.cumsum(1) <= counts[:, None])
        self.there = np.concatenate([self.there[:, :-of], kept], 1)
        self.next = self.there.sum(1, keepdims=True)
        places = self.there.shape[1]
        used: There = np.asarray(self.there.any(0))
        end = places - int(used[::-1].argmax())
        if end < places:  # what is behind no sample needs
            self.there = np.ascontiguousarray(self.there[:, :end])
            self.kept = {name: array[:, :, :end] for name, array in self.kept.items()}

    def _take(self, ids: Ids, positions: Ids, answers: Ids) -> Arrays:
        given = {"ids": ids, "positions": positions, "observed": self.there, "answers": answers, **self.kept}
        found = self.runtime.run(given)
        self.kept = {name: found[new] for name, new in self.renamed.items()}
        self.next = positions[:, -1:] + 1
        return found


@dataclass(frozen=True)
class Request:
    """What is to be written behind a prompt."""

    tokens: int
    choice: Choice
    stop: tuple[int, ...]
    pad: int | None
    seed: int

    @property
    def filler(self) -> int:
        """What is written behind the end of a sample."""
        return self.pad if self.pad is not None else next(iter(self.stop), 0)

    def check(self, about: About, length: int) -> None:
        """Refuse what has no room, or names tokens that are none."""
        for name, number in (("tokens", self.tokens), ("seed", self.seed)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                remedy = f"Write {name}=8."
                raise ConfigError(f"{name} is a whole number from 0 on", got=repr(number), remedy=remedy)
        if self.tokens < 1:
            got = self.tokens
            raise ConfigError("generation writes at least one token", got=got, remedy="Give tokens=n with n ≥ 1.")
        ends = [*self.stop, *([] if self.pad is None else [self.pad])]
        vocab = about.vocab or 0
        if ends and not 0 <= min(ends) <= max(ends) < vocab:
            what = f"stop and pad are tokens: the vocabulary has the numbers 0 to {vocab - 1}"
            got_ends = f"{min(ends)} to {max(ends)}"
            raise ShapeError(what, got=got_ends, remedy="Use the tokeniser of this model.")
        room = about.context
        if room is not None and length + self.tokens - 1 > room:  # the last token that is written need not be read
            free = room + 1 - length
            remedy = f"Ask for at most {free} tokens." if free > 0 else "Shorten the prompt."
            got_room = f"a prompt of {length} and {self.tokens} more"
            raise ShapeError(f"the position table has {room} rows", got=got_room, remedy=remedy)


def written(decoder: Decoder, prompt: Prompt, request: Request, vocab: int) -> Iterator[Ids]:
    """Each new token [b] as soon as it is made; all ends when every sample wrote a token of ``stop``."""
    draw = np.random.default_rng(request.seed)
    seen = marked(prompt, vocab) if request.choice.repetition_penalty != 1.0 else None
    done = np.zeros(len(prompt.ids), dtype=bool)
    logits = decoder.read(prompt)["logits"][:, -1]
    for number in range(request.tokens):
        require_numbers(logits, number)
        token = request.choice.token(logits, seen, draw)
        if request.stop:
            token = np.where(done, request.filler, token)
            done = done | np.isin(token, request.stop)
        yield token
        if number + 1 == request.tokens or (request.stop and done.all()):
            return
        if seen is not None:
            seen[np.arange(len(seen)), token] = True
        logits = decoder.write(token[:, None])["logits"][:, -1]


def marked(prompt: Prompt, vocab: int) -> There:
    """The tokens that each prompt has, [b, v]."""
    seen = np.zeros((len(prompt.ids), vocab), dtype=bool)
    for row, ids, there in zip(seen, prompt.ids, prompt.there, strict=True):
        row[ids[there]] = True
    return seen


def require_numbers(logits: NDArray[np.float32], number: int) -> None:
    """Refuse to choose among logits that are no numbers."""
    if not math.isfinite(logits.sum()) and not np.isfinite(logits).all():  # the sum alone is quicker
        got = f"NaN or infinity behind new token {number}"
        remedy = "Look at the weights of the model that was exported."
        raise SolveFailed("the logits are no longer numbers", got=got, remedy=remedy)


def whole_numbers(stop: Sequence[int]) -> tuple[int, ...]:
    """Tokens as plain numbers."""
    return tuple(int(token) for token in stop)
