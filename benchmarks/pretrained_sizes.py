"""Sizes of MiniLM for ``pretrained.py``: what they cost, and others of the same cost."""

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Size:
    """A size of MiniLM: nodes of feed-forward, heads, the cosine that is promised, and peers of the same cost."""

    name: str
    m: int | None
    h: int | None
    promised: float
    layers: int  # of 6, of the same cost

    @property
    def settings(self) -> dict[str, int]:
        """As ``at`` takes them."""
        return {key: value for key, value in (("m", self.m), ("h", self.h)) if value is not None}


D = 384
M = 1536
H = 12
SIZES = (
    Size("½ feed-forward", M // 2, None, 0.94, 4),
    Size("¼ feed-forward", M // 4, None, 0.86, 3),
    Size("½ heads", None, H // 2, 0.90, 5),
    Size("½ + ½", M // 2, H // 2, 0.86, 3),
)
BOTH = SIZES[-1]


def cost(size: Size) -> float:
    """The share of the numbers in the maps of a layer: 4 d² of attention and 2 d m of feed-forward."""
    heads = 4 * D * D * (size.h or H) / H
    return (heads + 2 * D * (size.m or M)) / (4 * D * D + 2 * D * M)


def width_of(size: Size) -> int:
    """The width of a sliced stream with at least the cost of a size: (4 d + 2 m) d' and 2 d'² of the residuals."""
    budget = cost(size) * (4 * D * D + 2 * D * M)
    linear = 4 * D + 2 * M
    return math.ceil((math.sqrt(linear**2 + 8 * budget) - linear) / 4)


def same_cost(size: Size) -> list[Size]:
    """Sizes of the same cost: some of the heads, and as many nodes of feed-forward as are left to pay for."""
    found = []
    for h in (12, 10, 8, 6):
        m = math.floor((cost(size) * (4 * D * D + 2 * D * M) - 4 * D * D * h / H) / (2 * D))
        if 1 <= m <= M:
            found.append(replace(size, m=m, h=h))
    return found
