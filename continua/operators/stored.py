"""Weights that are used as they are stored: how they are read is decided once, not at every forward pass.

On its native grids a discrete model reads nothing: each weight is a parameter, reshaped at most. Finding that out takes
longer than doing it, and a small model feels it in every step.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from continua import constants
from continua.axes import Grids
from continua.fields import Expansion
from continua.operators.weights import Sampled, Weight, Weights, learn_block_size
from continua.typing import Tensor

KEPT = 32  # discretisations of which it is known


class StoredWeight(NamedTuple):
    """A weight that is the parameter of ``field``, in this shape; ``owner[key]`` is where a module keeps that field."""

    name: str
    field: nn.Module
    owner: dict[str, nn.Module | None]
    key: str
    shape: tuple[int, ...]
    changes: bool  # with depth

    def read(self) -> Tensor | None:
        """The parameter; None where the field is another one now, or somebody looks at its products."""
        if self.owner.get(self.key) is not self.field:
            return None
        parameter = self.field._parameters.get("coefficients")
        if parameter is None or hasattr(parameter, "moments"):
            return None
        return parameter if parameter.shape == self.shape else parameter.reshape(self.shape)


class StoredRead(NamedTuple):
    """All weights of an operator on some grids, which are held here so that they stay what they are known by."""

    grids: tuple[Any, ...]
    modules: tuple[nn.Module | None, ...]  # the parts of the operator
    weights: tuple[StoredWeight, ...]
    depths: tuple[float, ...]

    def read(self) -> Weights | None:
        """What ``sample`` would return."""
        fixed: dict[str, Tensor] = {}
        layers: dict[float, dict[str, Tensor]] = {depth: {} for depth in self.depths}
        learns = False
        for weight in self.weights:
            values = weight.read()
            if values is None:
                return None
            if not weight.changes:
                fixed[weight.name] = values
                continue
            learns = learns or values.requires_grad
            for layer, own in zip(layers.values(), values.unbind(0), strict=True):
                layer[weight.name] = own
        if learns:
            learn_block_size()
        return Weights(fixed, layers)


class StoredReads:
    """What an operator knows of the grids on which its weights are stored."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], StoredRead] = {}

    def recall(self, operator: nn.Module, grids: Grids) -> Sampled | None:
        """The weights, where it is known that they are stored; inside a graph nothing is known."""
        if torch.compiler.is_compiling():
            return None
        known = self._known.get(_key(grids))
        if known is None or known.modules != tuple(operator._modules.values()):
            return None
        weights = known.read()
        return None if weights is None else Sampled(weights)

    def learn(self, operator: nn.Module, grids: Grids, weights: Mapping[str, Weight], made: Sampled) -> Sampled:
        """Remember how ``made`` was read, if every weight in it is a parameter as it is stored."""
        if torch.compiler.is_compiling() or made.reading is not None or grids.z is None or not constants.is_real():
            return made
        places = _places(operator)
        found = [_stored(name, weight, made.weights, grids, places) for name, weight in weights.items() if weight.field]
        names = {*made.weights.fixed, *(name for layer in made.weights.depth.values() for name in layer)}
        if len(names) == len(found) and all(found):
            if len(self._known) >= KEPT:
                self._known.clear()
            modules = tuple(operator._modules.values())
            own = tuple(one for one in found if one is not None)
            self._known[_key(grids)] = StoredRead(_widths(grids), modules, own, grids.z.nodes)
        return made

    def __deepcopy__(self, memo: Any) -> "StoredReads":
        """A copied operator finds out by itself."""
        return StoredReads()

    def __reduce__(self) -> tuple[type["StoredReads"], tuple[()]]:
        return StoredReads, ()


def _widths(grids: Grids) -> tuple[Any, ...]:
    return grids.d, grids.h, grids.e, grids.m, grids.z


def _key(grids: Grids) -> tuple[int, ...]:
    return id(grids.d), id(grids.h), id(grids.e), id(grids.m), id(grids.z)


Places = Mapping[int, tuple[dict[str, nn.Module | None], str]]


def _places(operator: nn.Module) -> Places:
    """Where the operator and its parts keep each module."""
    return {
        id(module): (part._modules, key)
        for part in operator.modules()
        for key, module in part._modules.items()
        if module is not None
    }


def _stored(name: str, weight: Weight, made: Weights, grids: Grids, places: Places) -> StoredWeight | None:
    """How a weight is read as it is stored; None where it is not."""
    field = weight.field
    if type(field) is not Expansion or id(field) not in places or hasattr(field.coefficients, "moments"):
        return None
    stored = field.coefficients
    if type(stored) is not nn.Parameter or not stored.is_contiguous():
        return None
    changes = "z" in field.letters
    layers = [made.depth.get(z, {}).get(name) for z in grids.z.nodes] if changes else [made.fixed.get(name)]  # type: ignore[union-attr]
    size = stored.numel() // len(layers) * stored.element_size()
    for i, layer in enumerate(layers):
        if layer is None or not layer.is_contiguous() or layer.data_ptr() != stored.data_ptr() + i * size:
            return None
    shape = tuple(layers[0].shape)  # type: ignore[union-attr]
    shape = (len(layers), *shape) if changes else shape
    if torch.Size(shape).numel() != stored.numel():
        return None
    return StoredWeight(name, field, *places[id(field)], shape, changes)
