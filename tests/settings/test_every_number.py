"""Every number of every kind, far too small and far too large: an object is made of it, or a sentence."""

import copy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from continua import memory
from continua.config import from_plain
from continua.errors import ContinuaError

TOOLS = Path(__file__).resolve().parents[2] / "tools"
OUTSIDE = (0, -1, 10**13, 2**63, 10**40, -(10**40), 10**400, 0.0, 1e308, -1e308, 1e-320)

pytestmark = pytest.mark.spec("B17")


def _kinds() -> dict[str, list[dict[str, Any]]]:
    sys.path.insert(0, str(TOOLS))
    try:
        from fuzzing.corpus import by_kind
    finally:
        sys.path.remove(str(TOOLS))
    return by_kind()


def _places(plain: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Where a configuration holds numbers of its own."""
    for name, value in plain.items():
        entries = enumerate(value) if isinstance(value, list) else ()
        for place, one in (((name,), value), *(((name, i), entry) for i, entry in entries)):
            if isinstance(one, int | float) and not isinstance(one, bool):
                yield place


def _with(plain: dict[str, Any], place: tuple[Any, ...], number: float) -> dict[str, Any]:
    changed = copy.deepcopy(plain)
    holder: Any = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = number
    return changed


def test_a_number_outside_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    wrong: list[str] = []
    tried = 0
    for kind, plains in _kinds().items():
        for place in _places(plains[0]):
            for number in OUTSIDE:
                tried += 1
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        from_plain(_with(plains[0], place, number))
                except ContinuaError:
                    continue
                except Exception as bare:
                    wrong.append(f"{kind}.{place}={number:.3g}: {type(bare).__name__}: {bare}"[:200])
    assert tried > 1000
    assert wrong == []
