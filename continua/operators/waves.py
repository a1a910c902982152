"""Waves on a domain: the transform of a field on any grid to a few waves, and back."""

import cmath
import functools
import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from continua import constants, memory
from continua.axes import Axis, Circle, Grid, Interval, Product, corrected, factors, mass_of
from continua.axes.sharded import Layout, Shard
from continua.constants import constant_result
from continua.errors import ConfigError
from continua.typing import Float, Tensor

Parts = tuple[Tensor, Tensor]  # real and imaginary
FEW = 64  # tokens whose sums are taken in float64
NUMBERS = 64  # bytes of a wave in a list, beside those of its whole numbers
BLOCK = 4096  # points whose waves are one matrix: freed memory of larger ones goes back to the system, page by page


@dataclass(frozen=True)
class Waves:
    """exp(2πi k·t/P), |k_i| < modes_i, on an interval, a circle or a product of these.

    Along a circle the period P is its length; along an interval it is ``stretch`` times the length, so that with
    ``stretch`` = 2 what leaves at one end does not come in at the other. Fields are real, so of k and −k along the
    last direction only k ≥ 0 is kept.
    """

    axis: Axis
    modes: tuple[int, ...]
    stretch: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.axis, Interval | Circle | Product):
            remedy = "Use t=Circle(), t=Interval() or a Product of these."
            raise ConfigError("waves live on intervals, circles and their products", got=self.axis, remedy=remedy)
        if len(self.modes) != self.axis.dim or min(self.modes) < 1:
            remedy = f"Give {self.axis.dim} whole numbers above zero."
            raise ConfigError("each direction needs its number of modes", got=self.modes, remedy=remedy)
        if self.stretch < 1:
            raise ConfigError("waves cover the interval", got=f"stretch={self.stretch:g}", remedy="Use 1 or more.")
        count = math.prod(2 * m - 1 for m in self.modes[:-1]) * self.modes[-1]
        memory.require(count * (NUMBERS + 32 * self.axis.dim), f"a list of {count} waves", "Use fewer modes.")

    @property
    def lines(self) -> tuple[Interval | Circle, ...]:
        """The factors of the domain."""
        return factors(self.axis)

    @property
    def periods(self) -> tuple[float, ...]:
        """P for each direction."""
        return tuple(line.length * (1.0 if line.periodic else self.stretch) for line in self.lines)

    @cached_property
    def ranges(self) -> tuple[range, ...]:
        """The whole numbers k along each direction."""
        *first, last = self.modes
        return (*(range(1 - m, m) for m in first), range(last))

    @cached_property
    def numbers(self) -> tuple[tuple[int, ...], ...]:
        """All wave vectors, in the order of the transform."""
        return tuple(itertools.product(*self.ranges))

    @constant_result
    def doubled(self) -> tuple[float, ...]:
        """2 where the wave of −k is left out, else 1."""
        return tuple(2.0 if k[-1] else 1.0 for k in self.numbers)

    def angles(self, nodes: Float[Tensor, "*b n k"]) -> Float[Tensor, "*b n w"]:
        """2π k·t/P at each node, for each wave."""
        return self._angles(nodes, self.vectors())

    def _angles(self, nodes: Tensor, vectors: tuple[float, ...]) -> Tensor:
        return nodes @ constants.numbers(vectors, nodes.device, nodes.dtype).view(-1, self.axis.dim).mT

    @constant_result
    def vectors(self) -> tuple[float, ...]:
        """2π k/P of each wave, one after the other."""
        return tuple(
            2 * math.pi * k / period for wave in self.numbers for k, period in zip(wave, self.periods, strict=True)
        )

    def bind(self, grid: Grid, exact: bool = True, whole: bool = True) -> tuple["Transform", tuple[Any, Any]]:
        """The transform on a grid and its matrices there and back.

        ``exact`` corrects the weights of scattered nodes (``exact_weights``). Nodes that do not fill the ``whole``
        domain keep theirs: ∫ over their part, divided by the mass of the domain. Where tokens are in parts,
        coefficients are one sum over the processes.
        """
        if grid.shard is not None:
            return self._in_parts(grid, grid.shard, exact, whole)
        if grid.lines is not None:
            lines = [self._line(i, line) for i, line in enumerate(grid.lines)]
            made = ByLines(tuple(len(line) for line in grid.lines), tuple(len(k) for k in self.ranges))
            return made, (tuple(there for there, _ in lines), tuple(back for _, back in lines))
        share = self._share(grid, exact, whole)
        if torch.compiler.is_compiling() or share.shape[-1] <= BLOCK:
            return ByMatrix(), self._matrices(grid.nodes, share)
        return ByBlocks(), self._blocks(grid.nodes, share)

    def _share(self, grid: Grid, exact: bool, whole: bool) -> Float[Tensor, "*b n"]:
        """The part of the measure that each node has."""
        weights = self.exact_weights(grid) if exact and whole and not grid.is_uniform else grid.weights
        return weights / (weights.sum(-1, keepdim=True) if whole else mass_of(self.axis))

    def _matrices(self, nodes: Float[Tensor, "*b n k"], share: Float[Tensor, "*b n"]) -> Parts:
        """There and back for some nodes."""
        angles = self.angles(nodes)
        cos = angles.cos().to(share)
        sin = angles.sin().to(share)
        doubled = constants.numbers(self.doubled(), share.device, share.dtype)
        there = (torch.cat([cos, -sin], -1) * share[..., None]).mT
        return there, torch.cat([doubled * cos, -doubled * sin], -1)

    def _blocks(self, nodes: Float[Tensor, "*b n k"], share: Float[Tensor, "*b n"]) -> tuple[Any, Any]:
        """cos and −sin at a block of nodes after the other, which serve both ways: there with the shares of the nodes,
        back with what stands for the waves left out."""
        waves = tuple(self._rows(some, share) for some in nodes.split(BLOCK, -2))
        doubled = constants.numbers(self.doubled(), share.device, share.dtype)
        return (waves, share), (waves, doubled)

    def _rows(self, nodes: Float[Tensor, "*b n k"], like: Tensor) -> Float[Tensor, "*b n 2w"]:
        angles = self.angles(nodes)
        return torch.cat([angles.cos(), -angles.sin()], -1).to(like)

    def _in_parts(self, grid: Grid, shard: Shard, exact: bool, whole: bool) -> tuple["Transform", tuple[Any, Any]]:
        """The matrices of the own nodes, with the weights that these have among all."""
        before: Grid = shard.before
        by_lines = before.lines is not None  # these fill the domain, with weights of their own
        share = shard.layout.part(self._share(before, exact and not by_lines, whole or by_lines), -1, 0.0)
        return BySum(shard.layout), self._matrices(grid.nodes, share)

    @constant_result
    def along(self, i: int) -> tuple[float, ...]:
        """The whole numbers k along one direction."""
        return tuple(float(k) for k in self.ranges[i])

    def _line(self, i: int, line: Grid) -> tuple[Parts, Parts]:
        """cos and sin of one direction: the analysis [w, n] with the weights, the synthesis [n, w]."""
        k = constants.numbers(self.along(i), line.nodes.device, line.nodes.dtype)
        angles = line.nodes * (2 * math.pi / self.periods[i] * k)
        share = (line.weights / line.weights.sum())[:, None]
        doubled = torch.where(k > 0, 2.0, 1.0) if i == len(self.modes) - 1 else torch.ones_like(k)
        return (
            ((share * angles.cos()).mT, (share * -angles.sin()).mT),
            (doubled * angles.cos(), doubled * angles.sin()),
        )

    @constant_result
    def wider(self, most: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The vectors of waves up to twice these, ``most`` in each direction, and their means over the domain."""
        wide = Waves(self.axis, tuple(min(2 * m - 1, most) for m in self.modes), self.stretch)
        return wide.vectors(), _integrals(wide)

    def exact_weights(self, grid: Grid) -> Float[Tensor, "*b n"]:
        """The weights of the grid, changed least so that waves up to twice these are integrated exactly.

        Twice, because a coefficient of a wave is the integral of a product of two; fewer where nodes are few (a
        quarter of their number along each direction), since the change would not be small then.
        """
        few = max(1, int((len(grid) ** (1 / self.axis.dim)) // 4))
        vectors, means = self.wider(few)
        angles = self._angles(grid.nodes.double(), vectors)
        real = torch.cat([angles.cos(), angles.sin()], -1).mT
        whole = grid.weights.double().sum(-1, keepdim=True)
        integrals = constants.numbers(means, real.device, real.dtype)
        made = corrected(grid.weights.double() / whole, real, integrals)
        return (made * whole).to(grid.weights)


class Transform:
    """A transform to the coefficients of waves and back; its matrices are handed over, so that they are arguments.

    Coefficients are x̂_k = ∫ x exp(−2πi k·t/P) dμ/mass, laid out [b, 2, w, c]: real parts, imaginary parts.
    """

    def analyse(self, x: Float[Tensor, "b n c"], there: Any) -> Float[Tensor, "b 2 w c"]:
        """Coefficients of a field at the nodes."""
        raise NotImplementedError

    def synthesise(self, v: Float[Tensor, "b 2 w c"], back: Any) -> Float[Tensor, "b n c"]:
        """Σ_k Re(v_k exp(2πi k·t/P)) over the waves and those left out."""
        raise NotImplementedError


class ByMatrix(Transform):
    """By one matrix product each way, on any nodes, also those of each sample."""

    def analyse(self, x: Float[Tensor, "b n c"], there: Any) -> Float[Tensor, "b 2 w c"]:
        """[2w, n] @ [n, c]."""
        return _coefficients(x, there, x.shape[1]).to(x.dtype)

    def synthesise(self, v: Float[Tensor, "b 2 w c"], back: Any) -> Float[Tensor, "b n c"]:
        """[n, 2w] @ [2w, c]."""
        return back.to(v) @ v.flatten(1, 2)


class ByBlocks(Transform):
    """By a matrix product each way for a block of nodes after the other: the same sums, in little memory at a time."""

    def analyse(self, x: Float[Tensor, "b n c"], there: Any) -> Float[Tensor, "b 2 w c"]:
        """Σ over blocks of [2w, n] @ [n, c]."""
        waves, share = there
        sizes = [rows.shape[-2] for rows in waves]
        blocks = zip(waves, x.split(sizes, 1), share.to(x).split(sizes, -1), strict=True)
        sums = [rows.to(x).mT @ (own[..., None] * some) for rows, some, own in blocks]
        return torch.stack(sums).sum(0).unflatten(1, (2, -1))

    def synthesise(self, v: Float[Tensor, "b 2 w c"], back: Any) -> Float[Tensor, "b n c"]:
        """[n, 2w] @ [2w, c] of each block."""
        waves, doubled = back
        whole = (doubled.to(v)[:, None] * v).flatten(1, 2)  # [b, 2w, c]
        return torch.cat([rows.to(v) @ whole for rows in waves], 1)


def _coefficients(x: Float[Tensor, "b n c"], there: Tensor, tokens: int) -> Float[Tensor, "b 2 w c"]:
    """Shares of the coefficients, before they are rounded to the dtype of the field.

    What a sum of few terms loses does not average out, and each coefficient carries it to all nodes; of many terms
    it does, and float64 would cost more than it gives.
    """
    dtype = constants.summed_in(x.dtype, x.device) if tokens <= FEW else x.dtype
    return (there.to(dtype) @ x.to(dtype)).unflatten(1, (2, -1))


@dataclass(frozen=True)
class BySum(ByMatrix):
    """The same for the own nodes of a process; coefficients are those of all."""

    layout: Layout

    def analyse(self, x: Float[Tensor, "b n c"], there: Any) -> Float[Tensor, "b 2 w c"]:
        """A share of each coefficient, and the sum over the processes."""
        return self.layout.sum(_coefficients(x, there, self.layout.count)).to(x.dtype)


@dataclass(frozen=True)
class ByLines(Transform):
    """Direction by direction, on a product of lines: n·Σ modes operations instead of n·Π modes."""

    nodes: tuple[int, ...]
    modes: tuple[int, ...]

    def analyse(self, x: Float[Tensor, "b n c"], there: Any) -> Float[Tensor, "b 2 w c"]:
        """The last direction first, where the field is still real."""
        *first, (cos, sin) = there
        place, field = len(self.nodes), x.unflatten(1, self.nodes)
        real, imaginary = _along(cos.to(x), field, place), _along(sin.to(x), field, place)
        for i in reversed(range(len(first))):
            real, imaginary = _turned(real, imaginary, first[i], i + 1)
        return torch.stack([real.flatten(1, -2), imaginary.flatten(1, -2)], 1)

    def synthesise(self, v: Float[Tensor, "b 2 w c"], back: Any) -> Float[Tensor, "b n c"]:
        """The first direction first; of the last only the real part is made."""
        real, imaginary = (part.unflatten(1, self.modes) for part in v.unbind(1))
        *first, (cos, sin) = back
        for i, line in enumerate(first):
            real, imaginary = _turned(real, imaginary, line, i + 1)
        place = len(self.modes)
        return (_along(cos.to(v), real, place) - _along(sin.to(v), imaginary, place)).flatten(1, -2)


def _along(matrix: Tensor, x: Tensor, place: int) -> Tensor:
    """Σ_j matrix[i, j] x[…, j, …] along one dimension."""
    shape = x.shape
    y = matrix @ x.reshape(math.prod(shape[:place]), shape[place], -1)
    return y.view(*shape[:place], len(matrix), *shape[place + 1 :])


def _turned(real: Tensor, imaginary: Tensor, line: Parts, place: int) -> Parts:
    """(cos + i sin)(real + i imaginary), summed along one dimension."""
    cos, sin = (part.to(real) for part in line)
    return (
        _along(cos, real, place) - _along(sin, imaginary, place),
        _along(sin, real, place) + _along(cos, imaginary, place),
    )


@functools.lru_cache(maxsize=64)
def _integrals(waves: Waves) -> tuple[float, ...]:
    """Mean of cos and sin of each wave over the domain: exact on circles and intervals."""
    means = [complex(1.0)] * len(waves.numbers)
    for i, (line, period) in enumerate(zip(waves.lines, waves.periods, strict=True)):
        for row, k in enumerate(waves.numbers):
            w = 2 * math.pi * k[i] / period
            if w != 0.0:
                start = cmath.exp(1j * w * line.start)
                end = cmath.exp(1j * w * (line.start + line.length))
                means[row] *= (end - start) / (1j * w * line.length)
    return (*(mean.real for mean in means), *(mean.imag for mean in means))
