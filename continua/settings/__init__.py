"""One typed front door for everything that can be set. ``settings.text`` reads and lists settings as text."""

from continua.settings.door import Door, checked, door_of
from continua.settings.ranges import (
    MAX_STEPS,
    Allocates,
    Count,
    NonNegative,
    PartialShare,
    Positive,
    Range,
    Reach,
    Seed,
    Share,
    Size,
    SquareSize,
    Takes,
    Whole,
)

__all__ = [
    "MAX_STEPS",
    "Allocates",
    "Count",
    "Door",
    "NonNegative",
    "PartialShare",
    "Positive",
    "Range",
    "Reach",
    "Seed",
    "Share",
    "Size",
    "SquareSize",
    "Takes",
    "Whole",
    "checked",
    "door_of",
]
