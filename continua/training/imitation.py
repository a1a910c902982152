"""What a size of a model learns from the native one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch.nn.functional import cosine_similarity

from continua.axes import Discretisation
from continua.config import register
from continua.errors import ConfigError
from continua.settings import NonNegative
from continua.tasks import Example, Task
from continua.tasks.sentences import pooled, shared_coordinates
from continua.typing import Tensor

SAME = 1e-9  # depths that are nearer to each other are one


@dataclass(frozen=True)
class Walk:
    """An answer, and the states [b, t, d] on the way to it: at depths ``z``, from the first to the last."""

    answer: Tensor
    z: tuple[float, ...] = ()
    x: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Study:
    """One lesson: the ``example`` of its rows, what the native size answers there (``native``), and the size, ``at``.

    ``answer()`` is what the model answers at this size; whoever needs more asks ``model``. An imitation that
    ``looks_inside`` gets the states behind all steps, too: those of the native size are in ``native``, those of this
    one in ``walk()``.
    """

    model: Any
    task: Task
    example: Example
    native: Walk
    at: Discretisation
    answer: Callable[[], Tensor]
    walk: Callable[[], Walk] | None = None

    @property
    def teacher(self) -> Tensor:
        """The native answers."""
        return self.native.answer


@runtime_checkable
class Imitation(Protocol):
    """Says what a size has to learn; frozen and registered, so that a run remembers it."""

    def loss(self, study: Study) -> Tensor:
        """What the size still gets wrong: a sum over the answers that count."""
        ...


@runtime_checkable
class InnerImitation(Imitation, Protocol):
    """An imitation that may compare states between the first and the last."""

    @property
    def looks_inside(self) -> bool:
        """Whether it asks for them."""
        ...


@runtime_checkable
class Imitable(Protocol):
    """A task that knows how far answers are from those of a teacher."""

    def imitation(self, answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
        """The sum over the answers that count of how far each is from the teacher's."""
        ...


@register
@dataclass(frozen=True)
class AnswerImitation:
    """(1 − distil) loss + distil · (the task's ``imitation``, for classes KL(native ‖ size))."""

    distil: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.distil <= 1:
            raise ConfigError("distil is a share", got=self.distil, remedy="Use distil between 0 and 1.")

    def loss(self, study: Study) -> Tensor:
        """The data and the native answers, in their shares."""
        task = study.task
        if self.distil == 0:
            return task.loss(study.answer(), study.example)
        if not isinstance(task, Imitable):
            remedy = "Give the task a method imitation(answer, teacher, example), or use Elastic(distil=0)."
            raise ConfigError("this task has no way to imitate answers", got=type(task).__name__, remedy=remedy)
        answer = study.answer()
        taught = self.distil * task.imitation(answer, study.teacher, study.example)
        return taught if self.distil == 1 else (1 - self.distil) * task.loss(answer, study.example) + taught


@register
@dataclass(frozen=True)
class EmbeddingImitation:
    """Σ 1 − cos(e, native e), e being the mean of the states at the tokens that are there.

    A size of fewer coordinates d is compared with the native embedding at these.
    """

    def loss(self, study: Study) -> Tensor:
        """How far the embeddings of this size are from the native ones."""
        there = study.example.batch.observed
        teacher = shared_coordinates(study.model, study.at, study.teacher)
        return (1 - cosine_similarity(pooled(study.answer(), there), pooled(teacher, there), dim=-1)).sum()


@register
@dataclass(frozen=True)
class StateImitation:
    """Σ over texts of Σ_t |x − native x|² / Σ_t |native x|², t being its tokens, + ``means`` (1 − cos of mean states).

    Every token of a text says where it went wrong, not their mean alone. A size of fewer coordinates d is compared with
    the native states at these. Answers without tokens are compared as they are. ``inner`` times the mean of the same
    squares at the depths between, those that the steps of both sizes reach, is added: every layer hears directly what
    it got wrong (Jiao et al. 2020).
    """

    inner: NonNegative = 0.0
    means: NonNegative = 1.0

    @property
    def looks_inside(self) -> bool:
        """Whether states between are compared."""
        return self.inner > 0

    def loss(self, study: Study) -> Tensor:
        """How far the states of this size are from the native ones, and their means."""
        there = study.example.batch.observed
        wanted = shared_coordinates(study.model, study.at, study.teacher)
        walk = Walk(study.answer()) if study.walk is None or not self.looks_inside else study.walk()
        found = walk.answer
        apart = 1 - cosine_similarity(pooled(found, there), pooled(wanted, there), dim=-1)
        total = (_lost(found, wanted, there) + self.means * apart).sum()
        pairs = _at_the_same_depths(walk, study.native)
        if not pairs:
            return total
        lost = [_lost(own, shared_coordinates(study.model, study.at, other), there).sum() for own, other in pairs]
        return total + self.inner * torch.stack(lost).mean()


def _lost(found: Tensor, wanted: Tensor, there: Tensor | None) -> Tensor:
    """Σ_t |x − native x|² / Σ_t |native x|², [b]."""
    count = there[..., None].to(found) if there is not None and found.dim() == 3 else found.new_ones(())
    lost = ((found - wanted).square() * count).flatten(1).sum(1)
    return lost / (wanted.square() * count).flatten(1).sum(1)


def _at_the_same_depths(walk: Walk, native: Walk) -> list[tuple[Tensor, Tensor]]:
    """States between the first and the last of a walk, each with the native one there."""
    known = list(zip(native.z, native.x, strict=True))
    inside = list(zip(walk.z, walk.x, strict=True))[1:-1]
    return [(own, other) for z, own in inside for depth, other in known if abs(depth - z) < SAME]
