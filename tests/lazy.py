"""Heavy packages are imported by the first test that uses them, not by every start of pytest."""

from typing import Any

import pytest


class Lazily:
    """A package by its name; where it is not installed the test that asks for it is skipped."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks at every name of a module for fixtures in disguise
            raise AttributeError(name)
        return getattr(pytest.importorskip(self.name), name)
