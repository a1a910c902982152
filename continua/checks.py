"""Refusals that look at values: on by default, off inside compiled graphs and where a caller says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from continua.constants import constant_result
from continua.errors import ContinuaError

_looking: ContextVar[bool] = ContextVar("looking", default=True)


def looking() -> bool:
    """Whether values may be read to refuse what is wrong with them.

    A graph cannot branch on values, and reading one makes the processor wait for a device.
    """
    return not torch.compiler.is_compiling() and _looking.get()


@contextmanager
def without_looking() -> Iterator[None]:
    """Inside, no value is read: nothing is refused for its numbers, and no device is waited for."""
    before = _looking.set(False)
    try:
        yield
    finally:
        _looking.reset(before)


@constant_result
def refuse_in_graph(what: str, got: str, remedy: str) -> None:
    """Refuse something inside a compiled graph: a compiler runs this while it traces, and tells the sentence."""
    raise ContinuaError(what, got=got, remedy=remedy)
