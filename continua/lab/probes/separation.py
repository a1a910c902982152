"""What the dynamics are good for: classes that come apart along depth, two controls, and what clustering too far costs.

Layers gather what belongs together and forget the rest: that is how classes come apart. Gathered too far, tokens forget
the classes too.
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize, one_hot

from continua.axes import Discretisation, Grid
from continua.config import arguments
from continua.errors import ConfigError, ShapeError
from continua.fields import Expansion
from continua.flow import SaveAt
from continua.lab.probes.dynamics import effective_rank
from continua.lab.probes.stack import evaluating, opened
from continua.models import Transformer, View
from continua.operators import Attention, Parts, Skip
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


# --- what is measured ------------------------------------------------------------------------------------------------


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
    halves, wanted, right = _halves(labels), one_hot(labels).double(), 0
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
    mx, my = x.mean(0), y.mean(0)
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
        keep, asked = there[fit], there[test]
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
class _Samples:
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


def _walked(model: nn.Module | View, example: Example, at: Discretisation | None, pool: Pool, ridge: float) -> _Samples:
    if isinstance(model, View):
        return _walked(model.model, example, model.discretisation if at is None else at, pool, ridge)
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
    root = chosen.grids(model.axes)["d"].weights.sqrt()
    states = [(x * root.to(x)).double().cpu() for x in path.x]
    there, weights = (each.cpu().expand(states[0].shape[:2]) for each in (t.observed, t.weights.double()))
    return _Samples(model, chosen, t, states, path.z, labels, weights, there, _right(answer, labels), pool, ridge)


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


def _right(answer: Tensor, labels: Tensor) -> float | None:
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
    seen = _walked(model, example, at, pool, ridge)
    last = len(seen.states) - 1
    levels = tuple(
        seen.level(x, z, seen.answers if i == last else None)
        for i, (z, x) in enumerate(zip(seen.depths, seen.states, strict=True))
    )
    return Separation(levels, len(seen.labels), int(seen.labels.unique().numel()))


# --- controls --------------------------------------------------------------------------------------------------------


def controlled(model: nn.Module | View, temperature: float = 1.0, skip: float = 1.0) -> Any:
    """A copy with scores τ⟨q, k⟩/temperature and layers x ← skip·x + A[x], then x ← x + F[x].

    ``temperature`` divides the queries, weights and biases, of every attention: 2 halves the β of each head; what
    positions add to the scores stays. ``skip`` multiplies what the attention part keeps of the state: γ becomes
    skip·(1 + γ) − 1, which for unit Euler steps is the residual times ``skip``. Ones change nothing.

    >>> from continua.models import zoo
    >>> model = zoo.gpt2(vocab=9, d=8, heads=2, depth=3, context=8)
    >>> ids = torch.arange(8)[None]
    >>> bool((controlled(model)(ids) == model(ids)).all()), bool((controlled(model, 2.0)(ids) == model(ids)).all())
    (True, False)
    """
    if isinstance(model, View):
        return controlled(model.model, temperature, skip).at(model.discretisation)
    if not isinstance(model, Transformer):
        remedy = "Pass a Transformer; of an encoder–decoder, its encoder or its decoder."
        raise ConfigError("one stack of layers is controlled", got=type(model).__name__, remedy=remedy)
    if not (math.isfinite(temperature) and temperature > 0):
        remedy = "Use a number above zero; 1 changes nothing, more looks more evenly."
        raise ConfigError("a temperature is above zero", got=temperature, remedy=remedy)
    if not math.isfinite(skip):
        raise ConfigError("a skip factor is a number", got=skip, remedy="1 changes nothing, 0 drops the residual.")
    copied = deepcopy(model)
    if temperature != 1.0:
        _cool(copied, temperature)
    return copied if skip == 1.0 else _skipping(copied, skip)


@torch.no_grad()
def _cool(model: Transformer, temperature: float) -> None:
    for attention in (module for module in model.modules() if isinstance(module, Attention)):
        fields = [field for field in (attention.q, attention.bq) if isinstance(field, Expansion)]
        if not attention.kernel.is_dot or attention.q not in fields:
            got = type(attention.kernel if not attention.kernel.is_dot else attention.q).__name__
            remedy = "Use attention by products whose queries are expansions in a basis."
            raise ConfigError("a temperature needs scores that are linear in stored queries", got=got, remedy=remedy)
        for field in fields:
            field.coefficients.div_(temperature)


def _skipping(model: Transformer, skip: float) -> Transformer:
    """The same modules in a model whose first flow, the attention, keeps ``skip`` of the state."""
    parts = list(model.block)
    place = model.block.kinds.index(True)
    first = parts[place]
    inner, gamma = (first.inner, first.gamma) if isinstance(first, Skip) else (first, 0.0)
    parts[place] = Skip(inner, skip * (1 + gamma) - 1)
    made = Transformer(**{**arguments(model), "block": Parts(tuple(parts))})
    made.adjoint, made.check, made.generator = model.adjoint, model.check, model.generator
    return made.train(model.training)


# --- too far ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overclustered:
    """Samples after the last ``layers`` layers were applied ``0, 1, 2, …`` more times: one level for each."""

    layers: int
    levels: tuple[Level, ...]
    chance: float

    def rows(self) -> list[dict[str, Any]]:
        """The table: one line for each repeat."""
        return [{"repeats": i, **asdict(level)} for i, level in enumerate(self.levels)]

    def lost(self) -> dict[str, float]:
        """What the model's own end had and the last repeat has not, for each number (above zero: it is gone)."""
        before, after = asdict(self.levels[0]), asdict(self.levels[-1])
        return {name: before[name] - after[name] for name in before if name != "z" and before[name] is not None}


@torch.no_grad()
def overclustered(
    model: nn.Module | View,
    example: Example,
    repeats: int = 8,
    *,
    layers: int = 1,
    at: Discretisation | None = None,
    pool: Pool = mean_token,
    ridge: float = RIDGE,
) -> Overclustered:
    """Apply the last ``layers`` layers up to ``repeats`` more times, and measure what is lost of the classes.

    ``layers=model.native.z.steps`` runs the whole depth again and again.
    """
    seen = _walked(model, example, at, pool, ridge)
    stack = opened(seen.model, seen.t, seen.at)
    if not 1 <= layers <= len(stack.steps):
        remedy = f"Give 1 to {len(stack.steps)}."
        raise ConfigError("some of the last layers are repeated", got=layers, remedy=remedy)
    if repeats < 1:
        raise ConfigError("layers are repeated at least once", got=repeats, remedy="Give repeats=8.")
    if example.batch.pairs is not None:
        remedy = "Leave pairs out, or forbid them with a mask of the model."
        raise ConfigError("repeated layers see every token", got="pairs in the batch", remedy=remedy)
    like, root = next(seen.model.parameters()), stack.root
    x, end = seen.states[-1].to(like) / root.to(like), seen.depths[-1]
    levels = [seen.level(seen.states[-1], end, seen.answers)]
    for again in range(1, repeats + 1):
        for z, dz in stack.steps[-layers:]:
            x = stack.advance(z, dz, x)
        said = _said(seen, x, stack.grids)
        length = sum(dz for _, dz in stack.steps[-layers:])
        levels.append(seen.level((x * root.to(like)).double().cpu(), end + again * length, said))
    return Overclustered(layers, tuple(levels), 1.0 / int(seen.labels.unique().numel()))


def _said(seen: _Samples, x: Tensor, grids: Any) -> float | None:
    """The accuracy of the model's own readout on these states."""
    model = seen.model
    if model.readout is None:
        return None
    with evaluating(model):
        grids = {**grids, "steps": model.mean_step(seen.at.z)}
        return _right(model.readout(x, grids, getattr(model.embed, "table", None)), seen.labels)
