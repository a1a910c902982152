"""One typed front door for everything that can be set. ``settings.text`` reads and lists settings as text."""

from continua.settings.door import Door, checked, door_of
from continua.settings.ranges import (
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
    Takes,
    Whole,
)

__all__ = [
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
    "Takes",
    "Whole",
    "checked",
    "door_of",
]
