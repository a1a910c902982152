"""Tokens in parts: what self-attention of the own tokens looks at, and how the keys of others come here."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from continua.axes import Grid
from continua.axes.exchange import Exchange
from continua.axes.sharded import Layout
from continua.operators.attention.ring import has_ring
from continua.operators.kernels.kernel import InParts, Kernel, Subquadratic, Way
from continua.operators.mask import Causal, Mask
from continua.operators.position import Position
from continua.typing import Tensor


@dataclass(frozen=True)
class Sources:
    """What queries look at: a grid, and in parts the way in which its keys come here."""

    grid: Grid
    way: Way | None = None
    exchange: Exchange | None = None  # of ``Way.FETCHED``


def seen_from(t: Grid, mask: Mask | None, position: Position, kernel: Kernel, pairs: Tensor | None) -> Sources:
    """The sources of self-attention of tokens that are in parts.

    Keys walk round where a bias of each key is enough: then a process plans for its own. Under a window those of the
    surroundings are fetched. Some kernels sum what they need; for the rest all keys are gathered.
    """
    if t.shard is None:
        return Sources(t)
    if isinstance(kernel, Subquadratic):
        if not isinstance(kernel, InParts):
            t.require_whole(type(kernel).__name__)
            return Sources(t)
        way = kernel.way(mask)
    else:
        way = _way(t, mask, position, kernel, pairs)
    if way in (Way.RING, Way.SUMMED):
        return Sources(t, way)
    whole: Grid = t.shard.whole
    if way is Way.GATHERED or mask is None:
        return Sources(whole, Way.GATHERED)
    exchange = surroundings(t.shard.layout, whole, mask)
    return Sources(whole.some(exchange.own), way, exchange)


def needs_no_pairs(position: Position, causal: bool) -> bool:
    """Whether a position adds nothing to the scores, or what each key alone decides."""
    return not position.has_pair_bias or (causal and position.has_key_bias)


def _way(t: Grid, mask: Mask | None, position: Position, kernel: Kernel, pairs: Tensor | None) -> Way:
    causal = isinstance(mask, Causal) and t.is_counting
    plain = pairs is None and kernel.is_dot and needs_no_pairs(position, causal)
    if plain and (mask is None or causal) and has_ring(t.weights.device, causal):
        return Way.RING
    return Way.FETCHED if mask is not None and mask.is_local else Way.GATHERED


def surroundings(layout: Layout, whole: Grid, mask: Mask) -> Exchange:
    """Of every process, its own tokens and those that a local mask may let them see.

    ``whole`` is in the order of the processes. A chunk and its surroundings are boxes: in time that is a halo on both
    sides of each chunk, on a lattice some rows more.
    """
    nodes = whole.nodes.detach().double()
    observed = whole.observed
    nodes, there = torch.broadcast_tensors(nodes, observed[..., None])
    wanted = []
    for own in _chunks(layout):
        flags = np.zeros(2 * layout.chunk * layout.ranks, dtype=bool)
        for part in own:
            flags[part] = True  # never nothing at all
            here = there[..., part, :]
            low = torch.where(here, nodes[..., part, :], torch.inf).amin(-2)
            high = torch.where(here, nodes[..., part, :], -torch.inf).amax(-2)
            low, high = mask.span(low, high)
            inside = (nodes >= low[..., None, :]) & (nodes <= high[..., None, :]) & there
            seen = inside.all(-1).reshape(-1, flags.size).any(0)
            flags |= seen.cpu().numpy()
        wanted.append(flags)
    return Exchange.of(layout, wanted)


def _chunks(layout: Layout) -> Iterator[tuple[slice, slice]]:
    """The two chunks of each process, as places in the order of the processes."""
    for rank in range(layout.ranks):
        first = 2 * layout.chunk * rank
        yield slice(first, first + layout.chunk), slice(first + layout.chunk, first + 2 * layout.chunk)
