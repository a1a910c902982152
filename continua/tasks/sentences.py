"""Data without answers of their own: other sizes of a model learn to say what the native one says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cosine_similarity

from continua.axes import Discretisation
from continua.data.generation import generator_for
from continua.errors import ConfigError
from continua.models import Batch
from continua.tasks.task import Example, Score, device_of, divergence
from continua.typing import Tensor

Far = Callable[[Tensor, Tensor, Example], Tensor]  # answer, teacher, example → how far each answer is
Known = Callable[[Any, Discretisation, Tensor], Tensor]  # model, size, native answers → those that the size has too


@dataclass(frozen=True)
class _Lessons:
    """Batches to learn from and to be measured on. The native size has nothing to learn from them."""

    train: tuple[Batch, ...]
    validation: tuple[Batch, ...]
    sizes: tuple[Discretisation, ...] = ()

    def __post_init__(self) -> None:
        _require_batches(self.train, self.validation)

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        """Nothing: the native size stays as it is."""
        return answer.new_zeros(())


@dataclass(frozen=True)
class Sentences(_Lessons):
    """Texts whose embeddings are to be alike at all sizes: e = the mean of the states at the tokens that are there.

    ``train`` and ``validation`` are batches, ``sizes`` are what ``evaluate`` compares with the native one: the main
    number is the mean of 1 − cos(e, native e), beside that of each size. The native size has nothing to learn here.
    At another width d an embedding has fewer coordinates, and is compared with the native one at these.
    """

    def example(self, seed: int, step: int) -> Example:
        """One batch; all are met before one comes again."""
        batch = drawn(self.train, seed, step)
        return Example(batch, torch.zeros(_rows(batch)))

    def imitation(self, answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
        """Σ 1 − cos of the embeddings."""
        return _apart(answer, teacher, example).sum()

    def evaluate(self, model: Any) -> Score:
        """How far each size is from the native one on held-out texts."""
        return distances(model, self.validation, self.sizes, _apart, shared_coordinates)


@dataclass(frozen=True)
class Unlabelled(_Lessons):
    """Batches whose answers are to be alike at all sizes: KL(native ‖ size) of the classes, at tokens that are there.

    As in ``Sentences``, ``sizes`` are what ``evaluate`` compares with the native one, and that one learns nothing.
    """

    def example(self, seed: int, step: int) -> Example:
        """One batch; all are met before one comes again."""
        batch = drawn(self.train, seed, step)
        values = batch.values
        tokens = isinstance(values, Tensor) and values.dim() == 2
        target = values if tokens and isinstance(values, Tensor) else torch.zeros(_rows(batch))
        return Example(batch, target, batch.observed if tokens else None)

    def imitation(self, answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
        """Σ KL(teacher ‖ answer)."""
        return _diverged(answer, teacher, example).sum()

    def evaluate(self, model: Any) -> Score:
        """How far each size is from the native one on held-out data."""
        return distances(model, self.validation, self.sizes, _diverged)


def pooled(states: Tensor, observed: Tensor | None) -> Tensor:
    """The mean over the tokens that are there; what has no tokens stays."""
    if states.dim() == 2:
        return states
    if observed is None:
        return states.mean(1)
    there = observed[..., None].to(states)
    return (states * there).sum(1) / there.sum(1)


def shared_coordinates(model: Any, at: Discretisation, states: Tensor) -> Tensor:
    """Native states at the coordinates d that a size has too."""
    own = model.flows[-1].structure(at).grids.d
    native = model.flows[-1].structure().grids.d
    if own.count >= native.count:
        return states
    places = torch.cdist(own.nodes.double(), native.nodes.double()).argmin(1)
    return states.index_select(-1, places.to(states.device))


def drawn(batches: Sequence[Batch], seed: int, step: int) -> Batch:
    """The batch of a step, in an order that changes from round to round."""
    turn, place = divmod(step, len(batches))
    order = torch.randperm(len(batches), generator=generator_for("batches", seed, turn))
    return batches[int(order[place])]


@torch.no_grad()
def distances(
    model: Any, batches: Sequence[Batch], sizes: Sequence[Discretisation], far: Far, known: Known | None = None
) -> Score:
    """The mean distance of each size from the native one, and of all of them.

    ``known`` takes from native answers what a size can know of them (None: all).
    """
    if not sizes:
        raise ConfigError("sizes are what is measured", got="none", remedy="Give sizes=(at(m=768, h=6), …).")
    device = device_of(model)
    held = {str(size): model.at(size) for size in sizes}
    views = {name: view.held() for name, view in held.items()}
    found: dict[str, list[Tensor]] = {name: [] for name in views}
    for batch in batches:
        example = Example(batch, torch.zeros(_rows(batch))).to(device)
        teacher = model(example.batch)
        for name, view in views.items():
            wanted = teacher if known is None else known(model, held[name].discretisation, teacher)
            found[name].append(far(view(example.batch), wanted, example).flatten())
    each = {name: float(torch.cat(rows).mean()) for name, rows in found.items()}
    return Score({"distance": sum(each.values()) / len(each), **each})


def _apart(answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
    """1 − cos of the embeddings, [b]."""
    there = example.batch.observed
    return 1 - cosine_similarity(pooled(answer, there), pooled(teacher, there), dim=-1)


def _diverged(answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
    """KL(teacher ‖ answer) of every answer that is there."""
    found = divergence(answer, teacher)
    there = example.batch.observed
    return found if there is None or there.shape != found.shape else found[there]


def _rows(batch: Batch) -> int:
    return len(batch.values) if isinstance(batch.values, Tensor) else 1


def _require_batches(train: Sequence[Batch], validation: Sequence[Batch]) -> None:
    if not train or not validation:
        remedy = "Give more texts, or smaller batches: one of them at least is held out."
        got = f"{len(train)} to learn from, {len(validation)} held out"
        raise ConfigError("lessons need batches, and others to be measured on", got=got, remedy=remedy)
