"""The field of ``depth.py`` in its two sizes: causal pre-norm attention and feed-forward, weights smooth in depth."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from depth_peers import STEPS
from torch import Tensor

import continua as ct
from continua.axes import Interval
from continua.fields import Legendre, counted
from continua.flow import RK4, Adaptive, Fixed, solve
from continua.flow.vectorfield import read_at
from continua.models import States
from continua.models.build import discrete_axes, pre_norm
from continua.operators import Attention, Causal, Context, LayerNorm, Pointwise

SPAN = (0.0, 1.0)
HEADS = 4
MODES = 6
FADE = 0.5  # of the k-th function's coefficients, k times: weights smooth in depth, 38 evaluations of torchdiffeq


@dataclass(frozen=True)
class Size:
    """The shape of a state [b, t, d]. The overheads that solves are held to are those of ``compiled.py``."""

    name: str
    shape: tuple[int, int, int]


SMALL, MEDIUM = SIZES = (Size("small", (8, 64, 64)), Size("medium", (4, 256, 256)))


class Case:
    """A model, a batch, and its vector field with weights read now, on the way, or in the middle of depth alone."""

    def __init__(self, size: Size, solver: Any = None, steps: int = STEPS, scale: float = 1.0, seed: int = 0) -> None:
        axes, native = discrete_axes(size.shape[-1], HEADS, 4 * size.shape[-1], steps)
        axes = replace(axes, z=Interval(*SPAN))
        weights = counted(axes)
        weights = replace(weights, bases={**weights.bases, "z": Legendre(MODES)})
        torch.manual_seed(seed)
        block = pre_norm((Attention(weights, mask=Causal()), Pointwise(weights)), lambda: LayerNorm(weights))
        self.size = size
        self.model = ct.Transformer(axes, native.replace(z=Fixed(steps, solver or RK4())), States(), block)
        self.x = torch.randn(size.shape)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name.split(".")[-2] in ("q", "k", "v", "o", "w1", "w2"):
                    parameter.mul_((scale * FADE ** torch.arange(MODES)).view(-1, *[1] * (parameter.dim() - 1)))

    def double(self) -> "Case":
        """The same numbers in float64."""
        twin = copy.deepcopy(self)
        twin.model, twin.x = twin.model.double(), twin.x.double()
        return twin

    def bind(self, control: Any = Adaptive()) -> tuple[Any, Any]:  # noqa: B008  (frozen)
        """The field and its arguments; unread unless steps are given."""
        structure = self.model.structure(ct.at(z=control))
        return self.model.bind(self.model.prepare(self.x, structure)[1], structure, Context())

    def frozen(self) -> Callable[[Any, Tensor], Tensor]:
        """f(z, x) with the weights of z = 1/2 at every depth: nothing is left but the solver."""
        field, args = self.bind()
        read = read_at(field, [(0.5,)] * 2, args)
        return lambda z, x: field(0.5, x, read)

    def varying(self) -> Callable[[Any, Tensor], Tensor]:
        """f(z, x) that makes the weights of z anew, as a field without an engine of ours does."""

        def f(z: Any, x: Tensor) -> Tensor:
            if z.dim() and len(z.unique()) > 1:  # torchode has a clock for each sample
                return torch.cat([f(own, one[None]) for own, one in zip(z, x, strict=True)])
            (field, args), z = self.bind(), float(z.detach().flatten()[0])
            return field(z, x, read_at(field, [(z,)] * 2, args))

        return f

    def truth(self) -> Tensor:
        """A very fine solve in float64."""
        fine = self.double()
        field, args = fine.bind()
        return solve(field, fine.x, SPAN, args=args, solver=RK4(), control=Fixed(512)).final

    def store(self, folder: Path) -> None:
        """Coefficients, start and end for the other process."""
        found = {}
        for number, part in enumerate(self.bind()[1]):
            for name, leaves in {**part.norm.weights.along, **part.inner.weights.along}.items():
                found[f"{name}{number}" if name in ("scale", "shift") else name] = leaves["coefficients"].numpy()
        end = self.truth() if self.size is SMALL else self.x
        np.savez(folder / f"{self.size.name}.npz", x=self.x.numpy(), end=end.numpy(), heads=HEADS, **found)
