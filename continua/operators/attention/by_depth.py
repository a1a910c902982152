"""What changes from layer to layer in one attention operator: its mask and its position."""

from typing import NamedTuple

from continua.operators.mask import ByDepth, Mask
from continua.operators.position import Position, PositionByDepth


class Kind(NamedTuple):
    """A mask, and the number of a position where there are several."""

    mask: Mask | None
    position: int = 0


def changes_with_depth(mask: Mask | None, position: Position) -> bool:
    """Whether a mask or a position is told layer by layer."""
    return isinstance(mask, ByDepth) or isinstance(position, PositionByDepth)


def kinds_by_depth(mask: Mask | None, position: Position) -> tuple[tuple[Kind, ...], tuple[int, ...]]:
    """The kinds that differ, and for each unit of depth which of them serves it (none where all are the same)."""
    masks = mask.masks if isinstance(mask, ByDepth) else (mask,)
    places = position.order if isinstance(position, PositionByDepth) else (0,)
    depth = max(len(masks), len(places))
    layers = [Kind(masks[min(i, len(masks) - 1)], places[min(i, len(places) - 1)]) for i in range(depth)]
    kinds = tuple(dict.fromkeys(layers))
    return kinds, tuple(kinds.index(layer) for layer in layers) if depth > 1 else ()
