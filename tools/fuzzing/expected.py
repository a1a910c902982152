"""Causes that are known and not yet mended: each with its id. The list is empty when all is well."""

import re

from fuzzing.case import Outcome

# (id, pattern of the cause)
EXPECTED: tuple[tuple[str, str], ...] = (
    ("D1", r"Error at "),
    ("D1", r": (type|NaN|range|size|mass|ends|field|finite|sum|dense|sign|count|round trip|kept|permutation|shape)$"),
    ("S1", r"causality"),
    ("S3 S10 S5", r"api: weights"),
    ("X1 X2 X3 D6", r"^(memory|hang|crash)"),
)


def owner_of(outcome: Outcome) -> str | None:
    """The id of a known cause."""
    for name, pattern in EXPECTED:
        if re.search(pattern, outcome.cause):
            return name
    return None
