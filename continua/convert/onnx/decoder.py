"""The graph of a decoder: tokens behind others, whose keys and values are given, at a size that is given too.

Each step of depth is a branch that is taken where the depth reaches it. Matrices are prefixes of what is stored, read
as they are; all that a size changes beside that goes into vectors.
"""

from dataclasses import dataclass

import numpy as np

from continua.convert.onnx.graph import Graph, Name, Port
from continua.convert.onnx.sizes import LETTERS, Sizes, Vectors
from continua.convert.onnx.stored import Array, Norm, Stored

FAR = -1e9  # added to the score of a token that is not to be seen
BYTE = 127  # of whole numbers in eight bits, on either side of zero


@dataclass(frozen=True)
class Built:
    """A finished graph with its inputs and outputs."""

    graph: Graph
    inputs: list[Port]
    outputs: list[Port]


@dataclass(frozen=True)
class Step:
    """One step: its number, and where its layer begins and ends among those stored."""

    number: int
    begin: Name
    end: Name


class DecoderGraph:
    """Writes the graph of ``own``; ``probe`` adds attention weights and states, ``int8`` products of whole numbers."""

    def __init__(self, own: Stored, probe: bool = False, int8: bool = False) -> None:
        self.own = own
        self.probe = probe
        self.int8 = int8
        self.graph = Graph()
        self.sizes = Sizes.written(self.graph, own)
        self.vectors = Vectors(self.graph, own, self.sizes)
        self.mask = self._mask()
        self.turn = self._turn()

    def build(self) -> Built:
        """All of it."""
        g = self.graph
        x = self._embedded()
        seen: list[Name] = []
        states = [g.op("Unsqueeze", x, g.numbers(0))] if self.probe else []
        for number in range(self.own.native["z"]):
            x, keys, values, *rest = self._step(number, x)
            g.op("Identity", keys, name=f"new_key_{number}")
            g.op("Identity", values, name=f"new_value_{number}")
            seen += rest[:1]
            states += rest[1:]
        self._answer(x)
        if self.probe:
            g.op("Concat", *seen, axis=0, name="attention")
            g.op("Concat", *states, axis=0, name="states")
        return Built(g, self._inputs(), self._outputs())

    # --- before and behind the flow -----------------------------------------------------------------------------------

    def _embedded(self) -> Name:
        g = self.graph
        own = self.own
        x = self._narrowed(g.op("Gather", g.stored("words", own.words), "ids", axis=0))
        if own.positions is None:
            return x
        places = g.op("Gather", g.stored("places", own.positions), "positions", axis=0)
        return g.op("Add", x, self._narrowed(places))

    def _narrowed(self, x: Name) -> Name:
        return self.graph.first(x, {2: self.sizes.count["d"]}) if self.own.elastic else x

    def _mask(self) -> Name:
        """[b, 1, t, s]: zero where a token is there and not later than the one that looks, else far below."""
        g = self.graph
        t = g.size("ids", 1)
        s = g.size("observed", 1)
        sources = g.op("Range", g.constant(0, np.int64), g.op("Squeeze", s), g.constant(1, np.int64))
        queries = g.op("Slice", sources, g.op("Sub", s, t), s, g.numbers(0))  # the last ones
        earlier = g.op("LessOrEqual", g.reshape(sources, 1, -1), g.reshape(queries, -1, 1))  # [t, s]
        there = g.op("Unsqueeze", "observed", g.numbers(1, 2))
        return g.op("Where", g.op("And", earlier, there), g.constant(0.0), g.constant(FAR))

    def _turn(self) -> tuple[Name, Name] | None:
        """Cosine and sine of rotary positions, [b, 1, t, e]."""
        base = self.own.attend.base
        if base is None:
            return None
        g = self.graph
        e = self.own.native["e"]
        rates = base ** (-2 * np.arange(e // 2) / e)
        real = g.op("Cast", g.op("Unsqueeze", "positions", g.numbers(1, 3)), to=1)
        angle = g.op("Mul", real, g.constant(np.concatenate([rates, rates])))
        return g.op("Cos", angle), g.op("Sin", angle)

    def _answer(self, x: Name) -> None:
        g = self.graph
        own = self.own
        x = self._normed(g, g.op("Gather", x, "answers", axis=1), "final", own.final, 0)
        if own.head_scale != 1.0:
            x = g.op("Mul", x, g.constant(own.head_scale))
        head = "words" if own.head is None else g.stored("head", own.head)
        if own.elastic:
            head = g.first(head, {1: self.sizes.count["d"]})
        y = g.op("MatMul", x, g.op("Transpose", head, perm=[1, 0]))
        if own.head_bias is not None:
            y = g.op("Add", y, g.stored("head bias", own.head_bias))
        g.op("Identity", y, name="logits")

    # --- one step -----------------------------------------------------------------------------------------------------

    def _step(self, number: int, x: Name) -> list[Name]:
        """x, keys and values behind one step (and what is looked at); as they were where depth does not reach it."""
        outer = self.graph
        g = outer.branch() if self.own.elastic else outer
        begin = g.op("Gather", "layers", g.numbers(number), axis=0)
        step = Step(number, begin, g.op("Add", begin, g.numbers(1)))
        y, keys, values, alpha = self._attended(g, x, step)
        y = self._fed(g, y, step)
        made = [y, keys, values]
        if self.probe:
            made += [g.op("Unsqueeze", alpha, g.numbers(0)), g.op("Unsqueeze", y, g.numbers(0))]
        if not self.own.elastic:
            return made
        rest = outer.branch()
        same = [rest.op("Identity", name) for name in (x, f"key_{number}", f"value_{number}")]
        if self.probe:
            b = rest.size("ids", 0)
            t = rest.size("ids", 1)
            alphas = rest.shape(0, b, self.sizes.count["h"], t, rest.size("observed", 1))
            same += [rest.op("ConstantOfShape", alphas)]
            same += [rest.op("ConstantOfShape", rest.shape(0, b, t, self.sizes.count["d"]))]
        reached = outer.op("Greater", outer.op("Squeeze", self.sizes.count["z"]), outer.constant(number, np.int64))
        return outer.choose(reached, g, rest, [made, same])

    def _normed(self, g: Graph, x: Name, name: str, norm: Norm, number: int) -> Name:
        scale = self.vectors.row(g, f"{name} scale", number) or ""
        shift = self.vectors.row(g, f"{name} shift", number)
        if norm.centred:
            given = (x, scale) if shift is None else (x, scale, shift)
            return g.op("LayerNormalization", *given, axis=-1, epsilon=norm.eps)
        square = g.op("ReduceMean", g.op("Mul", x, x), g.numbers(-1), keepdims=1)
        root = g.op("Sqrt", g.op("Add", square, g.constant(norm.eps)))
        return g.op("Mul", g.op("Div", x, root), scale)

    def _attended(self, g: Graph, x: Name, step: Step) -> tuple[Name, Name, Name, Name]:
        own = self.own.attend
        count = self.sizes.count
        normed = self._normed(g, x, "attend", own.norm, step.number)
        heads = (g.numbers(3), count["h"]) if own.into.ndim == 5 else (g.numbers(own.into.shape[2]),)
        y = self._product(g, normed, "into", own.into, step, (count["d"],), (*heads, count["e"]))
        bias = self.vectors.row(g, "into bias", step.number)
        y = y if bias is None else g.op("Add", y, bias)
        parts = self._by_head(g, g.reshape(y, 0, 0, self._together(g, heads), count["e"]))
        if self.turn is not None:
            parts[:2] = [self._turned(g, part, self.turn) for part in parts[:2]]
        q, k, v = parts
        k = g.op("Concat", f"key_{step.number}", k, axis=2)
        v = g.op("Concat", f"value_{step.number}", v, axis=2)
        factor = g.constant(own.scale)
        if self.own.elastic:
            factor = g.op("Mul", factor, self.sizes.weight["e"])
        scores = g.op("MatMul", g.op("Mul", q, factor), g.op("Transpose", self._spread(g, k), perm=[0, 1, 3, 2]))
        alpha = g.op("Softmax", g.op("Add", scores, self.mask), axis=-1)
        mixed = g.op("MatMul", alpha, self._spread(g, v))
        return g.op("Add", x, self._joined(g, mixed, step)), k, v, alpha

    def _by_head(self, g: Graph, y: Name) -> list[Name]:
        """Queries, keys and values [b, h, t, e] out of [b, t, all heads, e]."""
        h = self.sizes.count["h"]
        shared = self.own.attend.into.ndim == 4
        keys = g.numbers(self.own.attend.groups) if shared else h
        parts = g.split(y, g.op("Concat", h, keys, keys, axis=0), 3, 2)
        return [g.op("Transpose", part, perm=[0, 2, 1, 3]) for part in parts]

    def _spread(self, g: Graph, x: Name) -> Name:
        """Keys or values of each group for every head of it."""
        groups = self.own.attend.groups
        heads = self.own.native["h"]
        if groups == heads:
            return x
        wide = g.op("Expand", g.op("Unsqueeze", x, g.numbers(2)), g.numbers(1, 1, heads // groups, 1, 1))
        return g.reshape(wide, 0, heads, g.size(x, 2), self.own.native["e"])

    def _joined(self, g: Graph, mixed: Name, step: Step) -> Name:
        """Out of the heads [b, h, t, e]."""
        count = self.sizes.count
        gain = self.vectors.row(g, "heads", step.number)
        if gain is not None:
            mixed = g.op("Mul", mixed, g.reshape(gain, 1, -1, 1, 1))
        flat = g.reshape(g.op("Transpose", mixed, perm=[0, 2, 1, 3]), 0, 0, self._together(g, (count["h"], count["e"])))
        y = self._product(g, flat, "out", self.own.attend.out, step, (count["h"], count["e"]), (count["d"],))
        return self._finished(g, y, "attend", step)

    def _fed(self, g: Graph, x: Name, step: Step) -> Name:
        own = self.own.feed
        d = (self.sizes.count["d"],)
        m = (self.sizes.count["m"],)
        normed = self._normed(g, x, "feed", own.norm, step.number)
        hidden = self._product(g, normed, "w1", own.w1, step, d, m)
        bias = self.vectors.row(g, "hidden bias", step.number)
        hidden = self._activated(g, hidden if bias is None else g.op("Add", hidden, bias))
        if own.gate is not None:
            hidden = g.op("Mul", hidden, self._product(g, normed, "gate", own.gate, step, d, m))
        gain = self.vectors.row(g, "hidden", step.number)
        hidden = hidden if gain is None else g.op("Mul", hidden, gain)
        y = self._product(g, hidden, "w2", own.w2, step, m, d)
        return g.op("Add", x, self._finished(g, y, "feed", step))

    def _finished(self, g: Graph, y: Name, name: str, step: Step) -> Name:
        """What a branch adds to the state: rows times their gains and the length of the step, and the bias."""
        rows = self.vectors.row(g, f"{name} rows", step.number)
        y = y if rows is None else g.op("Mul", y, rows)
        bias = self.vectors.row(g, f"{name} bias", step.number)
        return y if bias is None else g.op("Add", y, bias)

    def _activated(self, g: Graph, x: Name) -> Name:
        kind = self.own.feed.phi
        if kind.startswith("gelu"):
            return g.op("Gelu", x, approximate="tanh" if kind == "gelu-tanh" else "none")
        return g.op("Relu", x) if kind == "relu" else g.op("Mul", x, g.op("Sigmoid", x))

    def _turned(self, g: Graph, x: Name, turn: tuple[Name, Name]) -> Name:
        half = self.own.native["e"] // 2
        first, second = g.split(x, g.numbers(half, half), 2, -1)
        across = g.op("Concat", g.op("Neg", second), first, axis=-1)
        return g.op("Add", g.op("Mul", x, turn[0]), g.op("Mul", across, turn[1]))

    # --- matrix products ----------------------------------------------------------------------------------------------

    def _product(
        self,
        g: Graph,
        x: Name,
        name: str,
        values: Array,
        step: Step,
        inputs: tuple[Name, ...],
        outputs: tuple[Name, ...],
    ) -> Name:
        """x times the matrix of one layer, whose first axes are inputs and the others outputs."""
        if not self.int8:
            return g.op("MatMul", x, self._matrix(g, name, values, step, (inputs, outputs)))
        over = tuple(range(1, 1 + len(inputs)))
        scales = np.maximum(np.abs(values).max(over, keepdims=True) / BYTE, np.finfo(np.float32).tiny)
        whole = np.round(values / scales).astype(np.int8)
        matrix = self._matrix(g, name, whole, step, (inputs, outputs))
        squeezed = scales.squeeze(over).astype(np.float32)
        scale = self._matrix(g, f"{name} scales", squeezed, step, ((), outputs))
        small, unit, zero = g.ops("DynamicQuantizeLinear", [x], [g.new() for _ in range(3)])
        y = g.op("Cast", g.op("MatMulInteger", small, matrix, zero, g.constant(0, np.int8)), to=1)
        return g.op("Mul", y, g.op("Mul", unit, scale))

    def _matrix(
        self, g: Graph, name: str, values: Array, step: Step, counts: tuple[tuple[Name, ...], tuple[Name, ...]]
    ) -> Name:
        """The first nodes of one layer of what is stored, as a matrix of all inputs and all outputs."""
        held = name if name in g.constants else g.stored(name, values)
        inputs, outputs = counts
        every = (*inputs, *outputs)
        starts = g.op("Concat", step.begin, g.numbers(*(0 for _ in every)), axis=0)
        ends = g.op("Concat", step.end, *every, axis=0)
        part = g.op("Slice", held, starts, ends, g.numbers(*range(len(every) + 1)))
        columns = self._together(g, outputs)
        return g.reshape(part, self._together(g, inputs), columns) if inputs else g.reshape(part, columns)

    @staticmethod
    def _together(g: Graph, counts: tuple[Name, ...]) -> Name:
        """How many there are of all. (A computed −1 would not do: a branch that is not taken may have none.)"""
        made = counts[0]
        for count in counts[1:]:
            made = g.op("Mul", made, count)
        return made

    # --- doors --------------------------------------------------------------------------------------------------------

    def _inputs(self) -> list[Port]:
        own = self.own
        ports = [
            Port("ids", np.int64, ("b", "t")),
            Port("positions", np.int64, ("b", "t")),
            Port("observed", np.bool_, ("b", "s")),
            Port("answers", np.int64, ("a",)),
        ]
        if own.elastic:
            ports += [Port(letter, np.int64, (f"width_{letter}",)) for letter in LETTERS]
            ports += [Port("layers", np.int64, ("steps",)), Port("lengths", np.float32, ("steps",))]
        for number in range(own.native["z"]):
            ports += [Port(f"{kind}_{number}", np.float32, self._kept(f"past_{number}")) for kind in ("key", "value")]
        return ports

    def _outputs(self) -> list[Port]:
        own = self.own
        ports = [Port("logits", np.float32, ("b", "a", len(own.words if own.head is None else own.head)))]
        for number in range(own.native["z"]):
            shape = self._kept(f"kept_{number}")
            ports += [Port(f"new_{kind}_{number}", np.float32, shape) for kind in ("key", "value")]
        if self.probe:
            ports.append(Port("attention", np.float32, ("steps_taken", "b", "heads", "t", "s")))
            ports.append(Port("states", np.float32, ("states_kept", "b", "t", "width")))
        return ports

    def _kept(self, tokens: str) -> tuple[int | str, ...]:
        """The shape of keys and of values."""
        if self.own.elastic:
            return ("b", "width_h", tokens, "width_e")
        return ("b", self.own.attend.groups, tokens, self.own.native["e"])
