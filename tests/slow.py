"""Laws over all cases that take long: a few of a kind in the quick tests, the others in the slow ones."""

from collections.abc import Iterable
from typing import Any

import pytest

# why a compiled test has inductor among the slow ones
IN_CPP = (
    "a C++ compiler for each; aot_eager traces the same graph, and laws/test_compiled.py has inductor for six models"
)


def slow_but(quick: Iterable[Any], cases: Iterable[Any], reason: str) -> list[Any]:
    """All ``cases`` as parameters, those not in ``quick`` marked slow."""
    kept = list(quick)
    slow = pytest.mark.slow(reason=reason)
    return [case if case in kept else pytest.param(case, marks=slow) for case in cases]
