"""What an operator reads on one discretisation, as the weights of a plain operator with unit steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from continua.axes import Axes, Grids, Points, mass_of
from continua.errors import ConfigError
from continua.operators import (
    ALiBi,
    Attention,
    Beside,
    Capped,
    Drop,
    Experts,
    Gaussian,
    Integral,
    Operator,
    Pointwise,
    PreNorm,
    SharedExpert,
    Sinusoidal,
    Skip,
)
from continua.operators.activation import Identity
from continua.operators.norm import Affine
from continua.operators.weights import Sampled, Weights
from continua.typing import Tensor

SHARED = ("k", "v", "bk", "bv")  # weights that heads of a group have together


@dataclass(frozen=True)
class Folding:
    """Reads operators on ``grids`` and returns what plain ones of that size would store."""

    axes: Axes
    grids: Grids

    def of(self, operator: Operator, target: Operator, grids: Grids) -> dict[str, Tensor]:
        """Values by the name of the field, all layers in one tensor."""
        read: Sampled = operator.read(grids)
        values = _stacked(read.weights, () if grids.z is None else grids.z.nodes)
        if isinstance(operator, Attention) and isinstance(target, Attention):
            values = self._attention(operator, target, values)
        varies = grids.hidden is not None and isinstance(operator, Pointwise)  # nodes of each layer as they are stored
        if varies or not isinstance(operator, Attention | Pointwise) or operator.refit is None:
            return values
        return self._as_it_was(operator, target, values, grids)

    def _as_it_was(
        self, operator: Attention | Pointwise, target: Operator, values: dict[str, Tensor], grids: Grids
    ) -> dict[str, Tensor]:
        """Kept nodes in the order of the model that was lifted, where calibration has another one."""
        refit: Any = operator.refit
        if refit.stays and not refit.arranges(grids):
            return values
        if isinstance(operator, Attention):
            shared = () if isinstance(target, Attention) and target.groups is not None else SHARED
            names = ("q", "bq", "o", *shared)
            block = self.grids.e.count
        else:
            names = ("w1", "gate", "b1", "w2")
            block = 1
        letter = refit.letters[0]
        kept = torch.from_numpy(refit.places(letter, self.grids[letter].key))
        depths = grids.z.nodes if grids.z is not None and len(refit.order) > 1 else ()
        layers = [refit.layer_of(z) for z in depths] or [0]
        back = [_blocks(refit.order[layer].cpu()[kept].argsort(), block) for layer in layers]
        return {
            name: _reordered(value, back, -1 if name in ("o", "w2") or name.startswith("b") else -2)
            if name in names
            else value
            for name, value in values.items()
        }

    def _attention(self, operator: Attention, target: Attention, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Scores with another temperature, keys that are shared, and no density."""
        ratio = operator.kernel.scale(operator.axes.e) / target.kernel.scale(target.axes.e)
        missing = 0.0 if operator.norm is None else operator.norm.missing  # to the scales as they are stored
        if missing and not self.grids.e.is_unit:  # elsewhere they are read as they are stored
            values = {**values, "nq": values["nq"] - missing, "nk": values["nk"] - missing}
        made = dict(values)
        if ratio != 1.0 and (operator.kernel.is_dot or isinstance(operator.kernel, Capped)):
            last = ("q", "bq") if operator.norm is None else ("nq",)  # what the scores are linear in
            made |= {name: (values[name] + missing) * ratio - missing for name in last if name in values}
        if target.groups is not None and not self.grids.h.is_counting:
            made |= {name: self._one_each(values[name], name, target.groups) for name in SHARED if name in values}
        if target.density is not None:
            density: Any = target.density
            made["density"] = torch.zeros_like(density.coefficients)
        return made

    def shares_keys(self, groups: int) -> bool:
        """Whether as many of the heads that are kept belong to each group."""
        counts = torch.bincount(self._groups(groups), minlength=groups)
        return bool((counts == counts[0]).all())

    def _groups(self, groups: int) -> Tensor:
        """The group of each head that is kept."""
        heads = self.grids.h.nodes[:, 0].round().long()
        total = self.axes.h.n if isinstance(self.axes.h, Points) else None
        return heads // ((total or len(heads)) // groups)

    def _one_each(self, values: Tensor, name: str, groups: int) -> Tensor:
        """Keys or values of one head of each group, from those of every head."""
        own = self._groups(groups)
        chosen = torch.stack([(own == group).nonzero()[0, 0] for group in range(groups)])
        place = values.dim() - (1 if name.startswith("b") else 2)
        split = values.unflatten(place, (self.grids.h.count, self.grids.e.count))
        return split.index_select(place, chosen.to(values.device)).flatten(place, place + 1)


def _blocks(order: Tensor, block: int) -> Tensor:
    """An order of nodes as one of their inner coordinates."""
    return (order[:, None] * block + torch.arange(block)).flatten()


def _reordered(values: Tensor, back: list[Tensor], where: int) -> Tensor:
    """Each layer in its own order; one order for weights of all layers."""
    if len(back) == 1:
        return values.index_select(where, back[0].to(values.device))
    return torch.stack([own.index_select(where, one.to(own.device)) for own, one in zip(values, back, strict=True)])


def outputs_of(part: Any) -> tuple[Operator, ...]:
    """The operators that write what a part of a flow adds to the state."""
    while isinstance(part, PreNorm | Skip | Drop):
        part = part.inner
    return (*outputs_of(part.first), *outputs_of(part.second)) if isinstance(part, Beside) else (part,)


def stepped(part: Any, writer: Operator, values: Mapping[str, Tensor], lengths: tuple[float, ...]) -> dict[str, Tensor]:
    """The weights of an operator that writes, times the lengths of the steps."""
    if all(length == 1.0 for length in lengths):
        return dict(values)
    if any(isinstance(module, Skip) and module.gamma for module in part.modules()):
        raise _unfoldable("a skip factor")
    if isinstance(writer, Attention):
        names: tuple[str, ...] = ("o", "bo")
    elif isinstance(writer, Pointwise) and isinstance(writer.phi2, Identity):
        names = ("w2", "b2")
    elif isinstance(writer, Experts | SharedExpert):
        names = ("w2",)
    elif isinstance(writer, Integral):
        names = ("kernel", "bias")
    elif isinstance(writer, Affine) and writer.scale is not None:  # a norm behind a branch
        missing = 1 - writer.stored_mean
        whole = {**values, "scale": values["scale"] + missing}
        made = {name: _times(value, lengths, writer, name) for name, value in whole.items()}
        return {**made, "scale": made["scale"] - missing}
    else:
        raise _unfoldable(type(writer).__name__)
    return {name: _times(value, lengths, writer, name) if name in names else value for name, value in values.items()}


def _times(value: Tensor, lengths: tuple[float, ...], writer: Operator, name: str) -> Tensor:
    """A weight of each layer times its length; a weight of all layers times the one length they have."""
    if "z" in getattr(writer, name).letters:
        return value * torch.tensor(lengths).to(value).view(-1, *[1] * (value.dim() - 1))
    if len(set(lengths)) > 1:
        raise _unfoldable("one set of weights for steps of different lengths")
    return value * lengths[0]


def _unfoldable(got: str) -> ConfigError:
    remedy = "Keep the native number of steps."
    return ConfigError("the length of a step goes into a linear map that ends its branch", got=got, remedy=remedy)


def _stacked(weights: Weights, depths: tuple[float, ...]) -> dict[str, Tensor]:
    """The weights of every depth, and those of each in one tensor."""
    layers = [weights.depth[z] for z in depths] if weights.depth else []
    names = layers[0] if layers else ()
    return {**weights.fixed, **{name: _widest([layer[name] for layer in layers]) for name in names}}


def _widest(layers: list[Tensor]) -> Tensor:
    """Layers in one tensor; where widths vary with depth, with zeros behind the narrower ones."""
    sizes = [max(layer.shape[i] for layer in layers) for i in range(layers[0].dim())]
    if all(list(layer.shape) == sizes for layer in layers):
        return torch.stack(layers)
    wide = layers[0].new_zeros(len(layers), *sizes)
    for own, layer in zip(wide, layers, strict=True):
        own[tuple(slice(0, n) for n in layer.shape)] = layer
    return wide


def _counted(module: Any) -> str:
    """The widths along which a module counts its places."""
    if isinstance(module, ALiBi):
        return "he" if module.tempered else "h"
    return "h" if isinstance(module, Gaussian) else "d" if isinstance(module, Sinusoidal) else ""


def refuse_counted_places(flow: Any, grids: Grids) -> None:
    """Refuse a smaller size along a width where something counts its places: a plain model would count anew."""
    for module in flow.modules():
        letter = next((one for one in _counted(module) if grids[one].count != mass_of(flow.axes[one])), None)
        if letter is not None:
            got = f"{type(module).__name__} with {grids[letter].count} nodes of {letter}"
            remedy = f"Keep {letter} native; other widths can change."
            raise ConfigError(f"a plain model would count its places along {letter} anew", got=got, remedy=remedy)
