"""Bounding the adjoint state between steps, by a solver around the solver."""

from dataclasses import dataclass
from typing import Any

import torch

from continua.flow.solvers.solver import Solver, Wrapper
from continua.flow.vectorfield import VectorField
from continua.tree import mapped, tensors
from continua.typing import Args, Tensor


class _Clip(torch.autograd.Function):
    """The identity, whose gradient is scaled down to a bounded norm."""

    @staticmethod
    def forward(ctx: Any, limit: float, *x: Tensor) -> Any:
        ctx.limit = limit
        return tuple(t.view_as(t) for t in x)

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> Any:
        norm = torch.stack([t.float().square().sum() for t in g]).sum().sqrt()
        scale = (ctx.limit / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0)
        return (None, *(t * scale.to(t.dtype) for t in g))


@dataclass(frozen=True)
class Clipping(Wrapper):
    """The steps of ``inner``, whose adjoint state is scaled down to the norm ``limit`` on the way back."""

    inner: Solver
    limit: float

    @property
    def order(self) -> int:
        """That of the inner solver."""
        return self.inner.order

    def __str__(self) -> str:
        return str(self.inner)

    def begin(self, field: VectorField, z: float, x: Any, args: Args) -> Any:
        """What the inner solver carries."""
        return self.inner.begin(field, z, x, args)

    def show(self, carried: Any) -> Any:
        """The state."""
        return self.inner.show(carried)

    def step(self, field: VectorField, z: float, dz: float, x: Any, args: Args) -> Any:
        """The inner step, then the identity with a clipped gradient."""
        after = self.inner.step(field, z, dz, x, args)
        if not torch.is_grad_enabled() or not tensors(after):
            return after
        clips = iter(_Clip.apply(self.limit, *tensors(after)))
        return mapped(after, lambda _: next(clips))
