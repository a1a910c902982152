"""Normalisation against the measure of d, inside a branch (pre-norm) or as a projection (post-norm)."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from continua.axes import Grid, Grids
from continua.checks import looking
from continua.config import register
from continua.errors import ContinuaError, GridError
from continua.fields import Parametrisation
from continua.fields.role import GAIN, SHIFT
from continua.flow.vectorfield import Bound
from continua.operators.calibration import Target, calibration, extra, folded
from continua.operators.correction import corrected, corrected_by, correction
from continua.operators.operator import Context, Note, Operands, Operator, local, read_late
from continua.operators.rms import rms_norm
from continua.operators.stored import StoredReads
from continua.operators.weights import Sampled, Weight, Weights, sample
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


def _refuse_one(d: Grid, norm: str) -> None:
    """A single coordinate is its own mean: centred, it is zero whatever the data."""
    if d.count == 1:
        remedy = "Use at(d=2) or more, or a model with RMSNorm."
        raise GridError(f"{norm} leaves nothing of a width of one", got="one node of d", remedy=remedy)


@dataclass(frozen=True)
class NormOperands(Operands):
    """Scale and shift, and the share of each node in means over d (None: equal shares)."""

    share: Tensor | None


@dataclass(frozen=True)
class Noted:
    """A norm that shows what it is given."""

    inner: VectorFunction
    note: Note

    def __call__(self, z: float, x: Tensor, args: NormOperands) -> Tensor:
        """Show the state, then evaluate."""
        self.note(z, "d", x)
        return self.inner(z, x, args)


class Affine(Operator):
    """Scale γ(z,d), shift β(z,d) and the share of each node in the mean over d."""

    def __init__(self, weights: Parametrisation, eps: float, scale: bool, shift: bool, mean: float = 1.0) -> None:
        super().__init__()
        self.eps = eps
        self.stored_mean = mean  # of the scale as it is stored: what is missing to one is added where it is used
        self.scale = weights.field("zd", mean=mean, role=GAIN) if scale else None
        self.shift = weights.field("zd", role=SHIFT) if shift else None
        targets = {"scale": Target(GAIN, "d", integral="d")} if scale else {}
        if shift:
            targets["shift"] = Target(SHIFT, "d")
        self.calibration = calibration(weights, targets)
        asked = weights.corrections
        beyond = asked is not None and asked.beyond > 0  # elsewhere a calibration serves
        self.correction = correction(weights, {}, dict.fromkeys(targets, "d")) if beyond else None
        self._stored = StoredReads()

    def read(self, grids: Grids, late: bool = False) -> Sampled:
        """Scale and shift."""
        stored = self._stored.recall(self, grids)
        if stored is not None:
            return stored
        weights = {
            "scale": Weight(self.scale),
            **({} if self.shift is None else {"shift": Weight(self.shift)}),
            **extra(self.calibration, grids, late),
            **corrected_by(self.correction, grids),
        }

        def finish(values: dict[str, Tensor], depths: tuple[float, ...] | None) -> dict[str, Tensor]:
            missing = 1 - self.stored_mean if self.calibration is not None or self.correction is not None else 0.0
            values = _shifted(values, missing)  # factors are those of the scale itself
            values = corrected(self.correction, values, grids)
            return self.finish(_shifted(folded(self.calibration, values, grids, depths), -missing))

        made = sample(grids, weights, late, finish)
        plain = self.calibration is None and self.correction is None and type(self).finish is Affine.finish
        return self._stored.learn(self, grids, weights, made) if plain else made

    def place(self, read: Sampled, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """The function with its weights and the share of each node."""
        share = None if grids.d.is_uniform else _share(grids.d, next(self.parameters(), grids.d.weights))
        f = self.function(grids.d)
        note = context.noting(self, grids.t)
        f = f if note is None else Noted(f, note)
        return Bound(f, read_late(read.reading), local), NormOperands(read.weights, share)

    def function(self, d: Grid) -> VectorFunction:
        """What is evaluated on a grid of d."""
        raise NotImplementedError

    def finish(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """The last changes to scale and shift."""
        return values


def _shifted(values: dict[str, Tensor], by: float) -> dict[str, Tensor]:
    return {**values, "scale": values["scale"] + by} if by and "scale" in values else values


@dataclass(frozen=True)
class FusedLayerNorm:
    """Layer norm over equally weighted nodes, by the fused kernel."""

    width: int
    eps: float

    def __call__(self, z: float, x: Tensor, args: NormOperands) -> Tensor:
        """Evaluate."""
        w = args.weights.at(z)
        return F.layer_norm(x, (self.width,), w.get("scale"), w.get("shift"), self.eps)


@dataclass(frozen=True)
class FusedRMSNorm:
    """RMS norm over equally weighted nodes, by the fused kernel; ``missing`` is added to the scale."""

    eps: float
    missing: float = 0.0

    def __call__(self, z: float, x: Tensor, args: NormOperands) -> Tensor:
        """Evaluate."""
        scale = args.weights.at(z).get("scale")
        scale = scale if scale is None or not self.missing else scale + self.missing
        return rms_norm(x, scale, self.eps)


@dataclass(frozen=True)
class WeightedNorm:
    """Either norm against a measure whose weights differ."""

    eps: float
    centred: bool
    missing: float = 0.0  # added to the scale

    def __call__(self, z: float, x: Tensor, args: NormOperands) -> Tensor:
        """Evaluate."""
        w = args.weights.at(z)
        y = standardise(x, args.share, self.eps, self.centred)
        if "scale" in w:
            y = y * (w["scale"] + self.missing if self.missing else w["scale"])
        return y + w["shift"] if "shift" in w else y


@register
class LayerNorm(Affine):
    """N(x) = γ(z,d) (x − ⟨x⟩)/σ + β(z,d), σ² = ⟨(x−⟨x⟩)²⟩ + eps, ⟨x⟩ = ∫ x dμ(d)/mass(d).

    ``bias=False`` leaves β out. Discrete case: ``nn.LayerNorm``; equal weights of any size give it too.
    """

    def __init__(self, weights: Parametrisation, eps: float = 1e-5, affine: bool = True, bias: bool = True) -> None:
        super().__init__(weights, eps, scale=affine, shift=affine and bias)

    def function(self, d: Grid) -> VectorFunction:
        """The fused kernel where weights are equal, the weighted form elsewhere."""
        _refuse_one(d, "LayerNorm")
        return FusedLayerNorm(d.count, self.eps) if d.is_uniform else WeightedNorm(self.eps, centred=True)


@register
class RMSNorm(Affine):
    """N(x) = γ(z,d) x / √(⟨x²⟩ + eps). Discrete case: ``nn.RMSNorm``.

    ``around_one`` stores γ − 1 (Gemma), so that weights of zero are the plain norm.
    """

    def __init__(
        self, weights: Parametrisation, eps: float = 1e-6, affine: bool = True, around_one: bool = False
    ) -> None:
        super().__init__(weights, eps, scale=affine, shift=False, mean=0.0 if around_one else 1.0)

    def function(self, d: Grid) -> VectorFunction:
        """The fused kernel where weights are equal, the weighted form elsewhere."""
        missing = 1 - self.stored_mean
        if d.is_uniform:
            return FusedRMSNorm(self.eps, missing)
        return WeightedNorm(self.eps, centred=False, missing=missing)


@dataclass(frozen=True)
class Scaling:
    """γ x."""

    def __call__(self, z: float, x: Tensor, args: NormOperands) -> Tensor:
        """Evaluate."""
        return x * args.weights.at(z)["scale"]


@register
class LayerScale(Affine):
    """γ(z,d) x: a factor of each coordinate behind a branch (Touvron et al. 2021). Discrete case: ``x * gamma``."""

    def __init__(self, weights: Parametrisation) -> None:
        super().__init__(weights, 0.0, scale=True, shift=False)

    def function(self, d: Grid) -> VectorFunction:
        """The same on every grid."""
        return Scaling()


@register
class Constraint(Affine):
    """P_S(u) = γ(z) ⊙ N((u−β(z))/γ(z)) + β(z): the projection onto the set S_z = {γ⊙y + β : ⟨y⟩ = 0, ⟨y²⟩ = 1}.

    Near the identity for a state near S_z and idempotent up to eps, unlike plain post-norm. γ(z) = 0 is refused.
    """

    def __init__(self, weights: Parametrisation, eps: float = 1e-12, centred: bool = True) -> None:
        super().__init__(weights, eps, scale=True, shift=True)
        self.centred = centred

    def finish(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Refuse a vanishing γ."""
        if "scale" in values and looking() and bool((values["scale"] == 0).any()):
            raise ContinuaError(
                "the constraint set needs γ(z) ≠ 0", got="a zero in γ", remedy="Start γ at one and keep it off zero."
            )
        return values

    def function(self, d: Grid) -> VectorFunction:
        """The shifted and scaled standardisation."""
        if self.centred:
            _refuse_one(d, "Constraint")
        eps = self.eps
        centred = self.centred

        def f(z: float, x: Tensor, args: NormOperands) -> Tensor:
            w = args.weights.at(z)
            return w["scale"] * standardise((x - w["shift"]) / w["scale"], args.share, eps, centred) + w["shift"]

        return f


@register
class SphereProjection(Operator):
    """x ← radius · x / ‖x‖ with ‖x‖² = ⟨x²⟩: every token on the sphere of root-mean-square ``radius``; 0 stays 0."""

    def __init__(self, radius: float = 1.0, eps: float = 0.0) -> None:
        super().__init__()
        self.radius, self.eps = radius, eps

    def place(self, read: None, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """No weights; only the measure of d."""
        radius = self.radius
        eps = self.eps

        def f(z: float, x: Tensor, args: NormOperands) -> Tensor:
            share = None if args.share is None else args.share.to(x)
            square = _mean(x * x, share) + eps
            # absent tokens start at zero and have no direction; 0 · ∞ would be NaN and reach every other token as a key
            return radius * x * torch.rsqrt(torch.where(square == 0, 1.0, square))

        return Bound(f, local=local), NormOperands(Weights(), _share(grids.d, grids.d.weights))


@register
class Project(Operator):
    """An operator used as a projection x ← N(x): post-norm."""

    is_flow = False

    def __init__(self, norm: Operator) -> None:
        super().__init__()
        self.norm = norm

    def read(self, grids: Grids, late: bool = False) -> Any:
        """The weights of the norm."""
        return self.norm.read(grids, late)

    def place(self, read: Any, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """The norm itself."""
        return self.norm.place(read, grids, context)
