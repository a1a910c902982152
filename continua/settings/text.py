"""Settings as text: what is typed after ``--set``, and what a list of settings says of each."""

import ast
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from continua.config import build, class_of
from continua.errors import ConfigError, ContinuaError
from continua.settings.door import door_of
from continua.settings.ranges import Unfit


@dataclass(frozen=True)
class Setting:
    """One line of a list: ``takes`` says which values, ``about`` what it does."""

    name: str
    takes: str
    default: str
    about: str


class Typed(str):
    """Text that stands for a value: it is read by the annotation of its setting when that is known."""

    __slots__ = ()


def pairs(typed: Iterable[str]) -> dict[str, Typed]:
    """``key=value`` as typed.

    >>> pairs(["steps=500"])
    {'steps': '500'}
    """
    found: dict[str, Typed] = {}
    for pair in typed:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            remedy = "For example --set steps=500."
            raise ConfigError("settings are written key=value", got=pair or "nothing", remedy=remedy)
        found[key.strip()] = Typed(text.strip())
    return found


def read(thing: Any, name: str, text: str) -> Any:
    """The value of one setting of a class or function, from text.

    >>> from continua.flow import Fixed
    >>> read(Fixed, "steps", "8")
    8
    """
    door = door_of(thing)
    if name not in door.checks:
        door.refuse_unknown(name)
    check = door.checks[name]
    try:
        return check.read(text, built)
    except Unfit as unfit:
        door.refuse(name, text, check, unfit)


def built(text: str) -> Any:
    """The registered object that ``Name`` or ``Name(key=value, …)`` describes. Nothing is executed.

    >>> built("Checkpoint(every=2)")
    Checkpoint(every=2, recursive=False, clip=None)
    """
    try:
        return _object(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as wrong:
        if isinstance(wrong, ContinuaError):
            raise
        raise Unfit from None


def _object(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name):
            return build(name, {})
        case ast.Call(func=ast.Name(id=name), args=[*args], keywords=[*keywords]):
            return build(name, _arguments(name, args, keywords))
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_object(item) for item in items)
        case _:
            return ast.literal_eval(node)


def _arguments(name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> dict[str, Any]:
    names = door_of(class_of(name)).names
    if len(args) > len(names) or any(keyword.arg is None for keyword in keywords):
        raise Unfit
    placed = {key: _object(value) for key, value in zip(names, args, strict=False)}
    return {**placed, **{str(keyword.arg): _object(keyword.value) for keyword in keywords}}


def listed(thing: Any) -> list[Setting]:
    """All settings of a class or function, in the order of its signature."""
    door = door_of(thing)
    said = docs_of(thing)
    return [
        Setting(name, door.checks[name].words, _default(parameter), about(name, said))
        for name, parameter in door.parameters.items()
    ]


def docs_of(thing: Any) -> str:
    """The docstrings of a class and of those it builds on, or of a function."""
    homes = thing.__mro__[:-1] if isinstance(thing, type) else (thing,)
    found = [home.__doc__ for home in homes if home.__doc__]
    return "\n\n".join(inspect.cleandoc(one) for one in found)


def about(name: str, docs: str) -> str:
    """The sentence of a docstring that names a setting in double back-quotes; empty if none does.

    >>> about("clip", "How to train. ``clip`` bounds the norm of the gradient. More.")
    'clip bounds the norm of the gradient'
    """
    for sentence in re.split(r"(?<=[.;])\s+(?=[A-Z`])|\n\n", docs):
        if f"``{name}``" in sentence:
            return " ".join(sentence.replace("``", "").rstrip(".;").split())
    return ""


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return "needed"
    return str(parameter.default)


def valued(thing: Any, name: str, value: Any) -> Any:
    """A value for one setting of a class or function; what was typed is read by the annotation."""
    if isinstance(value, Typed):
        return read(thing, name, str(value))
    door = door_of(thing)
    return door.take(name, value, door.checks[name])
