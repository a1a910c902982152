"""A graph of ONNX while it is written: every operation returns the names of what it makes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPSET = 20
IR = 9

Name = str


@dataclass
class Graph:
    """Operations and constants. A branch has operations of its own, and sees all that is made outside of it."""

    nodes: list[Any] = field(default_factory=list)
    constants: dict[Name, NDArray[Any]] = field(default_factory=dict)
    made: list[int] = field(default_factory=lambda: [0])
    known: dict[tuple[str, tuple[int, ...], bytes], Name] = field(default_factory=dict)

    def op(self, kind: str, *inputs: Name, name: Name | None = None, **attributes: Any) -> Name:
        """Add an operation with one output."""
        return self.ops(kind, inputs, [self.new() if name is None else name], **attributes)[0]

    def ops(self, kind: str, inputs: Sequence[Name], outputs: Sequence[Name], **attributes: Any) -> list[Name]:
        """Add an operation with the outputs of these names."""
        from onnx import helper

        self.nodes.append(helper.make_node(kind, list(inputs), list(outputs), **attributes))
        return list(outputs)

    def split(self, x: Name, sizes: Name, parts: int, axis: int) -> list[Name]:
        """Parts along an axis."""
        return self.ops("Split", [x, sizes], [self.new() for _ in range(parts)], axis=axis)

    def constant(self, values: Any, kind: Any = np.float32) -> Name:
        """A small constant; equal ones are one."""
        array = np.asarray(values, dtype=kind)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.known:
            self.known[key] = self.stored(self.new("c"), array)
        return self.known[key]

    def numbers(self, *values: int) -> Name:
        """A vector of whole numbers."""
        return self.constant(values, np.int64)

    def stored(self, name: Name, values: NDArray[Any]) -> Name:
        """A weight, under a name of its own."""
        self.constants[name] = np.ascontiguousarray(values)
        return name

    def branch(self) -> "Graph":
        """A graph inside of this one."""
        return Graph([], self.constants, self.made, self.known)

    def choose(self, condition: Name, then: "Graph", otherwise: "Graph", outputs: list[list[Name]]) -> list[Name]:
        """What ``then`` makes where the condition holds, else what ``otherwise`` does; ``outputs`` of both."""
        from onnx import helper

        bodies = []
        for graph, names in zip((then, otherwise), outputs, strict=True):
            values = [helper.make_empty_tensor_value_info(name) for name in names]
            bodies.append(helper.make_graph(graph.nodes, self.new("branch"), [], values))
        found = [self.new() for _ in outputs[0]]
        return self.ops("If", [condition], found, then_branch=bodies[0], else_branch=bodies[1])

    # --- what is often needed -----------------------------------------------------------------------------------------

    def size(self, x: Name, axis: int) -> Name:
        """How long ``x`` is along an axis, as a vector of one number."""
        return self.op("Shape", x, start=axis, end=axis + 1)

    def shape(self, *parts: Name | int) -> Name:
        """A shape of known and computed numbers, each a vector of one."""
        return self.op("Concat", *(self.numbers(part) if isinstance(part, int) else part for part in parts), axis=0)

    def reshape(self, x: Name, *parts: Name | int) -> Name:
        """``x`` in another shape."""
        if all(isinstance(part, int) for part in parts):
            return self.op("Reshape", x, self.numbers(*parts))  # type: ignore[arg-type]
        return self.op("Reshape", x, self.shape(*parts))

    def first(self, x: Name, counts: dict[int, Name]) -> Name:
        """The first entries of ``x`` along some axes."""
        axes = sorted(counts)
        ends = counts[axes[0]] if len(axes) == 1 else self.op("Concat", *(counts[axis] for axis in axes), axis=0)
        return self.op("Slice", x, self.numbers(*(0 for _ in axes)), ends, self.numbers(*axes))

    def new(self, prefix: str = "v") -> Name:
        """A name that nothing has yet."""
        self.made[0] += 1
        return f"{prefix}{self.made[0]}"


@dataclass(frozen=True)
class Port:
    """An input or output of a model: its name, type, and shape of numbers and of names for what is open."""

    name: Name
    kind: Any
    shape: tuple[int | str, ...]

    def described(self) -> Any:
        """As ONNX has it."""
        from onnx import helper

        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.kind))
        return helper.make_tensor_value_info(self.name, element, list(self.shape))


def assembled(graph: Graph, inputs: Sequence[Port], outputs: Sequence[Port], about: dict[str, str]) -> Any:
    """The model of a finished graph; ``about`` rides along as metadata."""
    from onnx import helper, numpy_helper

    body = helper.make_graph(
        graph.nodes,
        "continua",
        [port.described() for port in inputs],
        [port.described() for port in outputs],
        [numpy_helper.from_array(values, name) for name, values in graph.constants.items()],
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    model.producer_name = "continua"
    helper.set_model_props(model, about)
    return model
