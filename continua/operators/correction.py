"""Corrections by size: maps of a few functions, learned for other sizes, that the native size never reads."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from continua import constants
from continua.axes import ALIASES, WIDTHS, Depths, Grids, mass_of, node_numbers
from continua.fields import ByBasis, Corrections, Expansion, Nodal, Parametrisation, Role, Use, kernel_std
from continua.fields.corrected import CorrectedTable
from continua.fields.role import VECTOR
from continua.operators.calibration import octaves
from continua.operators.weights import Weight
from continua.typing import Letter, Tensor

SAME = 1e-9  # of the largest coordinate: nodes that are nearer to each other are one


@dataclass(frozen=True)
class Map:
    """The letters of what comes out of a kernel, and of what goes in."""

    out: str
    inputs: str

    def among(self, along: str) -> str:
        """The axes that it has itself, or changes over: its widths, and depth."""
        own = f"az{self.out}{self.inputs}".replace("c", "d")
        return "".join(k for k in along if k in own)

    def merged(self, values: Tensor) -> Tensor:
        """A kernel with heads and their inner coordinates as one index."""
        rows = values.flatten(-3, -2) if len(self.out) == 2 else values
        return rows.flatten(-2) if len(self.inputs) == 2 else rows


class Correction(nn.Module):
    """W(x, y) ← W(x, y) + Σ_k s_k Σ_r A_kr(x) B_kr(y), with ``rank`` functions A and B of each depth for each axis k.

    s_k = log2(native nodes / nodes) ≥ 0 along widths and heads, as in ``Calibration``; along z it is log2 of the mean
    step in units of the native one, ≥ 0 too: fewer steps change every layer. So a size between those that were taught
    is corrected by what lies between. On the native grid, and on finer ones, nothing is read. ``maps`` are the kernels
    by name. A new correction is zero: A is, B is not (Hu et al. 2022).

    Without a rank the sum over r is one whole kernel D_k(x, y), zero at first, and ``vectors``, gains and shifts by
    name with their letters, become w + Σ_k s_k a_k: more numbers. Where fewer nodes of an axis are stored, it is zero
    at the others. Where corrections begin
    ``beyond`` some octaves, s_k is less by as many, still ≥ 0, vectors are corrected too, and a map is corrected along
    z and along the widths it has. s_a is the least of the s_k, and where a is ``apart`` the others are less by it.
    D_k of the axes ``alone`` pass no gradient at a size that is corrected along another axis besides.
    """

    def __init__(
        self, weights: Parametrisation, asked: Corrections, maps: Mapping[str, Map], vectors: Mapping[str, str]
    ) -> None:
        super().__init__()
        self.native = {letter: mass_of(weights.axes[letter]) for letter in WIDTHS}
        self.beyond = asked.beyond
        self.apart = asked.apart
        self.alone = asked.alone
        self.maps = dict(maps)
        self.vectors = dict(vectors) if asked.beyond or None in asked.ranks.values() else {}
        self.along = asked.along
        self.fields = nn.ModuleDict()
        coarse = {k: weights.below(k) for k in asked.along}
        self.nodes = {k: _stored(coarse[k], asked.nodes(k)) for k in asked.along}
        for name, own in maps.items():
            for k in asked.along if asked.beyond == 0 else own.among(asked.along):
                std = kernel_std(coarse[k], own.inputs)
                rank = asked.ranks[k]
                if rank is None:
                    role = Role(Use.KERNEL, own.inputs)
                    self.fields[_whole(name, k)] = coarse[k].field(f"z{own.out}{own.inputs}", role=role)  # type: ignore[assignment]
                    continue
                self.fields[_out(name, k)] = coarse[k].table(rank, f"z{own.out}", 0.0)  # type: ignore[assignment]
                self.fields[_in(name, k)] = coarse[k].table(rank, f"z{own.inputs}", std)  # type: ignore[assignment]
        for name, letters in self.vectors.items():
            for k in asked.along:
                self.fields[_vector(name, k)] = coarse[k].field(f"z{letters}", role=VECTOR)  # type: ignore[assignment]

    def draw(self, generator: torch.Generator) -> None:
        """Start anew: functions B at random, A zero."""
        for field in self.fields.values():
            if isinstance(field, Expansion):
                field.reset(field.std, 0.0, generator)

    def sizes(self, grids: Grids) -> dict[Letter, float]:
        """s_k of the axes along which sizes are corrected and this one is not the native one."""
        longer = _octaves_of_steps(grids.z)
        found = {**octaves(self.native, grids), "z": max(0.0, longer)}
        made = {k: found[k] if self.beyond == 0 else max(0.0, found[k] - self.beyond) for k in self.along if k in found}
        least = min(made.values(), default=0.0)
        if self.apart:
            made = {k: size - least for k, size in made.items()}
        made |= {"f": max(0.0, -longer), "a": least}
        return {k: made[k] for k in self.along if made[k] != 0.0}

    def weights(self, grids: Grids) -> dict[str, Weight]:
        """What is to be read beside the operator's own weights."""
        made = {}
        for k in self.sizes(grids):
            known = _known(self.nodes[k], grids)
            for name, letters in self.vectors.items():
                then = _only(letters, known, _merged(letters))
                made[_vector(name, k)] = Weight(self.fields[_vector(name, k)], then=then)  # type: ignore[arg-type]
            for name, own in self.maps.items():
                if _whole(name, k) in self.fields:
                    then = _only(own.out + own.inputs, known, own.merged)
                    made[_whole(name, k)] = Weight(self.fields[_whole(name, k)], own.inputs, then)  # type: ignore[arg-type]
                if _out(name, k) not in self.fields:
                    continue
                made[_out(name, k)] = Weight(self.fields[_out(name, k)], then=_merged(own.out))  # type: ignore[arg-type]
                kernel = self.fields[_in(name, k)]
                made[_in(name, k)] = Weight(kernel, own.inputs, _merged(own.inputs))  # type: ignore[arg-type]
        return made

    def fold(self, values: dict[str, Tensor], grids: Grids) -> dict[str, Tensor]:
        """Add what was read to the kernels that it belongs to."""
        made = {name: value for name, value in values.items() if name not in self.fields}
        sizes = self.sizes(grids)
        values = self._heard(values, sizes)
        for k, size in sizes.items():
            for name in self.vectors:
                if name in made and _vector(name, k) in values:
                    made[name] = torch.add(made[name], values[_vector(name, k)], alpha=size)
            for name in self.maps:
                if name in made and _whole(name, k) in values:
                    made[name] = torch.add(made[name], values[_whole(name, k)], alpha=size)
                if name in made and _out(name, k) in values:
                    made[name] = made[name] + size * (values[_out(name, k)].mT @ values[_in(name, k)])
        return made

    def _heard(self, values: dict[str, Tensor], sizes: Mapping[Letter, float]) -> dict[str, Tensor]:
        """What was read; corrections that learn at other sizes hear nothing of one that has another besides."""
        if not self.alone or all(k in self.alone for k in sizes):
            return values
        quiet = tuple(f" by {k}" for k in sizes if k in self.alone)
        return {name: value.detach() if name.endswith(quiet) else value for name, value in values.items()}


def _stored(weights: Parametrisation, few: Mapping[Letter, int]) -> dict[Letter, NDArray[np.float64]]:
    """The coordinates of the nodes that have numbers, on the axes where these are not all."""
    if not isinstance(weights, ByBasis):
        return {}
    bases = {letter: weights.bases[letter] for letter in few}
    return {
        letter: np.array(node_numbers(weights.axes[letter], basis.rule))
        for letter, basis in bases.items()
        if isinstance(basis, Nodal)
    }


def _known(stored: Mapping[Letter, NDArray[np.float64]], grids: Grids) -> dict[Letter, Tensor]:
    """One at the nodes of a grid that have numbers, zero elsewhere, for the axes where a grid has more than these."""
    made = {}
    for letter, known in stored.items():
        grid = grids[letter]
        if grid.count > len(known):
            asked = grid.nodes[:, 0].double().cpu().numpy()
            far = np.abs(asked[:, None] - known[None, :]).min(1) > SAME * np.abs(known).max(initial=1.0)
            made[letter] = constants.tensor((~far).astype(np.float64), grid.nodes.device, torch.float32)
    return made


def _only(
    letters: str, known: Mapping[Letter, Tensor], then: Callable[[Tensor], Tensor] | None
) -> Callable[[Tensor], Tensor] | None:
    """``then`` of values that are zero at nodes without numbers."""
    there = [(place, known.get(ALIASES.get(k, k))) for place, k in enumerate(reversed(letters))]
    if all(one is None for _, one in there):
        return then

    def cut(values: Tensor) -> Tensor:
        for place, one in there:
            values = values if one is None else values * one.to(values).reshape(-1, *[1] * place)
        return values if then is None else then(values)

    return cut


def _whole(name: str, k: Letter) -> str:
    return f"{name} whole by {k}"


def _out(name: str, k: Letter) -> str:
    return f"{name} out by {k}"


def _vector(name: str, k: Letter) -> str:
    return f"{name} by {k}"


def _in(name: str, k: Letter) -> str:
    return f"{name} in by {k}"


def _merged(letters: str) -> Callable[[Tensor], Tensor] | None:
    """Heads and their inner coordinates are one index of a kernel."""
    return (lambda values: values.flatten(-2)) if len(letters) == 2 else None


def _octaves_of_steps(steps: Depths | None) -> float:
    """log2 of the mean step in units of the native one, zero where steps are not known."""
    if steps is None or not steps.lengths:
        return 0.0
    return math.log2(sum(steps.lengths) / len(steps.lengths))


def correction(
    weights: Parametrisation, maps: Mapping[str, Map], vectors: Mapping[str, str] | None = None
) -> Correction | None:
    """A correction where the parametrisation asks for one."""
    asked = weights.corrections
    return None if asked is None else Correction(weights, asked, maps, vectors or {})


def corrected_by(own: Correction | None, grids: Grids) -> dict[str, Weight]:
    """What is to be read for a correction, if there is one."""
    return {} if own is None else own.weights(grids)


def corrected(own: Correction | None, values: dict[str, Tensor], grids: Grids) -> dict[str, Tensor]:
    """The values with the correction added, if there is one."""
    return values if own is None else own.fold(values, grids)


def corrections_of(model: nn.Module) -> list[nn.Module]:
    """All that a model reads at corrected sizes alone: its corrections, and those of its tables."""
    found: list[nn.Module] = [module for module in model.modules() if isinstance(module, Correction)]
    return found + [module.below for module in model.modules() if isinstance(module, CorrectedTable)]
