"""The model of a server: passes of many samples at any size, over keys that stay usable where sizes share them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from continua.axes import Discretisation
from continua.models.ragged import RaggedReader, key_family
from continua.operators.cache import RaggedCache
from continua.serve.front import SizeCost
from continua.timing import interleaved, own_clock
from continua.typing import Tensor

PROMPT = 16  # tokens whose reading is timed
LONG = 48  # tokens of the longest text behind which a token is timed
ROUNDS = 6


class Decoder:
    """Reads and writes for up to ``samples`` texts of up to ``room`` tokens, each in its own slot.

    Keys and values are kept for each family of sizes. A text that goes on at another size of its family keeps them:
    they are the same functions, read from another state. In another family its tokens are read again.
    """

    def __init__(self, model: Any, samples: int, room: int) -> None:
        self.model = model
        self.samples = samples
        self.room = room
        self._caches: dict[tuple[Any, ...], RaggedCache] = {}  # one for each family of sizes
        self._readers: dict[Discretisation, RaggedReader] = {}
        self.device = next(model.parameters()).device

    def family(self, at: Discretisation) -> tuple[Any, ...]:
        """What decides the keys of a size."""
        return key_family(self.model.settle(at))

    @torch.no_grad()
    def begin(self, at: Discretisation, texts: Sequence[Sequence[int]], slots: Sequence[int]) -> Tensor:
        """Read whole texts into their slots; return the logits [b, v] behind each."""
        reader = self._reader(at)
        lengths = [len(text) for text in texts]
        longest = max(lengths)
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=self.device)
        self._place(reader.cache, [0] * len(texts), slots)
        even = min(lengths) == longest
        return reader.begin(ids, None if even else torch.tensor(lengths, device=self.device))

    @torch.no_grad()
    def step(self, at: Discretisation, tokens: Sequence[int], lengths: Sequence[int], slots: Sequence[int]) -> Tensor:
        """Read one token of each text, behind ``lengths`` others; return the logits [b, v] behind it."""
        reader = self._reader(at)
        self._place(reader.cache, lengths, slots)
        reader.cache.reach = max(lengths) + 1
        reader.cache.is_behind = min(lengths) == max(lengths)
        return reader.read(torch.tensor(tokens, device=self.device)[:, None])[:, -1]

    @torch.no_grad()
    def move(self, at: Discretisation, source: int, target: int, length: int) -> None:
        """Put the keys of a text of a size into another slot: slots in a row are read without a copy at every token."""
        self._cache(at).move(source, target, length)

    def _place(self, cache: RaggedCache, lengths: Sequence[int], slots: Sequence[int]) -> None:
        cache.place = torch.tensor(lengths, dtype=torch.long, device=self.device)
        first = slots[0]
        in_a_row = [*slots] == [*range(first, first + len(slots))]
        if in_a_row:
            cache.slots = slice(first, first + len(slots))
        else:
            cache.slots = torch.tensor(slots, dtype=torch.long, device=self.device)

    def _reader(self, at: Discretisation) -> RaggedReader:
        if at not in self._readers:
            chosen = self.model.settle(at)
            self._readers[at] = RaggedReader(self.model, chosen, self._cache(chosen))
        return self._readers[at]

    @torch.no_grad()
    def _cache(self, at: Discretisation) -> RaggedCache:
        """The keys and values of a family of sizes."""
        key = self.family(at)
        if key not in self._caches:
            one = RaggedCache(torch.zeros(1, dtype=torch.long, device=self.device), self.room)
            RaggedReader(self.model, at, one).begin(torch.zeros(1, 1, dtype=torch.long, device=self.device), None)
            self._caches[key] = one.for_samples(self.samples)
        return self._caches[key]

    def costs(
        self,
        sizes: Sequence[tuple[str, Discretisation, float | None]],
        watch: Callable[[int, int], None] | None = None,
    ) -> list[SizeCost]:
        """Time the passes of sizes with their names and losses: the least of some rounds, in turns.

        What a busy machine adds is learned on the way. Texts of a batch have different lengths, as they have later.
        """
        batches = [1]
        while batches[-1] < self.samples:
            batches.append(min(2 * batches[-1], self.samples))
        cases = [case for _, where, _ in sizes for case in self._cases(where, batches)]
        seen = interleaved(cases, ROUNDS, self.device, watch, own_clock(self.device))
        seconds = [min(each) for each in seen]
        found = []
        for (name, where, loss), start in zip(sizes, range(0, len(cases), len(batches) + 1), strict=True):
            *step, reading = seconds[start : start + len(batches) + 1]
            found.append(SizeCost(name, where, loss, tuple(batches), tuple(step), reading / self._length(PROMPT)))
        return found

    def _cases(self, at: Discretisation, batches: Sequence[int]) -> list[Callable[[], Tensor]]:
        """A pass of each batch, then the reading of one prompt."""
        most = self._length(LONG)
        made: list[Callable[[], Tensor]] = []
        for count in batches:
            lengths = [max(0, most - 1 - i % (most // 2 + 1)) for i in range(count)]
            made.append(partial(self.step, at, [0] * count, lengths, range(count)))
        return [*made, partial(self.begin, at, [[0] * self._length(PROMPT)], [0])]

    def _length(self, tokens: int) -> int:
        return min(tokens, self.room - 1)
