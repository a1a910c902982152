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
