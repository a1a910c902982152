"""Reading on where every sample has its own length: what speculation and a server stand on."""

from dataclasses import replace
from typing import Any

import torch

from continua.axes import Discretisation, Grid, counting
from continua.compiling import compiled_with_constants
from continua.models.batch import Batch
from continua.models.model import Pass, Reads, constant_weight
from continua.operators import Context
from continua.operators.cache import RaggedCache
from continua.tree import mapped
from continua.typing import Tensor


class RaggedReader:
    """A model on one discretisation that reads new tokens of samples, each behind its own past.

    The past stands in ``cache``, whose ``place`` says where the next token of each sample goes. Reading does not move
    it: who reads knows how many tokens count. ``compile`` compiles a pass of each number of tokens whole.
    """

    def __init__(
        self,
        entry: Any,
        at: Discretisation,
        cache: RaggedCache,
        *,
        reads: Reads | None = None,
        context: Context | None = None,
        compile: bool = False,
    ) -> None:
        self.entry = entry  # what is called, so that its hooks fire
        self.model = entry.flows[-1]
        self.at = at
        self.cache = cache
        self.reads = self.model.read(at) if reads is None else reads
        self.context = replace(Context() if context is None else context, cache=cache)
        self.room = self.model.embed.room
        self.like = self.model.structure(at).grids.d.nodes
        self.program: Any = None
        if compile:
            self.reads = mapped(self.reads, constant_weight)
            self.program = compiled_with_constants(self._function())

    def begin(self, ids: Tensor, lengths: Tensor | None) -> Tensor:
        """Read prompts [b, n], of which the first ``lengths`` tokens count (all if None); logits [b, v] behind them."""
        n = ids.shape[1]
        nodes = torch.arange(n, device=ids.device, dtype=self.like.dtype)
        weights = torch.ones_like(nodes)
        if lengths is None:
            t = Grid(nodes[:, None], weights, is_counting=True, is_uniform=True, is_unit=True, is_ordered=True)
        else:
            weights = (nodes < lengths[:, None]).to(nodes)
            t = Grid(nodes[:, None], weights, is_counting=True, is_ordered=True, has_gaps=True)
        self.cache.place.zero_()
        self.cache.is_behind = False
        self.cache.is_fresh = True
        try:
            return self._pass(ids, t, last=True)[:, -1]
        finally:
            self.cache.is_fresh = False

    def read(self, tokens: Tensor) -> Tensor:
        """Read tokens [b, k] from ``cache.place`` on; return the logits [b, k, v] behind each."""
        answer: Tensor = self._read(tokens) if self.program is None else self.program(tokens)
        return answer

    def _read(self, tokens: Tensor) -> Tensor:
        if self.cache.is_behind and tokens.shape[1] == 1:
            return self._pass(tokens, counting(1, self.like, start=self.cache.reach - 1))
        ahead = torch.arange(tokens.shape[1], device=tokens.device)
        nodes = self.cache.place[:, None] + ahead
        if self.room is not None:  # tokens that run ahead of the table are never accepted
            nodes = nodes.clamp_max(self.room - 1)
        nodes = nodes.to(self.like.dtype)[..., None]
        ones = torch.ones_like(nodes[..., 0])
        t = Grid(nodes, ones, is_counting=True, is_uniform=True, is_unit=True)
        return self._pass(tokens, t)

    def _function(self) -> Any:
        def run(tokens: Tensor) -> Tensor:
            return self._read(tokens)

        return run

    def _pass(self, tokens: Tensor, t: Grid, last: bool = False) -> Tensor:
        told = Pass(self.context, tokens=t, reads=self.reads, last=last)
        logits: Tensor = self.entry(Batch(tokens), self.at, told)
        return logits


def key_family(at: Discretisation) -> tuple[Any, ...]:
    """What decides keys and values: heads, what is inside them, and the steps. Sizes that agree in it share them."""
    return at.h, at.e, at.z


def compacted(ids: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """The observed tokens of each sample first, in their order, and how many there are."""
    order = (~observed).to(torch.uint8).argsort(dim=1, stable=True)
    return ids.gather(1, order), observed.sum(1)
