"""Refit by data: what the inputs of a map at some nodes say of those at all others, a quadrature that data chose."""

from collections.abc import Hashable, Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from continua import constants
from continua.axes import ALIASES, WIDTHS, Axes, Axis, Grids, mass_of, node_numbers, nodes_of
from continua.constants import constant_result
from continua.errors import CheckpointError, ConfigError
from continua.fields import Basis, ByBasis, Expansion, Hold, Nodal, Parametrisation
from continua.operators.calibration import octaves
from continua.typing import Letter, Tensor

RIDGE = 6e-2  # of the mean variance, added to every node that is kept: calibration data are few
HALF = torch.float16
SINGLE = torch.float32
STEPS = 127  # of eight bits, on either side of zero
Places = NDArray[np.int64]


class Refit(nn.Module):
    """y = ∫ W(·, s) a(s) dμ(s) from n nodes S of N: W ← W_S + W_R P with P = Σ_RS (Σ_SS + λ)⁻¹, R being the others.

    Σ are second moments of the inputs a, kept as UUᵀ + diag(D): ``rank`` functions U in eight bits (rows in units of
    their largest entry, ``top``), and what they leave of each variance. ``centred`` moments are those about the mean,
    which then goes into the bias of the map. ``order`` says, layer by layer, which node of the discrete model a place
    of the grid means. Where weights stand as in that model (``stays``), they are taken in this order at every other
    size; otherwise they stand in it. All is stored as the bits of its numbers: a model that is converted to another
    precision keeps them. On the native grid nothing is read.
    """

    factor: Tensor
    top: Tensor
    rest: Tensor
    spread: Tensor
    mean: Tensor
    order: Tensor

    def __init__(self, weights: ByBasis, letters: str, rank: int, centred: bool) -> None:
        super().__init__()
        self.letters = letters
        self.axes: Axes = weights.axes
        self.bases = {letter: weights.bases[ALIASES.get(letter, letter)] for letter in letters}
        self.depth = weights.bases.get("z")
        self.centred = centred
        self.stays = weights.refit is not None and weights.refit.stays
        self.native = {letter: mass_of(weights.axes[letter]) for letter in WIDTHS}
        self.count = int(np.prod([basis.size for basis in self.bases.values()]))
        layers = 1 if self.depth is None else self.depth.size
        rank = min(rank, self.count)
        first = self.bases[letters[0]].size
        self.register_buffer("factor", torch.zeros(layers, self.count, rank, dtype=torch.int8))
        self.register_buffer("top", torch.zeros(layers, self.count, dtype=torch.int16))
        self.register_buffer("rest", torch.zeros(layers, self.count, dtype=torch.int16))
        self.register_buffer("spread", torch.zeros(layers, self.count, dtype=torch.int32))
        self.register_buffer("mean", torch.zeros(layers, self.count, dtype=torch.int32))
        self.register_buffer("order", torch.arange(first, dtype=torch.int32).repeat(layers, 1))
        self._made = constants.Cache(256)
        self._done = constants.Cache(64)

    def keep(self, layer: int, factor: Tensor, variance: Tensor, mean: Tensor) -> None:
        """Store the moments of one layer: Σ ≈ factor factorᵀ, with the variances of all nodes."""
        spread = variance.clamp_min(torch.finfo(SINGLE).tiny).sqrt()
        units = factor / spread[:, None]
        top = units.abs().amax(1).to(HALF)
        steps = (units / top.double().clamp_min(torch.finfo(HALF).tiny)[:, None] * STEPS).round().clamp(-STEPS, STEPS)
        rest = (1 - (steps * top.double()[:, None] / STEPS).square().sum(1)).clamp(0.0, 1.0)
        self.factor[layer] = steps.to(torch.int8)
        self.top[layer] = _bits(top)
        self.rest[layer] = _bits(rest.to(HALF))
        self.spread[layer] = _bits(spread.to(SINGLE))
        self.mean[layer] = _bits(mean.to(SINGLE))
        self._made = constants.Cache(256)

    @constant_result
    def layer_of(self, depth: float) -> int:
        """The layer whose moments stand for a depth."""
        return layer_at(self.axes.z, self.depth, depth)

    def keys(self, grids: Grids) -> tuple[int, ...] | None:
        """What says which nodes are kept; None where all are, or where the nodes are no stored ones."""
        found = tuple(grids[letter].key for letter in self.letters)
        if any(key is None for key in found) or not self._fewer(found):
            return None
        return found

    @constant_result
    def _fewer(self, keys: tuple[int, ...]) -> bool:
        return self._made.get((keys, "fewer"), lambda: self._is_part(self.kept(keys)))

    def _is_part(self, kept: Places) -> bool:
        return len(kept) < self.count and len(np.unique(kept)) == len(kept)

    def kept(self, keys: tuple[int, ...], layer: int | None = None) -> Places:
        """The places of all inputs that are kept, the last letter fastest; with a ``layer``, where these are stored."""
        places = np.zeros(1, dtype=np.int64)
        for letter, key in zip(self.letters, keys, strict=True):
            own = self.places(letter, key)
            if self.stays and layer is not None and letter == self.letters[0]:
                own = self.order[layer].cpu().numpy().astype(np.int64)[own]
            places = (places[:, None] * self.bases[letter].size + own[None, :]).reshape(-1)
        return places

    def arranges(self, grids: Grids) -> bool:
        """Whether weights along the first letter are read as they are stored, and put in order after that."""
        if not self.stays or _is_native(self.native, grids):
            return False
        key = grids[self.letters[0]].key
        return key is not None and self._on_nodes(key)

    @constant_result
    def _on_nodes(self, key: int) -> bool:
        """Whether the nodes of a grid are stored ones, each at most once."""
        places = self.places(self.letters[0], key)
        return len(np.unique(places)) == len(places)

    def arranged(
        self,
        values: dict[str, Tensor],
        dims: Mapping[str, int],
        grids: Grids,
        depths: tuple[float, ...] | None,
        fields: Mapping[str, object],
    ) -> dict[str, Tensor]:
        """Take, of weights that were read at all nodes, those of the grid in the order of each layer.

        ``dims`` are the weights by name, and where they have the nodes: a dimension counted from behind. Of frozen
        ``fields`` they are taken once.
        """
        key = grids[self.letters[0]].key
        own = {name: dim for name, dim in dims.items() if name in values}
        if key is None or not own or not self.arranges(grids):
            return values
        made = dict(values)
        for name, dim in own.items():
            source = source_of(fields.get(name), grids)
            take = partial(self._in_order, values[name], dim, key, depths)
            about = (source, name, dim, depths, self.order._version, self.order.data_ptr())
            made[name] = take() if source is None or values[name].requires_grad else self._done.get(about, take)
        return made

    def _in_order(self, values: Tensor, dim: int, key: int, depths: tuple[float, ...] | None) -> Tensor:
        """The nodes of a grid, layer by layer."""
        layers = [
            layer.index_select(dim, self._taken(key, self.layer_of(depth), layer.shape[dim], layer.device))
            for layer, depth in zip(
                (values if depths is not None else values[None]).unbind(0), depths or (0.0,), strict=True
            )
        ]
        return torch.stack(layers) if depths is not None else layers[0]

    @constant_result
    def _taken(self, key: int, layer: int, size: int, device: torch.device) -> Tensor:
        """Where a layer has what the places of a grid mean, each node with its inner coordinates."""
        about = (key, layer, size, device, self.order._version, self.order.data_ptr())
        return self._made.get(about, lambda: self._found(key, layer, size, device))

    def _found(self, key: int, layer: int, size: int, device: torch.device) -> Tensor:
        with constants.outside_modes():
            block = size // self.bases[self.letters[0]].size
            nodes = self.order[layer].cpu().long()[torch.from_numpy(self.places(self.letters[0], key))]
            return (nodes[:, None] * block + torch.arange(block)).flatten().to(device)

    def places(self, letter: Letter, key: int) -> Places:
        """The stored places that nodes of one letter read; all the same where they are read between nodes."""
        nodes = torch.from_numpy(nodes_of(key).values)
        basis = self.bases[letter]
        rows = basis.rows(self.axes[letter], nodes) if isinstance(basis, Nodal) else None
        return np.zeros(len(nodes), dtype=np.int64) if rows is None else rows.numpy()

    def fold(
        self,
        values: dict[str, Tensor],
        names: tuple[str, str],
        keys: tuple[int, ...] | None,
        depths: tuple[float, ...] | None,
        source: tuple[Hashable, ...] | None = None,
    ) -> dict[str, Tensor]:
        """Let a map ``names[0]`` [z, ·, N] that was read at all nodes take those that are kept; shift its bias.

        ``source`` says which numbers of a frozen field were read: what is made of them is made once.
        """
        name, bias = names
        if keys is None or name not in values:
            return values

        def make() -> tuple[Tensor, Tensor]:
            return self._folded(values[name], keys, depths)

        kept = source is not None and not values[name].requires_grad
        about = (source, name, keys, depths, self.factor._version, self.factor.data_ptr())
        own, shift = self._done.get(about, make) if kept else make()
        made = {**values, name: own}
        if bias in values:
            made[bias] = values[bias] + shift
        return made

    def _folded(self, values: Tensor, keys: tuple[int, ...], depths: tuple[float, ...] | None) -> tuple[Tensor, Tensor]:
        """The map of the nodes that are kept, and what the means of the others add to its bias."""
        stacked = values if depths is not None else values[None]
        maps: list[Tensor] = []
        shifts: list[Tensor] = []
        for own, depth in zip(stacked.unbind(0), depths or (0.0,), strict=True):
            kept, left, factor, back, mean = self._numbers(keys, self.layer_of(depth), own.device, own.dtype)
            others = own.index_select(-1, left)
            maps.append(own.index_select(-1, kept) + (others @ factor) @ back)
            shifts.append(others @ mean)
        return (torch.stack(maps), torch.stack(shifts)) if depths is not None else (maps[0], shifts[0])

    @constant_result
    def _numbers(
        self, keys: tuple[int, ...], layer: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, ...]:
        """Kept and left nodes, P in two factors, and what the means leave: made once for each size."""
        key = (keys, layer, device, dtype, self.factor._version, self.factor.data_ptr())
        return self._made.get(key, lambda: self._solved(keys, layer, device, dtype))

    def _solved(
        self, keys: tuple[int, ...], layer: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, ...]:
        with constants.outside_modes():
            kept = torch.from_numpy(self.kept(keys, layer))
            left = torch.ones(self.count, dtype=torch.bool).index_fill_(0, kept, False).nonzero()[:, 0]
            spread = _numbers(self.spread[layer], SINGLE)
            units = self.factor[layer].cpu().double() * (_numbers(self.top[layer], HALF) / STEPS)[:, None]
            rest = _numbers(self.rest[layer], HALF)
            mean = _numbers(self.mean[layer], SINGLE)
            self._require_finite(units, rest, spread, mean)
            ridge = RIDGE * spread.square().mean() / spread[kept].square()
            noise = rest[kept] + ridge
            near = units[kept] / noise[:, None]  # [n, r]
            system = torch.eye(units.shape[1], dtype=units.dtype) + units[kept].mT @ near
            back = torch.linalg.solve(system, near.mT) / spread[kept]  # [r, n], by Woodbury's identity
            factor = units[left] * spread[left][:, None]
            shift = mean[left] - factor @ (back @ mean[kept])
        return kept.to(device), left.to(device), *(one.to(device, dtype) for one in (factor, back, shift))

    def _require_finite(self, *numbers: Tensor) -> None:
        if not all(bool(torch.isfinite(one).all()) for one in numbers) or bool((numbers[2] <= 0).any()):
            remedy = "Calibrate anew: continua.elastic(model, calibrate=batches)."
            got = f"those of {' × '.join(self.letters)}"
            raise CheckpointError("the moments of this model are damaged", got=got, remedy=remedy)


def layer_at(axis: Axis, basis: Basis | None, depth: float) -> int:
    """The number of the layer that a depth reads; zero where weights do not change along z."""
    if not isinstance(basis, Nodal):
        return 0
    with constants.outside_modes():
        nodes = constants.numbers(node_numbers(axis, basis.rule), torch.device("cpu"), torch.float64)
        return int(Hold().index(torch.tensor([depth], dtype=torch.float64), nodes, None)[0])


def refit(weights: Parametrisation, letters: str, rank: str, centred: bool) -> Refit | None:
    """A refit where the parametrisation asks for one; ``rank`` is the letter whose rank it has."""
    if weights.refit is None:
        return None
    if not isinstance(weights, ByBasis):
        raise ConfigError("a refit needs weights at nodes", got=type(weights).__name__, remedy="Use ByBasis.")
    return Refit(weights, letters, getattr(weights.refit, rank), centred)


def _is_native(native: Mapping[str, float], grids: Grids) -> bool:
    """Whether no axis is coarser than the native one."""
    return grids.z is not None and grids.z.is_native and not any(octaves(native, grids).values())


def source_of(field: object, grids: Grids) -> tuple[Hashable, ...] | None:
    """What tells apart the numbers that are read of a frozen field while something else learns; None elsewhere.

    Where nothing learns, a view holds its weights, and nothing need be kept here.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or type(field) is not Expansion:
        return None
    stored = field.coefficients
    if stored.requires_grad:
        return None
    widths = tuple(grids[letter].key for letter in WIDTHS)
    return None if None in widths else (stored.data_ptr(), stored._version, stored.dtype, stored.device, *widths)


def keys_of(own: Refit | None, grids: Grids) -> tuple[int, ...] | None:
    """What says which nodes are kept, where there is a refit and not all are."""
    return None if own is None else own.keys(grids)


def _bits(values: Tensor) -> Tensor:
    """Numbers as whole ones of the same bits."""
    return values.contiguous().view(torch.int16 if values.dtype == HALF else torch.int32)


def _numbers(bits: Tensor, kind: torch.dtype) -> Tensor:
    """What ``_bits`` stored, in double precision on the processor."""
    return bits.detach().cpu().contiguous().view(kind).double()
