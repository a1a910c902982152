"""Causal linear attention over tokens in parts: the sums of features of all chunks before, then block by block."""

from dataclasses import dataclass

import numpy as np
import torch

from continua.axes import Grid
from continua.axes.exchange import Exchange
from continua.axes.sharded import Layout, Shard
from continua.errors import GridError
from continua.operators.attention.plan import Plan, Scores, log_measure
from continua.operators.kernels.feature_sums import ROWS, Around, Projected, Sums, attend_causal, key_weights
from continua.operators.kernels.sampled import Equal, equal_stamps
from continua.typing import Tensor


@dataclass(frozen=True)
class Chunk:
    """What the scores of a chunk read, and where its keys are among the own ones and those that were fetched."""

    scores: Scores
    keys: Tensor
    around: Around


@dataclass(frozen=True)
class Chunks:
    """The two chunks of a process, with the keys around each that may carry one of its stamps."""

    own: tuple[Chunk, ...]
    equal: Equal
    exchange: Exchange | None  # of the keys around, where stamps are equal


def chunks_of(plan: Plan, scores: Scores, t: Grid, shard: Shard) -> Chunks:
    """Lay out the own chunks."""
    layout = shard.layout
    equal = equal_stamps(shard.before, ROWS, layout.chunk)
    if equal.before > layout.chunk:
        remedy = "Use fewer processes, or spread the stamps."
        got = f"{equal.before} tokens of one stamp in parts of {layout.chunk}"
        raise GridError("tokens of one stamp fit into one part", got=got, remedy=remedy)
    exchange = _around(layout, equal) if equal.before or equal.after else None
    made = []
    for place, number in enumerate(chunk_numbers(layout.rank, layout)):
        numbers = _keys(layout, number, equal)
        places = layout.places[numbers]
        grid: Grid = shard.whole.some(places)
        log_weights, log_left = log_measure(plan, grid)
        own = slice(place * layout.chunk, (place + 1) * layout.chunk)
        read = Scores(
            t=t.nodes[..., own, :],
            s=grid.nodes,
            position=scores.position,
            log_weights=log_weights,
            log_left=log_left,
        )
        found = places - 2 * layout.chunk * layout.rank if exchange is None else np.searchsorted(exchange.own, places)
        around = Around(equal, lead=number * layout.chunk - int(numbers[0]))
        made.append(Chunk(read, torch.from_numpy(found).to(t.weights.device), around))
    return Chunks(tuple(made), equal, exchange)


def chunk_numbers(rank: int, layout: Layout) -> tuple[int, int]:
    """Which of all chunks, in the order of time, a process has."""
    return rank, 2 * layout.ranks - 1 - rank


def attend_chunks(given: Projected, plan: Plan, layout: Layout, chunks: Chunks) -> Tensor:
    """Rows of both chunks: what was before them, and what is around them under the mask."""
    before = _sums_before(given, layout, chunks.equal.before)
    both = torch.cat([given.y, given.v], -1)
    both = both if chunks.exchange is None else chunks.exchange.fetched(both, 2)
    answers = []
    for place, chunk in enumerate(chunks.own):
        x = given.x[:, :, place * layout.chunk : (place + 1) * layout.chunk]
        y, v = both.index_select(2, chunk.keys).split([given.y.shape[-1], given.v.shape[-1]], -1)
        weights = key_weights(plan, chunk.scores, x, y.shape[2])
        part = Projected(x, y, v, weights, given.bank)
        answers.append(attend_causal(part, plan, chunk.scores, chunk.around, before[place]))
    return torch.cat(answers, 2)


def _sums_before(given: Projected, layout: Layout, late: int) -> list[Sums]:
    """The sums over all keys before each own chunk but the last ``late``: what all processes have is gathered once."""
    count = layout.chunk
    shares = []
    for start in (0, count):
        shares.append(given.keys_of(start, start + count - late, ROWS))
        if late:
            shares.append(given.keys_of(start + count - late, start + count, ROWS))
    values = layout.gathered(torch.stack([sums.values for sums in shares]), 0)
    levels = layout.gathered(torch.stack([sums.level for sums in shares]), 0)
    numbers = np.concatenate([chunk_numbers(rank, layout) for rank in range(layout.ranks)])
    last = np.stack([numbers, numbers + 1], -1).ravel() if late else numbers  # the chunk up to which a share is late
    found = []
    for number in chunk_numbers(layout.rank, layout):
        places = torch.from_numpy(np.flatnonzero(last < number)).to(values.device)
        level = levels[places]
        top = level.amax(0) if len(places) else torch.full_like(levels[0], -torch.inf)
        raised = torch.where(level == -torch.inf, 0.0, (level - top).exp())
        found.append(Sums((raised * values[places]).sum(0), top))
    return found


def _keys(layout: Layout, number: int, equal: Equal) -> np.ndarray:
    """The tokens of a chunk and those around it, by their numbers."""
    start = number * layout.chunk
    end = start + layout.chunk + equal.after
    return np.arange(max(0, start - equal.before), min(end, 2 * layout.ranks * layout.chunk))


def _around(layout: Layout, equal: Equal) -> Exchange:
    wanted = []
    for rank in range(layout.ranks):
        flags = np.zeros(2 * layout.ranks * layout.chunk, dtype=bool)
        for number in chunk_numbers(rank, layout):
            flags[layout.places[_keys(layout, number, equal)]] = True
        wanted.append(flags)
    return Exchange.of(layout, wanted)
