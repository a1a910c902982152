"""Attention by distance alone: a convolution, done by the fast Fourier transform."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch

from continua.axes import Axes, Axis, Grid, Points, mass_of
from continua.axes.grid import absent
from continua.config import register
from continua.errors import GridError, MaskError
from continua.fields.basis import unit_coordinate
from continua.operators.attention.plan import Plan, Scores
from continua.operators.kernels.kernel import Kernel, Uniform
from continua.operators.mask import Causal, Mask
from continua.operators.position import Position
from continua.typing import Float, PerQuery, PerSource, Tensor

FAINT = 1e-3  # a normaliser below this part of the largest would carry too much of the transform's round-off


@register
class Gaussian(Position):
    """bias = −(t − s)²/(2ℓ_h²), ℓ_h = near·(far/near)^u_h: heads that look near and heads that look far.

    u_h is the place of the head on its axis, in [0, 1]: (i+½)/H on ``Points(H)``.
    """

    def __init__(self, axes: Axes, near: float, far: float | None = None) -> None:
        super().__init__()
        self.axes, self.near, self.far = axes, near, near if far is None else far

    def bind(self, h: Grid, e: Grid) -> Any:
        """Return the widths of the heads."""
        axis = self.axes.h
        u = (h.nodes[:, 0] + 0.5) / axis.n if isinstance(axis, Points) and axis.n else unit_coordinate(axis, h.nodes)
        return self.near * (self.far / self.near) ** u

    def pair_bias(
        self, t: Float[Tensor, "*#b t k"], s: Float[Tensor, "*#b s k"], args: Any
    ) -> Float[Tensor, "*bh t s"] | None:
        """−½ (distance/ℓ)², in any dimension."""
        square = sum((t[..., i : i + 1] - s[..., i : i + 1].mT).to(args).square() for i in range(t.shape[-1]))
        return -0.5 * torch.as_tensor(square)[..., None, :, :] / args.square()[:, None, None]


@register
@dataclass(frozen=True)
class Stationary:
    """κ(t, s) = exp(bias(t − s)): the position bias alone decides. O(n log n) time, O(n) memory, exact.

    ∫κ V dμ and ∫κ dμ are two convolutions on a uniform grid, where tokens may be missing and weights may differ; rows
    that see next to nothing (the middle of a wide gap) are summed directly. A causal mask cuts the kernel at zero
    distance and pads with zeros. Irregular stamps are refused: resample them, or use ``Local`` or ``FewSources``.
    Discrete case: ``nn.Conv1d`` with positive weights of sum one, as long as the sequence.
    """

    is_exact: ClassVar[bool] = True
    is_dot: ClassVar[bool] = False
    over_keys: ClassVar[str] = "c"
    order: ClassVar[float] = torch.inf

    def scale(self, e: Axis) -> float:
        """That of softmax, so that unused queries and keys start as they would there."""
        return mass_of(e) ** -0.5

    def scores(
        self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b h s e"], scale: float
    ) -> Float[Tensor, "b h t s"]:
        """None but the bias."""
        return Uniform().scores(q, k, scale)

    def plain(self, mask: Mask | None) -> tuple[Kernel, Mask | None]:
        """The bias alone, pair by pair."""
        return Uniform(), mask

    def prepare(self, plan: Plan, scores: Scores, t: Grid, s: Grid) -> Tensor | None:
        """See that the stamps are uniform; return even stamps for absent tokens, where there are some."""
        if plan.mask is not None and not isinstance(plan.mask, Causal):
            remedy = "Use kernel=Uniform() there, which takes every mask."
            raise MaskError("Stationary takes no mask but Causal()", got=plan.mask, remedy=remedy)
        if not plan.itself or t.nodes.shape[-1] != 1:
            got = "another field's" if t.nodes.shape[-1] == 1 else f"{t.nodes.shape[-1]}-dimensional points"
            raise GridError("Stationary convolves along its own times", got=got, remedy="Use kernel=Uniform() there.")
        return _lattice(t)

    def attend(self, q: PerQuery, k: PerSource, v: PerSource, plan: Any, scores: Any) -> PerQuery:
        """Two convolutions and a quotient."""
        dtype, n = torch.promote_types(q.dtype, torch.float32), q.shape[2]
        v = v.repeat_interleave(q.shape[1] // v.shape[1], 1).to(dtype)
        log_weights = scores.log_weights.to(dtype) if plan.weighted else v.new_zeros(n)
        weights = log_weights.reshape(-1, 1, n, 1).exp()
        values = torch.cat([weights * v, weights.expand(*v.shape[:3], 1)], -1)
        taps = _taps(plan, scores, dtype)
        kernel, top = _raised(taps, plan.mask is not None, plan.split_cell)
        sums = _convolved(kernel, values)
        if plan.split_cell:
            part = (scores.log_left.to(dtype).reshape(-1, 1, n, 1) + taps[..., n - 1 : n, None] - top).exp()
            sums = sums + part * torch.cat([v, torch.ones_like(v[..., :1])], -1)
        faint = sums[..., -1] <= FAINT * sums[..., -1].amax(-1, keepdim=True)
        out = sums[..., :-1] / torch.where(faint, 1.0, sums[..., -1])[..., None]
        out = _directly(out, faint, v, plan, scores) if bool(_seen(faint, scores.present).any()) else out
        return (out + 0 * (q.sum(-1, keepdim=True) + k.sum())).to(q.dtype)  # no gradient is zero, not missing


def _lattice(t: Grid) -> Tensor | None:
    """Even stamps [samples, n, 1] for absent tokens, which may carry any; ``None`` where no stamp is in doubt."""
    if t.is_counting and t.is_ordered:
        return None
    times, observed = torch.broadcast_tensors(t.nodes[..., 0].detach().double(), t.observed)
    times, observed = times.reshape(-1, len(t)), observed.reshape(-1, len(t))
    count = torch.arange(len(t), device=times.device)
    first, last = (torch.where(observed, count, far).sort(-1).values for far in (len(t) - 1, 0))
    first, last = first[:, :1], last[:, -1:]
    start, end = times.gather(-1, first), times.gather(-1, last)
    step = (end - start) / (last - first).clamp_min(1)
    even = start + (count - first) * step
    off = torch.where(observed, (times - even).abs(), 0.0)
    if bool((off > 1e-6 * step.abs()).any() or ((step == 0) & (last > first)).any()):
        got = f"a stamp off by {(off / step.abs()).max().item():.2g} of a step"
        remedy = (
            "Resample on a uniform grid (tokens may be missing), or use kernel=Uniform(), Local(r) or FewSources(…)."
        )
        raise GridError("Stationary needs evenly spaced stamps", got=got, remedy=remedy)
    return even[..., None] if t.has_gaps else None


def _taps(plan: Plan, scores: Scores, dtype: torch.dtype) -> Tensor:
    """The bias at every distance (n−1)δ … −(n−1)δ of source and query: [*b, 1 or h, 2n − 1], from far past to future.

    Entry j belongs to t − s = (j − n + 1)δ.
    """
    times = cast(Tensor, scores.t)
    lattice = scores.prepared
    if lattice is not None and scores.log_weights is not None:
        times = torch.where((scores.log_weights > absent(times.dtype) / 2)[..., None], times, lattice.to(times))
    # both halves from the stamps themselves: their differences are those that pairs have
    past, future = times - times[..., :1, :], times[..., :-1, :] - times[..., -1:, :]
    gaps = torch.cat([future, past], -2)
    bias = plan.position.pair_bias(gaps, torch.zeros_like(gaps[..., :1, :]), scores.position)
    bias = gaps.new_zeros(1, *gaps.shape[-2:-1]) if bias is None else bias[..., 0]
    return bias.to(dtype).reshape(-1, *bias.shape[-2:])


def _raised(taps: Tensor, causal: bool, split: bool) -> tuple[Tensor, Tensor]:
    """e^(bias − top), zero for the future under a causal mask (and for the own token where its cell is split)."""
    n = (taps.shape[-1] + 1) // 2
    allowed = torch.ones(2 * n - 1, dtype=torch.bool, device=taps.device)
    if causal:
        allowed[: n - 1 + int(split)] = False
    own = torch.arange(2 * n - 1, device=taps.device) >= n - 1 if causal else allowed
    top = torch.where(own, taps.detach(), -torch.inf).amax(-1, keepdim=True)
    return torch.where(allowed, (taps - top).exp(), 0.0)[..., None], top[..., None]


def _convolved(kernel: Tensor, values: Tensor) -> Tensor:
    """Σ_s κ(t − s) values(s) by transforms of length 2n: what wraps around falls on rows that are not read."""
    n = values.shape[-2]
    length = _quick_length(2 * n - 1)
    both = torch.fft.rfft(kernel, length, dim=-2) * torch.fft.rfft(values, length, dim=-2)
    return torch.fft.irfft(both, length, dim=-2)[..., n - 1 : 2 * n - 1, :]


def _quick_length(least: int) -> int:
    """The next length of the form 2^a·3^b·5^c, for which transforms are fast."""
    best = 1 << (least - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            two = three << max(0, (-(-least // three) - 1).bit_length())
            best = min(best, two) if two >= least else best
            three *= 3
        five *= 5
    return best


def _seen(faint: Tensor, present: Tensor | None) -> Tensor:
    return faint if present is None else faint & present[..., None, :]


def _directly(out: Tensor, faint: Tensor, v: Tensor, plan: Plan, scores: Scores) -> Tensor:
    """The rows that are faint in any head or sample, pair by pair."""
    rows = _seen(faint, scores.present).flatten(0, 1).any(0).nonzero()[:, 0]
    answers = []
    for some in rows.split(256):
        bias = plan.pair_bias(slice(None), v, replace(scores, t=cast(Tensor, scores.t)[..., some, :]))
        answers.append(bias.softmax(-1).to(v.dtype) @ v)
    mixed = torch.where(faint[..., rows, None], torch.cat(answers, 2), out[:, :, rows])
    return out.index_copy(2, rows, mixed)
