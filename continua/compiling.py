"""What makes the package easy on torch's compiler. Nothing here imports the compiler, which takes seconds."""

import functools
import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
_numbers = itertools.count()


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


def compiled_with_constants(f: Callable[..., R], dynamic: bool = False) -> Callable[..., R]:
    """Compile ``f`` whole, and take everything but its arguments as constant.

    For functions over weights that never change: a call then checks its arguments alone, where a usual one looks at
    every module, weight and setting that was seen while tracing (0.15 ms for a small model). ``f`` gets a code object
    of its own, since torch keeps compiled programs by code: another function of the same code must not meet this one.
    """
    names = f.__code__.co_varnames[: f.__code__.co_argcount]
    code = f.__code__.replace(co_name=f"{f.__name__}_{next(_numbers)}")
    own = types.FunctionType(code, f.__globals__, code.co_name, f.__defaults__, f.__closure__)

    def kept(guards: Sequence[Any]) -> list[bool]:
        return [guard.name == "" or guard.name in names for guard in guards]

    made: Callable[..., R] = torch.compile(own, fullgraph=True, dynamic=dynamic, options={"guard_filter_fn": kept})
    return made
