"""From a view to a plain discrete model of its size: measures, steps and corrections folded into ordinary weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from continua.axes import WIDTHS, Depths, Discretisation, Grids
from continua.config import from_plain, to_plain
from continua.convert.folding import Folding, outputs_of, refuse_counted_places, stepped
from continua.errors import ConfigError
from continua.fields import Expansion
from continua.flow import Fixed
from continua.models.factored import Narrowed, Widened
from continua.models.lift import COUNTED_INSIDE
from continua.models.low_rank import merged
from continua.models.model import Model
from continua.models.readout import Readout
from continua.models.structure import Structure
from continua.models.transformer import Transformer
from continua.models.view import View
from continua.operators import Attention, Operator, Pointwise, SpectralConvolution
from continua.operators.attention.operator import layer_at
from continua.operators.norm import Affine
from continua.typing import Letter, Tensor


def discretise(view: Any, **sizes: Any) -> Any:
    """Return a plain discrete model with the numbers of ``view``, or of ``model.at(**sizes)``.

    Quadrature weights, lengths of steps, calibration and refit are folded into ordinary weights, low-rank additions
    merged; nothing is shared.
    At the native size of a lifted model this is the model it was lifted from, number by number.

    >>> import continua as ct
    >>> small = discretise(ct.lift(ct.zoo.gpt2(vocab=8, d=16, heads=4, depth=4, context=8)), m=32, h=2)
    >>> small.axes.m, small.axes.h
    (Points(n=32), Points(n=2))
    """
    model, at = _asked(view, sizes)
    model = merged(model)
    flows = [_Flow.of(flow, at) for flow in model.flows]
    plain = to_plain(model)
    sides = [
        key for key, value in plain.items() if isinstance(value, dict) and value.get("kind") == Transformer.__name__
    ]
    if sides:  # the flows of a model are its arguments, in their order
        plain |= {side: flow.counted(plain[side]) for side, flow in zip(sides, flows, strict=True)}
    else:
        plain = flows[0].counted(plain)
    like = next(model.parameters())
    made = from_plain(plain).to(device=like.device, dtype=like.dtype)
    with torch.no_grad():
        for flow, target in zip(flows, made.flows, strict=True):
            flow.fill(target)
        for name, parameter in made.named_parameters(recurse=False):  # beside its flows
            parameter.copy_(getattr(model, name))
    return made.train(model.training)


def _asked(view: Any, sizes: Mapping[str, Any]) -> tuple[Any, Discretisation]:
    """The model and the discretisation that are meant."""
    if isinstance(view, Model):
        view = view.at(**sizes)  # type: ignore[attr-defined]
    elif sizes:
        got = ", ".join(sizes)
        raise ConfigError("a view has its sizes already", got=got, remedy="Write discretise(model, d=…), or a view.")
    if not isinstance(view, View):
        remedy = "Write discretise(model.at(m=512)), or discretise(model, m=512)."
        raise ConfigError("discretise takes a view or a model", got=type(view).__name__, remedy=remedy)
    return view.model, view.discretisation


@dataclass(frozen=True)
class _Flow:
    """One flow on one discretisation."""

    flow: Any
    structure: Structure
    lengths: tuple[float, ...]
    native: bool  # whether every step is a native one

    @classmethod
    def of(cls, flow: Any, at: Discretisation) -> "_Flow":
        settled = flow.settle(at)
        if not isinstance(settled.z, Fixed):
            remedy = "Use a fixed number of steps: at(z=6)."
            raise ConfigError("a discrete model has a number of layers", got=settled.z, remedy=remedy)
        structure = flow.structure(at)
        refuse_counted_places(flow, structure.grids)
        unit = (flow.axes.z.end - flow.axes.z.start) / flow.native.z.steps
        lengths = tuple(length / unit for _, length in structure.steps)
        native = len(lengths) == flow.native.z.steps and all(length == 1.0 for length in lengths)
        made = cls(flow, structure, lengths, native)
        if not native:
            made.require_single_reads()
        if structure.grids.hidden is not None:
            _require_layers(flow)
        return made

    @property
    def starts(self) -> tuple[float, ...]:
        """Where each step begins: the layers."""
        return tuple(z for z, _ in self.structure.steps or ())

    def require_single_reads(self) -> None:
        """Refuse steps in which a part is read more than once: one layer has one set of weights."""
        for where in self.structure.depths:
            if where is None or where.nodes != self.starts:
                got = self.structure.solver
                remedy = "Keep the native number of steps, or use a model with unit Euler steps."
                raise ConfigError("a layer has one set of weights", got=got, remedy=remedy)

    def counted(self, plain: Any) -> Any:
        """The description of this flow with counted axes, plain weights and unit steps."""
        if isinstance(plain, list):
            return [self.counted(value) for value in plain]
        if not isinstance(plain, dict):
            return plain
        inside = COUNTED_INSIDE.get(str(plain.get("kind")))
        made = {key: value if key == inside else self.counted(value) for key, value in plain.items()}
        kind = made.get("kind")
        if kind == "Axes":
            made |= {letter: {"kind": "Points", "n": self._count(letter)} for letter in WIDTHS}
            made["z"] = {"kind": "Interval", "start": 0.0, "end": float(len(self.lengths)), "mass": None}
        elif kind == "ByBasis":
            plain_weights = {"calibrated": False, "calibrated_along": "dhz", "refit": None, "corrections": None}
            made |= {"bases": self._bases(made["bases"]), **plain_weights}
        elif kind == "Discretisation":
            made |= {letter: {"kind": "Counting", "n": self._count(letter)} for letter in WIDTHS}
            made["z"] = {**made["z"], "steps": len(self.lengths), "nested": None, "lengths": None}
        elif kind == "ByDepth":
            order = tuple(range(len(made["masks"])))
            made["masks"] = [made["masks"][layer_at(order, z)] for z in self.starts]
        elif kind == "FromDepth":
            made["start"] = float(sum(z < made["start"] - 1e-9 for z in self.starts))
        elif kind == "PositionByDepth":
            made["order"] = [layer_at(tuple(made["order"]), z) for z in self.starts]
        elif kind == "Attention" and made["groups"] is not None:
            made["groups"] = made["groups"] if self._folding.shares_keys(made["groups"]) else None
        elif kind == "Readout" and made["tied"] and not _has_gain(made["before"]):
            made["scale"] = made["scale"] * self._mass_of_d
        return made

    def _bases(self, bases: Mapping[str, Any]) -> dict[str, Any]:
        made = {k: {**bases[k], "rule": {"kind": "Counting", "n": self._count(k)}} for k in WIDTHS}
        if "z" in bases:
            hold = {"kind": "Hold"}
            made["z"] = {"kind": "Nodal", "rule": {"kind": "LeftEnd", "n": len(self.lengths)}, "how": hold}
        return made

    def _count(self, letter: Letter) -> int:
        return int(self.structure.grids[letter].count)

    @property
    def _mass_of_d(self) -> float:
        """What one node of d weighs, where all weigh the same."""
        return float(self.structure.grids.d.weights[0])

    @property
    def _folding(self) -> Folding:
        return Folding(self.flow.axes, self.structure.grids)

    def fill(self, target: Any) -> None:
        """Write the numbers of this flow into a plain model of its size."""
        done: list[str] = []
        for number, where in enumerate(self.structure.depths):
            part = self.flow.block.parts[number]
            grids = self.structure.grids.with_depths(self._layers(where))
            for path, operator in _leaves(f"block.parts.{number}", part):
                done += [path, f"{path}.norm"] if isinstance(operator, Attention) else [path]
                own = target.get_submodule(path)
                values = self._folding.of(operator, own, grids)
                if part.is_flow and any(operator is writer for writer in outputs_of(part)):
                    values = stepped(part, operator, values, self.lengths)
                _write(own, values)
        behind = self.structure.grids.with_depths(self.structure.behind)
        for name in ("embed", "readout"):
            part = getattr(self.flow, name)
            for path, operator in _leaves(name, part) if part is not None else ():
                if not _is_narrow(self.flow, path):
                    done.append(path)
                    own = target.get_submodule(path)
                    _write(own, self._folding.of(operator, own, behind))
        self._tables(target, behind, done)
        self._weigh_tied_head(target)

    def _layers(self, where: Depths | None) -> Depths | None:
        """Depths of the layers, one for each step; native steps read every layer at its own node."""
        return where if where is not None and where.nodes == self.starts else Depths(self.starts)

    def _tables(self, target: Any, grids: Grids, done: list[str]) -> None:
        """Fill what no operator reads: tables of tokens and places, heads, and plain parameters."""
        for path, module in target.named_modules():
            if path.rpartition(".")[0] in done:
                continue
            source = self.flow.get_submodule(path)
            if isinstance(module, Expansion):
                module.coefficients.copy_(self._table(path, source, grids))
                continue
            for name, parameter in module.named_parameters(recurse=False):
                parameter.copy_(getattr(source, name))

    def _table(self, path: str, source: Any, grids: Grids) -> Tensor:
        owner = self.flow.get_submodule(path.rpartition(".")[0])
        if _is_narrow(self.flow, path):
            return source.coefficients
        asked = {letter: grids[letter] for letter in source.letters if letter not in ("n", "z")}
        values: Tensor = source.on(**asked)
        integrated = isinstance(owner, Readout | Narrowed) or source.letters[-1] == "c"  # a kernel of the stem
        return values * grids.d.weights.to(values) if integrated and not grids.d.is_unit else values

    def _weigh_tied_head(self, target: Any) -> None:
        """A tied head has no weights of its own to fold the measure of d into: the norm before it takes it."""
        readout = target.readout
        if not isinstance(readout, Readout) or not readout.tied or not len(readout.before):
            return
        last = readout.before[-1]
        if isinstance(last, Affine) and last.scale is not None:
            fields: tuple[Any, ...] = (last.scale, last.shift)
            for field in fields:
                if field is not None:
                    field.coefficients.mul_(self._mass_of_d)
            if last.stored_mean != 1 and self._mass_of_d != 1:
                fields[0].coefficients.add_((self._mass_of_d - 1) * (1 - last.stored_mean))


def _require_layers(flow: Any) -> None:
    """Refuse a profile of a model whose weights are the same at all depths."""
    for module in flow.modules():
        if isinstance(module, Pointwise) and "z" not in module.w2.letters:
            remedy = "Use one size of m for all steps."
            raise ConfigError("a profile needs weights of each layer", got="one set for all depths", remedy=remedy)


def _leaves(name: str, part: nn.Module) -> Iterator[tuple[str, Operator]]:
    """The operators with weights of their own."""
    for path, module in part.named_modules(prefix=name):
        if isinstance(module, Operator) and any(isinstance(child, Expansion) for child in module.children()):
            yield path, module


def _write(operator: Any, values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        field = getattr(operator.norm, name[1]) if name in ("nq", "nk") else getattr(operator, name)
        coefficients = field.coefficients
        if isinstance(operator, SpectralConvolution) or value.numel() != coefficients.numel():  # waves are no matrix
            remedy = "Use the view itself, model.at(…).held(), or ct.export(model, 'model.onnx')."
            raise ConfigError("no plain layer computes this part", got=type(operator).__name__, remedy=remedy)
        coefficients.copy_(value.reshape(coefficients.shape))


def _is_narrow(flow: Any, path: str) -> bool:
    """Whether a table stands on a narrow counted axis of its own."""
    inside = isinstance(flow.embed, Widened) and path.startswith("embed.embed.")
    return inside or (isinstance(flow.readout, Narrowed) and path.startswith("readout.readout."))


def _has_gain(before: list[Any]) -> bool:
    """Whether the last operator before a head ends with a factor."""
    last = before[-1] if before else {}
    return last.get("kind") in ("LayerNorm", "RMSNorm") and bool(last.get("affine"))
