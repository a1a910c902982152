"""Fields: functions with parameters, read on a grid when the model runs."""

from collections.abc import Mapping
from typing import Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from continua import constants
from continua.axes import ALIASES, Axis, Depths, Grid, Sites, WidthSite, coordinates, known_key, nodes_of
from continua.axes.nodes import Array
from continua.config import register
from continua.constants import constant_result
from continua.errors import ShapeError
from continua.fields.basis import Basis, precisely, require_weight
from continua.fields.nodal import Nodal
from continua.fields.reading import MATRIX, ROWS, STORED, WAVES, AxisReading, along, read_axis
from continua.fields.role import Role
from continua.fields.spectral import Cosine, Equal, Fourier
from continua.settings import Single
from continua.typing import Letter, Tensor

Told = int | tuple[float, ...] | None  # the key of a grid's nodes (None: unknown), or depths


@runtime_checkable
class Field(Protocol):
    """A function of the axes ``letters``, in that order; ``role`` says what it is for, where it is part of a model."""

    letters: tuple[Letter, ...]
    role: Role | None

    def on(self, **grids: Sites) -> Tensor:
        """Return the values on the product of the grids, one tensor dimension a letter."""
        ...

    def project(self, values: Tensor, grids: Mapping[Letter, Sites]) -> "Field":
        """Set the parameters so that ``on(grids)`` is (nearest to) ``values``; return self."""
        ...


@register
class Expansion(nn.Module):
    """f(x_1, …, x_r) = Σ c_{k_1…k_r} B¹_{k_1}(x_1) ⋯ Bʳ_{k_r}(x_r).

    ``bases`` holds one basis a letter, nodal, spectral or generated, in any mixture. On the native grid of its nodal
    bases ``on`` returns the stored parameter itself: no copy, no cost. Many waves on equal nodes are read by FFT.

    Discrete case: with ``Nodal(Counting(n), Hold())`` on every axis this is ``nn.Parameter`` of that shape.
    """

    def __init__(
        self,
        axes: Mapping[Letter, Axis],
        bases: Mapping[Letter, Basis],
        std: Single = 0.0,
        mean: Single = 0.0,
        role: Role | None = None,
    ) -> None:
        super().__init__()
        self.role = role
        self.std = std  # what it was made with: an initialisation may want it again
        self.axes, self.letters = dict(axes), tuple(axes)
        self.bases = {letter: bases[letter] for letter in self.letters}
        self.networks = nn.ModuleDict({k: b for k, b in self.bases.items() if isinstance(b, nn.Module)})
        self._readings = constants.Cache(256)
        shape = [basis.size for basis in self.bases.values()]
        require_weight(*shape)
        self.coefficients = nn.Parameter(torch.empty(shape))
        if not self.coefficients.is_meta:  # a model whose numbers come from a file draws none
            self.reset(std, mean)

    def parameter_roles(self) -> dict[str, Role | None]:
        """The coefficients have the role of the field; networks of generated bases have their own."""
        return {"coefficients": self.role}

    @torch.no_grad()
    def reset(self, std: float, mean: float, generator: torch.Generator | None = None) -> None:
        """Draw coefficients so that the values have about this standard deviation around ``mean``."""
        spread = 1.0
        for basis in self.bases.values():
            spread *= basis.spread
        self.coefficients.normal_(0.0, 1.0, generator=generator).mul_(std / spread**0.5)
        if mean != 0.0:
            self.coefficients.add_(mean * self._constant())

    def _constant(self) -> Tensor:
        """Coefficients of the function one: all ones for nodal, B-spline and generated, the first mode otherwise."""
        ones = torch.ones(())
        for letter, basis in self.bases.items():
            line = torch.ones(basis.size)
            if basis.native_key(self.axes[letter]) is None and basis.spread > 1:
                line[1:] = 0
            elif letter in self.networks:
                line = line * basis.size**-0.5
            ones = ones[..., None] * line
        return ones

    def stored(self) -> Tensor:
        """The coefficients of the function: the parameter itself."""
        return self.coefficients

    @precisely
    def on(self, **grids: Sites) -> Tensor:
        """Contract every axis with its basis; axes on their native grid are left alone.

        An axis without a grid keeps its coefficients: ``later`` reads them, where depths are not known yet, and the
        counted rows of a table need no grid.
        """
        return self.read(self.stored(), **grids)

    def read(self, values: Tensor, **grids: Sites) -> Tensor:
        """``on`` of the function with these coefficients."""
        asked = tuple([(letter, told(grids[letter])) for letter in self.letters if letter in grids])
        for position, letter in self._changed(asked):
            values = self._contract(values, position, letter, grids[letter])
        return values

    @precisely
    def later(self, values: Tensor, letter: Letter, where: Sites, leaves: Mapping[str, Tensor] | None = None) -> Tensor:
        """Read ``on`` without this letter now on its grid; ``leaves`` stand in for the parameters of its network."""
        position = self.letters.index(letter)
        if not leaves:
            return self._contract(values, position, letter, where)
        network = cast(nn.Module, self.bases[letter])
        nodes = coordinates(where, self.coefficients)
        matrix = functional_call(network, dict(leaves), (self.axes[letter], nodes)).to(values)
        return along(values, position, matrix)

    def is_stored_on(self, letter: Letter, where: Sites) -> bool:
        """Whether reading this axis on ``where`` returns the stored numbers."""
        return not self._changed(((letter, told(where)),))

    @constant_result
    def _changed(self, asked: tuple[tuple[Letter, Told], ...]) -> tuple[tuple[int, Letter], ...]:
        """The places and letters of the axes that are asked for elsewhere than where their numbers are stored."""
        return self._readings.get(
            asked,
            lambda: tuple(
                (self.letters.index(letter), letter) for letter, where in asked if not self._is_stored(letter, where)
            ),
        )

    @constant_result
    def is_itself(
        self, sites: tuple[WidthSite, ...], depths: tuple[float, ...] | None, over: str = "", left: str = ""
    ) -> bool:
        """Whether the values on these widths and depths, times the weights of ``over``, are the stored numbers.

        The letters ``left`` are left as they are stored; so is depth, where none is named.
        """
        return self._readings.get(
            (sites, depths, over, left), lambda: self._is_itself({s[0]: s for s in sites}, depths, over, left)
        )

    def _is_itself(
        self, sites: Mapping[Letter, WidthSite], depths: tuple[float, ...] | None, over: str, left: str
    ) -> bool:
        for letter in self.letters:
            if letter == "z":
                here = depths is None or self._is_stored(letter, depths)
            elif letter == "n" or letter in left:
                here = True
            else:
                site = sites.get(ALIASES.get(letter, letter))
                here = site is not None and self._is_stored(letter, site[1])
            if not here:
                return False
        weighed = [sites.get(ALIASES.get(letter, letter)) for letter in over]
        return all(site is not None and site[2] for site in weighed)

    def _is_stored(self, letter: Letter, where: Told) -> bool:
        native = self.bases[letter].native_key(self.axes[letter])  # first: it makes the key of nodes that are new
        key = known_key(_column(where)) if isinstance(where, tuple) else where
        return key is not None and key == native

    def _contract(self, values: Tensor, position: int, letter: Letter, where: Sites) -> Tensor:
        basis = self.bases[letter]
        asked = told(where)
        if letter in self.networks or asked is None:
            nodes = coordinates(where, self.coefficients)
            return along(values, position, basis.matrix(self.axes[letter], nodes).to(values))
        return read_axis(self._reading(letter, asked, values.device, values.dtype), basis, values, position)

    @constant_result
    def _reading(
        self, letter: Letter, where: int | tuple[float, ...], device: torch.device, dtype: torch.dtype
    ) -> tuple[object, ...]:
        """How one axis is read on nodes that are known by their key, or on depths: a constant of every graph."""
        key = (letter, where, device, dtype)
        return self._readings.get(key, lambda: tuple(self._decided(letter, where, device, dtype)))

    def _decided(
        self, letter: Letter, where: int | tuple[float, ...], device: torch.device, dtype: torch.dtype
    ) -> AxisReading:
        axis = self.axes[letter]
        basis = self.bases[letter]
        known = nodes_of(where).values if isinstance(where, int) else _column(where)
        native = basis.native_key(axis)
        if native is not None and known_key(known) == native:
            return AxisReading(STORED)
        with constants.outside_modes():
            nodes = torch.from_numpy(known)
            rows = basis.rows(axis, nodes) if isinstance(basis, Nodal) else None
            equal = self._equal(basis, axis, nodes, dtype)
            if equal is not None:
                return AxisReading(WAVES, equal=(equal.start, equal.period, equal.nodes))
            made = basis.matrix(axis, nodes).numpy() if rows is None else rows.numpy()
        if rows is not None:
            return AxisReading(ROWS, constants.tensor(made, device, torch.long))
        return AxisReading(MATRIX, constants.tensor(made, device, dtype))

    @staticmethod
    def _equal(basis: Basis, axis: Axis, nodes: Tensor, dtype: torch.dtype) -> Equal | None:
        """The spacing of the nodes, where reading by FFT is valid and faster."""
        if not isinstance(basis, Fourier | Cosine) or basis.size < basis.fft_from:
            return None
        return basis.equal(axis, nodes) if dtype in (torch.float32, torch.float64) else None

    def matrix(self, letter: Letter, where: Sites) -> Tensor:
        """Return the basis matrix of one axis on ``where``: values = matrix @ coefficients along it."""
        nodes = coordinates(where, self.coefficients.double())
        if isinstance(where, Grid) and where.key is not None:
            nodes = torch.from_numpy(nodes_of(where.key).values).to(nodes)
        if letter in self.networks:
            nodes = nodes.to(self.coefficients)
        return self.bases[letter].matrix(self.axes[letter], nodes).to(self.coefficients)

    @torch.no_grad()
    def project(self, values: Tensor, grids: Mapping[Letter, Sites]) -> "Expansion":
        """Least squares axis by axis (exact where the basis can carry the values)."""
        expected = tuple(len(grids[letter]) for letter in self.letters)
        if tuple(values.shape) != expected:
            named = ", ".join(f"{k}={n}" for k, n in zip(self.letters, expected, strict=True))
            raise ShapeError(f"the values need shape [{named}]", got=list(values.shape), remedy="Check the grids.")
        coefficients = values.to(self.coefficients)
        for position, letter in enumerate(self.letters):
            grid = grids[letter]
            if self.is_stored_on(letter, grid):
                continue
            inverse = torch.linalg.pinv(self.matrix(letter, grid))
            coefficients = along(coefficients, position, inverse)
        self.coefficients.copy_(coefficients)
        return self

    def extra_repr(self) -> str:
        """Show the function this is."""
        kinds = ", ".join(f"{k}: {b if not isinstance(b, nn.Module) else 'Generated'}" for k, b in self.bases.items())
        return f"{kinds}"


def told(where: Sites) -> Told:
    """What says which nodes these are."""
    return where.nodes if isinstance(where, Depths) else where.key


def _column(depths: tuple[float, ...]) -> Array:
    return np.array(depths, dtype=np.float64)[:, None]
