"""Numbers that a model knows before it runs, as tensors: made once for each device and dtype, never inside a graph.

A compiled or exported model takes them as constants (``constant_result``), so what leads to them (numpy, caches,
values) is not traced. Under a mode that stands in for a device, such as ``FakeTensorMode``, nothing is
kept: tensors of a mode must not outlive it.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

T = TypeVar("T")
P = ParamSpec("P")
KEPT = 1024  # constants that a cache holds
WITHOUT_DOUBLES = ("mps",)  # devices that know no float64
BYTES = 64 * 2**20  # what the numbers of a cache may take; a single one that is larger is held until the next comes


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
    """A store of constants, bounded by their number and by their bytes: the least recently used one goes first."""

    def __init__(self, size: int = KEPT, most: int = BYTES) -> None:
        self._size = size
        self._most = most
        self._bytes = 0
        self._made: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._made)

    @property
    def bytes(self) -> int:
        """What the numbers in it take."""
        return self._bytes

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """What ``make`` returned for this key; made anew, and not kept, where tensors are not real."""
        return self.recall(key, make) if is_real() else make()

    def recall(self, key: Any, make: Callable[[], T]) -> T:
        """What ``make`` returned for this key, for results that are no tensors of a mode."""
        found = self._made.get(key)
        if found is not None:
            with suppress(KeyError):  # another thread may have let it go
                self._made.move_to_end(key)
            kept: T = found[0]
            return kept
        made = make()
        weight = bytes_of(made)
        with self._lock:
            before = self._made.pop(key, None)
            self._made[key] = (made, weight)
            self._bytes += weight - (before[1] if before is not None else 0)
            while len(self._made) > 1 and (len(self._made) > self._size or self._bytes > self._most):
                self._bytes -= self._made.popitem(last=False)[1][1]
        return made

    def __deepcopy__(self, memo: Any) -> "Cache":
        """A copied model makes its own."""
        return Cache(self._size, self._most)

    def __reduce__(self) -> tuple[type["Cache"], tuple[int, int]]:
        return Cache, (self._size, self._most)


def bytes_of(value: Any, depth: int = 4) -> int:
    """The bytes of the arrays and tensors in a value: in tuples, lists, dicts and the attributes of objects."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if depth == 0 or value is None or isinstance(value, bool | int | float | str | type):
        return 0
    if isinstance(value, tuple | list):
        if value and isinstance(value[0], float):
            return 32 * len(value)
        return sum(bytes_of(item, depth - 1) for item in value)
    held = value if isinstance(value, dict) else vars(value) if hasattr(value, "__dict__") else {}
    return sum(bytes_of(item, depth - 1) for item in held.values())


def bounded(size: int, most: int = BYTES) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """``functools.lru_cache`` with a bound of bytes, too; a compiled program looks past it."""

    def wrap(f: Callable[P, T]) -> Callable[P, T]:
        kept = Cache(size, most)

        @functools.wraps(f)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if torch.compiler.is_compiling():
                return f(*args, **kwargs)
            return kept.recall((args, tuple(kwargs.items())), lambda: f(*args, **kwargs))

        return call

    return wrap


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


def widest(device: torch.device) -> torch.dtype:
    """The finest dtype of a device, for a little algebra that squares condition numbers."""
    return torch.float32 if device.type in WITHOUT_DOUBLES else torch.float64


def summed_in(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of sums over many tokens: float64 for float32 on the processor, where it costs little.

    The order of a sum no longer shows in its float32 digits then: tokens in parts have the sums of all. Accelerators
    add in trees, and their float64 is slow; programs that are exported run where there may be none.
    """
    plain = dtype != torch.float32 or device.type != "cpu" or torch.compiler.is_exporting()
    return dtype if plain else torch.float64
