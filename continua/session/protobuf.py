"""Just enough of protobuf to give inputs of an ONNX model their values for good, without the onnx package.

A model whose size is fixed is folded by onnxruntime when it is opened: slices of weights become weights, branches that
are not taken disappear.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from continua.errors import CheckpointError

GRAPH = 7  # fields of ModelProto, StringStringEntryProto, GraphProto, ValueInfoProto and TensorProto
METADATA = 14
ENTRY_KEY = 1
ENTRY_VALUE = 2
INITIALIZER = 5
INPUT = 11
OUTPUT = 12
VALUE_NAME = 1
DIMS = 1
DATA_TYPE = 2
TENSOR_NAME = 8
RAW_DATA = 9
KINDS = {"float32": 1, "int64": 7}
VARINT = 0
BYTES = 2
FIXED = {1: 8, 5: 4}


@dataclass(frozen=True)
class Field:
    """One field of a message: its number, where all of it begins and ends, and where its content begins."""

    number: int
    begin: int
    content: int
    end: int


def fixed(model: bytes, values: Mapping[str, NDArray[Any]], drop: Set[str]) -> bytes:
    """The same model with constants in the place of some inputs, and without some outputs."""
    view = memoryview(model)
    parts: list[bytes | memoryview] = []
    for one in fields(view, 0, len(view)):
        if one.number != GRAPH:
            parts.append(view[one.begin : one.end])
            continue
        kept: list[bytes | memoryview] = []
        for inner in fields(view, one.content, one.end):
            gone = values.keys() if inner.number == INPUT else drop if inner.number == OUTPUT else ()
            if not gone or _name(view, inner) not in gone:
                kept.append(view[inner.begin : inner.end])
        kept += [_message(INITIALIZER, _tensor(name, array)) for name, array in values.items()]
        parts.append(_message(GRAPH, b"".join(kept)))
    return b"".join(parts)


def metadata(model: bytes) -> dict[str, str]:
    """What a model says of itself, by key."""
    view = memoryview(model)
    found = {}
    for one in fields(view, 0, len(view)):
        if one.number == METADATA:
            entry = {part.number: part for part in fields(view, one.content, one.end)}
            key, value = (_text(view, entry.get(number)) for number in (ENTRY_KEY, ENTRY_VALUE))
            found[key] = value
    return found


def fields(view: memoryview, begin: int, end: int) -> Iterator[Field]:
    """The fields of the message between two places."""
    place = begin
    while place < end:
        start = place
        key, place = _varint(view, place)
        wire = key & 7
        content = place
        if wire == VARINT:
            _, place = _varint(view, place)
        elif wire == BYTES:
            length, content = _varint(view, place)
            place = content + length
        elif wire in FIXED:
            place += FIXED[wire]
        else:
            raise _damaged(f"a field of type {wire}")
        if place > end:
            raise _damaged("a field that goes beyond the end")
        yield Field(key >> 3, start, content, place)


def _name(view: memoryview, value: Field) -> str:
    for one in fields(view, value.content, value.end):
        if one.number == VALUE_NAME:
            return _text(view, one)
    return ""


def _text(view: memoryview, value: Field | None) -> str:
    return "" if value is None else bytes(view[value.content : value.end]).decode("utf-8", "replace")


def _varint(view: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(view):
            raise _damaged("an end in the middle of a number")
        byte = view[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise _damaged("a number without end")


def _number(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def _message(number: int, content: bytes) -> bytes:
    return _number(number << 3 | BYTES) + _number(len(content)) + content


def _tensor(name: str, values: NDArray[Any]) -> bytes:
    dims = b"".join(_number(DIMS << 3) + _number(length) for length in values.shape)
    kind = _number(DATA_TYPE << 3) + _number(KINDS[values.dtype.name])
    little = values.astype(values.dtype.newbyteorder("<"))
    return (
        dims + kind + _message(TENSOR_NAME, name.encode()) + _message(RAW_DATA, np.ascontiguousarray(little).tobytes())
    )


def _damaged(got: str) -> CheckpointError:
    return CheckpointError("this is no whole ONNX file", got=got, remedy="Export the model again.")
