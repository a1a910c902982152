"""How a refusal must read: what was wrong, what was got, and a remedy, in the error class of its kind."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from continua.errors import ContinuaError


@contextmanager
def refused(kind: type[ContinuaError], got: str, remedy: str) -> Iterator[None]:
    """Expect exactly ``kind``, whose one-line message says ``got`` and after it ``remedy``."""
    with pytest.raises(ContinuaError) as caught:
        yield
    message = str(caught.value)
    assert type(caught.value) is kind, f"{type(caught.value).__name__}: {message}"
    assert got in message, message
    assert remedy in message[message.index(got) + len(got) :], message
    assert "\n" not in message, message
    assert message.endswith((".", "?")), message


@contextmanager
def refused_with(word: str) -> Iterator[None]:
    """Expect a one-line refusal with ``word`` in it: what was wanted, what was got, and then a remedy."""
    with pytest.raises(ContinuaError) as caught:
        yield
    message = str(caught.value)
    assert word in message, message
    what, _, remedy = message.partition(". ")
    assert ", got " in what, message
    assert remedy.endswith("."), message
    assert "\n" not in message, message
