"""Annotations as checks."""

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from continua.settings.checks import (
    Anything,
    Call,
    Either,
    Flag,
    Instance,
    Nothing,
    Number,
    OneOf,
    Several,
    Table,
    Text,
)
from continua.settings.ranges import FINITE, Allocates, Range, Takes


def checks_of(call: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """A check for each parameter of a call."""
    hints = typing.get_type_hints(call, include_extras=True)
    return {name: check_of(hints.get(name, Any)) for name in parameters}


def check_of(hint: Any) -> Any:
    """The check that an annotation asks for."""
    origin = typing.get_origin(hint)
    inner = typing.get_args(hint)
    if origin is typing.Annotated:
        return _ranged(inner[0], inner[1:])
    if origin in (typing.Union, types.UnionType):
        return _either(inner)
    if origin is typing.Literal:
        return OneOf(inner)
    if origin is tuple:
        repeated = len(inner) == 2 and inner[1] is Ellipsis
        return Several(tuple(check_of(one) for one in (inner[:1] if repeated else inner)), repeated)
    if origin in (collections.abc.Sequence, list):
        return Several((check_of(inner[0]),), repeated=True)
    if origin in (collections.abc.Mapping, dict):
        return Table(check_of(inner[0]), check_of(inner[1]))
    if origin is collections.abc.Callable or hint is collections.abc.Callable:
        return Call()
    if origin is not None:
        return check_of(origin)
    return _plain(hint)


def _either(inner: tuple[Any, ...]) -> Either:
    """None comes last, and text after what text can stand for."""
    found = sorted(
        (check_of(one) for one in inner), key=lambda check: isinstance(check, Text) + 2 * (isinstance(check, Nothing))
    )
    return Either(tuple(found))


def _ranged(kind: Any, notes: tuple[Any, ...]) -> Any:
    for note in notes:
        if isinstance(note, Takes):
            return check_of(note.hint)
    check = check_of(kind)
    if not isinstance(check, Number):
        return check
    ranges = [note for note in notes if isinstance(note, Range)]
    sizes = [note for note in notes if isinstance(note, Allocates)]
    return Number(check.whole, ranges[0] if ranges else FINITE, sizes[0] if sizes else None)


def _plain(hint: Any) -> Any:
    simple = {
        int: Number(True),
        float: Number(False),
        bool: Flag(),
        str: Text(),
        type(None): Nothing(),
        None: Nothing(),
    }
    if hint in simple:
        return simple[hint]
    if not isinstance(hint, type) or hint in (object, Any):
        return Anything()
    if issubclass(hint, Enum):
        return OneOf(tuple(hint))
    return Instance(hint, _members(hint))


def _members(hint: type) -> tuple[str, ...]:
    """What a protocol asks for; nothing for a class that is none."""
    if not vars(hint).get("_is_protocol", False):
        return ()
    homes = [base for base in hint.__mro__ if vars(base).get("_is_protocol", False) and base is not typing.Protocol]
    names = {name for base in homes for name in (*vars(base), *inspect.get_annotations(base))}
    return tuple(sorted(name for name in names if not name.startswith("_") or name in ("__call__", "__len__")))
