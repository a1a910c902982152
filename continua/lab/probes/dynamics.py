"""Tokens of a real model as particles: what happens to their directions from layer to layer.

All numbers are those of tokens on the unit sphere, u = x/‖x‖, in float64. Absent tokens and attention sinks do not
count: they are sources of attention like any other, but no direction, distance or displacement of theirs is measured.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from continua.axes import Discretisation
from continua.errors import ConfigError, ShapeError
from continua.geometry import sphere
from continua.lab.probes.attention import AttentionMap, attention_maps
from continua.lab.probes.stack import Stack, evaluating, opened
from continua.lab.progress import ReportCount
from continua.models import Batch, EncoderDecoder, View
from continua.typing import Bool, Float, Tensor


@dataclass(frozen=True)
class Sinks:
    """Which tokens are attention sinks: those that everybody looks at, or whose norm stands out.

    A token is one if, in the mean over layers, heads and the other tokens that may look at it, it gets more than
    ``share`` of their attention and more than ``times`` an even share; or if at some depth its norm is more than
    ``norm`` times the median norm of its text. It is then left out at all depths.
    """

    share: float = 0.1
    times: float = 2.5
    norm: float = 4.0

    def find(self, maps: Sequence[AttentionMap], states: Sequence[Tensor], there: Tensor) -> Bool[Tensor, "b t"]:
        """The flags of the tokens [b, t]."""
        got, even = (torch.stack(each).mean(0) for each in zip(*map(_received, maps), strict=True))
        looked_at = (got > self.share) & (got > self.times * even)
        norms = torch.stack([x.norm(dim=-1) for x in states])
        middle = torch.where(there, norms, torch.nan).nanmedian(-1, keepdim=True).values
        return there & (looked_at | (norms > self.norm * middle).any(0))


@dataclass(frozen=True)
class State:
    """Tokens at one depth. ``centred`` numbers are those after the mean of all counted tokens was taken away.

    ``cosine``: the mean of ⟨u_i, u_j⟩ over pairs of one text; ``histogram`` counts them in equal bins of [−1, 1].
    ``energy``: E_β = (1/2βn²) Σ_ij exp(β⟨u_i, u_j⟩). ``rank``: exp of the entropy of the singular values of u (Roy and
    Vetterli 2007). ``clusters``: groups linked by angles up to the probes' own (single linkage). Means over texts.
    """

    z: float
    norm: float
    cosine: float
    centred_cosine: float
    energy: float
    rank: float
    centred_rank: float
    clusters: float
    centred_clusters: float
    histogram: tuple[int, ...]
    centred_histogram: tuple[int, ...]


@dataclass(frozen=True)
class Move:
    """One layer. ``jump``: the angle in radians between a token before and after it, mean, and smallest and largest.

    ``beta`` and ``fit``, for each head: the slope and the R² of log α(i, j) over ⟨u_i, u_j⟩ with a constant for each i,
    by least squares over the counted j ≠ i that i may look at. Where α is a softmax of β⟨u_i, u_j⟩ they are β and one.
    """

    z: float
    dz: float
    jump: float
    least_jump: float
    most_jump: float
    beta: tuple[float, ...]
    fit: tuple[float, ...]


@dataclass(frozen=True)
class Dynamics:
    """A model's path through depth on one batch: a state at each depth, a move between each and the next."""

    states: tuple[State, ...]
    moves: tuple[Move, ...]
    beta: float
    angle: float
    texts: int
    tokens: int  # of all texts, those that count
    sinks: tuple[tuple[int, int], ...]  # (text, token)
    post_norm: bool

    def rows(self) -> list[dict[str, float | None]]:
        """The table: one line for each depth; what belongs to a layer stands where it begins, so the last has none."""
        table = []
        for i, state in enumerate(self.states):
            move = self.moves[i] if i < len(self.moves) else None
            table.append(
                {
                    "z": state.z,
                    "norm": state.norm,
                    "cosine": state.cosine,
                    "centred cosine": state.centred_cosine,
                    "energy": state.energy,
                    "rank": state.rank,
                    "clusters": state.clusters,
                    "jump": None if move is None else move.jump,
                    "beta": None if move is None else _median(move.beta),
                    "fit": None if move is None else _median(move.fit),
                }
            )
        return table

    def plain(self) -> dict[str, Any]:
        """Everything, as JSON writes it."""
        return asdict(self)

    def save(self, path: str | Path) -> Path:
        """Write the numbers as JSON."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.plain(), indent=1) + "\n", encoding="utf-8")
        return path


@dataclass(frozen=True)
class Recording:
    """What a batch does in a model: the states along depth, the attention between them, and which tokens count."""

    stack: Stack
    states: tuple[Float[Tensor, "b t d"], ...]  # float64, times √w(d): plain products are those of the measure
    maps: tuple[AttentionMap, ...]
    counted: Bool[Tensor, "b t"]
    sinks: tuple[tuple[int, int], ...]
    pairs: Tensor | None = None  # what the batch adds to or forbids in attention

    def texts(self, x: Tensor) -> list[Tensor]:
        """The counted tokens of each text: [n_b, d]."""
        return [one[keep] for one, keep in zip(x, self.counted, strict=True)]


@torch.no_grad()
def look(
    model: nn.Module | View,
    batch: Batch | Tensor,
    at: Discretisation | None = None,
    sinks: Sinks | None = Sinks(),  # noqa: B008  (frozen)
) -> Recording:
    """Run a batch and keep its states and attention; ``sinks=None`` counts every token that is there.

    Of an encoder–decoder the encoder is followed, on ``batch.source``.
    """
    if isinstance(model, View):
        return look(model.model, batch, model.discretisation if at is None else at, sinks)
    if isinstance(model, EncoderDecoder):
        source = Batch.of(batch).source
        if source is None:
            raise ShapeError("an encoder–decoder needs a source", got="none", remedy="Pass Batch(values, source=…).")
        return look(model.encoder, source, at, sinks)
    known = opened(model, at=at).model  # refuses before anything is run
    with evaluating(known):
        maps = attention_maps(known, batch, at)
        path = known.states(batch, at)
    stack = opened(known, maps[0].t, at)
    states = tuple((x.detach() * stack.root.to(x)).double().cpu() for x in path.x)
    there = maps[0].t.observed.cpu().expand(states[0].shape[:2])
    found = torch.zeros_like(there) if sinks is None else sinks.find(maps, states, there)
    counted = there & ~found
    fewest = int(counted.sum(-1).min())
    if fewest < 2:
        remedy = "Give longer texts, or sinks=None to count every token."
        raise ShapeError("the probes compare tokens of a text with each other", got=f"{fewest} of one", remedy=remedy)
    places = tuple((int(b), int(t)) for b, t in found.nonzero().tolist())
    return Recording(stack, states, tuple(maps), counted, places, Batch.of(batch).pairs)


@torch.no_grad()
def dynamics(
    model: nn.Module | View | Recording,
    batch: Batch | Tensor | None = None,
    *,
    at: Discretisation | None = None,
    beta: float = 1.0,
    angle: float = 0.5,
    bins: int = 40,
    sinks: Sinks | None = Sinks(),  # noqa: B008  (frozen)
    watch: ReportCount = lambda done, total: None,
) -> Dynamics:
    """Measure the tokens of ``batch`` at every depth and what each layer does to them.

    ``beta`` is that of the energy, ``angle`` the link of clusters in radians, ``bins`` those of the histograms.
    ``model`` may be what ``look`` has seen.

    >>> from continua.models import zoo
    >>> found = dynamics(zoo.bert(vocab=9, d=8, heads=2, depth=3, context=8), torch.arange(8)[None], sinks=None)
    >>> len(found.states), len(found.moves), found.rows()[0]["clusters"] <= 8
    (4, 3, True)
    """
    _check(beta, angle, bins)
    if isinstance(model, Recording):
        seen = model
    elif batch is None:
        raise ShapeError("the probes look at a batch", got="none", remedy="Pass dynamics(model, batch).")
    else:
        seen = look(model, batch, at, sinks)
    depths = (*(z for z, _ in seen.stack.steps), seen.stack.model.axes.z.end)
    states = []
    moves = []
    for i, (z, x) in enumerate(zip(depths, seen.states, strict=True)):
        states.append(_state(z, seen.texts(x), beta, angle, bins))
        if i < len(seen.maps):
            moves.append(_move(seen, i))
        watch(i + 1, len(seen.states))
    return Dynamics(
        tuple(states),
        tuple(moves),
        beta=beta,
        angle=angle,
        texts=len(seen.counted),
        tokens=int(seen.counted.sum()),
        sinks=seen.sinks,
        post_norm=seen.stack.is_post_norm,
    )


# --- numbers of a cloud of tokens ------------------------------------------------------------------------------------


def energy(u: Float[Tensor, "n d"], beta: float) -> float:
    """E_β = (1/2βn²) Σ_ij exp(β⟨u_i, u_j⟩) of unit vectors, which the flow of attention makes grow.

    >>> round(energy(torch.eye(2, dtype=torch.float64), 1.0), 6) == round((math.e + 1) / 4, 6)
    True
    """
    return float((beta * (u @ u.mT)).exp().mean() / (2 * beta))


def effective_rank(x: Float[Tensor, "n d"]) -> float:
    """exp(−Σ p log p) with p = σ/Σσ the singular values: from 1 (all alike) to min(n, d) (Roy and Vetterli 2007).

    >>> round(effective_rank(torch.eye(5, dtype=torch.float64)), 6)
    5.0
    """
    values = torch.linalg.svdvals(x)
    p = values / values.sum().clamp_min(torch.finfo(x.dtype).tiny)
    return float((-torch.special.xlogy(p, p).sum()).exp())


def linked(u: Float[Tensor, "n d"], angle: float) -> int:
    """How many groups unit vectors fall into when those within ``angle`` radians are linked (single linkage).

    >>> linked(torch.tensor([[1.0, 0.0], [0.98, 0.199], [0.0, 1.0]]), 0.3)
    2
    """
    near = u @ u.mT >= math.cos(angle)
    near.fill_diagonal_(True)
    label = torch.arange(len(u), device=u.device)
    while True:  # every token takes the smallest label it is linked to, until none changes
        lower = torch.where(near, label, len(u)).amin(1)
        if bool((lower == label).all()):
            return int(label.unique().numel())
        label = lower


def pairs_of(u: Float[Tensor, "n d"]) -> Float[Tensor, "p"]:
    """⟨u_i, u_j⟩ of all pairs i < j."""
    i, j = torch.triu_indices(len(u), len(u), 1)
    return (u @ u.mT)[i, j].clamp(-1.0, 1.0)


def centred(texts: Sequence[Tensor]) -> list[Tensor]:
    """All tokens less the mean of those of all texts."""
    mean = torch.cat(list(texts)).mean(0)
    return [x - mean for x in texts]


def _state(z: float, texts: list[Tensor], beta: float, angle: float, bins: int) -> State:
    raw, middle = ([normalize(x, dim=-1) for x in each] for each in (texts, centred(texts)))
    cosines = [torch.cat([pairs_of(u) for u in each]) for each in (raw, middle)]
    counts = [tuple(int(n) for n in c.histc(bins, -1.0, 1.0).tolist()) for c in cosines]
    ranks, groups = (
        [_mean([measure(u) for u in each]) for each in (raw, middle)]
        for measure in (effective_rank, lambda u: float(linked(u, angle)))
    )
    return State(
        z=z,
        norm=float(torch.cat(texts).norm(dim=-1).mean()),
        cosine=float(cosines[0].mean()),
        centred_cosine=float(cosines[1].mean()),
        energy=_mean([energy(u, beta) for u in raw]),
        rank=ranks[0],
        centred_rank=ranks[1],
        clusters=groups[0],
        centred_clusters=groups[1],
        histogram=counts[0],
        centred_histogram=counts[1],
    )


def angles(x: Float[Tensor, "*b d"], y: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
    """The angle between x and y, of any lengths, in radians."""
    return sphere.distance(normalize(x, dim=-1), normalize(y, dim=-1))


# --- what a layer does -----------------------------------------------------------------------------------------------


def _move(seen: Recording, i: int) -> Move:
    z, dz = seen.stack.steps[i]
    one = seen.maps[i]
    jumps = angles(torch.cat(seen.texts(seen.states[i])), torch.cat(seen.texts(seen.states[i + 1])))
    slopes, fits = effective_beta(one, seen.states[i], seen.counted)
    jump, least, most = (float(value) for value in (jumps.mean(), jumps.min(), jumps.max()))
    return Move(z, dz, jump, least, most, tuple(slopes.tolist()), tuple(fits.tolist()))


def effective_beta(
    one: AttentionMap, x: Float[Tensor, "b t d"], counted: Bool[Tensor, "b t"]
) -> tuple[Float[Tensor, "h"], Float[Tensor, "h"]]:
    """β and R² of log α_h(i, j) = c_i + β⟨u_i, u_j⟩, by least squares, for each head; zero where nothing varies.

    Over counted tokens j ≠ i that i may look at, and where α is not rounded to zero. A token's own place is left out:
    many heads treat it by position, and its cosine of one would outweigh the others.
    """
    u = normalize(x, dim=-1)
    cosine = (u @ u.mT)[:, None]
    alpha = one.weights.double().cpu()
    base = one.base.double().cpu()
    own = torch.eye(x.shape[1], dtype=torch.bool)
    used = (counted[:, :, None] & counted[:, None, :] & ~own)[:, None] & (base > 0) & (alpha > 0)
    logs = torch.where(used, alpha / torch.where(base > 0, base, 1.0), 1.0).log()
    logs, cosine = (_row_centred(each.expand_as(logs), used) for each in (logs, cosine))
    product, squares, total = ((a * b).sum((0, 2, 3)) for a, b in ((logs, cosine), (cosine, cosine), (logs, logs)))
    tiny = torch.finfo(torch.float64).tiny
    slope = torch.where(squares > 0, product / squares.clamp_min(tiny), 0.0)
    fit = torch.where((squares > 0) & (total > 0), product**2 / (squares * total).clamp_min(tiny), 0.0)
    return slope, fit


def _row_centred(values: Tensor, used: Tensor) -> Tensor:
    values = torch.where(used, values, 0.0)
    mean = values.sum(-1, keepdim=True) / used.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(used, values - mean, 0.0)


def _received(one: AttentionMap) -> tuple[Tensor, Tensor]:
    """The attention each token gets from the others that may look at it, and what even attention would give: [b, t]."""
    alpha = one.weights.double().cpu()
    base = one.base.double().cpu().expand(one.weights.shape)
    even = base / base.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    own = torch.eye(alpha.shape[-1], dtype=torch.bool)
    seen = (base > 0) & ~own
    count = seen.sum((1, 2)).clamp_min(1)
    return (alpha * seen).sum((1, 2)) / count, (even * seen).sum((1, 2)) / count


def _check(beta: float, angle: float, bins: int) -> None:
    if not math.isfinite(beta) or beta == 0.0:
        remedy = "Give a finite β other than zero; 1.0 is usual."
        raise ConfigError("the energy has a temperature", got=f"beta={beta}", remedy=remedy)
    if not 0.0 < angle < math.pi:
        raise ConfigError("tokens are linked by an angle in (0, π)", got=f"angle={angle}", remedy="0.5 is usual.")
    if bins < 1:
        raise ConfigError("a histogram has bins", got=bins, remedy="40 is usual.")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _median(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).median())
