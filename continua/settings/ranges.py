"""The words that annotations use for ranges: ``steps: Count``, ``lr: Positive``."""

import math
import sys
from dataclasses import dataclass
from typing import Annotated, Any

LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Range:
    """``low`` ≤ x ≤ ``high``; ``above`` < x < ``below``. Infinity is a number only where ``infinite`` says so."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    infinite: bool = False
    remedy: str = ""  # what to do about a number outside, where a range does not say enough

    def has(self, value: float) -> bool:
        """Whether a number lies inside; NaN never does."""
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and value == value
            and (self.infinite or -LARGEST <= value <= LARGEST)  # whole numbers may be larger than any float
        )

    def __str__(self) -> str:
        parts = (
            "" if self.low is None else f"≥ {_short(self.low)}",
            "" if self.above is None else f"> {_short(self.above)}",
            "" if self.high is None else f"≤ {_short(self.high)}",
            "" if self.below is None else f"< {_short(self.below)}",
        )
        return " and ".join(filter(None, parts))


def _short(number: float) -> str:
    if number >= 2**31 and math.log2(number).is_integer():
        return f"2^{math.log2(number):g}"
    return f"{number:,}" if 1e6 <= abs(number) < 1e15 else f"{number:g}"


@dataclass(frozen=True)
class Allocates:
    """n^``power`` things that take ``bytes`` each, at the least: more than the memory has are refused."""

    bytes: int = 8
    power: int = 1


@dataclass(frozen=True)
class Takes:
    """Checked as another annotation says: ``Annotated[Any, Takes(Rule | int)]`` leaves the type checker out of it."""

    hint: Any


FINITE = Range()
MAX_STEPS = 10**6  # a solve of more steps in depth is a slip of the pen: each is a pass through a block
Count = Annotated[int, Range(low=1)]
Size = Annotated[int, Range(low=1), Allocates()]
SquareSize = Annotated[int, Range(low=1), Allocates(power=2)]  # a matrix of so many rows and columns is made of it
Whole = Annotated[int, Range(low=0)]
Degree = Annotated[int, Range(low=0, high=100)]  # of polynomials: beyond, their numbers leave those of float64
Seed = Annotated[int, Range(low=0, below=2**63)]
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(low=0)]
Single = Annotated[float, Range(low=-1e38, high=1e38)]  # what float32 can hold, as weights do
Spread = Annotated[float, Range(low=0, high=1e38)]  # a standard deviation of weights
Share = Annotated[float, Range(low=0, high=1)]
SomeShare = Annotated[float, Range(above=0, high=1)]
PartialShare = Annotated[float, Range(low=0, below=1)]
Reach = Annotated[float, Range(above=0, infinite=True)]


class Unfit(Exception):
    """A value that a check does not take. ``what``: a sentence of its own, where the words of the check do not say."""

    def __init__(self, what: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
