"""The one door through which settings come: every value is held against its annotation and declared range.

``checked`` wraps a constructor or a function: values of the wrong type, out of range, unknown or missing are refused
with one sentence before anything is allocated or written. Numbers of numpy become Python's, lists become tuples where
tuples are asked for. ``config.register`` wraps every class it knows, so a constructor, ``config.json`` and
``run.json`` meet the same checks; ``settings.text`` reads what is typed on a command line by the same annotations.
Inside compiled graphs nothing is checked.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar, cast

from torch.compiler import is_compiling

from continua.errors import ConfigError, nearest
from continua.settings.annotations import checks_of
from continua.settings.checks import Either, Number, scalar
from continua.settings.ranges import Unfit

F = TypeVar("F", bound=Callable[..., Any])


class Door:
    """What the annotations of one constructor or function say, read when it is first called."""

    def __init__(self, name: str, call: Callable[..., Any], bound: bool) -> None:
        """``bound``: the first parameter is the object itself, and no setting."""
        self.name = name
        self.call = call
        self.bound = bound

    @functools.cached_property
    def signature(self) -> list[inspect.Parameter]:
        """Everything that may be given."""
        return list(inspect.signature(self.call).parameters.values())[int(self.bound) :]

    @functools.cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The settings by name."""
        return {p.name: p for p in self.signature if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}

    @functools.cached_property
    def is_open(self) -> bool:
        """Whether it takes more than it names."""
        return len(self.parameters) < len(self.signature)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The settings that may be given without a name, in their order."""
        return tuple(p.name for p in self.parameters.values() if p.kind is not p.KEYWORD_ONLY)

    @functools.cached_property
    def required(self) -> frozenset[str]:
        """The settings without a default."""
        return frozenset(p.name for p in self.parameters.values() if p.default is p.empty)

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the others."""
        return {name: p.default for name, p in self.parameters.items() if p.default is not p.empty}

    @functools.cached_property
    def checks(self) -> dict[str, Any]:
        """One check for each setting."""
        return checks_of(self.call, self.parameters)

    def admit(self, args: tuple[Any, ...], given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as the constructor should have them; refuses what it cannot take."""
        checks = self.checks
        if len(args) > len(self.names) and not self.is_open:
            got = f"{len(args)} without a name"
            raise ConfigError(f"{self.name} takes {self._list()}", got=got, remedy="Name them: key=value.")
        placed = [self.take(name, value, checks[name]) for name, value in zip(self.names, args, strict=False)]
        named = {}
        for name, value in given.items():
            check = checks.get(name)
            if check is None:
                if not self.is_open:
                    self.refuse_unknown(name)
                named[name] = value
                continue
            if name in self.names[: len(args)]:
                raise ConfigError(f"{self.name} takes {name!r} once", got="it twice", remedy="Leave one out.")
            named[name] = self.take(name, value, check)
        for name in self.required.difference(self.names[: len(args)], named):
            remedy = f"Give {name}=…, {checks[name].words}."
            raise ConfigError(f"{self.name} needs {name!r}", got="no such setting", remedy=remedy)
        return (*placed, *args[len(placed) :]), named

    def take(self, name: str, value: Any, check: Any) -> Any:
        """One value, or a refusal."""
        try:
            return check.take(value)
        except Unfit as unfit:
            self.refuse(name, value, check, unfit)

    def refuse(self, name: str, value: Any, check: Any, unfit: Unfit) -> NoReturn:
        """The sentence about a value that does not fit."""
        what = unfit.what or f"takes {check.words}"
        remedy = unfit.remedy or self._remedy(name, check)
        raise ConfigError(f"{self.name}: {name} {what}", got=shown(value), remedy=remedy) from None

    def refuse_unknown(self, name: str) -> NoReturn:
        """The sentence about a setting that does not exist."""
        if not self.parameters:
            raise ConfigError(f"{self.name} has no settings", got=repr(name), remedy="Leave it out.")
        remedy = nearest(str(name), list(self.parameters))
        raise ConfigError(f"{self.name} has no setting of that name", got=repr(name), remedy=remedy)

    def _list(self) -> str:
        return ", ".join(self.parameters) if self.parameters else "no settings"

    def _remedy(self, name: str, check: Any) -> str:
        default = self.parameters[name].default
        plain = isinstance(default, bool | int | float | str | tuple) and default not in ("", ())
        example = f"{name}={default!r}" if plain else f"{name}={check.example}"
        bounds = check.bounds if isinstance(check, Number | Either) else ""
        return f"Use {name} {bounds}, for example {example}." if bounds else f"For example {example}."


def checked(thing: F) -> F:
    """Hold every argument of a class's constructor, or of a function, against its annotation.

    >>> from dataclasses import dataclass
    >>> from continua.settings import Positive
    >>> @checked
    ... @dataclass(frozen=True)
    ... class Ring:
    ...     radius: Positive = 1.0
    >>> Ring(radius="wide")
    Traceback (most recent call last):
    continua.errors.ConfigError: Ring: radius takes a number > 0, got 'wide'. Use radius > 0, for example radius=1.0.
    """
    if not isinstance(thing, type):
        return cast(F, _checked_function(thing))
    _check_constructor(thing)
    return thing


def _checked_function(function: Callable[..., Any]) -> Callable[..., Any]:
    door = Door(function.__name__, function, bound=False)
    admit = admission(door)

    @functools.wraps(function)
    def checking(*args: Any, **given: Any) -> Any:
        if not is_compiling():
            args, given = admit(args, given)
        return function(*args, **given)

    checking.door = door  # type: ignore[attr-defined]
    return checking


def admission(door: Door) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]:
    """``door.admit`` as a function: a compiler that traces a constructor has no use for a door, and none to hold it."""

    def admit(args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return door.admit(args, given)

    return admit


def _check_constructor(cls: type) -> None:
    init = cls.__init__  # type: ignore[misc]
    door = Door(cls.__name__, init, bound=True)
    admit = admission(door)

    @functools.wraps(init)
    def checking(self: Any, *args: Any, **given: Any) -> None:
        if not is_compiling():
            args, given = admit(args, given)
        init(self, *args, **given)

    checking.door = door  # type: ignore[attr-defined]
    cls.__init__ = checking  # type: ignore[misc]


@functools.cache
def door_of(thing: Any) -> Door:
    """The door of a class or function, checked or not."""
    call = thing.__init__ if isinstance(thing, type) else thing  # type: ignore[misc]
    known: Door | None = vars(call).get("door")
    return known if known is not None else Door(thing.__name__, call, bound=isinstance(thing, type))


def shown(value: Any) -> str:
    """A value in a sentence: short, and never a page of numbers."""
    value = scalar(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    try:
        text = repr(value) if isinstance(value, str | int | float | bool | tuple | list | dict | None) else ""
    except ValueError:  # whole numbers of thousands of digits
        text = ""
    text = " ".join(text.split())  # modules are shown on many lines
    if text and len(text) <= 60:
        return text
    size = f" {list(value.shape)}" if hasattr(value, "shape") else ""
    return f"{text[:50]}…" if text else f"{type(value).__name__}{size}"
