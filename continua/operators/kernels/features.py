"""Linear attention: e^⟨x, y⟩ as a mean of products of positive random features, with its normaliser."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from continua import constants
from continua.axes import Grid
from continua.axes.sharded import Layout
from continua.config import register
from continua.constants import constant_result
from continua.errors import ConfigError
from continua.operators.attention.plan import Plan, Scores
from continua.operators.kernels.feature_sums import (
    ROWS,
    Around,
    Bank,
    Projected,
    Sums,
    attend_causal,
    key_weights,
)
from continua.operators.kernels.kernel import Dot, Way
from continua.operators.kernels.prefix import Chunks, attend_chunks, chunks_of
from continua.operators.kernels.sampled import equal_stamps, only_causal
from continua.operators.mask import Mask
from continua.settings import Seed, Size, Whole
from continua.typing import Float, PerQuery, PerSource, Tensor

FEATURES = 1 << 16  # features at a time, of one head: what stays in a processor's cache


_kept = constants.Cache(64)


def directions(
    m: int, width: int, seed: int, step: int, device: torch.device, dtype: torch.dtype
) -> Float[Tensor, "m e"]:
    """m normal directions [m, width], orthogonal within each group of ``width`` (Yu et al. 2016)."""
    return _constant(m, width, seed, step, device, dtype)[0]


@constant_result
def _constant(m: int, width: int, seed: int, step: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor]:
    key = (m, width, seed, step, device, dtype)
    return (_kept.get(key, lambda: constants.tensor(_directions(m, width, seed, step), device, dtype)),)


@constants.bounded(64)
def _directions(m: int, width: int, seed: int, step: int) -> Any:
    """As an array in float64."""
    with constants.outside_modes():
        return _drawn(m, width, seed, step).numpy()


def _drawn(m: int, width: int, seed: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
    count = -(-m // width)
    square = torch.randn(count, width, width, generator=generator, dtype=torch.float64)
    lengths = torch.randn(count, width, width, generator=generator, dtype=torch.float64).norm(dim=-1, keepdim=True)
    q, r = torch.linalg.qr(square)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # else the first directions keep to one half of space
    return (q.mT * lengths).reshape(-1, width)[:m].clone()


@dataclass(frozen=True)
class Totals:
    """What the tokens of all processes come to: the log of the mass of keys, the number of queries; [samples, 1, 1]."""

    log_mass: Tensor
    queries: Tensor

    @classmethod
    def of(cls, whole: Grid, weighted: bool) -> "Totals":
        """Of the grid of all tokens; equal weights are left out, as they are in the scores."""
        there = whole.log_weights if weighted else torch.zeros_like(whole.log_weights)
        return cls(
            there.logsumexp(-1).reshape(-1, 1, 1), whole.observed.sum(-1).clamp_min(1).to(there).reshape(-1, 1, 1)
        )


@dataclass(frozen=True)
class Prepared:
    """What depends on the nodes alone."""

    around: Around | None = None  # causal tokens
    chunks: Chunks | None = None  # causal tokens in parts
    totals: Totals | None = None  # others in parts


@register
@dataclass(frozen=True)
class PositiveFeatures(Dot):
    """e^⟨x, y⟩ ∝ E φ(x)φ(y), φ(x) = exp(A‖ω‖² + √(1−4A)⟨ω, x⟩ − ‖x‖²/2), ω ~ N(0, I): O(n·m) time, error m^−½.

    Positive features keep the normaliser positive (Choromanski et al. 2021); rows of ω are orthogonal, and A < 0 is
    the one that suits the mean of ‖x+y‖² (Likhosherstov et al. 2022). Their variance still grows fast with ‖x+y‖², so
    queries and keys are first brought close to zero: keys are taken from their mean, which leaves the weights as they
    are; queries from theirs, which moves the factor e^⟨q̄, k⟩ into the weights of the keys; and both are mapped so that
    ⟨q, k⟩ stays and their size is least (a constant for the gradient, as the exact kernel does not depend on it).
    Under ``Causal()`` all that would look ahead, so there they are taken as they are, and A is that of entries of size
    one. The seed is explicit; ``step`` gives another draw.
    """

    m: Size = 256
    seed: Seed = 0
    step: Whole = 0
    is_exact: ClassVar[bool] = False
    order: ClassVar[float] = 0.5

    def fresh(self, step: int) -> "PositiveFeatures":
        """The same kernel with the features of another step."""
        return replace(self, step=step)

    def way(self, mask: Mask | None) -> Way:
        """One sum of features over the processes; under ``Causal()`` one over the chunks before."""
        return Way.SUMMED

    def prepare(self, plan: Plan, scores: Scores, t: Grid, s: Grid) -> "Prepared":
        """What equal stamps ask for behind a causal block; where all is seen and tokens are in parts, their totals."""
        dot_alone(plan, "PositiveFeatures")
        causal = only_causal(plan, "PositiveFeatures")
        if t.shard is None:
            return Prepared(around=Around(equal_stamps(t, ROWS)) if causal else None)
        if causal:
            return Prepared(chunks=chunks_of(plan, scores, t, t.shard))
        return Prepared(totals=Totals.of(t.shard.whole, plan.weighted))

    def attend(self, q: PerQuery, k: PerSource, v: PerSource, plan: Any, scores: Any) -> PerQuery:
        """φ(q)·Σ φ(k) w V over φ(q)·Σ φ(k) w."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        x, y, v = plan.scale**0.5 * q.to(dtype), plan.scale**0.5 * k.to(dtype), v.to(dtype)
        omega = directions(self.m, q.shape[-1], self.seed, self.step, x.device, x.dtype)
        weights = key_weights(plan, scores, x, y.shape[2])
        prepared: Prepared = scores.prepared
        if prepared.around is not None or prepared.chunks is not None:
            bank = Bank.of(omega, x.new_full((1, 1), 2.0 * q.shape[-1] * plan.scale))
            given = Projected(x, y, v, weights, bank)
            if prepared.chunks is not None:
                return attend_chunks(given, plan, plan.layout, prepared.chunks).to(q.dtype)
            around = prepared.around or Around()
            return attend_causal(given, plan, scores, around, Sums.none(y, v, omega)).to(q.dtype)
        x, y, weights, size = _centred(x, y, weights, scores.present, prepared.totals, plan.layout)
        bank = Bank.of(omega, size)
        step = max(64, FEATURES // self.m)
        sums = Projected(x, y, v, weights, bank).keys_of(0, y.shape[2], step)
        sums = sums if plan.layout is None else sums.over_all(plan.layout)
        answers = [sums.answer(bank.logs(rows)) for rows in x.split(step, 2)]
        return torch.cat(answers, 2).to(q.dtype)


def dot_alone(plan: Plan, kernel: str) -> None:
    """Refuse a bias of each pair: the scores must be dot products."""
    if plan.position.has_pair_bias:
        got, remedy = type(plan.position).__name__, "Use Rotary() positions, or kernel=FewSources(…)."
        raise ConfigError(f"{kernel} has no place for a bias of each pair", got=got, remedy=remedy)


def _centred(
    x: Tensor, y: Tensor, weights: Tensor, present: Tensor | None, totals: Totals | None, layout: Layout | None
) -> tuple[Tensor, ...]:
    """The same attention with smaller queries and keys, the weights that make up for it, and the mean of ‖x + y‖².

    In parts each mean is a sum over the processes.
    """

    def total(*shares: Tensor) -> Tensor:
        return torch.stack(shares) if layout is None else layout.sum(torch.stack(shares))

    here = x.new_ones(1, x.shape[2]) if present is None else present.reshape(-1, x.shape[2]).to(x)
    here = here / here.sum(-1, keepdim=True) if totals is None else here / totals.queries[:, 0].to(x)
    here = here[:, None, :, None]
    there = weights.softmax(-1) if totals is None else (weights - totals.log_mass.to(x)).exp()
    there = there[..., None]
    mean_x, mean_y = total((here * x).sum(2, keepdim=True), (there * y).sum(2, keepdim=True))
    x, y = x - mean_x, y - mean_y
    there = there.detach()
    to_x, to_y = _balanced(*total(_second(x, here), _second(y, there)))
    weights = weights + (y * mean_x).sum(-1)
    x, y = x @ to_x.to(x), y @ to_y.to(y)
    size = (here * x.square()).sum((-2, -1)) + (there * y.square()).sum((-2, -1))
    return x, y, weights, total(size.detach())[0]


def _second(x: Tensor, weights: Tensor) -> Tensor:
    """∫ x xᵀ in float64, without a graph: [b, h, e, e]."""
    x = x.detach().double()
    return x.mT @ (weights * x)


def _balanced(c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Maps M and M⁻ᵀ of queries and keys that leave ⟨q, k⟩ and make E‖q‖² + E‖k‖² least, for moments C and D of both.

    With C = LLᵀ the queries L⁻¹q have moment one and the keys Lᵀk have G = LᵀDL; P = G^¼ makes both moments G^½.
    Directions that only queries or only keys have go to zero. A ridge keeps P smooth where G is nearly singular.
    """
    eye = torch.eye(c.shape[-1], dtype=c.dtype, device=c.device)
    tiny = torch.finfo(torch.float32).tiny

    def ridge(a: Tensor) -> Tensor:
        return a + (1e-6 * a.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] + tiny) * eye

    low = torch.linalg.cholesky(ridge(c))
    found = torch.linalg.eigh(ridge(low.mT @ d @ low))
    root = found.eigenvalues.clamp_min(tiny)[..., None, :] ** 0.25
    p, inverse = ((found.eigenvectors * r) @ found.eigenvectors.mT for r in (root, 1 / root))
    return torch.linalg.solve_triangular(low, eye, upper=False).mT @ p, low @ inverse
