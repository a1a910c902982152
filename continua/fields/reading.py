"""How one axis of a field is read on given nodes: decided from plain numbers, once for each device."""

from typing import NamedTuple

import torch

from continua.errors import ConfigError
from continua.fields.basis import Basis
from continua.fields.spectral import Cosine, Equal, Fourier
from continua.typing import Tensor

STORED = "stored"  # the nodes are the field's own: the stored numbers themselves, no copy
ROWS = "rows"  # each node reads one stored number
MATRIX = "matrix"  # any basis on any nodes
WAVES = "waves"  # many waves on equal nodes, by an inverse transform


class AxisReading(NamedTuple):
    """A way to read, and the constant it needs: row numbers [n], a matrix [n, size], or the spacing of equal nodes."""

    kind: str
    values: Tensor | None = None
    equal: tuple[float, int, int] | None = None


def read_axis(reading: AxisReading | tuple[object, ...], basis: Basis, values: Tensor, position: int) -> Tensor:
    """Replace dimension ``position`` of coefficients by values at the nodes."""
    kind, constant, equal = reading
    if kind == STORED:
        return values
    if kind == ROWS and isinstance(constant, Tensor):
        return values.index_select(position, constant)
    if kind == WAVES and isinstance(basis, Fourier | Cosine) and isinstance(equal, tuple):
        return basis.by_fft(values, position, Equal(*equal))
    if isinstance(constant, Tensor):
        return along(values, position, constant)
    raise ConfigError("a field is read by rows, waves or a matrix", got=kind, remedy="Report this.")


def along(values: Tensor, position: int, matrix: Tensor) -> Tensor:
    """Multiply one dimension by a matrix: one product for all the others."""
    if position == 0 and matrix.dim() == 2 and values.dim() > 1:  # weights over depth: nothing to move around
        return (matrix @ values.flatten(1)).view(matrix.shape[0], *values.shape[1:])
    return torch.moveaxis(torch.tensordot(matrix, values, ([-1], [position])), 0, position)
