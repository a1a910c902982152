"""What a model loses at other sizes, against its own answers: the cosine of embeddings, or a divergence."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cosine_similarity, log_softmax

from continua.axes import Discretisation, at
from continua.errors import ConfigError
from continua.lab.cost.complexity import predict
from continua.lab.cost.drift_picture import draw
from continua.lab.cost.pareto import steps_of
from continua.lab.cost.point import typed_size
from continua.lab.progress import ReportCount
from continua.models import Batch, Transformer
from continua.models.view import FrozenView
from continua.tasks.sentences import pooled
from continua.timing import interleaved
from continua.tree import tensors
from continua.typing import Tensor

LETTERS = "dhem"
ROUNDS = 5


@dataclass(frozen=True)
class DriftPoint:
    """One size: its ``likeness`` to the native answers, and what it costs.

    ``likeness`` is the mean cosine of embeddings (1 is the same) or the mean Kullback–Leibler divergence of answers in
    nats (0 is the same). ``flops`` and ``seconds`` are those of one forward pass of the timed batch with weights that
    are held, ``bytes`` those of the weights that this size reads.
    """

    name: str
    at: Discretisation
    likeness: float
    flops: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Drift:
    """Sizes of one model, the native one first; ``nats`` tells of divergences, else likeness is a cosine."""

    points: tuple[DriftPoint, ...]
    nats: bool
    timed: tuple[int, int]  # texts and tokens of the batch whose passes are timed

    @property
    def measure(self) -> str:
        """What ``likeness`` is."""
        return "KL to native (nats)" if self.nats else "cosine to native"

    def plot(self, path: str | Path, title: str = "One model, other sizes") -> Path:
        """Likeness of each size, and what is left of FLOPs, time and weights."""
        return draw(self.points, self.nats, path, title)


@torch.no_grad()
def drift(
    model: Transformer,
    batches: Iterable[Batch | Tensor],
    sizes: Iterable[Discretisation],
    timed: Batch | Tensor | None = None,
    rounds: int = ROUNDS,
    watch: ReportCount | None = None,
) -> Drift:
    """Measure ``model`` at each of ``sizes`` by how much its answers to ``batches`` differ from the native ones.

    A model with a head (a language model, a classifier) is measured by KL(native ‖ size) = Σ p log(p/q), a mean over
    all tokens; a model without by the cosine of its states, averaged over the tokens of each text. States of fewer
    coordinates are compared with the native ones at the same places of d. Times are those of ``timed``, or of the
    first batch: the median of the native one, times the median ratio of ``rounds`` passes in turns with it. One size
    is held at a time.

    >>> import continua as ct
    >>> model = ct.lift(ct.zoo.gpt2(vocab=8, d=16, heads=4, depth=2, context=8))
    >>> found = drift(model, [torch.arange(8).view(1, 8)], [ct.at(m=32)])
    >>> [point.name for point in found.points], found.points[0].likeness
    (['native', 'm=32'], 0.0)
    """
    given = [Batch.of(batch) for batch in batches]
    asked = list(sizes)
    if not isinstance(model, Transformer):
        remedy = "Use a language model or an encoder."
        raise ConfigError("drift looks at one stack", got=type(model).__name__, remedy=remedy)
    if not given or not asked:
        got = f"{len(given)} batches and {len(asked)} sizes"
        raise ConfigError("drift needs batches and sizes", got=got, remedy="Give at least one of each.")
    was = model.training
    model.eval()
    measured = _Measured(model, given, Batch.of(timed) if timed is not None else given[0], rounds)
    found = []
    for number, wish in enumerate(asked):
        before = number * (len(given) + 1)
        found.append(measured.point(wish, before, (len(given) + 1) * len(asked), watch))
    native = measured.own_point()
    points = (native, *(replace(point, seconds=point.seconds * native.seconds) for point in found))
    model.train(was)
    return Drift(points, measured.nats, measured.shape)


def size_name(model: Any, wish: Discretisation) -> str:
    """What a size is called: the axes that are not native, as they are typed.

    >>> import continua as ct
    >>> model = ct.lift(ct.zoo.gpt2(vocab=8, d=16, heads=4, depth=2, context=8))
    >>> size_name(model, ct.at(m=32, h=2)), size_name(model, ct.at())
    ('h=2 m=32', 'native')
    """
    chosen = model.settle(wish)
    changed = {k: getattr(chosen, k).n for k in LETTERS if getattr(chosen, k).n != getattr(model.native, k).n}
    if chosen.z != model.native.z:
        changed["z"] = steps_of(model, chosen.z)
    return " ".join(f"{letter}={typed_size(n)}" for letter, n in changed.items()) or "native"


def usual_sizes(model: Any) -> list[Discretisation]:
    """Half of the feed-forward, a quarter of it, half of the heads, and both halves."""
    half = max(1, model.native.m.n // 2)
    quarter = max(1, model.native.m.n // 4)
    heads = max(1, model.native.h.n // 2)
    wishes = [at(m=half), at(m=quarter), at(h=heads), at(m=half, h=heads)]
    found = {size_name(model, wish): wish for wish in wishes}
    return [wish for name, wish in found.items() if name != "native"]


@dataclass
class _Measured:
    """The native size, held, and what is asked of every other."""

    model: Transformer
    batches: Sequence[Batch]
    timed: Batch
    rounds: int

    def __post_init__(self) -> None:
        self.native = self.model.at().held()
        self.nats = self.model.readout is not None and self.model.readout.out is not None
        self.places: Tensor | None = None
        self.native_seconds: list[float] = []
        texts, tokens = self.native.states(self.timed).final.shape[:2]
        self.shape = (int(texts), int(tokens))

    def point(self, wish: Discretisation, before: int, total: int, watch: ReportCount | None) -> DriftPoint:
        """One size; its seconds are still in units of those of the native one."""
        view = self.model.at(wish).held()
        places = self._places(wish)
        found = 0.0
        count = 0
        for done, batch in enumerate(self.batches, before + 1):
            own = self._likeness(view(batch), self.native(batch), batch, places)
            found += float(own.double().sum())
            count += own.numel()
            if watch is not None:
                watch(done, total)
        ratio = self._ratio(view)
        if watch is not None:
            watch(before + len(self.batches) + 1, total)
        name = size_name(self.model, wish)
        return DriftPoint(name, wish, found / count, self._flops(wish), weight_bytes(view), ratio)

    def own_point(self) -> DriftPoint:
        """The native size, timed beside all others."""
        seconds = statistics.median(self.native_seconds)
        exact = 0.0 if self.nats else 1.0
        return DriftPoint("native", at(), exact, self._flops(at()), weight_bytes(self.native), seconds)

    def _likeness(self, ours: Tensor, native: Tensor, batch: Batch, places: Tensor | None) -> Tensor:
        """A number for each text (cosines) or for each token (divergences)."""
        there = batch.observed
        if self.nats:
            if there is not None and ours.dim() == 3:
                ours = ours[there]
                native = native[there]
            p = log_softmax(native.float(), -1)
            return (p.exp() * (p - log_softmax(ours.float(), -1))).sum(-1)
        native = native if places is None else native[..., places]
        return cosine_similarity(pooled(ours, there), pooled(native, there), dim=-1)

    def _places(self, wish: Discretisation) -> Tensor | None:
        """Where the nodes of d lie among the native ones; None where they are the same."""
        own = self.model.structure(self.model.settle(wish)).grids.d.nodes
        native = self.model.structure(self.model.native).grids.d.nodes
        if self.nats or own.shape == native.shape:
            return None
        return torch.cdist(own.double(), native.double()).argmin(-1)

    def _flops(self, wish: Discretisation) -> int:
        return predict(self.model.at(wish), *self.shape).forward

    def _ratio(self, view: FrozenView) -> float:
        """Time over that of the native size: the median of passes in turns, after one of each that is not counted."""
        device = self.timed.values.device if isinstance(self.timed.values, Tensor) else None
        both = [lambda: self.native(self.timed), lambda: view(self.timed)]
        native, own = interleaved(both, self.rounds, device)
        self.native_seconds.extend(native)
        return statistics.median(a / b for a, b in zip(own, native, strict=True))


def weight_bytes(held: FrozenView) -> int:
    """Bytes of the weights that a view reads, each once."""
    return sum({(x.data_ptr(), x.shape): x.nbytes for x in tensors(held.reads)}.values())
