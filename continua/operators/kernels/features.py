"""Linear attention: e^⟨x, y⟩ as a mean of products of positive random features, with its normaliser."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from continua import constants
from continua.axes import Grid
from continua.config import register
from continua.constants import constant_result
from continua.errors import ConfigError
from continua.operators.attention.plan import Plan, Scores
from continua.operators.kernels.kernel import Dot
from continua.operators.kernels.sampled import only_causal, overhang
from continua.settings import Seed, Size, Whole
from continua.typing import Float, PerQuery, PerSource, Tensor

ROWS = 256  # tokens of a causal block
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

    def prepare(self, plan: Plan, scores: Scores, t: Grid, s: Grid) -> int | None:
        """What equal stamps ask for behind a causal block; None where all is seen."""
        dot_alone(plan, "PositiveFeatures")
        return overhang(t, ROWS) if only_causal(plan, "PositiveFeatures") else None

    def attend(self, q: PerQuery, k: PerSource, v: PerSource, plan: Any, scores: Any) -> PerQuery:
        """φ(q)·Σ φ(k) w V over φ(q)·Σ φ(k) w."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        x, y, v = plan.scale**0.5 * q.to(dtype), plan.scale**0.5 * k.to(dtype), v.to(dtype)
        omega = directions(self.m, q.shape[-1], self.seed, self.step, x.device, x.dtype)
        weights = scores.log_weights.to(dtype) if plan.weighted else x.new_zeros(x.shape[0], y.shape[2])
        weights = weights.reshape(-1, 1, y.shape[2]).expand(x.shape[0], x.shape[1], -1)
        if scores.prepared is not None:
            bank = Bank.of(omega, x.new_full((1, 1), 2.0 * q.shape[-1] * plan.scale))
            return _causal(x, y, v, bank, plan, scores, weights).to(q.dtype)
        x, y, weights, size = _centred(x, y, weights, scores.present)
        bank, step = Bank.of(omega, size), max(64, FEATURES // self.m)
        sums = _Sums.none(y, v, omega)
        for start in range(0, y.shape[2], step):
            keys = slice(start, start + step)
            sums = sums.with_keys(bank.logs(y[:, :, keys]) + weights[:, :, keys, None], v[:, :, keys])
        answers = [sums.answer(bank.logs(rows)) for rows in x.split(step, 2)]
        return torch.cat(answers, 2).to(q.dtype)


def dot_alone(plan: Plan, kernel: str) -> None:
    """Refuse a bias of each pair: the scores must be dot products."""
    if plan.position.has_pair_bias:
        got, remedy = type(plan.position).__name__, "Use Rotary() positions, or kernel=FewSources(…)."
        raise ConfigError(f"{kernel} has no place for a bias of each pair", got=got, remedy=remedy)


@dataclass(frozen=True)
class Bank:
    """The features of each sample and head: √(1−4A) ω [b, h, m, e] and A‖ω‖² [b, h, 1, m]."""

    omega: Tensor
    offset: Tensor

    @classmethod
    def of(cls, omega: Tensor, size: Tensor) -> "Bank":
        """With the A of least variance for the mean ``size`` [b, h] of ‖x + y‖²."""
        d = omega.shape[-1]
        size = size.clamp_min(1e-3)
        rho = (((2 * size + d) ** 2 + 8 * d * size).sqrt() - 2 * size - d) / (4 * size)
        a = ((1 - 1 / rho) / 8)[..., None, None]
        return cls((1 - 4 * a).sqrt() * omega, a * omega.square().sum(-1))

    def logs(self, x: Tensor) -> Tensor:
        """log φ(x): [b, h, n, m]."""
        return x @ self.omega.mT + (self.offset - x.square().sum(-1, keepdim=True) / 2)


@dataclass(frozen=True)
class _Sums:
    """Σ φ(k) w V and Σ φ(k) w, [b, h, m, e + 1], both divided by e^level: the largest feature is near one."""

    values: Tensor
    level: Tensor

    @classmethod
    def none(cls, k: Tensor, v: Tensor, omega: Tensor) -> "_Sums":
        """No key yet."""
        lead = (*k.shape[:2], omega.shape[-2])
        return cls(v.new_zeros(*lead, v.shape[-1] + 1), v.new_full((*lead[:2], 1, 1), -torch.inf))

    def with_keys(self, logs: Tensor, v: Tensor) -> "_Sums":
        """Some keys more."""
        top = torch.maximum(self.level, logs.detach().amax((-2, -1), keepdim=True))
        features = (logs - top).exp()
        more = torch.cat([features.mT @ v, features.sum(-2)[..., None]], -1)
        return _Sums((self.level - top).exp() * self.values + more, top)

    def answer(self, logs: Tensor) -> Tensor:
        """The ratio of the two sums for the log-features of some queries, each divided by its own largest."""
        return ratio((logs - logs.detach().amax(-1, keepdim=True)).exp() @ self.values)


def ratio(sums: Tensor) -> Tensor:
    """Values over the normaliser in the last column, which is kept from vanishing."""
    return sums[..., :-1] / sums[..., -1:].clamp_min(torch.finfo(sums.dtype).tiny)


def _centred(x: Tensor, y: Tensor, weights: Tensor, present: Tensor | None) -> tuple[Tensor, ...]:
    """The same attention with smaller queries and keys, the weights that make up for it, and the mean of ‖x + y‖²."""
    here = x.new_ones(1, x.shape[2]) if present is None else present.reshape(-1, x.shape[2]).to(x)
    here = (here / here.sum(-1, keepdim=True))[:, None, :, None]
    there = weights.softmax(-1)[..., None]
    mean_x, mean_y = (here * x).sum(2, keepdim=True), (there * y).sum(2, keepdim=True)
    x, y = x - mean_x, y - mean_y
    there = there.detach()
    to_x, to_y = _balanced(_second(x, here), _second(y, there))
    weights = weights + (y * mean_x).sum(-1)
    x, y = x @ to_x.to(x), y @ to_y.to(y)
    size = ((here * x.square()).sum((-2, -1)) + (there * y.square()).sum((-2, -1))).detach()
    return x, y, weights, size


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


def _causal(x: Tensor, y: Tensor, v: Tensor, bank: Bank, plan: Plan, scores: Scores, weights: Tensor) -> Tensor:
    """Block by block: the sums of all earlier blocks, and the pairs within the block under the mask."""
    sums = _Sums.none(y, v, bank.omega)
    answers = []
    for start in range(0, x.shape[2], ROWS):
        rows, keys = slice(start, start + ROWS), slice(start, start + ROWS + scores.prepared)
        queries, own = bank.logs(x[:, :, rows]), bank.logs(y[:, :, keys])
        bias = plan.pair_bias(slice(0, ROWS), x, scores.part(rows, keys))
        largest = own.detach().amax((-2, -1), keepdim=True)
        most = bias.detach().amax(-1, keepdim=True)  # a first row may own next to nothing: the left part of its cell
        top = torch.maximum(sums.level, largest + most)
        features = (queries - queries.detach().amax(-1, keepdim=True)).exp()
        pairs = features @ (own - largest).exp().mT * (bias - most).exp()
        here = torch.cat([pairs @ v[:, :, keys], pairs.sum(-1, keepdim=True)], -1)
        answers.append(ratio((sums.level - top).exp() * (features @ sums.values) + (largest + most - top).exp() * here))
        block = v[:, :, rows].shape[2]
        sums = sums.with_keys(own[:, :, :block] + weights[:, :, rows, None], v[:, :, rows])
    return torch.cat(answers, 2)
