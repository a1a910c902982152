"""A pass over tokens in parts: the batch is cut, and what one process refuses all refuse."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from continua.axes import Grid, Sharded
from continua.axes.sharded import require_same
from continua.checks import looking, refuse_in_graph
from continua.errors import ConfigError, SolveFailed
from continua.flow.finite import culprit
from continua.models.batch import Batch
from continua.models.model import Pass
from continua.typing import Tensor


def in_parts(batch: Batch, t: Grid, shards: Sharded) -> tuple[Batch, Grid]:
    """The tokens of this process, of a batch and of its grid."""
    if t.shard is not None:
        remedy = "Lay the whole batch: model.laid(batch), without Sharded."
        raise ConfigError("a batch is cut once", got="one in parts already", remedy=remedy)
    if batch.pairs is not None:
        remedy = "Use a mask of times (Causal, Window), or leave Sharded out."
        raise ConfigError("tokens in parts have no given pairs", got="Batch(pairs=…)", remedy=remedy)
    if looking():
        require_same(shards, [batch.values, batch.types, t.nodes, t.weights])
    layout = shards.layout(t.count)
    values: Any = batch.values
    types = None if batch.types is None else layout.part(batch.types, 1)
    return replace(batch, values=layout.part(values, 1, 0), types=types), t.in_parts(layout)


def refuse_unshared(shards: Sharded, steps: Any, told: Pass | None) -> None:
    """Say what does not go with tokens in parts."""
    if torch.compiler.is_compiling():
        refuse_in_graph("a compiled graph has all tokens", "tokens in parts", "Leave Sharded out, or compile nothing.")
    context = None if told is None else told.context
    kept = context is not None and (context.cache is not None or context.record is not None)
    got = None
    if steps is None:
        got = "steps that are searched for"
    elif kept or (told is not None and (told.last or told.velocity_at is not None)):
        got = "a cache, a record or a single token"
    elif context is not None and context.state is not None:
        got = "a source beside the tokens"
    if got is not None:
        remedy = "Use known steps, at(z=Fixed(n)), and one flow; or leave Sharded out."
        raise ConfigError(
            f"tokens in {shards.mesh.size()} parts go through known steps of one flow", got=got, remedy=remedy
        )


@contextmanager
def agreed(t: Grid) -> Iterator[None]:
    """Where values are looked at, what one process refuses all refuse."""
    with nullcontext() if t.shard is None or not looking() else t.shard.layout.agreed():
        yield


def require_finite(final: Tensor, t: Grid) -> None:
    """Refuse, on every process, a state that is no number on one of them."""
    if t.shard is not None and t.shard.layout.any(culprit(final) is not None):
        remedy = "Run the same batch without Sharded to see where, or lower the learning rate."
        raise SolveFailed("the state is not finite any more", got="NaN or infinity on a process", remedy=remedy)
