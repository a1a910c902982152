"""Numbers that a model knows before it runs, as tensors: made once for each device and dtype, never inside a graph.

A compiled or exported model takes them as constants (``constant_result``), so what leads to them (numpy, caches,
values) is not traced. Under a mode that stands in for a device, such as ``FakeTensorMode``, nothing is
kept: tensors of a mode must not outlive it.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

T = TypeVar("T")
P = ParamSpec("P")
KEPT = 1024  # constants that a cache holds; the least recently used one goes first


def constant_result(f: Callable[P, T]) -> Callable[P, T]:
    """Let compiled and exported programs take what ``f`` returns as a constant, without looking inside.

    The same mark as ``torch.compiler.assume_constant_result``, which would import the compiler: that takes seconds, and
    only programs that compile should pay them. An object made inside a graph is no argument for it: the compiler
    hands it over without its attributes. Numbers, strings and tuples of them are.
    """
    if isinstance(f, FunctionType):
        marked: Callable[P, T] = f
    else:  # a cache does not keep the mark

        @functools.wraps(f)
        def marked(*args: P.args, **kwargs: P.kwargs) -> T:
            return f(*args, **kwargs)

    marked._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return marked


class Cache:
    """A bounded store of constants."""

    def __init__(self, size: int = KEPT) -> None:
        self._size = size
        self._made: OrderedDict[Any, Any] = OrderedDict()

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """What ``make`` returned for this key; made anew, and not kept, where tensors are not real."""
        if not is_real():
            return make()
        if key in self._made:
            self._made.move_to_end(key)
            kept: T = self._made[key]
            return kept
        made = make()
        self._made[key] = made
        if len(self._made) > self._size:
            self._made.popitem(last=False)
        return made

    def __deepcopy__(self, memo: Any) -> "Cache":
        """A copied model makes its own."""
        return Cache(self._size)

    def __getstate__(self) -> dict[str, Any]:
        return {"_size": self._size, "_made": OrderedDict()}


_kept = Cache()


def is_real() -> bool:
    """Whether new tensors are plain tensors with memory of their own, and no mode stands in for them."""
    return type(torch.empty(0)) is Tensor


@contextmanager
def outside_modes() -> Iterator[None]:
    """Inside, tensors are real whatever mode is active: for numbers that lead to constants."""
    with _disable_current_modes():
        yield


def tensor(values: NDArray[Any], device: torch.device, dtype: torch.dtype) -> Tensor:
    """The numbers as a new tensor."""
    if is_real() and device.type == "cpu":
        return torch.from_numpy(np.ascontiguousarray(values)).to(dtype, copy=True)
    if values.size == 1:  # a mode would compute with a single number, and has none for a device that is not there
        return torch.full(values.shape, values.item(), dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype).to(device)


def numbers(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Plain numbers as a tensor that is kept; nobody may write into it."""
    return _numbers(values, device, dtype)[0]


@constant_result
def _numbers(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> tuple[Tensor]:
    """In a tuple: two constant tensors of one function would get the same name in a graph."""
    return (_kept.get((values, device, dtype), lambda: tensor(np.array(values), device, dtype)),)


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """Half precision can neither count beyond a few hundred nor carry a weight: float32 then."""
    return torch.promote_types(dtype, torch.float32)
