"""Graph attention networks."""

from continua.fields import counted
from continua.models.build import discrete_axes
from continua.models.embed import Observations
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import ELU, Additive, Apply, Attention, Neighbours, Parts, Project, Skip
from continua.settings import Size, checked
from continua.typing import Tensor


@checked
def gat(
    channels: Size,
    *,
    out: Size | None = None,
    d: Size = 64,
    heads: Size = 8,
    depth: Size = 2,
    edges: Tensor | Neighbours | None = None,
    slope: float = 0.2,
) -> Transformer:
    """A graph attention network (Veličković et al. 2018): additive scores over neighbours, no residual, ELU.

    The graph comes with each batch, ``Batch(features, pairs=adjacency)`` with True where t looks at s, or is one for
    all: ``edges`` [2, m], a row of sources and a row of targets (every node then sees itself too). γ = −1 with a unit
    Euler step drops the residual; the ELU after each layer is a projection.

    >>> import torch
    >>> model = gat(channels=3, out=2, d=8, heads=2, edges=torch.tensor([[0, 1, 2], [1, 2, 3]]))
    >>> model(torch.zeros(1, 4, 3)).shape
    torch.Size([1, 4, 2])
    """
    axes, native = discrete_axes(d, heads, 4 * d, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    mask = Neighbours.of(edges) if isinstance(edges, Tensor) else edges
    attention = Attention(weights, mask=mask, kernel=Additive(slope), bias=("o",))
    block = Parts((Skip(attention, gamma=-1.0), Project(Apply(ELU()))))
    return Transformer(axes, native, Observations(fixed, channels), block, Readout(fixed, out))
