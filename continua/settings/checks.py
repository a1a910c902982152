"""What a setting takes: numbers, text, objects and what is made of them.

``take`` returns a value as it should be or raises ``Unfit``; ``read`` does the same for text that was typed, with
``build`` for objects; ``words`` and ``example`` say what is taken.
"""

# ruff: noqa: D102  (these four mean the same everywhere)

import ast
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from continua import memory
from continua.settings.ranges import FINITE, LARGEST, Allocates, Range, Unfit

Build = Callable[[str], Any]  # an object from the text that describes it
REGISTERED: dict[str, type] = {}  # the classes of config.register by their names
YES = {"true", "yes", "on", "1"}
NO = {"false", "no", "off", "0"}
NONE = {"none", "null", ""}
LONG = 2**63  # whole numbers from here on are none for torch
TOO_LONG = "takes a number that a float can hold"
SYMBOLS = ("SymInt", "SymFloat", "SymBool")  # numbers of a program that is being exported


def scalar(value: Any) -> Any:
    """A single number of numpy as Python's; everything else as it is."""
    if type(value).__module__ == "numpy" and hasattr(value, "item") and value.ndim == 0:
        return value.item()
    return value


def _as_float(value: int, remedy: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Unfit(TOO_LONG, remedy) from None


@dataclass(frozen=True)
class Anything:
    """Whatever comes."""

    words = "anything"
    example = "…"

    def take(self, value: Any) -> Any:
        return value

    def read(self, text: str, build: Build) -> Any:
        """Numbers, True, None and quoted text as Python has them, the rest as text."""
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text


@dataclass(frozen=True)
class Nothing:
    """None."""

    words = "None"
    example = "None"

    def take(self, value: Any) -> None:
        if value is not None:
            raise Unfit

    def read(self, text: str, build: Build) -> None:
        if text.strip().lower() not in NONE:
            raise Unfit


@dataclass(frozen=True)
class Flag:
    """True or False."""

    words = "True or False"
    example = "True"

    def take(self, value: Any) -> bool:
        if value is True or value is False:
            return value
        value = scalar(value)
        if isinstance(value, bool) or type(value).__name__ in SYMBOLS:
            return value
        raise Unfit

    def read(self, text: str, build: Build) -> bool:
        word = text.strip().lower()
        if word not in YES | NO:
            raise Unfit
        return word in YES


@dataclass(frozen=True)
class Number:
    """A number, whole or not, in a range."""

    whole: bool
    range: Range = FINITE
    allocates: Allocates | None = None

    @property
    def bounds(self) -> str:
        return str(self.range)

    @property
    def words(self) -> str:
        kind = "whole " if self.whole else "finite " if self.range == FINITE else ""
        return f"a {kind}number {self.range}".rstrip()

    @property
    def example(self) -> str:
        low = self.range.low if self.range.above is None else self.range.above + 1
        start = 1 if low is None else max(low, 1)
        inside = start if self.range.has(start) else 0.5
        return str(int(inside)) if self.whole else f"{float(inside):g}"

    def take(self, value: Any) -> Any:
        kind = type(value)
        if kind is not int and (self.whole or kind is not float):
            value = self._converted(value)
            if type(value).__name__ in SYMBOLS:
                return value
        if not self.whole and type(value) is int and not -LONG <= value < LONG:
            value = _as_float(value, self.range.remedy)
        if not self.range.has(value):
            beyond = isinstance(value, int) and not -LARGEST <= value <= LARGEST
            raise Unfit(TOO_LONG if beyond else "", remedy=self.range.remedy)
        if self.allocates is not None and not memory.fits(value**self.allocates.power * self.allocates.bytes):
            need = memory.readable(min(value, 10**18) ** self.allocates.power * self.allocates.bytes)
            there = memory.readable(memory.available())
            raise Unfit(f"so large needs at least {need} of {there} memory", remedy="Make it smaller.")
        return value

    def _converted(self, value: Any) -> Any:
        value = scalar(value)
        if type(value).__name__ in SYMBOLS:
            return value
        wanted = numbers.Integral if self.whole else numbers.Real
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise Unfit
        return int(value) if isinstance(value, numbers.Integral) else float(value)

    def read(self, text: str, build: Build) -> Any:
        try:
            return self.take(int(text) if self.whole else float(text))
        except (ValueError, OverflowError):
            return self.take(self._integral(text))

    def _integral(self, text: str) -> Any:
        """1e3 is a whole number too."""
        try:
            value = float(text)
        except ValueError:
            raise Unfit from None
        if not self.whole or not math.isfinite(value) or value != int(value):
            raise Unfit
        return int(value)


@dataclass(frozen=True)
class Text:
    """Text."""

    words = "text"
    example = "'…'"

    def take(self, value: Any) -> str:
        if not isinstance(value, str):
            raise Unfit
        return value if type(value) is str else str(value)

    def read(self, text: str, build: Build) -> str:
        quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
        return text[1:-1] if quoted else text


@dataclass(frozen=True)
class OneOf:
    """One of some values: those of a ``Literal``, or the members of an enumeration."""

    values: tuple[Any, ...]

    @property
    def words(self) -> str:
        return "one of " + ", ".join(repr(self._plain(one)) for one in self.values)

    @property
    def example(self) -> str:
        return repr(self._plain(self.values[0]))

    @staticmethod
    def _plain(one: Any) -> Any:
        return one.value if isinstance(one, Enum) else one

    def take(self, value: Any) -> Any:
        for one in self.values:
            if one is value or (type(value) is type(self._plain(one)) and value == self._plain(one)):
                return one
        raise Unfit

    def read(self, text: str, build: Build) -> Any:
        for one in self.values:
            if text.strip().strip("'\"") == str(self._plain(one)):
                return one
        raise Unfit


@dataclass(frozen=True)
class Instance:
    """An object of a class, or one that has all that a protocol asks for."""

    cls: type
    members: tuple[str, ...] = ()
    known: set[type] = field(default_factory=set, compare=False)  # types that were looked at and fit

    @property
    def words(self) -> str:
        name = self.cls.__name__
        return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"

    @property
    def example(self) -> str:
        home = self.cls.__module__.rpartition(".")[0]  # of the kinds that fit by structure, those at home come first
        kinds = [(cls.__module__.startswith(home), kind) for kind, cls in REGISTERED.items() if self._made_by(cls)]
        at_home = [kind for near, kind in kinds if near]
        name = (at_home or [kind for _, kind in kinds] or [self.cls.__name__])[0]
        return f"{name}(…)"

    def _made_by(self, cls: type) -> bool:
        if not self.members:
            return issubclass(cls, self.cls)
        annotated = {name for base in cls.__mro__ for name in vars(base).get("__annotations__", {})}
        return all(hasattr(cls, name) or name in annotated for name in self.members)

    def take(self, value: Any) -> Any:
        kind = type(value)
        if kind in self.known:
            return value
        if isinstance(value, type):
            raise Unfit(remedy=f"Make one: {value.__name__}(…).")
        fits = all(hasattr(value, name) for name in self.members) if self.members else isinstance(value, self.cls)
        if not fits:
            raise Unfit
        self.known.add(kind)
        return value

    def read(self, text: str, build: Build) -> Any:
        """``Name`` or ``Name(key=value)`` of a registered class."""
        return self.take(build(text))


@dataclass(frozen=True)
class Call:
    """Anything that can be called."""

    words = "a function or an object such as GELU()"
    example = "GELU()"

    def take(self, value: Any) -> Any:
        if isinstance(value, type):
            raise Unfit(remedy=f"Make one: {value.__name__}().")
        if not callable(value):
            raise Unfit
        return value

    def read(self, text: str, build: Build) -> Any:
        return self.take(build(text))


@dataclass(frozen=True)
class Several:
    """A tuple: so many values of one kind, or one check for each place. A list will do."""

    items: tuple[Any, ...]
    repeated: bool

    @property
    def words(self) -> str:
        if self.repeated:
            return f"a tuple, each {self.items[0].words}"
        return f"a tuple of {len(self.items)}: {', '.join(item.words for item in self.items)}"

    @property
    def example(self) -> str:
        many = self.items * 2 if self.repeated else self.items
        return f"({', '.join(item.example for item in many)})"

    def take(self, value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple:
            value = self._converted(value)
        if self.repeated:
            check = self.items[0]
            taken = tuple([check.take(one) for one in value])
        elif len(value) != len(self.items):
            raise Unfit
        else:
            taken = tuple([check.take(one) for check, one in zip(self.items, value, strict=True)])
        same = all(a is b for a, b in zip(taken, value, strict=True))
        return value if same else taken  # the object itself where nothing changed

    @staticmethod
    def _converted(value: Any) -> tuple[Any, ...]:
        if isinstance(value, tuple | list):
            return value if isinstance(value, tuple) else tuple(value)
        if type(value).__module__ == "numpy" and hasattr(value, "tolist") and getattr(value, "ndim", 0) == 1:
            return tuple(value.tolist())
        raise Unfit

    def read(self, text: str, build: Build) -> tuple[Any, ...]:
        inner = text.strip().removeprefix("(").removesuffix(")").removeprefix("[").removesuffix("]")
        parts = [part.strip() for part in inner.split(",") if part.strip()]
        checks = self.items * len(parts) if self.repeated else self.items
        if len(checks) != len(parts):
            raise Unfit
        return tuple(check.read(part, build) for check, part in zip(checks, parts, strict=True))


@dataclass(frozen=True)
class Table:
    """A mapping from names to values of one kind."""

    key: Any
    value: Any

    @property
    def words(self) -> str:
        return f"a mapping to {self.value.words}"

    @property
    def example(self) -> str:
        return f"{{'d': {self.value.example}}}"

    def take(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Unfit
        for name, one in value.items():
            self.key.take(name)
            self.value.take(one)
        return value

    def read(self, text: str, build: Build) -> Any:
        try:
            return self.take(ast.literal_eval(text))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise Unfit from None


@dataclass(frozen=True)
class Either:
    """The first check that fits."""

    options: tuple[Any, ...]

    @property
    def words(self) -> str:
        said = [option.words for option in self.options]
        return f"{', '.join(said[:-1])} or {said[-1]}"

    @property
    def example(self) -> str:
        return str(next(option.example for option in self.options if not isinstance(option, Nothing)))

    @property
    def bounds(self) -> str:
        return next((option.bounds for option in self.options if isinstance(option, Number)), "")

    def take(self, value: Any) -> Any:
        return self._first(lambda option: option.take(value), self.options)

    def read(self, text: str, build: Build) -> Any:
        last = sorted(self.options, key=lambda option: isinstance(option, Text))  # anything can be read as text
        return self._first(lambda option: option.read(text, build), last)

    def _first(self, tried: Callable[[Any], Any], options: Sequence[Any]) -> Any:
        telling = Unfit()
        for option in options:
            try:
                return tried(option)
            except Unfit as unfit:
                telling = unfit if unfit.what or unfit.remedy else telling
        raise telling
