"""Fields: functions with parameters, read on a grid when the model runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import nn
from torch.func import functional_call

from continua.axes import Axis, Grid
from continua.config import register
from continua.errors import ShapeError
from continua.fields.basis import Basis, precisely
from continua.fields.nodal import Nodal
from continua.fields.role import Role
from continua.fields.spectral import Cosine, Equal, Fourier
from continua.typing import Letter, Tensor


@runtime_checkable
class Field(Protocol):
    """A function of the axes ``letters``, in that order; ``role`` says what it is for, where it is part of a model."""

    letters: tuple[Letter, ...]
    role: Role | None

    def on(self, **grids: Grid) -> Tensor:
        """Return the values on the product of the grids, one tensor dimension a letter."""
        ...

    def project(self, values: Tensor, grids: Mapping[Letter, Grid]) -> "Field":
        """Set the parameters so that ``on(grids)`` is (nearest to) ``values``; return self."""
        ...


_trusting: ContextVar[bool] = ContextVar("trusting", default=False)


@contextmanager
def unchanged() -> Iterator[None]:
    """Inside, no parameter changes: values that were kept are taken without a look at the coefficients."""
    before = _trusting.set(True)
    try:
        yield
    finally:
        _trusting.reset(before)


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
        std: float = 0.0,
        mean: float = 0.0,
        role: Role | None = None,
    ) -> None:
        super().__init__()
        self.role = role
        self.std = std  # what it was made with: an initialisation may want it again
        self.axes, self.letters = dict(axes), tuple(axes)
        self.bases = {letter: bases[letter] for letter in self.letters}
        self.networks = nn.ModuleDict({k: b for k, b in self.bases.items() if isinstance(b, nn.Module)})
        self._matrices: dict[tuple[object, ...], Any] = {}
        self._kept: tuple[object, Tensor, Tensor] | None = None  # grids, coefficients, values
        self.coefficients = nn.Parameter(torch.empty([basis.size for basis in self.bases.values()]))
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

    @precisely
    def on(self, **grids: Grid) -> Tensor:
        """Contract every axis with its basis; axes on their native grid are left alone.

        An axis without a grid keeps its coefficients: ``later`` reads them, where depths are not known yet.
        """
        keys = tuple(grids[letter].key if letter in grids else b"coefficients" for letter in self.letters)
        if torch.is_grad_enabled() or self.networks or None in keys:
            return self._read(grids)
        # Without gradients the values are kept until a coefficient changes. Compared by value: fused optimisers and
        # writes through ``.data`` leave no trace in torch's version counter.
        kept = self._kept
        if kept is not None and kept[0] == keys and (_trusting.get() or _same(kept[1], self.coefficients)):
            return kept[2]
        values = self._read(grids)
        if values is not self.coefficients:
            self._kept = (keys, self.coefficients.clone(), values)
        return values

    def _read(self, grids: Mapping[Letter, Grid]) -> Tensor:
        values: Tensor = self.coefficients
        for position, letter in enumerate(self.letters):
            if letter in grids:
                values = self._contract(values, position, letter, grids[letter])
        return values

    @precisely
    def later(self, values: Tensor, letter: Letter, grid: Grid, leaves: Mapping[str, Tensor] | None = None) -> Tensor:
        """Read ``on`` without this letter now on its grid; ``leaves`` stand in for the parameters of its network."""
        if not leaves:
            return self._contract(values, self.letters.index(letter), letter, grid)
        axis, network = self.axes[letter], cast(nn.Module, self.bases[letter])
        matrix = functional_call(network, dict(leaves), (axis, grid.nodes.to(values.device))).to(values)
        return _along(values, self.letters.index(letter), matrix)

    def is_stored_on(self, letter: Letter, grid: Grid) -> bool:
        """Whether reading this axis on ``grid`` returns the stored numbers."""
        return grid.key is not None and grid.key == self.bases[letter].native_key(self.axes[letter])

    def _contract(self, values: Tensor, position: int, letter: Letter, grid: Grid) -> Tensor:
        axis, basis = self.axes[letter], self.bases[letter]
        if self.is_stored_on(letter, grid):
            return values
        if isinstance(basis, Nodal) and grid.key is not None:
            rows = self._cached("rows", letter, grid, lambda: basis.rows(axis, grid.nodes), values.device)
            if rows is not None:
                return values.index_select(position, rows)
        if isinstance(basis, Fourier | Cosine) and (at := self.equal(letter, grid)) is not None:
            return basis.by_fft(values, position, at)
        return _along(values, position, self.matrix(letter, grid))

    def equal(self, letter: Letter, grid: Grid) -> Equal | None:
        """The spacing of the nodes, where reading this axis by FFT is valid and faster; None for the dense product."""
        axis, basis, like = self.axes[letter], self.bases[letter], self.coefficients
        if not isinstance(basis, Fourier | Cosine) or basis.size < basis.fft_from or grid.key is None:
            return None
        if like.dtype not in (torch.float32, torch.float64):
            return None
        made: Equal | None = self._cached("equal", letter, grid, lambda: basis.equal(axis, grid.nodes), like.device)
        return made

    def matrix(self, letter: Letter, grid: Grid) -> Tensor:
        """Return the basis matrix of one axis on ``grid``, remembered where it depends on the grid alone."""
        axis, basis, like = self.axes[letter], self.bases[letter], self.coefficients
        if letter in self.networks or grid.key is None:
            return basis.matrix(axis, grid.nodes.to(like.device)).to(like)
        made = self._cached("matrix", letter, grid, lambda: basis.matrix(axis, grid.nodes.double()), like.device)
        return cast(Tensor, made).to(like.dtype)

    def _cached(self, what: str, letter: Letter, grid: Grid, make: Callable[[], Any], device: torch.device) -> Any:
        key = (what, letter, grid.key, device)
        if key not in self._matrices:
            if len(self._matrices) > 256:
                self._matrices.clear()
            made = make()
            self._matrices[key] = made.detach().to(device) if isinstance(made, Tensor) else made
        return self._matrices[key]

    @torch.no_grad()
    def project(self, values: Tensor, grids: Mapping[Letter, Grid]) -> "Expansion":
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
            coefficients = _along(coefficients, position, inverse)
        self.coefficients.copy_(coefficients)
        return self

    def extra_repr(self) -> str:
        """Show the function this is."""
        kinds = ", ".join(f"{k}: {b if not isinstance(b, nn.Module) else 'Generated'}" for k, b in self.bases.items())
        return f"{kinds}"


def _along(values: Tensor, position: int, matrix: Tensor) -> Tensor:
    """Multiply one dimension by a matrix: one product for all the others."""
    if position == 0 and matrix.dim() == 2 and values.dim() > 1:  # weights over depth: nothing to move around
        return (matrix @ values.flatten(1)).view(len(matrix), *values.shape[1:])
    return torch.moveaxis(torch.tensordot(matrix, values, ([-1], [position])), 0, position)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
