"""Self-speculation without torch: a small size of the file writes ahead, the other reads that in one pass.

The rule is that of ``continua.models.speculate``: a token x that the draft drew from q is kept with probability
min(1, p(x)/q(x)), and in place of the first that is not, max(p − q, 0) is drawn from. What is written is distributed as
without a draft; likeliest tokens are the same ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from continua.errors import ConfigError
from continua.session.sampling import drawn, penalised
from continua.session.writing import Decoder, Ids, Prompt, Request, There, marked, require_numbers

Shares = NDArray[np.float64]


@dataclass
class Texts:
    """The new tokens of every sample; each has its own number of them."""

    request: Request
    rows: list[list[int]]
    done: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.done = np.zeros(len(self.rows), dtype=bool)

    def add(self, tokens: Ids, counts: Ids) -> None:
        """Take the first tokens of each row, up to one that ends it and no more than were asked for."""
        for number, (row, new, count) in enumerate(zip(self.rows, tokens, counts, strict=True)):
            for token in new[:count].tolist():
                if not self.done[number]:
                    row.append(token)
                    self.done[number] = token in self.request.stop or len(row) == self.request.tokens

    @property
    def ready(self) -> int:
        """How many tokens every sample has that is not done."""
        if self.done.all():
            return max(map(len, self.rows))
        return min(len(row) for row, done in zip(self.rows, self.done, strict=True) if not done)

    def at(self, place: int) -> Ids:
        """The tokens at one place [b]; behind the end of a sample the filler."""
        filler = self.request.filler
        return np.array([row[place] if place < len(row) else filler for row in self.rows])


class Speculator:
    """A decoder, the draft that writes ahead of it, and the last two tokens [b, 2].

    The decoder has not read the last one, the draft neither of them: it never reads the last token it wrote ahead.
    """

    def __init__(self, model: Decoder, draft: Decoder, ahead: int, request: Request, vocab: int) -> None:
        if ahead < 1:
            raise ConfigError("a draft writes at least one token ahead", got=ahead, remedy="Use ahead=4.")
        self.model = model
        self.draft = draft
        self.ahead = ahead
        self.request = request
        self.vocab = vocab
        self.rng = np.random.default_rng(request.seed)
        self.latest: Ids = np.zeros((0, 2), dtype=np.int64)
        self.seen: There | None = None

    def begin(self, prompt: Prompt) -> Ids:
        """Read the prompts; the first token [b] as without a draft."""
        choice = self.request.choice
        self.seen = marked(prompt, self.vocab) if choice.repetition_penalty != 1.0 else None
        logits = self.model.read(prompt)["logits"][:, -1]
        require_numbers(logits, 0)
        token = choice.token(logits, self.seen, self.rng)
        self.draft.read(prompt)
        self.draft.keep(prompt.there.sum(1) - 1, prompt.ids.shape[1])
        self.latest = np.stack([prompt.ids[:, -1], token], 1)
        self._see(token[:, None], np.ones(len(token), dtype=np.int64))
        return token

    def round(self, done: NDArray[np.bool_]) -> tuple[Ids, Ids]:
        """Write ahead, read, keep: tokens [b, k + 1], of which the first [b] count; of samples that are done none."""
        tokens, shares, seen = self._ahead()
        logits = self.model.write(np.concatenate([self.latest[:, 1:], tokens], 1), np.arange(self.ahead + 1))["logits"]
        require_numbers(logits, len(self.model.there[0]))
        wanted = np.stack([self._shares(logits[:, i], own) for i, own in enumerate(seen)], 1)
        kept = self._kept(tokens, shares, wanted)
        behind = self._behind(shares, wanted, kept)
        made = np.concatenate([tokens, behind[:, None]], 1)
        made[np.arange(len(made)), kept] = behind
        counts = np.where(done, 0, kept + 1)
        self.model.keep(counts, self.ahead + 1)
        self.draft.keep(counts, self.ahead + 1)
        self._see(made, counts)
        every = np.concatenate([self.latest, made], 1)
        self.latest = np.take_along_axis(every, counts[:, None] + np.arange(2), 1)
        return made, counts

    def _ahead(self) -> tuple[Ids, Shares, list[There | None]]:
        """k tokens [b, k] of the draft, their shares [b, k, v], and what was there before each and behind the last."""
        given = self.latest
        seen = self.seen
        tokens: list[Ids] = []
        shares: list[Shares] = []
        before: list[There | None] = [seen]
        for _ in range(self.ahead):
            share = self._shares(self.draft.write(given)["logits"][:, -1], seen)
            token = drawn(share, self.rng)
            tokens.append(token)
            shares.append(share)
            if seen is not None:
                seen = seen.copy()
                seen[np.arange(len(seen)), token] = True
            before.append(seen)
            given = token[:, None]
        return np.stack(tokens, 1), np.stack(shares, 1), before

    def _shares(self, logits: NDArray[np.float32], seen: There | None) -> Shares:
        """What tokens are drawn from; all of it on the likeliest at temperature zero."""
        choice = self.request.choice
        logits = penalised(logits, seen, choice.repetition_penalty)
        if choice.temperature > 0:
            return choice.shares(logits)
        share = np.zeros(logits.shape)
        share[np.arange(len(share)), logits.argmax(-1)] = 1.0
        return share

    def _kept(self, tokens: Ids, shares: Shares, wanted: Shares) -> Ids:
        """How many tokens of each sample are kept [b]."""
        p = np.take_along_axis(wanted[:, :-1], tokens[..., None], 2)[..., 0]
        q = np.take_along_axis(shares, tokens[..., None], 2)[..., 0]
        is_kept = self.rng.random(p.shape) * q < p
        found: Ids = is_kept.cumprod(1).sum(1)
        return found

    def _behind(self, shares: Shares, wanted: Shares, kept: Ids) -> Ids:
        """The token behind those that are kept [b]: from max(p − q, 0), or from p where all are."""
        rows = np.arange(len(kept))
        p = wanted[rows, kept]
        q = np.concatenate([shares, np.zeros_like(shares[:, :1])], 1)[rows, kept]
        rest = np.maximum(p - q, 0.0)
        rest = np.where(rest.sum(-1, keepdims=True) > 0, rest, p)  # rounding may leave nothing
        return drawn(rest, self.rng)

    def _see(self, tokens: Ids, counts: Ids) -> None:
        if self.seen is not None:
            for row, new, count in zip(self.seen, tokens, counts, strict=True):
                row[new[:count]] = True


def speculated(speculator: Speculator, prompt: Prompt) -> Iterator[Ids]:
    """Each new token [b] as soon as every sample has it."""
    first = speculator.begin(prompt)
    texts = Texts(speculator.request, [[] for _ in first])
    texts.add(first[:, None], np.ones(len(first), dtype=np.int64))
    sent = 0
    while True:
        for place in range(sent, texts.ready):
            yield texts.at(place)
        sent = texts.ready
        if texts.done.all():
            return
        texts.add(*speculator.round(texts.done))
