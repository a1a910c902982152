"""From a discrete model to one with continuous axes: the same numbers on its own grid, other sizes beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from continua.axes import WIDTHS, Nested, Points
from continua.config import from_plain, to_plain
from continua.errors import ConfigError
from continua.fields import ByBasis, Hold
from continua.fields.nodal import Interpolation
from continua.models.factored import Narrowed, Widened
from continua.models.low_rank import merged
from continua.models.model import Model
from continua.operators import ALiBi, Attention, Gaussian, Sinusoidal
from continua.typing import Letter

ADDED = (".calibration.", ".refit.", ".state_refit.")  # what a lifted model has beside the weights of a discrete one
COUNTED_INSIDE = {
    Widened.__name__: "embed",
    Narrowed.__name__: "readout",
}  # parts on a narrow counted axis of their own


@dataclass(frozen=True)
class Lifting:
    """How a description changes: which widths become intervals, the order of their nodes, what is added to weights."""

    intervals: str  # widths that become intervals; the others stay counted, and have nested sizes all the same
    first: Mapping[Letter, tuple[int, ...]]
    calibrated: bool
    between: Interpolation
    refit: Any = None

    def rule(self, letter: Letter, counted: Mapping[str, Any]) -> Any:
        """The native rule of one width, in the place of one that counts."""
        return to_plain(Nested(counted["n"], self.first.get(letter, ())))

    def changed(self, plain: Any) -> Any:
        """Axes, bases and the native grid, wherever they stand in the description of a model."""
        if isinstance(plain, list):
            return [self.changed(value) for value in plain]
        if not isinstance(plain, dict):
            return plain
        inside = COUNTED_INSIDE.get(str(plain.get("kind")))
        made = {key: value if key == inside else self.changed(value) for key, value in plain.items()}
        if made.get("kind") == "Axes":
            for letter in self.intervals:
                made[letter] = {"kind": "Interval", "start": 0.0, "end": 1.0, "mass": float(made[letter]["n"])}
        elif made.get("kind") == ByBasis.__name__:
            self._bases(made)
        elif made.get("kind") == "Discretisation":
            for letter in WIDTHS:
                made[letter] = self.rule(letter, made[letter])
            made["z"]["nested"] = made["z"]["steps"]
        return made

    def _bases(self, made: dict[str, Any]) -> None:
        for letter in WIDTHS:
            made["bases"][letter]["rule"] = self.rule(letter, made["bases"][letter]["rule"])
        if "z" in made["bases"]:
            made["bases"]["z"]["how"] = to_plain(self.between)
        made["calibrated"] = self.calibrated
        if self.calibrated:
            made["calibrated_along"] = "dhzmep"
        made["refit"] = None if self.refit is None else to_plain(self.refit)


def lift(model: nn.Module, between: Interpolation = Hold(), *, calibrated: bool = False) -> Any:  # noqa: B008  (frozen)
    """Return a model with continuous axes that equals ``model`` on its own grid, to round-off.

    Widths and heads become functions that are constant on cells, read at nested nodes: fewer nodes are some of its
    own, twice as many are each of them twice. A width along which something counts its places (grouped heads, slopes
    of ALiBi, sinusoidal positions) stays counted, and has smaller sizes only. ``between`` says how weights are read
    between layers: ``Hold()`` or a smooth interpolation such as ``Cubic()``. ``calibrated`` adds a ``Calibration`` for
    training at several sizes. Weights are copied: change one, the other stays; low-rank additions are merged.

    >>> import torch
    >>> from continua.models import zoo
    >>> model = lift(zoo.gpt2(vocab=8, d=16, heads=4, depth=4, context=8))
    >>> ids = torch.zeros(1, 3, dtype=torch.long)
    >>> bool((model.at(d=32)(ids) - model(ids)).abs().max() < 1e-6)
    True
    """
    model = merged(model)
    require_counted(model)
    made = relaid(model, {}, calibrated, between)
    if not isinstance(between, Hold):
        _require_layers(made)
    return made


def relaid(
    model: Any,
    first: Mapping[Letter, tuple[int, ...]],
    calibrated: bool,
    between: Interpolation,
    refit: Any = None,
) -> Any:
    """The lifted model with given orders of its nodes."""
    counted = _counting(model)
    intervals = "".join(letter for letter in WIDTHS if letter not in counted)
    lifting = Lifting(intervals, first, calibrated, between, refit)
    like = next(model.parameters())
    made = from_plain(lifting.changed(to_plain(model)))
    made.to(device=like.device, dtype=like.dtype)
    missing = made.load_state_dict(model.state_dict(), strict=False).missing_keys
    unknown = [name for name in missing if not any(part in name for part in ADDED)]
    if unknown:
        raise ConfigError("not every weight has a place", got=unknown[0], remedy="Start from a model of models.zoo.")
    return made.train(model.training)


def require_counted(model: nn.Module) -> None:
    """Refuse what is no discrete model."""
    if not isinstance(model, Model):
        remedy = "Use a Transformer or an EncoderDecoder, for example of models.zoo."
        raise ConfigError("a model is lifted from a discrete one", got=type(model).__name__, remedy=remedy)
    for flow in model.flows:
        for letter in WIDTHS:
            if not isinstance(flow.axes[letter], Points) or isinstance(getattr(flow.native, letter), Nested):
                remedy = "Use a model on counted axes, for example models.zoo.gpt2(…)."
                raise ConfigError(f"{letter} is continuous already", got=flow.axes[letter], remedy=remedy)


def _require_layers(made: Any) -> None:
    """Refuse a smooth interpolation where the solver looks between layers: there it would change the model itself."""
    for flow in made.flows:
        layers = {z for z, _ in flow.structure().steps}
        for where in flow.structure().depths:
            if not layers.issuperset(where.nodes):
                remedy = "Use between=Hold(), or a model with unit Euler steps."
                got = flow.native.z.solver
                raise ConfigError("smooth weights need a solver that reads layers alone", got=got, remedy=remedy)


def _counting(model: nn.Module) -> str:
    """The widths along which something of the model counts its places."""
    found = set()
    for module in model.modules():
        if isinstance(module, ALiBi | Gaussian) or (isinstance(module, Attention) and module.groups is not None):
            found.add("h")
        if isinstance(module, Sinusoidal):
            found.add("d")
    return "".join(sorted(found))
