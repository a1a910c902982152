"""How much of what a layer does to its tokens is attention of the theory, its own attention, the rest: a ladder of R².

The displacements are those of the model's own solve. The rungs are computed here from its weights, in float64 and
written out plainly: the top rung is the whole layer and must be one, which holds the lab to the model.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear, normalize

from continua.axes import Discretisation
from continua.errors import ShapeError
from continua.lab.probes.attention import AttentionMap
from continua.lab.probes.dynamics import Recording, Sinks, look
from continua.lab.probes.stack import ATTENTION, FEED, Stack
from continua.lab.progress import ReportCount
from continua.models import Batch, View
from continua.operators import Constraint, LayerNorm, Pointwise, SphereProjection
from continua.operators.norm import standardise
from continua.typing import Float, Tensor

IDENTITY = "identity"
TOP = "norm"
RUNGS = (IDENTITY, ATTENTION, FEED, TOP)
BETAS = (0.0, *(2.0 ** (k / 2) for k in range(-6, 13)))  # 1/8 … 64, where the search for β begins and ends
NOISE = 1e-10  # of unit tokens: a hard attention that looks at itself alone moves by round-off, which predicts nothing
SHUFFLES = 8  # permutations whose mean is the shuffled null


@dataclass(frozen=True)
class Rung:
    """R² = 1 − Σ‖Δ − cp‖²/Σ‖Δ‖² of a prediction p, with one scale c for all tokens by least squares (top rung: c = 1).

    ``bare`` is R² with c = 1. ``shuffled`` is R² where each token is given the prediction of another one of its text
    (with a scale of its own): what the prediction knows of no token in particular.
    """

    name: str
    r2: float
    scale: float
    bare: float
    shuffled: float


@dataclass(frozen=True)
class Layer:
    """The ladder of one layer.

    ``size``: √(Σ‖Δ‖²/Σ‖x‖²). ``drift``: R² of the mean displacement, the same for every token. ``beta``: that of the
    identity rung, the best in [0, 64]. ``rungs``: those of ``RUNGS``, in order.
    """

    z: float
    size: float
    drift: float
    beta: float
    rungs: tuple[Rung, ...]

    def __getitem__(self, name: str) -> Rung:
        return next(rung for rung in self.rungs if rung.name == name)

    @property
    def distance(self) -> float:
        """√(1 − R²) of the identity rung: how far the layer is from its best-fitting particle flow, relative to Δ."""
        return math.sqrt(max(0.0, 1.0 - self[IDENTITY].r2))


@dataclass(frozen=True)
class Ladder:
    """The ladders of all layers. ``tokens`` is how many displacements each is fitted to."""

    layers: tuple[Layer, ...]
    tokens: int

    def rows(self) -> list[dict[str, float]]:
        """One line for each layer; ``shuffled`` is the null of the model's own attention."""
        return [
            {
                "z": layer.z,
                "size": layer.size,
                "drift": layer.drift,
                "shuffled": layer[ATTENTION].shuffled,
                **{rung.name: rung.r2 for rung in layer.rungs},
                "beta": layer.beta,
            }
            for layer in self.layers
        ]

    @property
    def top(self) -> float:
        """The worst top rung: one, up to round-off."""
        return min(layer[TOP].r2 for layer in self.layers)

    def plain(self) -> dict[str, Any]:
        """Everything, as JSON writes it."""
        return asdict(self)


@torch.no_grad()
def ladder(
    model: nn.Module | View | Recording,
    batch: Batch | Tensor | None = None,
    *,
    at: Discretisation | None = None,
    sinks: Sinks | None = Sinks(),  # noqa: B008  (frozen)
    generator: torch.Generator | None = None,
    watch: ReportCount = lambda done, total: None,
) -> Ladder:
    """Explain each layer's displacements Δ = x_{l+1} − x_l by more and more of the layer.

    ``identity``: c·m_i with m_i = Σ_j softmax_j(β⟨u_i, u_j⟩) u_j over the counted tokens that i may look at, u = x/‖x‖;
    its tangent part where layers end with a norm. The best β and c.
    ``attention``: c times the model's own attention, per head with its QK and OV, biases, mask and positions.
    ``feed-forward``: c times attention and feed-forward together, each as the layer meets it.
    ``norm``: the whole layer, nothing fitted. Norms inside a branch (pre-norm) belong to their branch: there the
    feed-forward rung is the whole layer already. ``generator`` draws the permutations of the shuffled null.

    >>> from continua.models import zoo
    >>> found = ladder(zoo.bert(vocab=9, d=8, heads=2, depth=3, context=8), torch.arange(8)[None], sinks=None)
    >>> bool(found.top > 1 - 1e-6)
    True
    """
    if isinstance(model, Recording):
        seen = model
    elif batch is None:
        raise ShapeError("the ladder looks at a batch", got="none", remedy="Pass ladder(model, batch).")
    else:
        seen = look(model, batch, at, sinks)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    orders = [
        torch.cat([torch.randperm(int(n), generator=generator) + s for n, s in _spans(seen)]) for _ in range(SHUFFLES)
    ]
    layers = []
    for i, (z, dz) in enumerate(seen.stack.steps):
        layers.append(_layer(seen, i, z, dz, orders))
        watch(i + 1, len(seen.maps))
    return Ladder(tuple(layers), int(seen.counted.sum()))


def _spans(seen: Recording) -> list[tuple[int, int]]:
    """How many counted tokens each text has, and where they begin."""
    counts = seen.counted.sum(-1).tolist()
    return [(n, sum(counts[:b])) for b, n in enumerate(counts)]


def _layer(seen: Recording, i: int, z: float, dz: float, orders: Sequence[Tensor]) -> Layer:
    x = seen.states[i]
    y = seen.states[i + 1]
    delta = torch.cat(seen.texts(y - x))
    attended, fed, end = walked(seen, i, z, dz)
    beta, alike = best_identity(seen, i, delta)
    rungs = [_rung(IDENTITY, delta, alike, orders)]
    rungs += [
        _rung(name, delta, torch.cat(seen.texts(each)), orders, fitted)
        for name, each, fitted in (
            (ATTENTION, attended, True),
            (FEED, attended + fed, True),
            (TOP, end - x, False),
        )
    ]
    drift = delta.mean(0).expand_as(delta)
    size = float(delta.norm() / torch.cat(seen.texts(x)).norm())
    return Layer(z, size, explained(delta, drift), beta, tuple(rungs))


def explained(delta: Float[Tensor, "n d"], p: Float[Tensor, "n d"]) -> float:
    """R² = 1 − Σ‖Δ − p‖²/Σ‖Δ‖², against no displacement at all; one where nothing moves and nothing is predicted."""
    total = float(delta.square().sum())
    rest = float((delta - p).square().sum())
    return 1.0 - rest / total if total else float(rest == 0.0)


def _scaled(delta: Tensor, p: Tensor) -> float:
    """The c that makes cp closest to Δ."""
    square = float(p.square().sum())
    return float((delta * p).sum()) / square if square else 0.0


def _rung(name: str, delta: Tensor, p: Tensor, orders: Sequence[Tensor], fitted: bool = True) -> Rung:
    scale = _scaled(delta, p) if fitted else 1.0
    others = [explained(delta, _scaled(delta, p[order]) * p[order]) for order in orders]
    return Rung(name, explained(delta, scale * p), scale, explained(delta, p), sum(others) / len(others))


# --- the identity rung: particles on the sphere ----------------------------------------------------------------------


def best_identity(seen: Recording, i: int, delta: Float[Tensor, "n d"]) -> tuple[float, Float[Tensor, "n d"]]:
    """The β whose attention of unit tokens to unit tokens, rescaled, is closest to Δ; and that prediction, unscaled."""
    texts = [normalize(x, dim=-1) for x in seen.texts(seen.states[i])]
    base = seen.maps[i].base.double().cpu().expand(len(texts), -1, -1, -1)[:, 0]
    logs = [w[keep][:, keep].log() for w, keep in zip(base, seen.counted, strict=True)]
    given = [(u, u @ u.mT, log) for u, log in zip(texts, logs, strict=True)]

    def predicted(beta: float) -> Tensor:
        moved = [torch.softmax(beta * cosine + log, -1) @ u for u, cosine, log in given]
        p = torch.cat(moved)
        if seen.stack.is_post_norm:
            u = torch.cat(texts)
            p = p - (p * u).sum(-1, keepdim=True) * u
        return torch.where(p.norm(dim=-1, keepdim=True) > NOISE, p, 0.0)

    def score(beta: float) -> float:
        p = predicted(beta)
        return explained(delta, _scaled(delta, p) * p)

    beta = _maximised(score, BETAS)
    return beta, predicted(beta)


def _maximised(score: Callable[[float], float], starts: Sequence[float]) -> float:
    """The best of the starts, then golden sections between its neighbours."""
    values = [score(beta) for beta in starts]
    best = max(range(len(starts)), key=values.__getitem__)
    low = starts[max(0, best - 1)]
    high = starts[min(len(starts) - 1, best + 1)]
    ratio = (math.sqrt(5) - 1) / 2
    a = high - ratio * (high - low)
    b = low + ratio * (high - low)
    fa = score(a)
    fb = score(b)
    while high - low > 1e-5 * max(1.0, high):
        if fa >= fb:
            high = b
            b = a
            fb = fa
            a = high - ratio * (high - low)
            fa = score(a)
        else:
            low = a
            a = b
            fa = fb
            b = low + ratio * (high - low)
            fb = score(b)
    found = (low + high) / 2
    return found if score(found) >= values[best] else starts[best]


# --- the model's own layer, written out ------------------------------------------------------------------------------


def walked(seen: Recording, i: int, z: float, dz: float) -> tuple[Tensor, Tensor, Tensor]:
    """Go through layer i from its first state alone: what attention and feed-forward add, and the last state."""
    stack = seen.stack
    root = seen.stack.root.double().cpu()
    x = seen.states[i] / root
    moved = {ATTENTION: torch.zeros_like(x), FEED: torch.zeros_like(x)}
    for place, part in enumerate(stack.parts):
        w = stack.weights(place, z)
        if part.kind not in moved:
            x = _norm(stack, part.operator, w, x)
            continue
        inner = x if part.norm is None else _norm(stack, part.norm, stack.norm_weights(place, z), x)
        branch = _attention(seen, seen.maps[i], w, inner) if part.kind == ATTENTION else _feed(part.operator, w, inner)
        step = dz * (branch + part.gamma * x)
        moved[part.kind] += step
        x = x + step
    return moved[ATTENTION] * root, moved[FEED] * root, x * root


def _attention(seen: Recording, one: AttentionMap, w: dict[str, Tensor], x: Float[Tensor, "b t d"]) -> Tensor:
    """Σ_h softmax_s(τ⟨q_h(t), k_h(s)⟩ + bias) OV_h x(s) + b_O against the measure of the sources, head by head."""
    operator = seen.stack.attention.operator
    grids = seen.stack.grids
    inner = grids.e.count
    heads = grids.h.count
    t = one.t.nodes.double().cpu()
    placed = operator.position.bind(grids.h, grids.e)
    where = operator.position.where(t, placed)
    q, k, v = (linear(x, w[name], w.get("b" + name)).unflatten(-1, (-1, inner)).transpose(1, 2) for name in "qkv")
    q = operator.position.turn(q, where)
    k = operator.position.turn(k, where)
    k, v = (each.repeat_interleave(heads // each.shape[1], 1) for each in (k, v))
    scores = operator.kernel.scale(seen.stack.model.axes.e) * q @ k.mT + one.base.double().cpu().log()
    bias = operator.position.pair_bias(t, t, placed)
    if bias is not None:
        scores = scores + bias.double().cpu()
    if seen.pairs is not None and seen.pairs.is_floating_point():
        scores = scores + (seen.pairs[:, None] if seen.pairs.dim() == 3 else seen.pairs).double().cpu()
    alpha = torch.softmax(scores, -1).nan_to_num(0.0)  # a row without sources is that of an absent token
    out = w["o"].unflatten(1, (-1, inner))
    mixed = torch.einsum("bhts,bhse,dhe->btd", alpha, v, out)
    return mixed + w["bo"] if "bo" in w else mixed


def _feed(operator: Pointwise, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """φ2(W2 φ1(W1 x + b1) [⊙ G x] + b2)."""
    hidden = operator.phi1(linear(x, w["w1"], w.get("b1")))
    hidden = hidden * linear(x, w["gate"]) if "gate" in w else hidden
    return operator.phi2(linear(hidden, w["w2"], w.get("b2")))


def _norm(stack: Stack, operator: Any, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """The norms of the library against the measure of d."""
    d = stack.grids.d
    share = (d.weights / d.mass).double().cpu()
    scale = w.get("scale", torch.ones(()))
    shift = w.get("shift", torch.zeros(()))
    if isinstance(operator, SphereProjection):
        return operator.radius * standardise(x, share, operator.eps, centred=False)
    if isinstance(operator, Constraint):
        return scale * standardise((x - shift) / scale, share, operator.eps, operator.centred) + shift
    return scale * standardise(x, share, operator.eps, isinstance(operator, LayerNorm)) + shift
