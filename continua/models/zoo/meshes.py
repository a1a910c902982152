"""Maps between functions on meshes of any shape: their nodes are the tokens, at a cost linear in their number."""

from enum import StrEnum

from continua.axes import Axis, Discretisation, LeftEnd, at
from continua.fields import ByBasis, Nodal, Parametrisation
from continua.flow import Fixed
from continua.models.build import continuous_axes, smooth_bases
from continua.models.embed import Observations
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import (
    GELU,
    Chain,
    Gates,
    Operator,
    Parts,
    Pointwise,
    Slices,
    SpectralConvolution,
)
from continua.settings import Positive, Size, Whole, checked

STRETCH = 1.25  # the period of the convolution along an interval


class LatentAttention(StrEnum):
    """Which attention a map on meshes has."""

    NONE = "none"
    SLICES = "slices"
    GATES = "gates"


@checked
def mesh_map(
    axis: Axis,
    *,
    channels: Size,
    out: Size = 1,
    at: Discretisation = at(d=64, h=4, m=128, z=4),  # noqa: B008  (frozen)
    modes: Whole = 6,
    attention: LatentAttention = LatentAttention.SLICES,
    tokens: Size = 32,
    output_spread: Positive = 1.0,
) -> Transformer:
    """A map from functions at the nodes of meshes in ``axis`` (a box) to functions there.

    Give ``Batch(values, grid=Grid(points, weights))`` with the measure of each node, such as its lumped mass. One step
    is W₂φ(W₁φ(κ∗x + Wx)), a convolution by ``modes`` waves over the part of the box that the mesh fills (none for 0:
    then a pointwise map), and attention through ``tokens`` latent ones. Answers are multiplied by ``output_spread``.

    >>> import torch
    >>> from continua.axes import Grid, Interval, Product, at
    >>> from continua.models import Batch
    >>> model = mesh_map(Product((Interval(), Interval())), channels=2, at=at(d=8, h=2, m=8, z=2), modes=2, tokens=4)
    >>> grid = Grid(torch.rand(1, 9, 2), torch.full((1, 9), 0.05))
    >>> model(Batch(torch.zeros(1, 9, 2), grid=grid)).shape
    torch.Size([1, 9, 1])
    """
    chosen, native = continuous_axes(at, t=axis)
    depth = native.z.steps if isinstance(native.z, Fixed) else 4
    weights = ByBasis(chosen, {**smooth_bases(chosen, native, depth), "z": Nodal(LeftEnd(depth))})
    fixed = weights.autonomous()
    embed = Observations(fixed, channels)
    block = Parts(tuple(branches(weights, modes, attention, tokens, depth)))
    readout = Readout(fixed, out, before=(Pointwise(fixed),), bias=True, scale=output_spread)
    return Transformer(chosen, native, embed, block, readout)


def branches(
    weights: Parametrisation, modes: int, attention: LatentAttention, tokens: int, depth: int
) -> list[Operator]:
    """The flows of one step. No norm: it would hide how large the input is at a node, and linear equations ask that."""
    made: list[Operator] = []
    gain = depth**-0.5
    if attention is LatentAttention.SLICES:
        made.append(Slices(weights, tokens, gain=gain))
    elif attention is LatentAttention.GATES:
        made.append(Gates(weights, tokens, gain=gain))
    mixed = Pointwise(weights, gain=gain)
    if modes:
        far = SpectralConvolution(weights, modes, phi=GELU(), stretch=STRETCH, whole=False)
        made.append(Chain(far, mixed))
    else:
        made.append(mixed)
    return made
