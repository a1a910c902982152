"""What makes the package easy on torch's compiler. Nothing here imports the compiler, which takes seconds."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def remembered(f: Callable[P, R]) -> Callable[P, R]:
    """Keep what ``f`` returned for the latest arguments, which must be hashable.

    A compiled program looks past the cache: there ``f`` itself is traced, since its arguments may be symbols, or
    objects that exist only in the trace, and neither can be a key.
    """
    kept = functools.lru_cache(maxsize=256)(f)

    @functools.wraps(f)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return f(*args, **kwargs) if torch.compiler.is_compiling() else kept(*args, **kwargs)  # type: ignore[arg-type]

    return call
