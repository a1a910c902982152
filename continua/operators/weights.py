"""Weights over depth: sampled when an operator is bound, or later, one matrix product for each block of depths."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import nn
from torch.func import functional_call

from continua.axes import Depths, Grids, WidthSite
from continua.errors import SolveError
from continua.fields import Adapted, Expansion, Factors, Field
from continua.flow.vectorfield import Reading
from continua.operators.linear import Moments, Watch, looked_at, marked
from continua.operators.low_rank import with_factors
from continua.typing import Letter, Tensor

LARGEST_BLOCK = 32 * 2**20 - 2**16  # bytes: of larger ones glibc's malloc learns nothing
Finish = Callable[[dict[str, Tensor], tuple[float, ...] | None], dict[str, Tensor]]  # of some depths, or of every one


@dataclass(frozen=True)
class Weights:
    """What an operator has read: the weights of every depth, those of each, and what is still to be read.

    ``along`` holds the tensors from which weights are made block by block during the solve.
    """

    fixed: dict[str, Tensor] = field(default_factory=dict)
    depth: dict[float, dict[str, Tensor]] = field(default_factory=dict)
    along: dict[str, dict[str, Any]] = field(default_factory=dict)

    def at(self, z: float) -> dict[str, Tensor]:
        """The weights that apply at depth ``z``."""
        if not self.depth and not self.along:
            return self.fixed
        layer = self.depth.get(z)
        if layer is None:
            known = ", ".join(f"{d:g}" for d in list(self.depth)[:4])
            raise SolveError(
                "the weights were not read at this depth",
                got=f"z={z!r} (read at {known}, …)",
                remedy="Bind with this depth.",
            )
        return {**self.fixed, **layer} if self.fixed else layer

    def only(self, z: float) -> "Weights":
        """The part that a function looks at in depth ``z``."""
        return Weights(self.fixed, {z: self.depth.get(z, {})})


@dataclass(frozen=True)
class Sampled:
    """Weights that were read, and how the rest is read during the solve (None: nothing is left)."""

    weights: Weights
    reading: Reading | None = None


class Weight(NamedTuple):
    """A field to be read times the quadrature weights of the letters ``over``, then reshaped by ``then``.

    The letters ``stored`` are taken as they are stored (heads that share keys, rows of a table). ``then`` must act on
    each depth alone and linearly, so that it may be applied to coefficients in depth as well. What is ``moved`` after
    it was read stands in another order than its coefficients: nobody looks at its products.
    """

    field: Field | None
    over: str = ""
    then: Callable[[Tensor], Tensor] | None = None
    stored: str = ""
    moved: bool = False

    def on(self, grids: Grids, leaves: Mapping[str, Tensor] | None = None) -> Tensor:
        """Read now; without depths the coefficients in depth stay."""
        if self.field is None:
            raise SolveError("there is no field to read", got=None, remedy="Leave absent weights out.")
        values = read(self.field, grids, self.over, leaves, self.stored)
        return values if self.then is None else self.then(values)


def read(
    field: Field, grids: Grids, over: str = "", leaves: Mapping[str, Tensor] | None = None, stored: str = ""
) -> Tensor:
    """Return the values of ``field`` on the grids, times the quadrature weights of the letters ``over``.

    Folding the weights here makes every later integral a plain matrix product. Where they are one (native nodes),
    the stored tensor itself is returned.
    """
    asked: dict[str, Any] = {
        letter: grids[letter] for letter in field.letters if letter not in ("z", "n") and letter not in stored
    }
    if grids.z is not None and "z" in field.letters:
        asked["z"] = grids.z
    made = field.on(**asked) if leaves is None else functional_call(_module(field), dict(leaves), (), asked)
    values: Tensor = made
    for letter in over:
        grid = grids[letter]
        if not grid.is_unit:
            place = len(field.letters) - 1 - field.letters.index(letter)
            values = values * grid.weights.to(values).reshape(-1, *[1] * place)
    return values


def sample(grids: Grids, weights: Mapping[str, Weight], late: bool = False, finish: Finish | None = None) -> Sampled:
    """Read weights, sorted into those of every depth and those of each; ``finish`` makes the last changes.

    What varies over depth is read now where ``grids.z`` says where, unless it is to be read ``late`` (to save the
    memory of weights that are not stored anyway): then coefficients are returned, and a reader for blocks of depths.
    ``unbind`` instead of indexing: its backward is one stack, where each index would fill a whole tensor with zeros.
    """
    z = grids.z
    sites = grids.sites
    fixed: dict[str, Tensor] = {}
    varying: dict[str, Tensor] = {}
    later: dict[str, Weight] = {}
    low: dict[str, Factored] = {}
    depths = None if z is None else z.nodes
    for name, weight in weights.items():  # one loop without calls: a compiler that traces this walks through each turn
        field = weight.field
        if field is None:
            continue
        changes = "z" in field.letters
        if changes and (z is None or (late and not _is_stored(weight, z))):
            later[name] = weight
            continue
        own = _factored(weight, field, sites, z) if isinstance(field, Adapted) else None
        read_now = varying if changes else fixed
        if own is not None:
            low[name] = own
            read_now[name] = own.values
            continue
        if isinstance(field, Expansion) and field.is_itself(sites, depths, weight.over, weight.stored):
            values = field.stored()
        else:
            values = read(field, grids, weight.over, None, weight.stored)
        read_now[name] = values if weight.then is None else weight.then(values)
    looking = _looking(weights)
    if finish is not None:
        fixed = _finished(looking, fixed, finish, None)
        varying = varying if later or z is None else _finished(looking, varying, finish, z.nodes)
    layers = {} if z is None else _layers(z.nodes, varying)
    if low:
        _tell_factors(low, fixed, varying, layers)
    if looking:
        fixed = _watched(weights, looking, grids, {None: fixed})[None]
        layers = _watched(weights, looking, grids, layers)
    made = Weights(fixed, layers)
    if not later:
        return Sampled(made)
    bare = grids.with_depths(None)
    made = replace(made, along={name: _leaves(weight, bare) for name, weight in later.items()})

    def reader(depths: Sequence[float], own: Weights) -> Weights:
        block = Depths(tuple(depths))
        values = {name: _late(weight, bare, block, own.along[name]) for name, weight in later.items()}
        looking = _looking(later)
        layers = _layers(block.nodes, _finished(looking, values, finish, block.nodes))
        watched = _watched(later, looking, bare, layers)
        merged = {z: {**own.depth.get(z, {}), **layer} for z, layer in watched.items()}
        return Weights(own.fixed, merged)

    return Sampled(made, Reading(reader, sum(_bytes(weight, made.along[name]) for name, weight in later.items())))


@cache
def learn_block_size() -> None:
    """Let malloc keep blocks as large as the gradients of fields; it learns sizes from the blocks that are freed.

    The gradient of all depths of a weight is one block. Untaught, glibc hands these back to the system after a step and
    has their pages made anew in the next, which is some percent of a small step. Once for a process, nothing is held.
    """
    torch.empty(LARGEST_BLOCK, dtype=torch.uint8, device="cpu")


class Factored(NamedTuple):
    """A kernel that was read with its low-rank addition, and the two sides of that."""

    values: Tensor
    factors: Factors


def _factored(weight: Weight, field: Adapted, sites: tuple[WidthSite, ...], z: Depths | None) -> Factored | None:
    """The same values as ``weight.on``, and their factors; None where a product could not use these.

    They can be used for a kernel that stays, on its own grid, whose numbers lie as they are stored: reshaped at most.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or field.coefficients.requires_grad:
        return None
    if not field.is_itself(sites, None if z is None else z.nodes, weight.over, weight.stored):
        return None
    stored = field.stored()
    values = stored if weight.then is None else weight.then(stored)
    lies_as_stored = values.is_contiguous() and values.data_ptr() == stored.data_ptr()
    return Factored(values, field.factors) if lies_as_stored and values.numel() == stored.numel() else None


def _tell_factors(
    low: Mapping[str, Factored],
    fixed: Mapping[str, Tensor],
    varying: Mapping[str, Tensor],
    layers: Mapping[float, Mapping[str, Tensor]],
) -> None:
    """Let the weights of each depth know their factors, where nothing was changed after they were read."""
    for name, (values, factors) in low.items():
        out, inputs, scale = factors
        if fixed.get(name) is values:
            with_factors(values, factors)
        elif varying.get(name) is values:
            sides = zip(layers.values(), out.unbind(0), inputs.unbind(0), strict=True)
            for layer, own_out, own_inputs in sides:
                with_factors(layer[name], Factors(own_out, own_inputs, scale))


def _bytes(weight: Weight, leaves: Mapping[str, Any]) -> int:
    """What one depth of a weight takes; of a network it is not known before it is read."""
    values = leaves.get("coefficients")
    return 0 if values is None else values[0].numel() * values.element_size()


def _is_stored(weight: Weight, z: Depths) -> bool:
    return isinstance(weight.field, Expansion) and weight.field.is_stored_on("z", z)


def _leaves(weight: Weight, grids: Grids) -> dict[str, Any]:
    """The tensors from which a weight will be read: coefficients in depth, and parameters of networks."""
    field = weight.field
    if not isinstance(field, Expansion):
        return {"network": dict(_module(field).named_parameters())}
    network = field.networks["z"] if "z" in field.networks else None  # noqa: SIM401  (a ModuleDict has no get)
    return {
        "coefficients": weight.on(grids),
        "network": {} if network is None else dict(network.named_parameters()),
    }


def _late(weight: Weight, grids: Grids, z: Depths, leaves: Mapping[str, Any]) -> Tensor:
    if isinstance(weight.field, Expansion):
        return weight.field.later(leaves["coefficients"], "z", z, leaves["network"])
    return weight.on(grids.with_depths(z), leaves["network"])


def _module(field: object) -> nn.Module:
    if not isinstance(field, nn.Module):
        raise SolveError("a field needs parameters", got=type(field).__name__, remedy="Make it an nn.Module.")
    return field


def _looking(weights: Mapping[str, Weight]) -> dict[str, Moments]:
    """Who looks at the products of which weights; nobody does inside a graph."""
    if torch.compiler.is_compiling():
        return {}
    found = {name: looked_at(weight.field) for name, weight in weights.items() if not weight.moved}
    return {name: moments for name, moments in found.items() if moments is not None}


def _finished(
    looking: Mapping[str, Moments], values: dict[str, Tensor], finish: Finish | None, depths: tuple[float, ...] | None
) -> dict[str, Tensor]:
    """The finished values; of those looked at also what ``finish`` makes of ones: the factors of rows and columns."""
    if finish is None or not values:
        return values
    done = finish(values, depths)
    changed = [name for name in looking if name in done and done[name] is not values[name]]
    if changed:
        with torch.no_grad():
            ones = finish({**values, **{name: torch.ones_like(values[name]) for name in changed}}, depths)
        done = {**done, **{_factors(name): ones[name] for name in changed}}
    return done


def _factors(name: str) -> str:
    return f"{name}, factors"


def _layers(depths: tuple[float, ...], values: Mapping[str, Tensor]) -> dict[float, dict[str, Tensor]]:
    layers: dict[float, dict[str, Tensor]] = {depth: {} for depth in depths}
    for name, tensor in values.items():
        for depth, layer in zip(depths, tensor.unbind(0), strict=True):
            layers[depth][name] = layer
        if tensor.requires_grad and not torch.compiler.is_compiling():
            learn_block_size()
    return layers


Where = TypeVar("Where", float, None)


def _watched(
    weights: Mapping[str, Weight],
    looking: Mapping[str, Moments],
    grids: Grids,
    layers: dict[Where, dict[str, Tensor]],
) -> dict[Where, dict[str, Tensor]]:
    """The weights of some depths (None: of every one), those marked whose products somebody looks at."""
    if not looking:
        return layers
    made = {z: dict(layer) for z, layer in layers.items()}
    for z, layer in made.items():
        for name in looking.keys() & layer.keys():
            factors, weight = layer.pop(_factors(name), None), weights[name]
            letters = [k for k in cast(Field, weight.field).letters if k != "z"]
            sizes = [_nodes(cast(Expansion, weight.field), k, grids, weight.stored) for k in letters]
            if math.prod(sizes) == layer[name].numel():  # heads that share keys may be asked for one by one
                layer[name] = marked(layer[name], _watch(weight, grids, looking[name], z, factors))
    return made


def _watch(weight: Weight, grids: Grids, moments: Moments, z: float | None, factors: Tensor | None) -> Watch:
    """How the weight at depth z is made of its coefficients, which is what moments are pulled back through."""
    field = cast(Expansion, weight.field)
    middle = moments.leading + moments.rows
    rows, columns = (
        _side(field, letters, grids, weight)
        for letters in (field.letters[moments.leading : middle], field.letters[middle:])
    )
    if factors is not None:  # r cᵀ, in two parts
        rows, columns = _times(rows, factors.mean(1)), _times(columns, factors.mean(0) / factors.mean())
    share = field.coefficients.new_ones(1) if z is None else field.matrix("z", Depths((z,)))[0].square()
    return Watch(moments, share.detach(), rows, columns)


def _times(side: Tensor | None, factors: Tensor) -> Tensor:
    return factors if side is None else (side.T * factors).T


def _nodes(field: Expansion, letter: Letter, grids: Grids, stored: str) -> int:
    """How many values a letter has."""
    return field.bases[letter].size if letter == "n" or letter in stored else grids[letter].count


def _side(field: Expansion, letters: Sequence[Letter], grids: Grids, weight: Weight) -> Tensor | None:
    """The matrix from coefficients to values times quadrature weights; its diagonal alone where values are stored."""
    own = {letter for letter in letters if letter == "n" or letter in weight.stored}
    stored = all(letter in own or field.is_stored_on(letter, grids[letter]) for letter in letters)
    if stored and all(letter not in weight.over or grids[letter].is_unit for letter in letters):
        return None
    made, like = None, field.coefficients.detach()
    for letter in letters:
        count = _nodes(field, letter, grids, weight.stored)
        part = grids[letter].weights.to(like) if letter in weight.over else like.new_ones(count)
        if not stored:
            here = torch.eye(count).to(like) if letter in own else field.matrix(letter, grids[letter]).detach()
            part = part[:, None] * here
        made = part if made is None else torch.kron(made, part)
    return made
