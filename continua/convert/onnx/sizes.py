"""What a size means in a graph: prefixes, quadrature weights, octaves, and all vectors as they are at that size."""

from dataclasses import dataclass

import numpy as np

from continua.convert.onnx.graph import Graph, Name
from continua.convert.onnx.stored import Array, Gains, Norm, Stored
from continua.operators.calibration import COARSEST, FINEST

LETTERS = ("d", "h", "e", "m")


@dataclass(frozen=True)
class Sizes:
    """A size as names of the graph. ``count`` are vectors of one whole number, ``weight`` (of a node) of one number.

    ``octaves`` are s_k of ``Calibration``, [1, 1]; that of z is the mean of all steps. ``of_steps`` are those of each
    step, [steps, 1].
    """

    count: dict[str, Name]
    weight: dict[str, Name]
    octaves: dict[str, Name]
    of_steps: Name

    @classmethod
    def written(cls, g: Graph, own: Stored) -> "Sizes":
        """Compute them from the index vectors ``d h e m layers lengths``; of one size these are constants."""
        if not own.elastic:
            for letter in LETTERS:
                g.stored(letter, np.arange(own.native[letter], dtype=np.int64))
            g.stored("layers", np.arange(own.native["z"], dtype=np.int64))
            g.stored("lengths", np.ones(own.native["z"], dtype=np.float32))
        names = {**{letter: letter for letter in LETTERS}, "z": "layers"}
        count = {k: g.size(name, 0) for k, name in names.items()}
        real = {k: g.op("Cast", name, to=1) for k, name in count.items()}
        weight = {k: g.op("Div", g.constant([own.native[k]]), real[k]) for k in count}
        zero = g.constant([0.0])
        octaves = {k: g.op("Max", _log2(g, weight[k]), zero) for k in LETTERS}
        octaves["m"] = g.op("Sub", octaves["m"], g.op("Max", _log2(g, _following(g, own, real["d"])), zero))
        octaves["z"] = _bounded(g, _log2(g, weight["z"]))
        columns = {k: g.reshape(name, 1, 1) for k, name in octaves.items()}
        return cls(count, weight, columns, g.reshape(_bounded(g, _log2(g, "lengths")), -1, 1))


def _following(g: Graph, own: Stored, d: Name) -> Name:
    """Native m over the m that follows d, as ``at(d=…)`` alone has it."""
    share = g.op("Div", g.op("Mul", g.constant([own.native["m"]]), d), g.constant([own.native["d"]]))
    follows = g.op("Max", g.op("Round", share), g.constant([1.0]))
    return g.op("Div", g.constant([own.native["m"]]), follows)


def _log2(g: Graph, x: Name) -> Name:
    return g.op("Div", g.op("Log", x), g.constant(np.log(2.0)))


def _bounded(g: Graph, x: Name) -> Name:
    return g.op("Clip", x, g.constant(FINEST), g.constant(COARSEST))


class Vectors:
    """Scales, shifts, biases and gains of all steps at this size, [steps, n] each.

    Weights of nodes go into norms (whose output the next map integrates) and into the gains of heads and of hidden
    coordinates; lengths of steps go into the rows and biases of output maps.
    """

    def __init__(self, g: Graph, own: Stored, sizes: Sizes) -> None:
        self.graph = g
        self.own = own
        self.sizes = sizes
        self.made: dict[str, Name] = {}
        self.long = g.reshape("lengths", -1, 1)
        self._norm("attend", own.attend.norm)
        self._norm("feed", own.feed.norm)
        self._norm("final", own.final, each=False)
        if own.attend.into_bias is not None:
            self._into(own.attend.into_bias)
        self._out("attend", own.attend.bias, own.attend.out_gains)
        self._out("feed", own.feed.b2, own.feed.out_gains)
        if own.feed.b1 is not None:
            self.made["hidden bias"] = self.picked("hidden bias", own.feed.b1, {1: sizes.count["m"]})
        if own.elastic:
            inner = g.op("Mul", sizes.weight["h"], sizes.weight["e"])
            self.made["heads"] = self._weighed("heads", own.attend.head_gains, "h", inner)
            self.made["hidden"] = self._weighed("hidden", own.feed.hidden_gains, "m", sizes.weight["m"])

    def row(self, g: Graph, name: str, step: int = 0) -> Name | None:
        """What a vector is at one step, where there is such a vector."""
        held = self.made.get(name)
        return None if held is None else g.op("Gather", held, g.constant(step, np.int64), axis=0)

    def picked(self, name: str, values: Array, counts: dict[int, Name], each: bool = True) -> Name:
        """The first entries along some axes, of the layers that steps begin with."""
        g = self.graph
        held = g.stored(name, values)
        if not self.own.elastic:
            return held
        return g.first(g.op("Gather", held, "layers", axis=0) if each else held, counts)

    def _into(self, bias: Array) -> None:
        """The bias of queries, keys and values."""
        count = self.sizes.count
        found = self.picked("into bias", bias, {2: count["h"], 3: count["e"]})
        self.made["into bias"] = self.graph.reshape(found, count["z"], -1)

    def _norm(self, name: str, norm: Norm, each: bool = True) -> None:
        g = self.graph
        counts = {1: self.sizes.count["d"]}
        ones = np.ones((self.own.native["z"] if each else 1, self.own.native["d"]), dtype=np.float32)
        scale = self.picked(f"{name} scale", ones if norm.scale is None else norm.scale, counts, each)
        logs = self._logs(f"{name} scale gains", norm.scale_gains, "d", each)
        if logs is not None:
            scale = g.op("Mul", scale, g.op("Exp", logs))
        self.made[f"{name} scale"] = self._by_weight(scale)
        if norm.shift is not None:
            shift = self.picked(f"{name} shift", norm.shift, counts, each)
            logs = self._logs(f"{name} shift gains", norm.shift_gains, "d", each)
            self.made[f"{name} shift"] = self._by_weight(shift if logs is None else g.op("Add", shift, logs))

    def _by_weight(self, x: Name) -> Name:
        return self.graph.op("Mul", x, self.sizes.weight["d"]) if self.own.elastic else x

    def _out(self, name: str, bias: Array | None, gains: Gains | None) -> None:
        """The rows of an output map and its bias, as long as the steps."""
        g = self.graph
        if self.own.elastic:
            logs = self._logs(f"{name} row gains", gains, "d")
            self.made[f"{name} rows"] = self.long if logs is None else g.op("Mul", g.op("Exp", logs), self.long)
        if bias is not None:
            held = self.picked(f"{name} bias", bias, {1: self.sizes.count["d"]})
            self.made[f"{name} bias"] = g.op("Mul", held, self.long) if self.own.elastic else held

    def _weighed(self, name: str, gains: Gains | None, letter: str, weight: Name) -> Name:
        """exp(Σ_k s_k g_k) times the weight of a node, [steps, n or 1]."""
        g = self.graph
        logs = self._logs(f"{name} gains", gains, letter)
        gain = (
            g.op("Expand", g.constant([[1.0]]), g.shape(self.sizes.count["z"], 1))
            if logs is None
            else g.op("Exp", logs)
        )
        return g.op("Mul", gain, weight)

    def _logs(self, name: str, gains: Gains | None, letter: str, each: bool = True) -> Name | None:
        """Σ_k s_k g_k, [steps, n]."""
        if gains is None or not self.own.elastic:
            return None
        g = self.graph
        s = self.sizes
        rows = self.picked(name, gains.values, {2: s.count[letter]}, each)  # [steps, k, n]
        columns = [s.of_steps if k == "z" and each else s.octaves[k] for k in gains.along]
        if each:
            columns = [g.op("Expand", column, g.shape(s.count["z"], 1)) for column in columns]
        size = g.op("Unsqueeze", g.op("Concat", *columns, axis=1), g.numbers(1))  # [steps, 1, k]
        return g.op("Squeeze", g.op("MatMul", size, rows), g.numbers(1))
