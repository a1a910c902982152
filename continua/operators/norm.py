"""Normalisation against the measure of d, inside a branch (pre-norm) or as a projection (post-norm)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from continua.axes import Grid
from continua.config import register
from continua.errors import ContinuaError
from continua.fields import Parametrisation
from continua.fields.role import GAIN, SHIFT
from continua.flow.vectorfield import Bound
from continua.operators.calibration import Target, calibration, extra, folded
from continua.operators.manual_backward import LeanLayerNorm
from continua.operators.operator import Context, Operator, weights_of
from continua.operators.weights import Grids, Weight, at_depth, local
from continua.typing import Args, Tensor, VectorFunction


def _mean(x: Tensor, share: Tensor | None) -> Tensor:
    """∫ x dμ(d) / mass(d)."""
    return x.mean(-1, keepdim=True) if share is None else (x * share.to(x.dtype)).sum(-1, keepdim=True)


def _share(d: Grid, like: Tensor) -> Tensor | None:
    """Weights over mass, or ``None`` where all weights are equal and the plain mean is the integral."""
    return None if d.is_uniform else (d.weights / d.mass).to(like)


def standardise(x: Tensor, share: Tensor | None, eps: float, centred: bool) -> Tensor:
    """(x − ⟨x⟩) / √(⟨(x − ⟨x⟩)²⟩ + eps) with means against the measure; not ``centred`` leaves the mean alone."""
    if centred:
        x = x - _mean(x, share)
    return x * torch.rsqrt(_mean(x * x, share) + eps)


class _Affine(Operator):
    """Scale γ(z,d), shift β(z,d) and the share of each node in the mean over d."""

    def __init__(self, weights: Parametrisation, eps: float, scale: bool, shift: bool) -> None:
        super().__init__()
        self.eps = eps
        self.scale = weights.field("zd", mean=1.0, role=GAIN) if scale else None
        self.shift = weights.field("zd", role=SHIFT) if shift else None
        targets = {"scale": Target(GAIN, "d", integral="d")} if scale else {}
        if shift:
            targets["shift"] = Target(SHIFT, "d")
        self.calibration = calibration(weights, targets)

    def bound(self, f: VectorFunction, grids: Grids, context: Context | None) -> tuple[Bound, Args]:
        """Read scale and shift; ``share`` is a leaf too."""
        weights = {"scale": Weight(self.scale), "shift": Weight(self.shift), **extra(self.calibration, grids)}

        def finish(values: dict[str, Tensor], depths: Sequence[float] | None) -> dict[str, Tensor]:
            return self.finish(folded(self.calibration, values, grids, depths))

        args, reader = weights_of(self, grids, context, weights, finish)
        like = next(self.parameters(), grids["d"].weights)
        return Bound(f, reader, local), {**args, "share": _share(grids["d"], like)}

    def finish(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """The last changes to scale and shift."""
        return values


@register
class LayerNorm(_Affine):
    """N(x) = γ(z,d) (x − ⟨x⟩)/σ + β(z,d), σ² = ⟨(x−⟨x⟩)²⟩ + eps, ⟨x⟩ = ∫ x dμ(d)/mass(d).

    ``bias=False`` leaves β out. Discrete case: ``nn.LayerNorm``; equal weights of any size give it too.
    """

    def __init__(self, weights: Parametrisation, eps: float = 1e-5, affine: bool = True, bias: bool = True) -> None:
        super().__init__(weights, eps, scale=affine, shift=affine and bias)

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Return the fused kernel where weights are equal, the weighted form elsewhere."""
        eps, width, fused = self.eps, len(grids["d"]), grids["d"].is_uniform

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            w = at_depth(args, z)
            scale, shift = w.get("scale"), w.get("shift")
            if fused:
                return F.layer_norm(x, (width,), scale, shift, eps)
            y = standardise(x, args["share"], eps, centred=True)
            y = y if scale is None else y * scale
            return y if shift is None else y + shift

        return self.bound(f, grids, context)

    def by_hand(self, grids: Grids) -> LeanLayerNorm | None:
        """The fused kernel with its own backward."""
        return LeanLayerNorm(len(grids["d"]), self.eps) if grids["d"].is_uniform else None


@register
class RMSNorm(_Affine):
    """N(x) = γ(z,d) x / √(⟨x²⟩ + eps). Discrete case: ``nn.RMSNorm``."""

    def __init__(self, weights: Parametrisation, eps: float = 1e-6, affine: bool = True) -> None:
        super().__init__(weights, eps, scale=affine, shift=False)

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Return the fused kernel where weights are equal, the weighted form elsewhere."""
        eps, width, fused = self.eps, len(grids["d"]), grids["d"].is_uniform

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            scale = at_depth(args, z).get("scale")
            if fused:
                return F.rms_norm(x, (width,), scale, eps)
            y = standardise(x, args["share"], eps, centred=False)
            return y if scale is None else y * scale

        return self.bound(f, grids, context)


@register
class Constraint(_Affine):
    """P_S(u) = γ(z) ⊙ N((u−β(z))/γ(z)) + β(z): the projection onto the set S_z = {γ⊙y + β : ⟨y⟩ = 0, ⟨y²⟩ = 1}.

    Near the identity for a state near S_z and idempotent up to eps, unlike plain post-norm. γ(z) = 0 is refused.
    """

    def __init__(self, weights: Parametrisation, eps: float = 1e-12, centred: bool = True) -> None:
        super().__init__(weights, eps, scale=True, shift=True)
        self.centred = centred

    def finish(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Refuse a vanishing γ."""
        if "scale" in values and bool((values["scale"] == 0).any()):
            raise ContinuaError(
                "the constraint set needs γ(z) ≠ 0", got="a zero in γ", remedy="Start γ at one and keep it off zero."
            )
        return values

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Return the shifted and scaled standardisation."""
        eps, centred = self.eps, self.centred

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            w = at_depth(args, z)
            return w["scale"] * standardise((x - w["shift"]) / w["scale"], args["share"], eps, centred) + w["shift"]

        return self.bound(f, grids, context)


@register
class SphereProjection(Operator):
    """x ← radius · x / ‖x‖ with ‖x‖² = ⟨x²⟩: every token on the sphere of root-mean-square ``radius``; 0 stays 0."""

    def __init__(self, radius: float = 1.0, eps: float = 0.0) -> None:
        super().__init__()
        self.radius, self.eps = radius, eps

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """No weights; only the measure of d."""
        radius, eps = self.radius, self.eps

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            share = args["share"] if args["share"] is None else args["share"].to(x)
            square = _mean(x * x, share) + eps
            # absent tokens start at zero and have no direction; 0 · ∞ would be NaN and reach every other token as a key
            return radius * x * torch.rsqrt(torch.where(square == 0, 1.0, square))

        return Bound(f, local=lambda z, args: args), {"share": _share(grids["d"], grids["d"].weights)}


@register
class Project(Operator):
    """An operator used as a projection x ← N(x): post-norm."""

    is_flow = False

    def __init__(self, norm: Operator) -> None:
        super().__init__()
        self.norm = norm

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Bind the norm itself."""
        return self.norm.bind(grids, context)
