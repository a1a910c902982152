"""Self-speculation: a small size of a model writes ahead, the model itself reads that in one pass and keeps what it
would have written.

The rule is that of Leviathan et al. (2023) and Chen et al. (2023): a token x that the draft drew from q is kept with
probability min(1, p(x)/q(x)), and the first one that is not is drawn anew from max(p − q, 0). Whatever the draft is,
what is written is distributed as without it; greedy tokens are the same ones. A draft is worth its while where
α = Σ min(p, q), the share of its tokens that is kept, is high and its step is short.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from continua.models.finite import check_logits
from continua.models.ragged import RaggedReader
from continua.models.sampling import Distribution
from continua.typing import Tensor


@dataclass(frozen=True)
class Ending:
    """Tokens that end a sample, what is written behind, and how many tokens there are at most."""

    stop: tuple[int, ...]
    filler: int
    tokens: int


@dataclass(frozen=True)
class Ahead:
    """What a draft wrote: tokens [b, k], each with the distribution [b, k, v] it was drawn from, and what had been
    written before each and behind the last ([b, k + 1, v], None where no penalty asks)."""

    tokens: Tensor
    shares: Tensor
    seen: Tensor | None


class Speculator:
    """A model, the draft that writes ahead of it, and the tokens so far. Every sample keeps its own number of them.

    The last token of each sample is not read yet. Where the draft looks at the model's own keys (``shares_keys``) it
    reads that one; else it reads the last two, since it never reads the last token it writes ahead.
    """

    def __init__(
        self,
        model: RaggedReader,
        draft: RaggedReader,
        ahead: int,
        sampling: Any,
        generator: torch.Generator | None,
    ) -> None:
        self.model = model
        self.draft = draft
        self.ahead = ahead
        self.sampling: Distribution = sampling
        self.generator = generator
        self.shares_keys = model.cache.buffers is draft.cache.buffers
        self.proposed = 0
        self.kept = 0

    def begin(self, ids: Tensor, lengths: Tensor, seen: Tensor | None, is_full: bool) -> Tensor:
        """Read the prompts, and write the first token [b] as without a draft."""
        told = None if is_full else lengths
        logits = self.model.begin(ids, told)
        if self.model.model.execution.check:
            check_logits(logits, 0)
        if not self.shares_keys:
            self.draft.begin(ids, told)
        token = self.sampling.draw(self.sampling.shares(logits, seen), self.generator)
        last = ids.gather(1, lengths[:, None] - 1)
        self.seen = seen if seen is None else seen.scatter(1, token[:, None], True)
        self.latest = torch.cat([last, token[:, None]], 1)  # [b, 2]
        self.lengths = lengths + 1
        self._widen()
        return token

    def round(self, done: Tensor) -> tuple[Tensor, Tensor]:
        """Write ahead, read, keep: tokens [b, k + 1] of which the first [b] count. Samples that are done stay."""
        self._widen()
        ahead = self._write_ahead()
        self.model.cache.place.copy_(self.lengths - 1)
        logits = self.model.read(torch.cat([self.latest[:, 1:], ahead.tokens], 1))  # [b, k + 1, v]
        if self.model.model.execution.check:
            check_logits(logits, int(self.lengths.max()))
        wanted = self._shares(logits, ahead.seen)
        kept = self._kept(ahead, wanted)
        behind = self._behind(ahead, wanted, kept)
        tokens = torch.cat([ahead.tokens, behind[:, None]], 1).scatter(1, kept[:, None], behind[:, None])
        counts = torch.where(done, 0, kept + 1)
        self._go_on(tokens, counts)
        return tokens, counts

    def _write_ahead(self) -> Ahead:
        """k tokens of the draft."""
        first = self.latest[:, 1:] if self.shares_keys else self.latest
        self.draft.cache.place.copy_(self.lengths - first.shape[1])
        logits = self.draft.read(first)[:, -1]
        seen = self.seen
        tokens: list[Tensor] = []
        shares: list[Tensor] = []
        before: list[Tensor] = []
        for i in range(self.ahead):
            if seen is not None:
                before.append(seen)
            share = self.sampling.shares(logits, seen)
            token = self.sampling.draw(share, self.generator)
            shares.append(share)
            tokens.append(token)
            if seen is not None:
                seen = seen.scatter(1, token[:, None], True)
            if i + 1 < self.ahead:
                self.draft.cache.place.copy_(self.lengths + i)
                logits = self.draft.read(token[:, None])[:, -1]
        if seen is not None:
            before.append(seen)
        return Ahead(torch.stack(tokens, 1), torch.stack(shares, 1), torch.stack(before, 1) if before else None)

    def _shares(self, logits: Tensor, seen: Tensor | None) -> Tensor:
        """p behind the last token and behind each one ahead: [b, k + 1, v]."""
        b, n, v = logits.shape
        flat = self.sampling.shares(logits.reshape(b * n, v), None if seen is None else seen.reshape(b * n, v))
        return flat.view(b, n, v)

    def _kept(self, ahead: Ahead, wanted: Tensor) -> Tensor:
        """How many tokens of each sample are kept [b]."""
        where = ahead.tokens[..., None]
        p = wanted[:, :-1].gather(2, where)[..., 0]
        q = ahead.shares.gather(2, where)[..., 0]
        drawn = torch.rand(p.shape, dtype=p.dtype, device=p.device, generator=self.generator)
        is_kept = drawn * q < p
        kept = is_kept.long().cumprod(1).sum(1)
        self.proposed += is_kept.numel()
        return kept

    def _behind(self, ahead: Ahead, wanted: Tensor, kept: Tensor) -> Tensor:
        """The token behind those that are kept [b]: from max(p − q, 0), or from p where all are."""
        b, _, v = wanted.shape
        nothing = ahead.shares.new_zeros(b, 1, v)
        where = kept[:, None, None].expand(b, 1, v)
        p = wanted.gather(1, where)[:, 0]
        q = torch.cat([ahead.shares, nothing], 1).gather(1, where)[:, 0]
        rest = (p - q).clamp_min(0.0)
        rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)  # rounding may leave nothing
        return self.sampling.draw(rest, self.generator)

    def _go_on(self, tokens: Tensor, counts: Tensor) -> None:
        """Count what was kept."""
        self.kept += int((counts - 1).clamp_min(0).sum())
        if self.seen is not None:
            counted = torch.arange(tokens.shape[1], device=tokens.device) < counts[:, None]
            marks = torch.zeros_like(self.seen, dtype=torch.long).scatter_add_(1, tokens, counted.long())
            self.seen = self.seen | (marks > 0)
        every = torch.cat([self.latest, tokens], 1)
        self.latest = every.gather(1, counts[:, None] + torch.arange(2, device=tokens.device))
        self.lengths = self.lengths + counts

    def _widen(self) -> None:
        """Look at no more rows than there are tokens; a compiled pass looks at all."""
        reach = int(self.lengths.max()) + self.ahead
        for reader in (self.model, self.draft):
            if reader.program is None:
                reader.cache.reach = min(reach, reader.cache.size)


@torch.no_grad()
def speculated(
    speculator: Speculator, ids: Tensor, lengths: Tensor, seen: Tensor | None, is_full: bool, end: Ending
) -> Iterator[Tensor]:
    """Yield tokens [b] in their order, each as soon as every sample has it."""
    first = speculator.begin(ids, lengths, seen, is_full)
    texts = [_Text(end) for _ in range(len(ids))]
    for text, token in zip(texts, first.tolist(), strict=True):
        text.add([token])
    sent = 0
    while True:
        is_over = all(text.is_done for text in texts)
        ready = max(map(len, texts)) if is_over else min(len(text) for text in texts if not text.is_done)
        while sent < ready:
            yield torch.tensor([text.at(sent) for text in texts], device=ids.device)
            sent += 1
        if is_over:
            return
        done = torch.tensor([text.is_done for text in texts], device=ids.device)
        tokens, counts = speculator.round(done)
        for text, new, count in zip(texts, tokens.tolist(), counts.tolist(), strict=True):
            text.add(new[:count])


class _Text:
    """The new tokens of one sample."""

    def __init__(self, end: Ending) -> None:
        self.end = end
        self.tokens: list[int] = []
        self.is_done = False

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, tokens: list[int]) -> None:
        """Take what counts: up to a stop token, and no more than was asked for."""
        for token in tokens:
            if not self.is_done:
                self.tokens.append(token)
                self.is_done = token in self.end.stop or len(self.tokens) == self.end.tokens

    def at(self, i: int) -> int:
        """A token, or what fills the place behind the last."""
        return self.tokens[i] if i < len(self.tokens) else self.end.filler
