"""Causes that are known and not yet mended: each with its id. The list is empty when all is well."""

import re

from fuzzing.case import Outcome

# (id, pattern of the cause)
EXPECTED: tuple[tuple[str, str], ...] = ()


def owner_of(outcome: Outcome) -> str | None:
    """The id of a known cause."""
    for name, pattern in EXPECTED:
        if re.search(pattern, outcome.cause):
            return name
    return None
