"""What the dynamics are good for: how far apart labelled classes are along depth, and how well a linear map tells them.

Layers gather what belongs together and forget the rest: that is how classes come apart.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize, one_hot

from continua.axes import Discretisation, Grid
from continua.errors import ConfigError, ShapeError
from continua.flow import SaveAt
from continua.lab.probes.dynamics import effective_rank
from continua.lab.probes.stack import evaluating
from continua.models import Transformer, View
from continua.tasks import Example
from continua.typing import Bool, Float, Int, Tensor

RIDGE = 1e-5  # of the whole scatter, not of its mean over coordinates: a finer grid of d changes nothing
NOTHING = 1e-24  # a variance this small beside the mean square is round-off (of float64, squared)
Pool = Callable[[Tensor, Tensor], Tensor]  # states [n, t, d] and the measure [n, t] of the tokens → [n, d]


def mean_token(x: Float[Tensor, "n t d"], weights: Float[Tensor, "n t"]) -> Float[Tensor, "n d"]:
    """∫ x dμ(t) / mass(t): the mean over the tokens that are there."""
    return (weights[..., None] * x).sum(1) / weights.sum(1, keepdim=True)


def first_token(x: Float[Tensor, "n t d"], weights: Float[Tensor, "n t"]) -> Float[Tensor, "n d"]:
    """x(0): the class token of a ViT or BERT. At depth zero it is the same for every sample."""
    return x[:, 0]


@dataclass(frozen=True)
class Level:
    """Samples at one depth, all in float64.

    Of the pooled states: ``separation`` is tr S_B / tr S_W, the scatter between classes over that within them;
    ``probe`` the accuracy of a ridge regression on the classes, each half of the samples judged by the other half's;
    ``rank`` the effective rank after their mean was taken away. Of the tokens: ``cosine`` and ``token_rank`` are those
    within a sample, in the mean over samples; ``recall`` the share R² of what the tokens were at depth zero that a
    linear map still reads off them, on samples it was not fitted to and with the mean of each place taken away.
    ``answers``: the accuracy of the model's own readout, if it names classes.
    """

    z: float
    separation: float
    probe: float
    rank: float
    cosine: float
    token_rank: float
    recall: float
    answers: float | None = None


@dataclass(frozen=True)
class Separation:
    """A model's samples along depth."""

    levels: tuple[Level, ...]
    samples: int
    classes: int

    @property
    def chance(self) -> float:
        """The accuracy of a guess among equally likely classes."""
        return 1.0 / self.classes

    def rows(self) -> list[dict[str, Any]]:
        """The table: one line for each depth."""
        return [asdict(level) for level in self.levels]


@torch.no_grad()
def scatter(x: Float[Tensor, "n d"], labels: Int[Tensor, "n"]) -> tuple[float, float]:
    """(tr S_B, tr S_W)/n: Σ_c n_c‖m_c − m‖²/n between the means of the classes, Σ_i‖x_i − m_c(i)‖²/n around them.

    Together they are the variance Σ_i‖x_i − m‖²/n.

    >>> scatter(torch.tensor([[0.0], [2.0], [4.0], [6.0]]), torch.tensor([0, 0, 1, 1]))
    (4.0, 1.0)
    """
    member = one_hot(labels).to(x)
    counts = member.sum(0)
    means = member.mT @ x / counts.clamp_min(1)[:, None]
    between = (counts * (means - x.mean(0)).square().sum(1)).sum() / len(x)
    return float(between), float((x - means[labels]).square().sum() / len(x))


@torch.no_grad()
def linear_probe(x: Float[Tensor, "n d"], labels: Int[Tensor, "n"], ridge: float = RIDGE) -> float:
    """The accuracy of argmax_c (W(x − m) + p)_c, W = Y'X(X'X + λI)⁻¹ of the other half of the samples.

    X and Y are the states and the indicators of the classes, centred; λ = ``ridge`` · tr X'X. The samples of each class
    go to one half and the other in turns, so both have all classes.

    >>> linear_probe(torch.tensor([[0.0], [0.1], [1.0], [1.1]]), torch.tensor([0, 0, 1, 1]))
    1.0
    """
    halves = _halves(labels)
    wanted = one_hot(labels).double()
    right = 0
    for fit, test in (halves, halves[::-1]):
        said = _ridge(x[fit].double(), wanted[fit], ridge)(x[test].double())
        right += int((said.argmax(1) == labels[test]).sum())
    return right / len(labels)


def _halves(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Every second sample of each class, and the others."""
    order = labels.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    starts = torch.cat([torch.zeros(1, dtype=torch.long), labels.bincount().cumsum(0)])
    odd = (place - starts[labels]) % 2 == 1
    return (~odd).nonzero()[:, 0], odd.nonzero()[:, 0]


def _ridge(x: Tensor, y: Tensor, ridge: float) -> Callable[[Tensor], Tensor]:
    """The affine map of least squares from x to y, shrunk; where x does not vary it answers the mean of y."""
    mx = x.mean(0)
    my = y.mean(0)
    moved = x - mx
    square = moved.mT @ moved
    size = square.trace()
    if float(size) <= NOTHING * float(x.square().sum()):
        return lambda new: my.expand(len(new), -1)
    square.diagonal().add_(ridge * size)
    weights = torch.linalg.solve(square, moved.mT @ (y - my))
    return lambda new: (new - mx) @ weights + my


def _recall(start: Tensor, x: Tensor, there: Tensor, halves: Sequence[Tensor], ridge: float) -> float:
    """R² of the tokens at depth zero from those here: each half of the samples by the map of the other."""
    start, x = (each - _means(each, there) for each in (start, x))
    missed = total = 0.0
    for fit, test in (halves, halves[::-1]):
        keep = there[fit]
        asked = there[test]
        said = _ridge(x[fit][keep], start[fit][keep], ridge)(x[test][asked])
        missed += float((start[test][asked] - said).square().sum())
        total += float(start[test][asked].square().sum())
    return 1.0 - missed / total if total > 0 else 0.0


def _means(x: Tensor, there: Tensor) -> Tensor:
    """The mean over samples at each place."""
    shown = there[..., None].to(x)
    return (shown * x).sum(0) / shown.sum(0).clamp_min(1)


def _alike(x: Float[Tensor, "n t d"], there: Bool[Tensor, "n t"]) -> tuple[float, float]:
    """The mean cosine of two tokens of a sample, and the mean effective rank of a sample's tokens, all at once."""
    u = normalize(x, dim=-1) * there[..., None]  # an absent token is a row of zeros: it changes no singular value
    counts = there.sum(1)
    pairs = int((counts * (counts - 1)).sum())
    both = float((u.sum(1).square().sum(1) - counts).sum())
    values = torch.linalg.svdvals(u)
    p = values / values.sum(1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    return both / pairs if pairs else 1.0, float((-torch.special.xlogy(p, p).sum(1)).exp().mean())


@dataclass(frozen=True)
class Samples:
    """What a model did with some samples, and how it is to be looked at."""

    model: Transformer
    at: Discretisation
    t: Grid
    states: list[Tensor]  # float64, times √w(d)
    depths: tuple[float, ...]
    labels: Int[Tensor, "n"]
    weights: Float[Tensor, "n t"]
    there: Bool[Tensor, "n t"]
    answers: float | None
    pool: Pool
    ridge: float

    def level(self, x: Tensor, z: float, answers: float | None) -> Level:
        """All numbers of the states ``x`` at depth z."""
        pooled = self.pool(x, self.weights)
        between, within = scatter(pooled, self.labels)
        varies = between + within > NOTHING * float(pooled.square().sum() / len(pooled))
        ratio = (between / within if within > 0 else math.inf) if varies else 0.0
        cosine, token_rank = _alike(x, self.there)
        return Level(
            z=z,
            separation=ratio,
            probe=linear_probe(pooled, self.labels, self.ridge),
            rank=effective_rank(pooled - pooled.mean(0)) if varies else 0.0,
            cosine=cosine,
            token_rank=token_rank,
            recall=_recall(self.states[0], x, self.there, _halves(self.labels), self.ridge),
            answers=answers,
        )


def follow(model: nn.Module | View, example: Example, at: Discretisation | None, pool: Pool, ridge: float) -> Samples:
    """Run labelled samples and keep their states along depth; what cannot be followed is refused."""
    if isinstance(model, View):
        return follow(model.model, example, model.discretisation if at is None else at, pool, ridge)
    if not isinstance(model, Transformer):
        remedy = "Pass a Transformer, for example zoo.vit(…, labels=10)."
        raise ConfigError("classes are followed through one stack", got=type(model).__name__, remedy=remedy)
    if not (math.isfinite(ridge) and ridge > 0):
        raise ConfigError("a ridge is above zero", got=ridge, remedy=f"{RIDGE:g} is usual.")
    like = next(model.parameters())
    labels = _labels(example)
    with evaluating(model):
        answer, path, t = model.run(example.to(like.device).batch, at, keep=SaveAt(1))
    chosen = model.settle(at)
    root = chosen.grids(model.axes, like).d.weights.sqrt()
    states = [(x * root.to(x)).double().cpu() for x in path.x]
    there, weights = (each.cpu().expand(states[0].shape[:2]) for each in (t.observed, t.weights.double()))
    return Samples(model, chosen, t, states, path.z, labels, weights, there, accuracy(answer, labels), pool, ridge)


def _labels(example: Example) -> Tensor:
    labels = example.target.cpu()
    if labels.dim() != 1 or labels.is_floating_point():
        got = f"{labels.dtype} {list(labels.shape)}"
        raise ShapeError("each sample has one class", got=got, remedy="Give whole numbers of shape [n].")
    counts = labels.bincount() if len(labels) and int(labels.min()) >= 0 else torch.zeros(1)
    if int((counts > 0).sum()) < 2 or int(counts[counts > 0].min()) < 2:
        remedy = "Give more samples: each half needs some of every class."
        got = f"{int((counts > 0).sum())} of at least {int(counts[counts > 0].min()) if counts.any() else 0}"
        raise ShapeError("two classes of two samples are the least", got=got, remedy=remedy)
    return labels


def accuracy(answer: Tensor, labels: Tensor) -> float | None:
    """The share of samples whose likeliest answer is their label; None if the answers are not classes."""
    if answer.dim() != 2 or answer.shape[1] <= int(labels.max()):
        return None
    return float((answer.argmax(-1).cpu() == labels).double().mean())


@torch.no_grad()
def separation(
    model: nn.Module | View,
    example: Example,
    *,
    at: Discretisation | None = None,
    pool: Pool = mean_token,
    ridge: float = RIDGE,
) -> Separation:
    """How far apart the classes of ``example`` are at every depth, and how well a linear map tells them (``Level``).

    ``pool`` makes one vector of the tokens of a sample: ``mean_token``, ``first_token``, or your own. Use samples that
    the model was not trained on.
    """
    seen = follow(model, example, at, pool, ridge)
    last = len(seen.states) - 1
    levels = tuple(
        seen.level(x, z, seen.answers if i == last else None)
        for i, (z, x) in enumerate(zip(seen.depths, seen.states, strict=True))
    )
    return Separation(levels, len(seen.labels), int(seen.labels.unique().numel()))
